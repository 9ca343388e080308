"""Others' texts in log lines and on terminals: none begins a line of its own or moves a cursor."""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import samekey

FORGED = "no\n2026-11-16 ERROR paid twice\r\x1b[2J\x9b31m\u2028end"
ROOT = Path(samekey.__file__).parent


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log as an application keeps it: one handler at the root, one line for a record."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("LINE %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    yield text
    root.removeHandler(handler)


def lines(log: io.StringIO) -> list[str]:
    found = log.getvalue().split("\n")[:-1]
    assert all(line.isprintable() for line in found), found
    assert all(line.startswith(("LINE ", "  ")) for line in found), found
    return found


class Provider(Exception):
    """An error with somebody else's words."""


def test_no_text_of_others_begins_a_line(log: io.StringIO) -> None:
    logger = logging.getLogger("samekey")
    logger.error("The job failed: %s (%r), %d times", FORGED, Provider(FORGED), 3)
    logger.error("The job failed: %(why)s", {"why": FORGED})
    logger.error(f"The job failed: {FORGED}")
    escaped = r"no\n2026-11-16 ERROR paid twice\r\x1b[2J\x9b31m\u2028end"
    first, second, third = lines(log)
    assert first.startswith(f"LINE ERROR The job failed: {escaped} (")
    assert first.endswith(", 3 times")
    assert second == third == f"LINE ERROR The job failed: {escaped}"


def test_no_text_of_an_error_passes_for_a_record(log: io.StringIO) -> None:
    error = RuntimeError("the job failed")
    error.__cause__ = Provider(FORGED)
    logging.getLogger("samekey").error("It raised", exc_info=error)
    found = lines(log)
    assert found[0] == "LINE ERROR It raised"
    assert "  2026-11-16 ERROR paid twice" in found
    assert found[-1] == "  RuntimeError: the job failed"


def test_what_a_record_is_about_is_escaped_too() -> None:
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[assignment,method-assign]
    logger = logging.getLogger("samekey")
    logger.addHandler(handler)
    logger.error("It failed", extra={"samekey_endpoint": f"POST /{FORGED}", "samekey_attempt": 2})
    logger.removeHandler(handler)
    assert vars(heard[0])["samekey_endpoint"].isprintable()
    assert vars(heard[0])["samekey_attempt"] == 2


def test_a_traceback_of_nobody_elses_words_is_as_ever(log: io.StringIO) -> None:
    logging.getLogger("samekey").error("It raised", exc_info=RuntimeError("plain words"))
    assert log.getvalue() == "LINE ERROR It raised\nRuntimeError: plain words\n"


def test_every_logger_is_the_one_that_escapes() -> None:
    """A filter of a logger hears its own records only."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger"):
                assert [ast.unparse(one) for one in node.args] == ["'samekey'"], path


def test_one_module_of_the_commands_writes_to_the_terminal() -> None:
    for path in (ROOT / "cli").glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        names = {ast.unparse(call.func) for call in calls}
        # Without typer there is nothing else to say it with.
        assert path.name in ("speech.py", "__init__.py") or not names & {
            "typer.echo",
            "print",
            "typer.secho",
        }, path

"""``samekey ledger`` and the scheduled comparison: files, declared ledgers, exit codes, events."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import re
import shlex
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from samekey import Idempotency
from samekey.cli.coverage import coverage_command
from samekey.cli.ledger import ledger_app
from samekey.cli.spec import spec_command
from samekey.core.ledger import CannotCompare, Comparison, Entry, Ledgers
from samekey.engine.events import Event
from samekey.workers.ledger import LedgerCheck

DOCS = Path(__file__).parent.parent.parent / "docs"

commands = typer.Typer()
commands.command("coverage")(coverage_command)
commands.command("spec")(spec_command)
commands.add_typer(ledger_app, name="ledger")

Run = Callable[..., Any]


def run(*arguments: str, **environment: str) -> Any:
    """One call of the command line, as a script would make it."""
    result = CliRunner().invoke(commands, list(arguments), env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def check_page(page: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs a page's commands in order and holds what they print against what the page shows.

    A block under a line such as "`name`:" is a file of that name.
    """
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    checked, pending = 0, None
    blocks = re.compile(r"(?:^`([\w.]+)`:\n\n)?^(```+)(\w*)\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
    for name, _, language, code in blocks.findall((DOCS / page).read_text()):
        if name:
            (directory / name).write_text(code)
        elif language == "sh":
            pending = run(*shlex.split(code, comments=True)[1:])
        elif not language and pending is not None:
            assert pending.output == code, page
            checked, pending = checked + 1, None
    return checked


# ------------------------------------------------------------------ two files


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], tuple[str, str]]:
    def write(ours: str, theirs: str) -> tuple[str, str]:
        for name, text in (("ours.csv", ours), ("theirs.csv", theirs)):
            (tmp_path / name).write_text(textwrap.dedent(text), encoding="utf-8")
        return "ours.csv", "theirs.csv"

    monkeypatch.chdir(tmp_path)
    return write


Files = Callable[[str, str], tuple[str, str]]

OURS = """\
    id,amount,currency,status
    ch_1,12.50,EUR,paid
    ch_2,3.00,EUR,paid
    ch_3,7.00,EUR,paid
    """
THEIRS = """\
    id,currency,amount,status,at
    ch_3,eur,7.01,paid,2026-01-05T10:00:00Z
    ch_1,eur,12.5,paid,
    ch_4,eur,1,paid,
    """


def test_equal_files(files: Files) -> None:
    result = run("ledger", "compare", *files(OURS, OURS))
    assert (result.exit_code, result.stdout) == (0, "The ledgers agree: 3 entries on both sides.\n")


def test_different_files(files: Files) -> None:
    result = run("ledger", "compare", *files(OURS, THEIRS))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert re.split("  +", lines[0]) == [
        *("difference", "id", "side", "amount", "currency", "status", "reference", "differs in")
    ]
    assert [line.split()[:4] for line in lines[1:5]] == [
        ["missing", "ch_4", "theirs", "1"],
        ["extra", "ch_2", "ours", "3.00"],
        ["different", "ch_3", "ours", "7.00"],
        ["different", "ch_3", "theirs", "7.01"],
    ]
    assert lines[-1].startswith("The ledgers differ in 3 entries: 1 missing, 1 extra, 1 different")


def test_json_csv_and_files(files: Files, tmp_path: Path) -> None:
    paths = files(OURS, THEIRS)
    result = run("ledger", "compare", *paths, "--json")
    assert (result.exit_code, json.loads(result.stdout)["differences"]) == (1, 3)
    result = run("ledger", "compare", *paths, SAMEKEY_CSV="1")
    assert (result.exit_code, len(list(csv.reader(io.StringIO(result.stdout))))) == (1, 5)
    for name, options in (("report.csv", []), ("report.json", []), ("report.txt", ["--csv"])):
        result = run("ledger", "compare", *paths, "--output", name, *options)
        assert result.exit_code == 1 and result.stdout.startswith("The ledgers differ in 3 entries")
        text = (tmp_path / name).read_bytes().decode()
        assert text.startswith("{" if name.endswith("json") else "difference,id,side")
        assert name.endswith("json") or text.count("\r\n") == text.count("\n") == 5
    both = run("ledger", "compare", *paths, "--json", "--csv")
    assert (both.exit_code, both.stderr) == (2, "samekey: Choose one of --json and --csv.\n")
    nowhere = run("ledger", "compare", *paths, "--output", "no/such/place.json")
    assert nowhere.exit_code == 2 and "could not be written" in nowhere.stderr


def test_long_reports_are_cut_in_the_terminal_only(files: Files) -> None:
    many = "id,amount_minor,currency\n" + "".join(f"ch_{n},5,EUR\n" for n in range(60))
    paths = files(many, "id,amount_minor,currency\n")
    shown = run("ledger", "compare", *paths, SAMEKEY_LIMIT="10").stdout
    assert shown.count("\nextra ") == 10 and "and 50 more lines" in shown
    assert len(json.loads(run("ledger", "compare", *paths, "--json").stdout)["extra"]) == 60


def test_fields_and_sorted_files(files: Files) -> None:
    paths = files(OURS, "id,amount,currency\nch_1,12.50,EUR\nch_2,3.00,EUR\nch_3,7.00,EUR\n")
    assert run("ledger", "compare", *paths).exit_code == 1
    assert run("ledger", "compare", *paths, "--fields", "amount, currency").exit_code == 0
    assert run("ledger", "compare", *paths, "--sorted", SAMEKEY_FIELDS="amount").exit_code == 0
    wrong = run("ledger", "compare", *paths, "--fields", "colour")
    assert wrong.exit_code == 2 and "There is no field 'colour'" in wrong.stderr
    unsorted = run("ledger", "compare", *files(OURS, THEIRS), "--sorted")
    assert unsorted.exit_code == 2 and "'ch_1' comes after 'ch_3'" in unsorted.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "ours.csv is empty; its first line must name the columns."),
        ("id,currency\n", "ours.csv, line 1: there must be one of the columns amount (12.50)"),
        ("id,currency,amount,amount_minor\n", "there must be one of the columns"),
        ("id,amount\n", "ours.csv, line 1: there is no column currency; there are id, amount."),
        ("id,id,amount,currency\n", "ours.csv, line 1: the column id stands there twice."),
        ("id;amount;currency\n", "there is no column id; there are id;amount;currency."),
        ("id,amount,currency\na,1,EUR\nb,1\n", "ours.csv, line 3: there are 2 cells, but 3 columns."),
        ("id,amount,currency\na,1,EUR\n\nb,1.x,EUR\n", "ours.csv, line 4: the amount '1.x' is not a number"),
        ("id,amount,currency\na,1e5,EUR\n", "line 2: the amount '1e5' is not a number such as 12.50."),
        ("id,amount,currency\na,NaN,EUR\n", "line 2: the amount 'NaN' is not a number"),
        ('id,amount,currency\na,"1,50",EUR\n', "line 2: the amount '1,50' is not a number"),
        ("id,amount_minor,currency\na,1.5,EUR\n", "line 2: the amount '1.5' is not whole minor units"),
        (f"id,amount,currency\na,{'9' * 5000},EUR\n", "is not a number"),
        (
            f"id,amount,currency\na,{'9' * 50},EUR\n",
            "line 2: The amount of entry 'a' has more than 40 digits",
        ),
        ("id,amount,currency\n,1,EUR\n", "line 2: An entry has no id"),
        ("id,amount,currency\na,1,\n", "line 2: Entry 'a' has no currency."),
        ("id,amount,currency,at\na,1,EUR,yesterday\n", "line 2: 'yesterday' is no ISO 8601 time."),
        ('id,amount,currency\na,1,"EUR\n', "ours.csv, line 2: "),
        ("id,amount_minor,currency\nch_1,1250,EUR\n", "100 cents are not 100 euros"),
    ],
)
def test_malformed_files_are_named_by_line(files: Files, text: str, sentence: str) -> None:
    files("", THEIRS)
    Path("ours.csv").write_text(text)
    result = run("ledger", "compare", "ours.csv", "theirs.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr and result.stderr.startswith("samekey: "), result.stderr


def test_files_that_cannot_be_read(files: Files) -> None:
    files(OURS, THEIRS)
    missing = run("ledger", "compare", "nothing.csv", "theirs.csv")
    assert missing.exit_code == 2 and "nothing.csv could not be read: No such file" in missing.stderr
    Path("ours.csv").write_bytes(b"id,amount,currency\n\xff,1,EUR\n")
    assert "ours.csv is not UTF-8" in run("ledger", "compare", "ours.csv", "theirs.csv").stderr
    Path("ours.csv").write_bytes("\ufeffid,amount,currency\na,1,EUR\n".encode())
    assert run("ledger", "compare", "ours.csv", "ours.csv").exit_code == 0


def test_a_hostile_file_cannot_steer_the_terminal(files: Files) -> None:
    paths = files("id,amount,currency\n", "id,amount,currency,status\n\x1b[2Jx,1,EUR,[red]y\n")
    shown = run("ledger", "compare", *paths).stdout
    assert "\x1b" not in shown and r"\x1b[2Jx" in shown and "[red]y" in shown


# ------------------------------------------------------------------ the scheduled comparison

OUR_ENTRIES = [Entry("a", 1, "EUR"), Entry("b", 2, "EUR")]


@pytest.fixture
def idempotency(sqlite_url: str) -> Iterator[Idempotency]:
    made = Idempotency(sqlite_url)
    yield made
    made.close()


def ours() -> list[Entry]:
    return OUR_ENTRIES


async def ours_async() -> list[Entry]:
    return OUR_ENTRIES


def ours_lazy() -> Iterator[Entry]:
    assert threading.current_thread() is not threading.main_thread(), "sync code must not hold up the loop"
    yield from OUR_ENTRIES


async def ours_streamed() -> AsyncIterator[Entry]:
    for one in OUR_ENTRIES:
        yield one


@pytest.mark.parametrize("source", [ours, ours_async, ours_lazy, ours_streamed])
def test_a_check_tells_what_it_found(
    idempotency: Idempotency, source: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    idempotency.events.subscribe(events.append)
    reported: list[Comparison] = []
    with caplog.at_level(logging.INFO, "samekey"):
        same = LedgerCheck(idempotency.engine, source, ours, report=reported.append, name="cards")
        other = LedgerCheck(idempotency.engine, source, lambda: [], report=reported.append, name="cards")
        found = [asyncio.run(same.run_once()), asyncio.run(other.run_once())]
    assert found == reported
    assert [(event.name, event.value, event.facts) for event in events] == [
        ("ledger.difference", 0, {"ledger": "cards"}),
        ("ledger.difference", 2, {"ledger": "cards"}),
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert "cards: The ledgers differ in 2 entries" in caplog.text


def test_the_report_may_be_async_and_may_fail_without_hiding_anything(
    idempotency: Idempotency, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    idempotency.events.subscribe(events.append)
    told: list[Comparison] = []

    async def report(comparison: Comparison) -> None:
        told.append(comparison)
        raise OSError("no mail today")

    with pytest.raises(OSError, match="no mail today"):
        asyncio.run(LedgerCheck(idempotency.engine, ours, lambda: [], report=report).run_once())
    assert (len(told), [event.value for event in events]) == (1, [2])
    assert "differ in 2" in caplog.text


def test_a_side_that_fails_or_hangs_says_nothing_about_the_ledgers(idempotency: Idempotency) -> None:
    events: list[Event] = []
    idempotency.events.subscribe(events.append)

    def broken() -> list[Entry]:
        raise ConnectionError("the provider is down")

    async def hanging() -> list[Entry]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(ConnectionError, match="the provider is down"):
        asyncio.run(LedgerCheck(idempotency.engine, hanging, broken).run_once())
    check = LedgerCheck(idempotency.engine, ours, hanging, timeout=timedelta(milliseconds=50))
    with pytest.raises(TimeoutError):
        asyncio.run(check.run_once())
    with pytest.raises(CannotCompare, match="not an Entry"):
        asyncio.run(LedgerCheck(idempotency.engine, ours, lambda: ["a"]).run_once())
    assert events == []


# ------------------------------------------------------------------ declared ledgers

SHOP = """
from samekey import Idempotency
from samekey.core.ledger import Entry, Ledgers

idempotency = Idempotency("sqlite:///:memory:")
seen = []
idempotency.engine.ledgers = [
    Ledgers(lambda: [Entry("a", 1, "EUR")], lambda: [Entry("a", {amount}, "EUR")], name="cards"),
    Ledgers(lambda: [], lambda: {other}, name="payouts", report=seen.append),
]
empty = Idempotency("sqlite:///:memory:")
number = 7
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, amount: int = 1, other: str = "[]") -> str:
        (tmp_path / f"{name}.py").write_text(SHOP.format(amount=amount, other=other))
        return f"{name}:idempotency"

    return write


def test_declared_ledgers_that_agree(shop: Callable[..., str]) -> None:
    result = run("ledger", "run", shop("ledgers_equal"))
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [
            "cards: The ledgers agree: 1 entry on both sides.",
            "payouts: The ledgers agree: 0 entries on both sides.",
        ],
    )


def test_declared_ledgers_that_differ(shop: Callable[..., str]) -> None:
    target = shop("ledgers_differ", amount=2)
    result = run("ledger", "run", SAMEKEY_APP=target)
    assert result.exit_code == 1 and "cards: The ledgers differ in 1 entry" in result.stdout
    result = run("ledger", "run", target, "--name", "cards", "--json")
    assert (result.exit_code, json.loads(result.stdout)["differences"]) == (1, 1)
    several = run("ledger", "run", target, "--json")
    assert several.exit_code == 2 and "(cards, payouts); choose one with --name" in several.stderr
    assert run("ledger", "run", target, SAMEKEY_LEDGER="payouts").exit_code == 0


@pytest.mark.parametrize(
    ("suffix", "options", "sentence"),
    [
        ("", ["--name", "shares"], "declares no comparison of ledgers named 'shares'."),
        (":empty", [], "declares no comparison of ledgers."),
        (":number", [], "is not an Idempotency"),
        (":nothing", [], "is not an Idempotency"),
    ],
)
def test_declared_ledgers_that_are_not_there(
    shop: Callable[..., str], suffix: str, options: list[str], sentence: str
) -> None:
    target = shop("ledgers_none")
    if suffix:
        target = target.partition(":")[0] + suffix
    result = run("ledger", "run", target, *options)
    assert result.exit_code == 2 and sentence in result.stderr


def test_a_declared_side_that_fails(shop: Callable[..., str]) -> None:
    result = run("ledger", "run", shop("ledgers_broken", other="1 / 0"))
    assert result.exit_code == 2
    assert "samekey: payouts could not be compared: ZeroDivisionError: division by zero" in result.stderr


def test_a_check_of_a_declared_pair(idempotency: Idempotency) -> None:
    check = LedgerCheck.of(idempotency.engine, Ledgers(ours, lambda: OUR_ENTRIES[:1], fields=("amount",)))
    assert asyncio.run(check.run_once()).extra == (OUR_ENTRIES[1],)


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_page("ledger.md", tmp_path, monkeypatch) >= 2

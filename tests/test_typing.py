"""What type checkers say about users' code: right options pass, a misspelt one is an error in the editor."""

from __future__ import annotations

import dataclasses
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab import ROOT
from samekey import Idempotency
from samekey.core.policy import Policy
from samekey.core.settings import HandlerSettings, Settings
from samekey.engine.handler.rules import _AT_THE_EDGE
from tests.chosen import whole

RIGHT = """\
from datetime import timedelta

from samekey import Idempotency, ietf, stripe, stripe_v2

idempotency = Idempotency("sqlite:///:memory:", policy=ietf(ttl=timedelta(days=7), max_body=100))


@idempotency.atomic
async def bare() -> dict[str, int]:
    return {}


@idempotency.atomic(on_4xx="commit", strict=True, ttl=3600)
def atomic(a: int) -> str:
    return ""


@idempotency.leased(lease=3, on_error="retry", repeatable=True)
async def leased(a: int, b: str) -> str:
    return ""


@idempotency.deferred(max_answer=5)
def deferred() -> None: ...


@idempotency.phased("ride", version=2, lease=3)
def phased(op: object, body: dict[str, int]) -> dict[str, int]:
    return body


@idempotency.once_per(tenant=lambda a: "t", key=lambda a: "k", ttl=4000)
def called(a: int) -> int:
    return a


idempotency.once(tenant="t", key="k", run=lambda: 1, lease=5)
atomic(1).upper()
called(1).bit_length()
"""

WRONG = {
    "atomic": "idempotency.atomic(on_4x='commit')",
    "leased": "idempotency.leased(leese=3)",
    "deferred": "idempotency.deferred(conection=None)",
    "phased": "idempotency.phased('ride', leese=3)",
    "once": "idempotency.once(tenant='t', key='k', run=lambda: 1, tll=3)",
    "once_per": "idempotency.once_per(tenant=lambda: 't', key=lambda: 'k', tll=3)",
    "job": "idempotency.job('charge', max_atempts=3)",
    "lookup": "idempotency.lookup(end_point='POST /x')",
    "ietf": "ietf(tll=3)",
    "stripe": "stripe(tll=3)",
    "stripe_v2": "stripe_v2(tll=3)",
    "a value": "idempotency.leased(on_error='maybe')",
    "a mode's option": "idempotency.atomic(on_error='retry')",
    "an argument": "atomic('one')",
}


def _errors(checker: str, path: Path) -> tuple[int, str]:
    """The exit code, and what was said."""
    if checker == "mypy":
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file=",
            "--cache-dir",
            str(path.parent),
        ]
    else:
        found = shutil.which("pyright", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
        if found is None:
            pytest.skip("pyright is not installed")
        command = [found, "--pythonpath", sys.executable]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src"), "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, env=environment, check=False, cwd=path.parent
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize("checker", ["mypy", pytest.param("pyright", marks=whole)])
def test_every_misspelt_option_is_an_error(checker: str, tmp_path: Path) -> None:
    page = tmp_path / "right.py"
    page.write_text(RIGHT)
    code, said = _errors(checker, page)
    assert code == 0, said
    wrong = tmp_path / "wrong.py"
    wrong.write_text(RIGHT + "\n" + "\n".join(WRONG.values()) + "\n")
    code, said = _errors(checker, wrong)
    assert code == 1
    first = RIGHT.count("\n") + 2
    for number, (name, line) in enumerate(WRONG.items(), first):
        assert f"wrong.py:{number}:" in said, f"{checker} lets {name} pass: {line}\n{said}"


def test_the_typed_settings_are_those_of_the_policy() -> None:
    assert Settings.__annotations__.keys() == {field.name for field in dataclasses.fields(Policy)}
    assert HandlerSettings.__annotations__.keys() == Settings.__annotations__.keys() - _AT_THE_EDGE


def test_the_front_door_is_small() -> None:
    """What users meet when they type a dot. The rest is the engine's, behind one name."""
    idempotency = Idempotency("sqlite:///:memory:")
    shown = [name for name in dir(idempotency) if not name.startswith("_")]
    idempotency.close()
    assert len(shown) <= 22, shown
    for name in shown:
        documented = inspect.getdoc(getattr(type(idempotency), name, None)) or name in {"engine", "events"}
        assert documented, name

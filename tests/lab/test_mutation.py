"""The mutants: what is changed, what is left alone, and which test is seen to guard a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab import ROOT, environment
from lab.mutation.changes import mutants_of
from tests.chosen import whole

SOURCE = '''"""A docstring."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    wanted = 1 < 2
__all__ = ["judge"]


def judge(age: int, log: object, held: dict[str, int], *, kept: bool = False) -> int | None:
    """Not changed: 1 < 2."""
    if age >= 3 and not kept:
        log.warning("not %s", 1)
        raise ValueError(f"too old: {1 + 1}")
    held["ü"] = age
    held.clear()
    while held:
        held.popitem()
    return 7
'''


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        (8, "truth turned", "True"),
        (10, "comparison turned", "(age > 3)"),
        (10, "and for or", "(age >= 3 or not kept)"),
        (10, "not left out", "(kept)"),
        (10, "number changed", "4"),
        (12, "error not raised", "pass"),
        (13, "assignment left out", "pass"),
        (14, "statement left out", "pass"),
        (15, "condition turned", "(not held)"),
        (16, "statement left out", "pass"),
        (17, "nothing returned", "return None"),
        (17, "number changed", "8"),
    ],
)
def test_each_kind_of_change(tmp_path: Path, line: int, kind: str, text: str) -> None:
    (tmp_path / "judge.py").write_text(SOURCE)
    found = [one for one in mutants_of(tmp_path, "judge.py") if (one.line, one.kind) == (line, kind)]
    assert [one.text for one in found] == [text]
    changed = found[0].apply(SOURCE)
    compile(changed, "judge.py", "exec")
    differing = [
        n
        for n, pair in enumerate(zip(SOURCE.splitlines(), changed.splitlines(), strict=True), 1)
        if pair[0] != pair[1]
    ]
    assert differing == [line]


def test_what_is_said_and_what_only_a_type_checker_reads_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(SOURCE)
    assert {one.line for one in mutants_of(tmp_path, "judge.py")} == {8, 10, 12, 13, 14, 15, 16, 17}


GUARDED = "tests/core/test_backoff.py::test_each_pause_may_be_twice_as_long_up_to_the_longest"
JUDGE = """
import sys
from lab.mutation import judge
from lab.mutation.changes import mutants_of
from lab.mutation.reach import Reach
from lab import ROOT
file = "samekey/core/backoff.py"
test = sys.argv[1]
judge.warm_up()
with judge.copied() as source:
    before = (source / file).read_text()
    for mutant in mutants_of(ROOT / "src", file):
        reach = Reach({test: 0.1}, {file: {line: [test] for line in range(1, 100)}})
        if mutant.kind == "nothing returned":
            print(judge.judge(mutant, reach, source).verdict)
    assert (source / file).read_text() == before
"""


@whole
@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        (f"{GUARDED}[2-2000]", "killed"),
        ("tests/core/test_backoff.py::test_the_defaults", "survived"),
    ],
)
def test_a_mutant_is_noticed_by_a_test_that_guards_its_line(test: str, verdict: str) -> None:
    command = [sys.executable, "-c", JUDGE, test]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == [verdict]

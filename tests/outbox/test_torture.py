"""The torture command: its oracle finds what is wrong, and its runs find nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.provider import Charge
from lab.processes import GuardedProcess, wait_until
from lab.torture.outbox.run import Books, CouldNotRun, Plan, Progress, Verdict, judge, torture_outbox
from lab.torture.outbox.shop import receipt
from tests.chosen import whole

pytestmark = whole


# ------------------------------------------------------------------ the oracle


def charge(order: int, number: int | None = None) -> Charge:
    return Charge(f"ch_{order if number is None else number}", "key", str(order), order)


def books(*charges: Charge, **changes: Any) -> Books:
    paid = {int(c.reference): 1 for c in charges}
    operations: dict[int, tuple[str, str | None, bytes | None]] = {
        int(c.reference): ("completed", c.id, receipt(c).answer().body) for c in charges
    }
    return Books(paid | changes.get("paid", {}), operations | changes.get("operations", {}))


def judged(accepted: list[int], ledger: list[Charge], found: Books) -> dict[str, int]:
    verdict = Verdict(store="none", jobs=len(accepted), workers=1, seed=0, accepted=len(accepted))
    judge(verdict, accepted, ledger, found)
    assert verdict.held is (not verdict.violations)
    assert bool(verdict.examples) is bool(verdict.violations)
    return verdict.violations


ONE, TWO = charge(1), charge(2)


def test_the_oracle_is_content_when_all_is_well() -> None:
    assert judged([1, 2], [ONE, TWO], books(ONE, TWO)) == {}
    assert judged([], [], books()) == {}


@pytest.mark.parametrize(
    ("accepted", "ledger", "found", "violations"),
    [
        ([1, 2], [ONE], books(ONE, TWO), {"lost": 1, "incomplete": 1}),
        ([1, 2], [ONE, TWO, charge(1, 3)], books(ONE, TWO), {"twice": 1}),
        ([1], [ONE, TWO], books(ONE), {"strange": 1}),
        ([1, 2], [ONE, TWO], books(ONE), {"unpaid": 1, "incomplete": 1}),
        ([1], [ONE], books(ONE, paid={1: 2}), {"unpaid": 1}),
        ([1], [ONE], books(ONE, operations={1: ("pending", None, None)}), {"incomplete": 1}),
        ([1], [ONE], books(ONE, operations={1: ("dead_letter", "ch_1", None)}), {"incomplete": 1}),
        ([1], [ONE], books(ONE, operations={1: ("completed", "ch_9", b"{}")}), {"incomplete": 1}),
        ([1], [ONE], books(ONE, operations={1: ("completed", "ch_1", b"{}")}), {"incomplete": 1}),
    ],
)
def test_the_oracle_finds(
    accepted: list[int], ledger: list[Charge], found: Books, violations: dict[str, int]
) -> None:
    assert judged(accepted, ledger, found) == violations


def test_what_was_not_even_accepted_is_a_violation() -> None:
    assert Verdict(store="none", jobs=3, workers=1, seed=0, accepted=2).violations == {"unaccepted": 1}


@pytest.mark.parametrize("name", ["live", "dead", "wrong_answers"])
def test_every_figure_counts(name: str) -> None:
    verdict = Verdict(store="none", jobs=0, workers=1, seed=0)
    assert verdict.held
    setattr(verdict, name, 1)
    assert not verdict.held


# ------------------------------------------------------------------ real runs


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lab.torture", "outbox", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )


def test_postgres_holds(postgres_url: str) -> None:
    # Slow answers: a worker that is killed has jobs in its hands, however long the others take to start.
    ran = run_command("--url", postgres_url, "--jobs", "600", "--workers", "3", "--latency", "0.3", "--json")
    found = json.loads(ran.stdout)
    assert (ran.returncode, found["held"], found["violations"]) == (0, True, {}), ran.stdout + ran.stderr
    assert (found["store"], found["charges"], found["accepted"]) == ("postgres", 600, 600)
    assert found["kills"] >= 2
    assert found["attempts"] > 600
    with psycopg.connect(postgres_url) as connection:
        left = connection.execute("select nspname from pg_namespace where nspname like 'samekey%'").fetchall()
    assert left == [], "it leaves nothing behind"


def test_sqlite_holds_and_the_figures_come_last() -> None:
    ran = run_command(SAMEKEY_TORTURE_JOBS="200", SAMEKEY_TORTURE_WORKERS="2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    *_, twice, lost, unfinished, answers, last = ran.stdout.splitlines()
    assert last == "held: every order was charged exactly once"
    assert twice.split()[:2] == ["twice", "0"]
    assert lost.split()[:2] == ["lost", "0"]
    assert unfinished.endswith("0 jobs still to do, 0 dead letters")
    assert answers.split()[:2] == ["answers", "0"]


def test_it_can_fail() -> None:
    """With a provider that forgets its keys the promise cannot be kept, and the verdict says so."""
    # Answers that come late: whoever is killed then has charged and does not know.
    ran = run_command("--jobs", "60", "--workers", "2", "--latency", "0.3", "--no-deduplication")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("VIOLATED: ")
    assert "twice" in ran.stdout.splitlines()[-1]
    assert re.search(r"was charged \d+ times", ran.stdout)


def test_it_fails_without_downstream_keys_too_and_tells_how_far_it_is() -> None:
    told: list[Progress] = []
    plan = Plan(jobs=60, workers=2, latency=0.3, downstream_keys=False)
    verdict = asyncio.run(torture_outbox(plan, told.append))
    assert verdict.twice > 0
    assert verdict.violations.keys() == {"twice"}
    assert [progress.done for progress in told] == sorted(progress.done for progress in told)
    assert told[-1].done == 60


def test_time_that_is_up_is_no_verdict_in_its_favour() -> None:
    verdict = asyncio.run(torture_outbox(Plan(jobs=100_000, workers=1, kill_every=0, seconds=1.5)))
    assert not verdict.held
    assert "unaccepted" in verdict.violations


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://nobody@127.0.0.1:9/nowhere", "cannot be reached"),
        ("mongodb://nowhere", "does not know the store"),
    ],
)
def test_no_verdict_is_neither(url: str, sentence: str) -> None:
    ran = run_command("--url", url, "--jobs", "1")
    assert ran.returncode == 2
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious.db"
    path.write_bytes(b"precious")
    with pytest.raises(CouldNotRun, match="is there already"):
        asyncio.run(torture_outbox(Plan(url=f"sqlite:///{path}", jobs=1)))
    assert path.read_bytes() == b"precious"


def test_a_bar_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm", "SAMEKEY_TORTURE_KILL_EVERY": "0"}
    process = GuardedProcess(
        [sys.executable, "-m", "lab.torture", "outbox", "--jobs", "5", "--workers", "1"],
        log=tmp_path / "log",
        env=environment,
    )
    wait_until(lambda: not process.running)
    assert process.returncode == 0, process.output()
    assert "5/5" in process.output()
    assert process.output().rstrip().endswith("held: every order was charged exactly once")

"""The worker as a process: killed, paused, blocked, stopped; and many of them at once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.provider import Fault, Provider
from lab.processes import GuardedProcess, Turn, race, wait_until
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.stores.sql.jobs import Jobs
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import queries_for
from samekey.workers.watchdog import STUCK
from tests.chosen import whole, without
from tests.outbox.workers import ROOT, Workers
from tests.outbox.world import Outbox, order
from tests.taking import begin

pytestmark = whole


@pytest.fixture
def workers(outbox: Outbox, tmp_path: Path) -> Iterator[Workers]:
    with Workers(outbox, tmp_path) as found:
        yield found


@pytest.fixture
def charging(outbox: Outbox, tmp_path: Path, provider: Provider) -> Iterator[Workers]:
    with Workers(outbox, tmp_path, provider) as found:
        yield found


# ------------------------------------------------------------------ poison


@without(outbox="mariadb")
def test_a_job_that_kills_its_process_takes_nobody_with_it(workers: Workers, outbox: Outbox) -> None:
    """Taken in one batch, its neighbours die with it twice; then each runs alone."""
    poison = {"sqlite": "exit", "postgres": "kill", "mysql": "kill"}[outbox.dialect]
    outbox.place(poison)
    for number in range(3):
        outbox.place("innocent", number)
    outbox.ask("update {jobs} set due_at = created_at where name = 'innocent'")
    replaced = workers.supervise(workers.settled, lease=0.5)
    by_name = {job.name: job for job in outbox.jobs()}
    assert by_name[poison].state == "dead"
    assert by_name[poison].error == "The worker died 4 times while running it."
    innocents = [job for job in outbox.jobs() if job.name == "innocent"]
    assert [job.state for job in innocents] == ["done"] * 3
    assert all(job.attempts <= 3 for job in innocents)
    assert replaced == 4
    assert sorted(state for state, _ in outbox.states()) == ["completed"] * 3 + ["dead_letter"]


@without(outbox="mariadb")
def test_a_job_that_blocks_the_event_loop_ends_as_a_dead_letter(workers: Workers, outbox: Outbox) -> None:
    outbox.place("block")
    replaced = workers.supervise(workers.settled, lease=0.5)
    assert replaced == 2
    assert [process.returncode for process in workers.processes[:2]] == [STUCK, STUCK]
    assert "blocked this worker's event loop" in workers.output()
    assert outbox.job().state == "dead"


# ------------------------------------------------------------------ killed and paused


def test_a_worker_killed_after_the_provider_answered(
    charging: Workers, outbox: Outbox, provider: Provider
) -> None:
    """One effect at the provider, because the key is the same; and the job finishes."""
    outbox.place("charge_and_stop", "order-1", key="k")
    first = charging.start()
    charging.marked("charged-1")
    assert len(provider.charges()) == 1
    first.kill9()
    assert outbox.job().state == "live"
    charging.let("go-on-2")
    charging.supervise(charging.settled)
    (charge,) = provider.charges()
    assert provider.figures()["replays"] == 1
    row = outbox.job()
    assert (row.state, row.attempts, row.provider_id) == ("done", 2, charge.id)
    final = outbox.client("async").send(order("k"))
    assert (final.status, final.json()) == (201, {"charge": charge.id})


def _pause(worker: GuardedProcess, url: str) -> None:
    """Stops it, but not while it renews its lease: on SQLite it would keep the one write lock of the file."""
    for _ in range(100):
        worker.send(signal.SIGSTOP)
        if not url.startswith("sqlite") or _is_free(url.removeprefix("sqlite:///")):
            return
        worker.send(signal.SIGCONT)
        time.sleep(0.02)
    pytest.fail("The worker was never found outside of a transaction.")


def _is_free(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=0.2, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        connection.execute("rollback")
        return True


@without(outbox="mariadb")
def test_a_worker_paused_past_its_lease_cannot_finish_what_another_has_taken(
    charging: Workers, outbox: Outbox, provider: Provider
) -> None:
    outbox.place("charge_and_stop", "order-1")
    former = charging.start(lease=0.5)
    charging.marked("charged-1")
    _pause(former, outbox.url)
    charging.start(lease=0.5)
    charging.marked("charged-2")  # its lease had run out, and the other one has the job now
    charging.let("go-on-1")
    former.send(signal.SIGCONT)
    wait_until(lambda: "Another worker has taken the job" in former.output())
    assert former.running
    _pause(former, outbox.url)  # it would take the job again if this machine kept the other from renewing it
    row = outbox.job()
    assert (row.state, row.attempts, row.error) == ("live", 2, None)
    charging.let("go-on-2")
    wait_until(charging.settled)
    former.send(signal.SIGCONT)
    assert outbox.job().state == "done"
    assert len(provider.charges()) == 1


@without(outbox="mariadb")
def test_whatever_the_provider_does_the_charge_is_one(
    charging: Workers, outbox: Outbox, provider: Provider
) -> None:
    faults: tuple[Fault, ...] = ("charge_then_drop", "error_after", "error_before", "limit", "malformed")
    for fault in faults:
        provider.fail(fault, times=2, reference=fault)
        outbox.place("charge", fault, key=fault)
    charging.supervise(charging.settled)
    charges = {charge.reference: charge.id for charge in provider.charges()}
    assert len(provider.charges()) == len(charges) == len(faults)
    assert [job.attempts for job in outbox.jobs()] == [3] * len(faults)
    for fault in faults:
        assert outbox.client("async").send(order(fault)).json() == {"charge": charges[fault]}


# ------------------------------------------------------------------ SIGTERM


@without(outbox="mariadb")
def test_sigterm_lets_jobs_finish_and_takes_no_more(workers: Workers, outbox: Outbox) -> None:
    outbox.place("sleep", 0.5)
    worker = workers.start(concurrency=5, lease=30)
    workers.marked("sleeping-1")
    worker.send(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert "The worker has stopped." in worker.output()
    assert outbox.job().state == "done"


@without(outbox="mariadb")
def test_sigterm_gives_back_what_does_not_finish(workers: Workers, outbox: Outbox) -> None:
    outbox.place("sleep", 25, key="long")
    worker = workers.start(concurrency=1, grace=0, lease=30)
    workers.marked("sleeping-1")
    outbox.place("sleep")  # there is no room for it, and after the signal nobody takes it
    worker.send(signal.SIGTERM)
    assert worker.wait(20) == 0
    rows = [(job.state, job.attempts, job.attempt) for job in outbox.jobs()]
    assert rows == [("live", 0, None)] * 2


@pytest.mark.parametrize("name", ["hang", "stubborn"])
def test_sigterm_ends_a_worker_whatever_hangs(workers: Workers, outbox: Outbox, name: str) -> None:
    """Within its grace time and a moment. What hangs is named, and left to its lease."""
    outbox.place(name)
    worker = workers.start(grace=1, lease=600)
    workers.marked(f"{name}-1")
    worker.send(signal.SIGTERM)
    assert worker.wait(20) == 0
    row = outbox.job()
    assert (row.state, row.attempts) == ("live", 0) and row.attempt is not None
    assert f"job {name} {row.id} does not end" in worker.output()


def test_a_worker_full_of_hung_threads_ends_to_be_started_again(workers: Workers, outbox: Outbox) -> None:
    for _ in range(6):
        outbox.place("hang_often")
    worker = workers.start(concurrency=4, grace=0)
    assert worker.wait(40) == STUCK
    assert "hold every place of their kind: hang_often" in worker.output()


# ------------------------------------------------------------------ many workers


def take_some(turn: Turn, url: str, batch: int) -> list[str]:
    """What one racing worker gets."""
    drivers = drivers_for(url)
    try:
        programs = Jobs(SqlKeys(queries_for(drivers.dialect)))
        return [job.id for job in run(drivers.sync, lambda: begin(programs, batch=batch))]
    finally:
        drivers.sync.close()


def test_workers_take_disjoint_batches(outbox: Outbox) -> None:
    outbox.idempotency.job("quick")(lambda job, _: None)
    outbox.place("quick")
    columns = "operation_id, scope, key, tenant, name, payload, answers, state, attempts, due_at, created_at"
    for number in range(99):
        outbox.ask(
            f"insert into {{jobs}} (id, {columns}) select ?, {columns} from {{jobs}} limit 1", f"j{number}"
        )
    rounds = race(take_some, 4, outbox.url, 10, rounds=3)
    taken = [job for batches in rounds for batch in batches for job in batch]
    assert len(taken) == len(set(taken)) == 100
    assert all(len(batch) <= 10 for batches in rounds for batch in batches)
    # With 100 jobs and 120 places, the first two rounds are full.
    assert [len(batch) for batches in rounds[:2] for batch in batches] == [10] * 8


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nothing", "write module:name"),
        ("no_such_module:idempotency", "There is no module 'no_such_module' here."),
        ("tests.outbox.workers:ROOT", "is not an Idempotency but"),
        ("tests.outbox.workers:missing", "is not an Idempotency but NoneType"),
    ],
)
def test_the_command_says_what_is_wrong(target: str, sentence: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "samekey.cli", "worker", target],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert told.returncode == 1
    assert sentence in told.stderr
    assert "Traceback" not in told.stderr

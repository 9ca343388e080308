"""The worker, one round at a time: attempts, pauses, dead letters, fencing and the clean stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lab.processes import wait_until
from samekey import Backoff, JobContext, Response
from samekey.core.program import Program
from samekey.drivers.run import run, run_in
from samekey.errors import LeaseLost, StoreUnavailable
from samekey.workers import apart, performing
from samekey.workers.outbox import OutboxWorker
from tests.outbox.conftest import ON_POSTGRES_TOO
from tests.outbox.world import NO_PAUSE, Outbox, hang, order

pytestmark = ON_POSTGRES_TOO

KINDS = pytest.mark.parametrize("kind", ["async", "sync"])


def declare(
    outbox: Outbox, kind: str, function: Callable[..., Any], name: str = "job", **options: Any
) -> None:
    """A job of that kind that does as a plain function says."""
    if kind == "sync":
        outbox.idempotency.job(name, **options)(function)
        return

    async def as_coroutine(job: JobContext, payload: Any) -> Any:
        return function(job, payload)

    outbox.idempotency.job(name, **options)(as_coroutine)


# ------------------------------------------------------------------ attempts and pauses


@KINDS
def test_a_job_that_fails_is_tried_again_until_it_is_done(outbox: Outbox, kind: str) -> None:
    attempts: list[tuple[int, str]] = []

    def flaky(job: JobContext, payload: Any) -> Any:
        attempts.append((job.attempts, job.key))
        if job.attempts < 3:
            raise ConnectionError("the provider is away")
        return payload

    declare(outbox, kind, flaky, backoff=NO_PAUSE)
    outbox.place("job", {"a": [1]}, key="k")
    worker = outbox.work()
    assert (outbox.job().state, outbox.job().error) == ("live", "ConnectionError: the provider is away")
    assert outbox.job().attempt is None
    outbox.work(worker, rounds=3)
    assert [number for number, _ in attempts] == [1, 2, 3]
    assert len({key for _, key in attempts}) == 1
    assert (outbox.job().state, outbox.job().error) == ("done", None)
    assert outbox.client("async").send(order("k")).json() == {"a": [1]}


@KINDS
def test_attempts_are_bounded_and_the_error_is_kept(outbox: Outbox, kind: str) -> None:
    runs: list[int] = []

    def broken(job: JobContext, _: Any) -> None:
        runs.append(job.attempts)
        job.provider_id = "ch_9"
        raise ValueError(f"broken\x00 for the {job.attempts}. time \ud800")

    declare(outbox, kind, broken, max_attempts=3, backoff=NO_PAUSE)
    outbox.place("job")
    outbox.work(rounds=5)
    assert runs == [1, 2, 3]
    dead = outbox.job()
    assert (dead.state, dead.attempts, dead.provider_id) == ("dead", 3, "ch_9")
    assert dead.error is not None and dead.error.startswith("ValueError: broken") and "3. time" in dead.error
    assert outbox.states() == [("dead_letter", "job_failed")]
    # What the provider made is still to be found, for whoever looks into it.
    assert outbox.idempotency.engine.find_by_provider_id("ch_9", tenant="ann") is not None


@KINDS
def test_the_pause_grows_and_is_jittered(outbox: Outbox, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: JobContext, _: Any) -> None:
        raise ValueError

    backoff = Backoff(first=timedelta(seconds=100), longest=timedelta(seconds=300))
    declare(outbox, kind, broken, max_attempts=10, backoff=backoff)
    outbox.place("job")
    pauses = []
    for number, random in enumerate([0.0, 0.5, 0.999, 0.5]):
        monkeypatch.setattr("random.random", lambda random=random: random)
        outbox.ask("update {jobs} set due_at = 0")
        outbox.work()
        # run_at was taken by the store's clock in this round, a moment before the retry.
        (row,) = outbox.ask("select due_at - run_at, attempts from {jobs}")
        pauses.append(row[0] // 1000)
        assert row[1] == number + 1
    for pause, least in zip(pauses, [0, 100, 299, 150], strict=True):
        assert least <= pause <= least + 5, pauses


@KINDS
def test_a_job_is_stopped_at_its_time_out(outbox: Outbox, kind: str) -> None:
    release = threading.Event()

    def endless_sync(job: JobContext, _: Any) -> None:
        release.wait(30)

    function: Any = endless_sync if kind == "sync" else hang
    outbox.idempotency.job("job", timeout=0.05, max_attempts=2, backoff=NO_PAUSE)(function)
    outbox.place("job")
    outbox.work(rounds=2)
    assert (outbox.job().state, outbox.job().error) == ("dead", "It took longer than 0.05 s.")
    release.set()


def test_a_job_that_will_not_be_cancelled_is_let_go_of(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds neither the others nor the worker's end; its places it keeps until it ends."""
    monkeypatch.setattr(apart, "FAREWELL", 0.02)
    release = asyncio.Event()

    @outbox.idempotency.job("stubborn", timeout=0.05, max_attempts=2, backoff=NO_PAUSE)
    async def stubborn(job: JobContext, _: Any) -> None:
        while not release.is_set():
            try:
                await asyncio.wait_for(release.wait(), 30)
            except asyncio.CancelledError:
                pass

    @outbox.idempotency.job("other")
    async def other(job: JobContext, _: Any) -> None: ...

    outbox.place("stubborn")
    worker = outbox.work(outbox.worker(concurrency=4), rounds=2)
    outbox.place("other")
    outbox.work(worker)
    assert {job.name: job.state for job in outbox.jobs()} == {"stubborn": "dead", "other": "done"}
    assert (worker.slots.places.free, worker.slots.apart.hanging.total()) == (2, 2)
    outbox.run(worker.stop())
    outbox.loop.loop.call_soon_threadsafe(release.set)
    wait_until(lambda: worker.slots.places.free == 4)


# ------------------------------------------------------------------ poison


def _exit(job: JobContext, _: Any) -> None:
    raise SystemExit(3)


def _interrupt(job: JobContext, _: Any) -> None:
    raise KeyboardInterrupt


def _cancel(job: JobContext, _: Any) -> None:
    raise asyncio.CancelledError


def _stop_iteration(job: JobContext, _: Any) -> None:
    raise StopIteration


def _generator_exit(job: JobContext, _: Any) -> None:
    raise GeneratorExit


def _recursion(job: JobContext, _: Any) -> None:
    _recursion(job, _)


def _bad_status(job: JobContext, _: Any) -> Response:
    return Response(99)


@KINDS
@pytest.mark.parametrize(
    ("poison", "words"),
    [
        (_exit, "SystemExit"),
        (_interrupt, "KeyboardInterrupt"),
        (_cancel, "CancelledError"),
        (_stop_iteration, "StopIteration"),
        (_generator_exit, "GeneratorExit"),
        (_recursion, "RecursionError"),
        (_bad_status, "not a final HTTP status"),
    ],
)
def test_whatever_a_job_raises_ends_as_a_dead_letter(
    outbox: Outbox, kind: str, poison: Callable[..., Any], words: str
) -> None:
    declare(outbox, kind, poison, max_attempts=2, backoff=NO_PAUSE)
    outbox.idempotency.job("good")(lambda job, _: "fine")
    outbox.place("job")
    outbox.place("good")
    worker = outbox.work(rounds=2)
    states = {job.name: (job.state, job.error or "") for job in outbox.jobs()}
    assert states["good"] == ("done", "")
    assert states["job"][0] == "dead"
    assert words in states["job"][1]
    assert worker.has_room


@KINDS
def test_a_result_that_cannot_be_written_is_a_dead_letter_at_once(outbox: Outbox, kind: str) -> None:
    """The effect has happened; another attempt would have no better result."""
    runs: list[int] = []

    def unwritable(job: JobContext, _: Any) -> object:
        runs.append(job.attempts)
        job.provider_id = "ch_5"
        return {"at": object()}

    declare(outbox, kind, unwritable, backoff=NO_PAUSE)
    outbox.place("job")
    outbox.work(rounds=3)
    dead = outbox.job()
    assert (runs, dead.state, dead.provider_id) == ([1], "dead", "ch_5")
    assert "cannot be written as JSON" in (dead.error or "")
    assert outbox.states() == [("dead_letter", "job_failed")]


GARBAGE = [b"\xff\xfe", b"", b"nonsense", b"[1]", b'"text"', b'{"version":1}', b"[" * 100_000, b"null"]


def test_payloads_that_cannot_be_read_are_dead_letters_and_block_nobody(outbox: Outbox) -> None:
    declare(outbox, "sync", lambda job, payload: payload)
    for number in range(len(GARBAGE) + 1):
        outbox.place("job", number)
    spoilt = [job.id for job in outbox.jobs()][: len(GARBAGE)]
    for job_id, garbage in zip(spoilt, GARBAGE, strict=True):
        outbox.ask("update {jobs} set payload = ? where id = ?", garbage, job_id)
    outbox.work(outbox.worker(concurrency=20))
    states = {job.id: (job.state, job.attempts) for job in outbox.jobs()}
    assert [states[job_id] for job_id in spoilt] == [("dead", 0)] * len(GARBAGE), "none of them was entered"
    assert sorted(states.values()).count(("done", 1)) == 1
    assert {job.error.partition(":")[0] for job in outbox.jobs() if job.error} == {
        "The payload cannot be read"
    }


def test_a_payload_that_was_edited_into_text_still_runs(outbox: Outbox) -> None:
    """SQLite keeps the type that it is given; a statement by hand may give text."""
    declare(outbox, "sync", lambda job, payload: payload)
    outbox.place("job", 7, key="k")
    text = '{"version": 1, "step": "job", "tenant": "ann", "payload": 8}'
    outbox.ask("update {jobs} set payload = ?", text if outbox.dialect == "sqlite" else text.encode())
    outbox.work()
    assert outbox.client("async").send(order("k")).json() == 8


@pytest.mark.parametrize("stranger", ["newer", "unknown"])
def test_what_this_worker_does_not_know_is_left_to_others_as_it_was(
    outbox: Outbox, stranger: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it looks: no attempt is counted, and nothing is ever buried for it."""
    declare(outbox, "sync", lambda job, payload: payload, max_attempts=2)
    outbox.place("job", 1, key="k")
    (payload,) = outbox.ask("select payload from {jobs}")[0]
    if stranger == "newer":
        outbox.ask("update {jobs} set payload = ?", b'{"version": 2}')
        words = "newer version of samekey (2)"
    else:
        outbox.ask("update {jobs} set name = 'from_the_future'")
        words = "'from_the_future'"
    worker = outbox.work(rounds=12)
    waiting = outbox.job()
    assert (waiting.state, waiting.attempt, waiting.attempts) == ("live", None, 0)
    assert outbox.states() == [("pending", None)]
    assert caplog.text.count(words) == 1, "said, and not with every look"
    # A worker that knows it does it.
    if stranger == "unknown":
        outbox.idempotency.job("from_the_future")(lambda job, payload: payload)
    else:
        outbox.ask("update {jobs} set payload = ?", bytes(payload))
    outbox.work(worker)
    assert outbox.client("async").send(order("k")).json() == 1


def test_what_cannot_be_read_here_is_not_taken_again_at_once(outbox: Outbox) -> None:
    declare(outbox, "sync", lambda job, payload: payload)
    outbox.place("job")
    outbox.ask("update {jobs} set payload = ?", b'{"version": 99}')
    worker = outbox.worker()
    assert outbox.run(worker.run_once()) == 0
    assert outbox.run(worker.run_once()) == 0
    assert worker.next_due_ms is not None and worker.next_due_ms > 5_000


def test_a_job_is_not_counted_before_its_function_is_entered(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant "count at take": the worker loses the store between taking and entering."""
    seen: list[int] = []
    declare(outbox, "sync", lambda job, _: seen.append(job.attempts), max_attempts=1)
    outbox.place("job")

    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    for _ in range(3):
        outbox.make_due()
        with monkeypatch.context() as patch:
            patch.setattr(outbox.idempotency.engine.outbox, "enter", away)
            with pytest.raises(StoreUnavailable):
                outbox.run(outbox.worker().run_once())
        row = outbox.job()
        assert (row.state, row.attempts) == ("live", 0) and row.attempt is not None
    outbox.work()
    assert (seen, outbox.job().state) == ([1], "done"), "it is no suspect, and has had no attempt before"


def test_a_job_that_may_be_tried_less_often_by_now_is_not_said_to_have_killed_its_worker(
    outbox: Outbox,
) -> None:
    declare(outbox, "sync", lambda _job, _: None, max_attempts=3)
    outbox.place("job")
    outbox.ask("update {jobs} set attempts = 4")  # a release before this one had more of them
    outbox.work()
    dead = outbox.job()
    assert (dead.state, dead.error) == ("dead", "Tried 4 times; max_attempts is 3 now.")


def test_a_job_whose_worker_died_too_often_is_written_off(outbox: Outbox) -> None:
    runs: list[str] = []
    declare(outbox, "sync", lambda job, _: runs.append(job.id), max_attempts=2)
    outbox.place("job")
    for _ in range(2):
        outbox.make_due()
        assert len(outbox.take()) == 1
    outbox.work()
    dead = outbox.job()
    assert (dead.state, runs) == ("dead", [])
    assert dead.error == "The worker died 2 times while running it."


def test_suspects_share_one_place_and_idle_no_other(outbox: Outbox) -> None:
    """A job that was running when two workers died may be the one that killed them: it takes no other suspect
    with it. Whatever else is due runs beside it."""
    running: set[str] = set()
    most: list[int] = []
    gate = asyncio.Event()

    @outbox.idempotency.job("ordinary")
    async def ordinary(job: JobContext, _: Any) -> None: ...

    @outbox.idempotency.job("suspect")
    async def suspect(job: JobContext, _: Any) -> None:
        running.add(job.id)
        most.append(len(running))
        await gate.wait()
        running.discard(job.id)

    for _ in range(3):
        outbox.place("suspect")
    for _ in range(2):
        outbox.make_due()
        assert len(outbox.take(batch=3)) == 3  # and this worker is never heard of again
    for _ in range(5):
        outbox.place("ordinary")
    outbox.make_due()

    async def story() -> None:
        worker = outbox.worker(concurrency=7)
        assert await worker.run_once() == 6
        while len(worker.slots.running) > 1:
            await asyncio.sleep(0.005)
        assert await worker.run_once() == 0  # the other two are left alone while it runs
        gate.set()
        for _ in range(2):
            await worker.drain()
            await asyncio.to_thread(outbox.make_due)
            assert await worker.run_once() == 1
        await worker.drain()

    outbox.run(asyncio.wait_for(story(), 60))
    assert most == [1] * 3
    assert {job.state for job in outbox.jobs()} == {"done"}
    assert {job.attempts for job in outbox.jobs() if job.name == "suspect"} == {3}


# ------------------------------------------------------------------ fencing


@KINDS
def test_a_worker_that_was_replaced_changes_nothing(outbox: Outbox, kind: str) -> None:
    """The job is taken while it runs; its late result, its writes and its failure are dropped."""
    taken: list[str] = []

    def slow(job: JobContext, _: Any) -> str:
        job.write(_note, "late")
        outbox.make_due()
        (other,) = outbox.take()
        taken.append(other.attempt)
        return "late"

    declare(outbox, kind, slow)
    outbox.place("job", key="k")
    outbox.run(_one_round(outbox.worker()))
    row = outbox.job()
    assert (row.state, row.attempt, row.error) == ("live", taken[0], None)
    assert outbox.orders() == ["written"]
    assert outbox.states() == [("pending", None)]


def test_every_program_compares_the_attempt(outbox: Outbox) -> None:
    declare(outbox, "sync", lambda job, _: None)
    outbox.place("job")
    (former,) = outbox.take()
    outbox.make_due()
    (current,) = outbox.take()
    assert former.attempt != current.attempt
    programs = outbox.idempotency.engine.outbox
    driver = outbox.idempotency.engine.drivers.sync
    answer = Response(200, "stolen").answer()
    before = (outbox.jobs(), outbox.states())
    assert run(driver, lambda: programs.retry(former, pause_ms=0, error="x")) is False
    stolen: list[Callable[[], Program[None]]] = [
        lambda: programs.finish(former, answer, "x"),
        lambda: programs.bury(former, error="x"),
    ]
    for factory in stolen:
        with pytest.raises(LeaseLost):
            run(driver, factory)
    assert (outbox.jobs(), outbox.states()) == before
    run(driver, lambda: programs.finish(current, answer, "ch_1"))
    assert outbox.job().state == "done"
    with pytest.raises(LeaseLost):
        run(driver, lambda: programs.finish(current, answer, "ch_1"))


def test_a_lease_is_renewed_only_for_its_holder(outbox: Outbox) -> None:
    from samekey.core.record import Lease

    declare(outbox, "sync", lambda job, _: None)
    outbox.place("job")
    outbox.place("job")
    one, two = outbox.take(batch=2, lease_ms=1000)
    stranger = Lease(two.id, "", one.attempt, 5000)
    ours = Lease(one.id, "", one.attempt, 500_000)
    gone = Lease("no such job", "", "no such attempt", 5000)
    renew = outbox.idempotency.engine.outbox.renew
    held = run(outbox.idempotency.engine.drivers.sync, lambda: renew([ours, stranger, gone]))
    assert held == {one.attempt}
    due = {job.id: job.due_at for job in outbox.jobs()}
    assert due[one.id] - due[two.id] > 400_000


# ------------------------------------------------------------------ writes of the job's own


@KINDS
def test_writes_commit_with_the_end_of_the_job(outbox: Outbox, kind: str) -> None:
    def paid(job: JobContext, _: Any) -> None:
        job.write(_note, "paid")

    declare(outbox, kind, paid)
    outbox.place("job")
    outbox.work()
    assert outbox.orders() == ["written", "paid"]


@KINDS
def test_writes_are_rolled_back_with_it(outbox: Outbox, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.01,))

    def paid(job: JobContext, _: Any) -> str:
        job.provider_id = "ch_7"
        job.write(_note, "paid")
        job.write(_broken if job.attempts == 1 else _note, "shipped")
        return "done"

    declare(outbox, kind, paid, backoff=NO_PAUSE)
    outbox.place("job")
    outbox.work()
    assert outbox.orders() == ["written"]
    assert outbox.states() == [("pending", None)]
    row = outbox.job()
    assert (row.state, row.provider_id) == ("live", "ch_7")
    outbox.work()
    assert outbox.orders() == ["written", "paid", "shipped"]
    assert outbox.job().state == "done"


def test_a_write_that_hangs_is_let_go_of_too(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.01,))

    @outbox.idempotency.job("job", timeout=0.1, max_attempts=1)
    async def paid(job: JobContext, _: Any) -> None:
        job.write(hang)

    outbox.place("job")
    worker = outbox.work()
    assert worker.has_room
    dead = outbox.job()
    assert dead.state == "dead"
    assert dead.error == (
        "The job was done, but a write of its own failed: TimeoutError: It took longer than 0.1 s."
    )


@KINDS
def test_recording_is_tried_again_and_the_provider_is_not(
    outbox: Outbox, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect has happened. A store that hiccups is no reason to repeat it."""
    runs: list[int] = []

    def paid(job: JobContext, _: Any) -> None:
        runs.append(job.attempts)
        job.write(_note, "paid")

    declare(outbox, kind, paid)
    outbox.place("job")
    finish, failures = outbox.idempotency.engine.outbox.finish, [StoreUnavailable("away")] * 2

    def flaky(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return finish(*args, **kwargs)

    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.setattr(outbox.idempotency.engine.outbox, "finish", flaky)
    outbox.work()
    assert (runs, outbox.job().state, outbox.orders()) == ([1], "done", ["written", "paid"])


# ------------------------------------------------------------------ the clean stop


@KINDS
def test_a_stop_lets_running_jobs_finish(outbox: Outbox, kind: str) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow(job: JobContext, _: Any) -> None:
        begun.set()
        assert release.wait(20)

    async def slow_async(job: JobContext, _: Any) -> None:
        await asyncio.to_thread(slow, job, _)

    outbox.idempotency.job("job")(slow if kind == "sync" else slow_async)
    outbox.place("job")
    worker = outbox.worker()
    outbox.run(worker.run_once())
    assert begun.wait(10)
    stopping = outbox.loop.start(worker.stop())
    release.set()
    stopping.result(10)
    assert outbox.job().state == "done"


@KINDS
def test_a_stop_gives_back_what_does_not_finish_and_does_not_count_it(
    outbox: Outbox, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "async":
        request.getfixturevalue("unhurried")
    begun, release, cleaned = threading.Event(), threading.Event(), threading.Event()

    def slow(job: JobContext, _: Any) -> str:
        begun.set()
        release.wait(20)
        return "late"

    async def slow_async(job: JobContext, _: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert outbox.job().attempt is not None, "its clean-up comes before it is given back"
            cleaned.set()

    outbox.idempotency.job("job", max_attempts=1)(slow if kind == "sync" else slow_async)
    outbox.place("job")
    worker = outbox.worker(grace=timedelta(0))
    outbox.run(worker.run_once())
    assert begun.wait(10)
    outbox.run(worker.stop())
    row = outbox.job()
    assert (row.state, row.attempts) == ("live", 0)
    assert (row.attempt is None) == (kind == "async"), "a thread cannot be stopped: its lease is left to it"
    assert kind == "sync" or cleaned.is_set()
    # Another worker has all its attempts; at once, if nothing can still be at it.
    if kind == "sync":
        assert not outbox.take()
        outbox.make_due()
    (again,) = outbox.take()
    release.set()
    assert (again.attempts, again.silences) == (1, 0)


async def _one_round(worker: OutboxWorker) -> None:
    assert await worker.run_once()
    await worker.drain()


def _note(connection: Any, note: str) -> Any:
    return connection.execute(f"insert into orders values ('{note}')")


def _broken(connection: Any, note: str) -> Any:
    raise RuntimeError("no")


def test_the_programs_take_a_time_for_tests(outbox: Outbox) -> None:
    """Time moves by passing it: leases, pauses and what is due."""
    programs, driver = outbox.idempotency.engine.outbox, outbox.idempotency.engine.drivers.sync
    declare(outbox, "sync", lambda job, _: None)
    outbox.place("job")
    start = outbox.job().due_at
    assert run(driver, lambda: programs.due(now=start - 5)) == {"job": 5}
    assert not outbox.take(now=start - 1)
    (first,) = outbox.take(now=start, lease_ms=100)
    assert (first.attempts, first.taken_at, first.silences) == (1, start, 0)
    assert not outbox.take(now=start + 99)
    assert not outbox.take(now=start + 104, patience_ms=5)
    assert not outbox.take(now=start + 100, here=[first.id])
    (second,) = outbox.take(now=start + 100, lease_ms=100)
    assert (second.attempts, second.silences, second.suspect) == (2, 1, False)
    assert not outbox.take(now=start + 200, suspects=False)
    (third,) = outbox.take(now=start + 200, lease_ms=100)
    assert third.suspect
    assert run(driver, lambda: programs.retry(third, pause_ms=50, error="e", now=start + 210)) is True
    assert not outbox.take(now=start + 259)
    (fourth,) = outbox.take(now=start + 260, suspects=False)  # it spoke, so it is no suspect any more
    assert fourth.attempts == 4
    session = driver.open()
    run_in(session, programs.finish(fourth, Response(200).answer(), None, now=start + 300))
    session.commit()
    assert run(driver, lambda: programs.due(now=start)) == {}

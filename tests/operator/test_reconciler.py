"""The reconciler: asks the user's lookup about unknown outcomes, again and again, but not for ever."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from samekey import Backoff, Declined, Executed, NotExecuted, Response, StillUnknown
from samekey.core.record import Record
from samekey.core.states import Mode
from samekey.engine.events import Event
from samekey.errors import ConfigurationError
from samekey.stores.protocols import Actor
from samekey.workers.reconciler import Looked, Reconciler
from tests.operator.world import ANSWER, HOUR, MINUTE, World

PAID = Response(201, {"id": "ch_1"}, {"Set-Cookie": "session=secret", "X-Kept": "yes"})


def reconcile(world: World, **options: Any) -> list[Looked]:
    return world.serve(Reconciler(world.engine.engine, **options).look)


def noting(asked: list[Record]) -> Callable[[Record], type[StillUnknown]]:
    def lookup(record: Record) -> type[StillUnknown]:
        asked.append(record)
        return StillUnknown

    return lookup


def due(world: World, record: Record) -> None:
    world.sql("update {keys} set reconcile_after = 1 where id = ?", record.id)


# ------------------------------------------------------------------ what a lookup may say


def test_executed(world: World) -> None:
    record = world.unknown()
    world.engine.lookup()(lambda found: Executed(PAID, provider_id=f"ch_{found.id[:4]}"))
    [looked] = reconcile(world)
    assert (looked.resolved, looked.became, looked.why) == (True, "completed", "the lookup said Executed")
    settled = world.read(record)
    assert settled.answer is not None
    assert (settled.answer.status, settled.answer.body) == (201, b'{"id": "ch_1"}')
    assert settled.provider_id == f"ch_{record.id[:4]}"
    names = {name for name, _ in settled.answer.headers}
    assert b"x-kept" in names and b"set-cookie" not in names
    assert settled.reconcile_after is None


def test_declined(world: World) -> None:
    record = world.unknown()
    world.engine.lookup()(lambda _: Declined(Response(402, {"error": "no funds"})))
    assert reconcile(world)[0].became == "completed"
    answer = world.read(record).answer
    assert answer is not None and answer.status == 402


@pytest.mark.parametrize("finding", [NotExecuted, NotExecuted("the provider knows nothing")])
def test_not_executed(world: World, finding: object) -> None:
    record = world.unknown("k")
    world.engine.lookup()(lambda _: finding)
    assert reconcile(world)[0].became == "failed_retryable"
    assert world.claim("k").attempt != record.attempt, "one retry may run"


@pytest.mark.parametrize("finding", [StillUnknown, StillUnknown()])
def test_still_unknown_is_asked_again_later(world: World, finding: object) -> None:
    record = world.unknown()
    world.engine.lookup()(lambda _: finding)
    assert reconcile(world)[0].resolved is False
    again = world.read(record)
    assert again.state == "unknown"
    assert again.reconcile_after is not None and again.reconcile_after > world.now + 5_000
    assert reconcile(world) == [], "not before its time"


# ------------------------------------------------------------------ how it asks


def test_the_lookup_sees_the_record(world: World) -> None:
    seen: list[Record] = []
    record = world.unknown()
    world.engine.lookup()(noting(seen))
    reconcile(world)
    assert seen[0].id == record.id
    assert (seen[0].downstream, seen[0].key) == (record.downstream, record.key)


def test_each_endpoint_has_its_own_and_the_rest_the_default(world: World) -> None:
    asked: list[tuple[str, str]] = []

    def ask(name: str, record: Record) -> type[StillUnknown]:
        asked.append((name, record.endpoint))
        return StillUnknown

    for endpoint in ("POST /a", "POST /b", "POST /c"):
        world.unknown(endpoint=endpoint)
    world.engine.lookup("POST /a")(functools.partial(ask, "for a"))
    world.engine.lookup()(functools.partial(ask, "for all"))
    reconcile(world)
    assert sorted(asked) == [("for a", "POST /a"), ("for all", "POST /b"), ("for all", "POST /c")]
    with pytest.raises(ConfigurationError, match="already a lookup"):
        world.engine.lookup()(functools.partial(ask, "again"))


async def _found(_record: Record) -> Executed:
    await asyncio.sleep(0)
    return Executed(PAID)


class _Callable:
    async def __call__(self, record: Record) -> Executed:
        return await _found(record)


@pytest.mark.parametrize(
    "lookup",
    [_found, lambda record: _found(record), functools.partial(_found), _Callable()],  # noqa: PLW0108
    ids=["async", "sync that gives a coroutine", "partial", "object"],
)
def test_async_of_any_kind(world: World, lookup: Any) -> None:
    world.unknown()
    world.engine.lookup()(lookup)
    assert reconcile(world)[0].resolved


def test_a_sync_lookup_does_not_block_the_loop(world: World) -> None:
    world.unknown()
    main = threading.get_ident()
    threads: list[int] = []

    def lookup(_record: Record) -> Any:
        threads.append(threading.get_ident())
        return StillUnknown

    world.engine.lookup()(lookup)
    reconcile(world)
    assert threads and threads[0] != main


# ------------------------------------------------------------------ lookups that go wrong


def _raising(_record: Record) -> Any:
    raise RuntimeError("the provider is down")


def _ending(_record: Record) -> Any:
    raise SystemExit(3)


def _stopping(_record: Record) -> Any:
    raise StopIteration


async def _raising_async(_record: Record) -> Any:
    raise RuntimeError("the provider is down")


async def _cancelling(_record: Record) -> Any:
    raise asyncio.CancelledError


WRONG: dict[str, Any] = {
    "raises": _raising,
    "raises, async": _raising_async,
    "SystemExit": _ending,
    "StopIteration": _stopping,
    "cancels itself": _cancelling,
    "None": lambda _: None,
    "a string": lambda _: "paid",
    "a plain answer": lambda _: Response(201),
    "True": lambda _: True,
    "the class Executed": lambda _: Executed,
}

UNUSABLE: dict[str, Any] = {
    "an answer that is no JSON": lambda _: Executed(object()),
    "an impossible status": lambda _: Executed(Response(999)),
    "a refusal that is told as done": lambda _: Declined(Response(201)),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_finding_that_cannot_be_used_is_for_a_person(world: World, kind: str) -> None:
    """It is not nothing: asking again does not help, and nothing may run."""
    record, other = world.unknown(), world.unknown(endpoint="POST /good")
    world.engine.lookup()(UNUSABLE[kind])
    world.engine.lookup("POST /good")(lambda _: Executed(PAID))
    assert Counter(looked.resolved for looked in reconcile(world)) == {True: 1, False: 1}
    assert world.states([record, other]) == ["dead_letter", "completed"]
    assert "cannot be used" in str(world.timeline(record)[-1].reason)


@pytest.mark.parametrize("kind", WRONG)
def test_rubbish_counts_for_nothing(world: World, kind: str) -> None:
    record, other = world.unknown(), world.unknown(endpoint="POST /good")
    world.engine.lookup()(WRONG[kind])
    world.engine.lookup("POST /good")(lambda _: Executed(PAID))
    assert Counter(looked.resolved for looked in reconcile(world)) == {True: 1, False: 1}
    assert world.states([record, other]) == ["unknown", "completed"]
    asked = world.read(record).reconcile_after
    assert asked is not None and asked > world.now


def test_one_that_hangs_is_left_behind(world: World, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def hang(_record: Record) -> Any:
        release.wait(30)

    async def hang_async(_record: Record) -> Any:
        await asyncio.Event().wait()

    records = [world.unknown(endpoint=f"POST /{name}") for name in ("sync", "async", "good")]
    world.engine.lookup("POST /sync")(hang)
    world.engine.lookup("POST /async")(hang_async)
    world.engine.lookup("POST /good")(lambda _: Executed(PAID))
    with caplog.at_level(logging.ERROR, "samekey"):
        reconcile(world, timeout=timedelta(milliseconds=300))
    release.set()
    assert world.states(records) == ["unknown", "unknown", "completed"]
    assert caplog.text.count("It did not answer within 0.3 s") == 2


def test_its_key_is_not_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    record = world.unknown("very-secret-key")
    world.engine.lookup()(_raising)
    with caplog.at_level(logging.DEBUG, "samekey"):
        reconcile(world, max_tries=1)
    assert record.id in caplog.text and "very-secret-key" not in caplog.text


# ------------------------------------------------------------------ not for ever


def test_the_pause_grows_and_at_last_it_is_a_dead_letter(world: World) -> None:
    record = world.unknown()
    world.engine.lookup()(lambda _: StillUnknown)
    backoff = Backoff(first=timedelta(minutes=1), longest=timedelta(minutes=8))
    heard: list[Event] = []
    world.engine.events.subscribe(heard.append)
    pauses = []
    for _ in range(6):
        before = world.clock()
        assert len(reconcile(world, max_tries=7, backoff=backoff)) == 1
        asked = world.read(record).reconcile_after
        assert asked is not None
        pauses.append(asked - before)
        due(world, record)
    ceilings = [minutes * MINUTE for minutes in (1, 2, 4, 8, 8, 8)]
    for pause, ceiling in zip(pauses, ceilings, strict=True):
        assert ceiling / 2 <= pause <= ceiling + 5_000
    [looked] = reconcile(world, max_tries=7, backoff=backoff)
    assert (looked.became, looked.resolved) == ("dead_letter", False)
    assert world.read(record).state == "dead_letter"
    assert world.read(record).reconcile_after is None
    assert Counter(event.name for event in heard) == {"reconcile.failed": 7, "dead_letter": 1}


def test_without_a_lookup_it_ends_as_a_dead_letter_too(world: World) -> None:
    record = world.unknown()
    reconcile(world, max_tries=2)
    due(world, record)
    reconcile(world, max_tries=2)
    assert world.read(record).state == "dead_letter"


def test_a_new_run_has_all_its_tries(world: World) -> None:
    record = world.unknown("k")
    for _ in range(3):
        reconcile(world, max_tries=4)
        due(world, record)
    world.engine.lookup()(lambda _: NotExecuted)
    reconcile(world, max_tries=4)
    del world.engine.engine.lookups[None]
    again = world.unknown("k")
    assert again.id == record.id
    reconcile(world, max_tries=4)
    assert world.read(record).state == "unknown"


# ------------------------------------------------------------------ others are faster


def test_a_holder_who_comes_back_meanwhile_wins(world: World) -> None:
    record = world.unknown()

    def lookup(_record: Record) -> Any:
        world.run(lambda: world.keys.complete(record.lease(MINUTE), ANSWER))
        return NotExecuted

    world.engine.lookup()(lookup)
    assert reconcile(world)[0].why == "others have moved it meanwhile"
    assert world.read(record).answer == ANSWER


def test_what_was_said_of_one_attempt_does_not_count_for_the_next(world: World) -> None:
    """While the lookup runs, a webhook settles it, a retry runs and its outcome is unknown again. "It never
    happened" is no longer news about this operation, and a third run could be the second effect."""
    record = world.unknown("k")

    def lookup(_record: Record) -> Any:
        world.tell(NotExecuted, "evt", operation_id=record.id)
        world.unknown("k")
        return NotExecuted

    world.engine.lookup()(lookup)
    assert not reconcile(world)[0].resolved
    assert world.read(record).state == "unknown"
    assert world.read(record).attempt != record.attempt


def test_giving_up_is_about_one_attempt_too(world: World) -> None:
    record = world.unknown("k")

    def lookup(_record: Record) -> Any:
        world.run(lambda: world.operator.not_executed(record.id, Actor("ann")))
        world.unknown("k")
        return StillUnknown

    world.engine.lookup()(lookup)
    reconcile(world, max_tries=1)
    assert world.read(record).state == "unknown"


def test_two_reconcilers_do_not_ask_twice(world: World) -> None:
    asked: list[Record] = []
    records = [world.unknown() for _ in range(10)]
    world.engine.lookup()(noting(asked))

    async def both() -> None:
        await asyncio.gather(*(Reconciler(world.engine.engine).run_once() for _ in range(2)))

    world.serve(both)
    assert sorted(record.id for record in asked) == sorted(record.id for record in records)


def test_a_reconciler_that_died_leaves_its_outcomes_to_others(world: World) -> None:
    record = world.unknown(at=-HOUR)
    world.run(lambda: world.operator.take_unknown(batch=1, lease_ms=MINUTE, now=world.now - HOUR))
    world.engine.lookup()(lambda _: Executed(PAID))
    assert reconcile(world)[0].record.id == record.id


# ------------------------------------------------------------------ phased and deferred work


def test_a_phased_operation_goes_on_with_what_was_found_out(world: World) -> None:
    """The effect has its result, and the phases after it still have to run."""
    record = world.phased()
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "OutcomeUnknown"))
    world.engine.lookup()(lambda _: Executed({"charge": "ch_1"}, "ch_1"))
    assert reconcile(world)[0].resolved
    assert world.read(record).state == "in_progress"
    work = world.run(lambda: world.phases.load(record.id))
    assert work.input is not None
    assert [(phase.done, phase.result) for phase in work.phases] == [(True, b'{"charge":"ch_1"}')]
    assert len(world.run(lambda: world.phases.take_abandoned("t", ["ride/1"], lease_ms=MINUTE, batch=9))) == 1


def test_an_http_answer_is_no_result_of_a_phase(world: World) -> None:
    """It would end the operation, and the phases after the effect would never run."""
    record = world.phased()
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "OutcomeUnknown"))
    world.engine.lookup()(lambda _: Executed(PAID))
    assert not reconcile(world)[0].resolved
    assert world.read(record).state == "dead_letter"


def test_a_phased_operation_that_was_not_executed_can_go_on(world: World) -> None:
    """Its intent without a result goes, or the retry would stop at it as unknown again; its input stays."""
    record = world.phased("k")
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "OutcomeUnknown"))
    world.engine.lookup()(lambda _: NotExecuted)
    assert reconcile(world)[0].resolved
    assert (world.count("inputs"), world.count("phases")) == (1, 0)
    assert world.claim("k", mode=Mode.PHASED).id == record.id


def test_deferred_work_with_a_dead_job_is_not_run_again_from_the_start(world: World) -> None:
    record, _ = world.dead_job()
    assert not world.run(lambda: world.operator.not_executed(record.id, Actor("ann")))
    assert world.read(record).state == "dead_letter"


def test_deferred_work_that_was_found_executed_buries_its_job_for_good(world: World) -> None:
    record, job_id = world.dead_job()
    assert world.run(lambda: world.operator.executed(record.id, ANSWER, Actor("ann")))
    assert world.sql("select state from {jobs}") == [("discarded",)]
    assert not world.run(lambda: world.operator.retry_dead_job(job_id, Actor("bob")))

"""A key that had expired: where a lookup is declared, it is asked before the key runs again."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from samekey import (
    Declined,
    Executed,
    NotExecuted,
    OutcomeUnknown,
    Response,
    StillUnknown,
    ietf,
)
from samekey.core.fingerprint import RequestParts
from samekey.core.record import Answer, Record
from samekey.core.states import Mode
from samekey.engine.evidence.asking import Asking
from samekey.engine.evidence.desk import Desk
from samekey.engine.exchange import Exchange
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from tests.operator.world import DAY, TENANT, World

PAID = Response(201, {"id": "ch_1"})
ENDPOINT = "POST /payments"
FIRST = Answer(201, ((b"content-type", b"application/json"),), b'{"first":true}')
MODES = [Mode.LEASED, Mode.REPEATABLE, Mode.ATOMIC, Mode.DEFERRED, Mode.PHASED]

Send = Callable[..., Answer | Running]


def exchange_of(key: str, body: bytes = b'{"amount": 5}') -> Exchange:
    headers = ((b"content-type", b"application/json"),)
    parts = RequestParts("POST", "/payments", b"", headers, body)
    return Exchange(parts, [key.encode()], {}, lambda _context: TENANT, "/payments")


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest, world: World) -> Send:
    """One request up to where its handler would run: the answer, or what runs. That is given back."""

    def rules(mode: Mode) -> Any:
        return rules_from(world.engine.engine.policy, mode, {})

    def sync(mode: Mode = Mode.LEASED, key: str = "k", **body: Any) -> Answer | Running:
        begun = world.engine.engine.begin(exchange_of(key, **body), rules(mode))
        if isinstance(begun, Running):
            world.engine.engine.drive(world.engine.engine._way(begun).give_back(begun))
        return begun

    def aio(mode: Mode = Mode.LEASED, key: str = "k", **body: Any) -> Answer | Running:
        async def work() -> Answer | Running:
            begun = await world.engine.engine.begin_async(exchange_of(key, **body), rules(mode))
            if isinstance(begun, Running):
                await world.engine.engine.drive_async(world.engine.engine._way(begun).give_back(begun))
            return begun

        return world.serve(work)

    return sync if request.param == "sync" else aio


def first_life(world: World, mode: Mode = Mode.LEASED, key: str = "k") -> Record:
    """An operation that was done, by a request like those that ``send`` sends."""
    leased = Mode.LEASED if mode in (Mode.ATOMIC, Mode.DEFERRED) else mode
    rules = rules_from(world.engine.engine.policy, leased, {})
    begun = world.engine.engine.begin(exchange_of(key), rules)
    assert isinstance(begun, Running) and begun.lease is not None
    lease = begun.lease
    world.engine.engine.keeper.forget(lease)
    world.run(lambda: world.keys.complete(lease, FIRST))
    world.sql("update {keys} set mode = ?", str(mode))
    return world.by_key(key)


def expire(world: World) -> None:
    world.sql("update {keys} set expires_at = 1")


def bury(world: World) -> None:
    world.run(lambda: world.upkeep.reap(batch=100, now=world.clock() + 2 * DAY))


def declare(world: World, finding: Any, asked: list[Record] | None = None, *, is_async: bool = False) -> None:
    def lookup(record: Record) -> Any:
        if asked is not None:
            asked.append(record)
        if isinstance(finding, Exception) and not isinstance(finding, NotExecuted):
            raise finding
        return finding

    async def lookup_async(record: Record) -> Any:
        await asyncio.sleep(0)
        return lookup(record)

    world.engine.lookup(ENDPOINT)(lookup_async if is_async else lookup)


def refused(answer: Answer | Running) -> None:
    assert isinstance(answer, Answer), "it runs"
    assert answer.status == 409 and b"outcome" in answer.body, answer
    assert answer.header(b"retry-after") == b"30"


@pytest.mark.parametrize("over", [expire, bury])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_what_happened_is_answered_and_not_run(
    world: World, send: Send, mode: Mode, is_async: bool, over: Callable[[World], None]
) -> None:
    asked: list[Record] = []
    declare(world, Executed(PAID, provider_id="ch_1"), asked, is_async=is_async)
    first = first_life(world, mode)
    over(world)
    answer = send(mode)
    assert isinstance(answer, Answer), "it runs"
    assert (answer.status, answer.body) == (201, b'{"id": "ch_1"}')
    marks = {name.lower(): value for name, value in answer.headers}
    assert marks[b"idempotent-replayed"] == b"true"
    assert [(one.id, one.downstream_key()) for one in asked] == [(first.id, first.downstream_key())]
    found = world.read(first)
    assert (found.state, found.life, found.provider_id) == ("completed", 1, "ch_1")
    assert found.expires_at > world.clock() + DAY // 2
    last = world.timeline(found)[-1]
    assert (last.after, last.actor) == ("completed", "lookup") and "Executed" in (last.reason or "")
    assert send(mode) == answer, "from here on it is a replay"
    assert len(asked) == 1


def test_a_refusal_is_answered_as_well(world: World, send: Send) -> None:
    declare(world, Declined(Response(402, {"error": "no funds"})))
    first_life(world)
    expire(world)
    answer = send()
    assert isinstance(answer, Answer) and (answer.status, answer.body) == (402, b'{"error": "no funds"}')


@pytest.mark.parametrize("over", [expire, bury])
@pytest.mark.parametrize("mode", MODES)
def test_what_never_happened_runs_as_a_new_life(
    world: World, send: Send, mode: Mode, over: Callable[[World], None]
) -> None:
    asked: list[Record] = []
    declare(world, NotExecuted, asked)
    first = first_life(world, mode)
    over(world)
    begun = send(mode)
    assert isinstance(begun, Running), begun
    assert begun.operation.id != first.id
    assert len(asked) == 1


@pytest.mark.parametrize("finding", [StillUnknown, ValueError("down"), TimeoutError(), "a text", None])
@pytest.mark.parametrize("mode", [Mode.LEASED, Mode.ATOMIC])
def test_while_nobody_can_tell_nothing_runs(world: World, send: Send, mode: Mode, finding: Any) -> None:
    declare(world, finding)
    first = first_life(world, mode)
    expire(world)
    for _ in range(2):
        refused(send(mode))
    assert world.read(first) == dataclasses.replace(first, expires_at=1)


def test_another_request_does_not_get_the_answer_of_the_first(world: World, send: Send) -> None:
    declare(world, Executed(PAID))
    first_life(world)
    expire(world)
    answer = send(body=b'{"amount": 6}')
    assert isinstance(answer, Answer) and answer.status == 422


def test_a_word_about_one_effect_of_phased_work_is_no_answer(world: World, send: Send) -> None:
    declare(world, Executed({"charge": "ch_1"}))
    first_life(world, Mode.PHASED)
    expire(world)
    answer = send(Mode.PHASED)
    assert isinstance(answer, Answer) and answer.status >= 400 and b"ch_1" not in answer.body
    assert world.by_key("k").withheld


def test_a_lookup_that_is_no_longer_declared_leaves_the_key_alone(world: World, send: Send) -> None:
    """The record says that somebody must be asked; no later setting makes a second run of that."""
    declare(world, NotExecuted)
    first_life(world)
    world.engine.engine.lookups.clear()
    bury(world)
    refused(send())


def test_a_lookup_that_was_declared_later_is_asked(world: World, send: Send) -> None:
    first_life(world)
    declare(world, Executed(PAID))
    expire(world)
    answer = send()
    assert isinstance(answer, Answer) and answer.status == 201


def test_a_key_that_is_alive_asks_nobody(world: World, send: Send) -> None:
    asked: list[Record] = []
    declare(world, NotExecuted, asked)
    assert isinstance(send(), Running)
    first_life(world)
    assert isinstance(send(), Answer)
    assert asked == []


def test_gone_stays_gone_whoever_could_be_asked(world: World, send: Send) -> None:
    asked: list[Record] = []
    declare(world, NotExecuted, asked)
    first_life(world)
    world.sql("update {keys} set after_expiry = 'gone'")
    expire(world)
    answer = send()
    assert isinstance(answer, Answer) and answer.status == 410 and asked == []


def test_of_two_at_once_that_both_asked_one_runs(world: World) -> None:
    both = threading.Barrier(2, timeout=60)

    def lookup(_: Record) -> Any:
        both.wait()
        return NotExecuted

    world.engine.lookup()(lookup)
    first_life(world)
    expire(world)
    rules = rules_from(world.engine.engine.policy, Mode.LEASED, {})
    found: list[Running | Answer] = []
    threads = [
        threading.Thread(target=lambda: found.append(world.engine.engine.begin(exchange_of("k"), rules)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ran = [one for one in found if isinstance(one, Running)]
    told = [one for one in found if isinstance(one, Answer)]
    assert len(ran) == 1 and [one.status for one in told] == [409], found
    world.engine.engine.finish(ran[0], Handled(FIRST))


def test_of_two_at_once_that_were_told_differently_only_one_word_counts(world: World) -> None:
    """The one was told "yes" while the other, told "no", was still on its way."""
    told = threading.Event()
    answered: list[Running | Answer] = []
    rules = rules_from(world.engine.engine.policy, Mode.LEASED, {})

    def lookup(_: Record) -> Any:
        if threading.current_thread().name == "samekey lookup" and not told.is_set():
            told.set()
            answered.append(world.engine.engine.begin(exchange_of("k"), rules))
            return NotExecuted
        return Executed(PAID)

    world.engine.lookup()(lookup)
    first_life(world)
    expire(world)
    late = world.engine.engine.begin(exchange_of("k"), rules)
    assert [isinstance(one, Answer) and one.status for one in (late, *answered)] == [201, 201]


def test_what_was_asked_about_another_life_does_not_count(world: World) -> None:
    """While it was asked about, the key had a second life, which has expired as well."""
    asked: list[str] = []

    def lookup(record: Record) -> Any:
        asked.append(record.id)
        if len(asked) == 1:
            world.engine.engine.lookups.clear()
            world.sql("update {keys} set after_expiry = 'new'")
            first_life(world)
            world.engine.lookup()(lookup)
            expire(world)
            return NotExecuted
        return Executed(PAID)

    world.engine.lookup()(lookup)
    first = first_life(world)
    expire(world)
    answer = world.engine.engine.begin(
        exchange_of("k"), rules_from(world.engine.engine.policy, Mode.LEASED, {})
    )
    assert isinstance(answer, Answer) and answer.status == 201
    assert asked[0] == first.id and len(asked) == 2 and asked[1] != first.id


def test_a_record_that_was_forgotten_meanwhile_is_not_run_if_it_had_happened(world: World) -> None:
    def lookup(_: Record) -> Any:
        world.sql("delete from {keys}")
        return Executed(PAID)

    world.engine.lookup()(lookup)
    first_life(world)
    expire(world)
    refused(
        world.engine.engine.begin(exchange_of("k"), rules_from(world.engine.engine.policy, Mode.LEASED, {}))
    )


def test_plain_functions_ask_as_well(world: World) -> None:
    ran: list[int] = []

    def book() -> int:
        ran.append(1)
        return len(ran)

    findings: list[Any] = [StillUnknown, Executed(7), NotExecuted]
    world.engine.lookup()(lambda _: findings.pop(0))

    def once() -> Any:
        return world.engine.once(tenant=TENANT, key="k", run=book, name="book")

    assert once() == 1
    expire(world)
    with pytest.raises(OutcomeUnknown):
        once()
    assert once() == 7
    assert len(ran) == 1
    expire(world)
    assert once() == 2 and len(ran) == 2


# ------------------------------------------------------------------ lookups that hang


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lookup_that_hangs_is_not_waited_for(
    lite: World, send_lite: Send, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    let_go = threading.Event()

    async def hang(_: Record) -> Any:
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    lite.engine.lookup()(hang if is_async else lambda _: let_go.wait(60))
    hurry(lite, places=1)
    first_life(lite)
    expire(lite)
    try:
        refused(send_lite())
        refused(send_lite())  # its place is still taken: nobody even asks
        assert "As many lookups as may be are under way; 1 of them hang" in caplog.text
    finally:
        let_go.set()


def hurry(world: World, *, places: int) -> None:
    engine = world.engine
    desk = Desk(timeout=timedelta(milliseconds=50), places=places)
    engine.engine._asking = Asking(
        engine.engine.keys, engine.engine.resolver.finding, engine.events, engine.engine.lookup_for, desk
    )


@pytest.fixture
def send_lite(lite: World) -> Send:
    return lambda: lite.engine.engine.begin(exchange_of("k"), rules_from(ietf(), Mode.LEASED, {}))


def test_a_hanging_async_lookup_does_not_keep_an_event_loop(lite: World) -> None:
    async def hang(_: Record) -> Any:
        await asyncio.Event().wait()

    lite.engine.lookup()(hang)
    hurry(lite, places=1)
    first_life(lite)
    expire(lite)
    rules = rules_from(ietf(), Mode.LEASED, {})
    for _ in range(2):  # its place is free again: it was cancelled
        refused(lite.serve(lambda: lite.engine.engine.begin_async(exchange_of("k"), rules)))


def test_the_record_says_that_somebody_is_to_be_asked_and_the_reaper_leaves_it(lite: World) -> None:
    declare(lite, NotExecuted)
    assert first_life(lite).after_expiry == "ask"
    bury(lite)
    assert lite.by_key("k").state == "expired"

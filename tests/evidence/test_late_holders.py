"""A yes of the holder's own is a yes, however late it comes.

A holder is paused, its lease ends, somebody finds that nothing has happened, which is true at that moment, or
gives up. Then it goes on, and its call goes through. While nobody has run the operation again, its word is
the truth; where another attempt has begun, what it knows is noted, and nothing is free to run as if it had
not been said.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import (
    AsyncPhasedOperation,
    Effect,
    Executed,
    Idempotency,
    Input,
    NotExecuted,
    OutcomeUnknown,
    Resolution,
    Response,
    current_operation,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.core.states import State
from samekey.errors import LeaseLost, SamekeyError, StoreUnavailable
from samekey.stores.protocols import Actor
from samekey.workers.completer import Completer
from tests.evidence.conftest import HOUR, Node

SOMEBODY = Actor("somebody", "a test")


class Holder:
    """A call of ``once`` that is paused in its function until the test lets it go on."""

    def __init__(self, node: Node, ends: Callable[[], Any], *, is_async: bool = False) -> None:
        self._node, self._ends, self._is_async = node, ends, is_async
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.got: list[Any] = []
        self._thread = threading.Thread(target=self._call)
        self._thread.start()
        assert self.entered.wait(60)

    def _call(self) -> None:
        given: dict[str, Any] = {"tenant": "acme", "key": "k", "name": "pay"}
        once = self._node.idempotency.once
        try:
            self.got.append(
                asyncio.run(self._once_async(given)) if self._is_async else once(run=self._pay, **given)
            )
        except SamekeyError as error:
            self.got.append(error)

    async def _once_async(self, given: dict[str, Any]) -> Any:
        async def pay() -> Any:
            return await asyncio.to_thread(self._pay)

        try:
            return await self._node.idempotency.once_async(run=pay, **given)
        finally:
            await self._node.idempotency.engine.drivers.aio.close()

    def _pay(self) -> Any:
        current_operation().source = "cards"
        current_operation().downstream_key()
        self.entered.set()
        assert self.go_on.wait(60)
        return self._ends()

    def finish(self) -> Any:
        self.go_on.set()
        self._thread.join(60)
        (got,) = self.got
        return got


def made(provider_id: str) -> None:
    current_operation().provider_id = provider_id


def paid(provider_id: str = "ch_1") -> Any:
    made(provider_id)
    return {"paid": provider_id}


def unsure() -> Any:
    made("ch_1")
    raise OutcomeUnknown


def refused(provider_id: str = "ch_1") -> Any:
    made(provider_id)
    raise NotExecuted


def nothing() -> Any:
    raise NotExecuted


def retry(node: Node) -> Any:
    """A call that must not run; gives what it gets."""

    def run() -> Any:
        raise AssertionError("it was run again")

    try:
        return node.idempotency.once(tenant="acme", key="k", name="pay", run=run)
    except SamekeyError as error:
        return error


def found_nothing(node: Node) -> None:
    """The lease ends, and a lookup finds nothing at the provider: as it is at that moment."""
    node.end_leases()
    record = node.record("k")
    assert node.run(lambda: node.finding.not_executed(record.id, SOMEBODY, attempt=record.attempt))
    assert node.state("k") is State.FAILED_RETRYABLE


def given_up(node: Node) -> None:
    node.end_leases()
    record = node.record("k")
    assert node.run(lambda: node.finding.give_up(record.id, SOMEBODY, attempt=record.attempt))
    assert node.state("k") is State.DEAD_LETTER


MEANWHILE = pytest.mark.parametrize("meanwhile", [found_nothing, given_up])


@MEANWHILE
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_late_success_is_the_answer_while_nobody_has_run_it_again(
    node: Node, meanwhile: Callable[[Node], None], is_async: bool
) -> None:
    holder = Holder(node, paid, is_async=is_async)
    meanwhile(node)
    assert holder.finish() == {"paid": "ch_1"}
    assert node.state("k") is State.COMPLETED
    assert retry(node) == {"paid": "ch_1"}
    told = node.tell(Executed({"paid": "ch_1"}, "ch_1"), tenant="acme", provider_id="ch_1")
    assert told is Resolution.TOO_LATE  # it is known


@MEANWHILE
def test_a_late_holder_that_has_an_id_and_cannot_tell_makes_it_unknown(
    node: Node, meanwhile: Callable[[Node], None]
) -> None:
    holder = Holder(node, unsure)
    meanwhile(node)
    assert isinstance(holder.finish(), OutcomeUnknown)
    assert node.state("k") is State.UNKNOWN
    assert isinstance(retry(node), OutcomeUnknown)
    told = node.tell(Executed({"paid": "ch_1"}, "ch_1"), tenant="acme", provider_id="ch_1")
    assert told is Resolution.RESOLVED
    assert retry(node) == {"paid": "ch_1"}


def test_the_id_of_a_late_holder_that_was_refused_finds_its_operation(node: Node) -> None:
    holder = Holder(node, refused)
    found_nothing(node)
    assert isinstance(holder.finish(), NotExecuted)
    told = node.tell(Executed({"paid": "ch_1"}, "ch_1"), tenant="acme", provider_id="ch_1")
    assert told is Resolution.RESOLVED
    assert retry(node) == {"paid": "ch_1"}


def test_what_a_holder_noted_before_its_lease_ended_is_noted_after_it(node: Node) -> None:
    """It loses its lease and then its outcome: the key that it asked for and the id that it has are known."""
    holder = Holder(node, unsure)
    node.end_leases()
    assert isinstance(holder.finish(), OutcomeUnknown)
    assert node.record("k").error_code == "OutcomeUnknown"
    told = node.tell(Executed({"paid": "ch_1"}, "ch_1"), tenant="acme", provider_id="ch_1")
    assert told is Resolution.RESOLVED


def test_a_success_that_comes_while_another_attempt_runs_is_never_passed_over(node: Node) -> None:
    first = Holder(node, paid)
    found_nothing(node)
    second = Holder(node, nothing)
    assert isinstance(first.finish(), LeaseLost)
    assert isinstance(second.finish(), NotExecuted)
    got = retry(node)
    if node.idempotency.engine.drivers.dialect in ("sqlite", "postgres", "mysql"):
        assert got == {"paid": "ch_1"}
    else:  # nothing is kept there but that it is not free
        assert isinstance(got, OutcomeUnknown)
        assert node.state("k") is State.UNKNOWN
        told = node.tell(Executed({"paid": "ch_1"}, "ch_1"), tenant="acme", provider_id="ch_1")
        assert told is Resolution.RESOLVED
        assert retry(node) == {"paid": "ch_1"}


def test_an_id_that_comes_while_another_attempt_runs_keeps_the_key_from_being_free(node: Node) -> None:
    first = Holder(node, unsure)
    found_nothing(node)
    second = Holder(node, nothing)
    assert isinstance(first.finish(), OutcomeUnknown)
    assert isinstance(second.finish(), NotExecuted)
    assert isinstance(retry(node), OutcomeUnknown)
    assert node.state("k") is State.UNKNOWN
    told = node.tell(Executed({"paid": "ch_1"}, "ch_1"), tenant="acme", provider_id="ch_1")
    assert told is Resolution.RESOLVED
    assert retry(node) == {"paid": "ch_1"}


def test_a_second_success_leaves_the_answer_and_is_known_by_its_id(node: Node) -> None:
    first = Holder(node, paid)
    found_nothing(node)
    second = Holder(node, lambda: paid("ch_2"))
    assert second.finish() == {"paid": "ch_2"}
    assert isinstance(first.finish(), LeaseLost)
    assert retry(node) == {"paid": "ch_2"}
    told = node.tell(Executed({"paid": "ch_1"}, "ch_1"), tenant="acme", provider_id="ch_1")
    assert told is Resolution.TOO_LATE


def test_what_is_recorded_in_the_background_is_not_dropped_either(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away when the first comes back; its outcome is tried again, when others are at it."""
    keys, keeper, kept = node.keys, node.idempotency.engine.keeper, []
    real = keys.complete
    first = Holder(node, paid)
    found_nothing(node)
    second = Holder(node, nothing)

    def cut(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(keys, "complete", real)
        raise StoreUnavailable("the connection was cut")

    monkeypatch.setattr(keys, "complete", cut)
    monkeypatch.setattr(keeper, "record_later", lambda _, factory, __=None: kept.append(factory))
    assert first.finish() == {"paid": "ch_1"}
    node.run(kept[0])
    assert isinstance(second.finish(), NotExecuted)
    assert retry(node) == {"paid": "ch_1"} or node.state("k") is State.UNKNOWN


class Booking:
    """Phased work whose charge is paused in the middle; a phase before it, if it is half done."""

    def __init__(self, idempotency: Idempotency, ends: Callable[[Effect], Any], *, half: bool) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.charges: list[str] = []
        self.idempotency = idempotency
        self.told: list[int] = []

        async def quote(_: Effect) -> int:
            return 7

        async def charge(effect: Effect) -> Any:
            self.charges.append(effect.key)
            self.entered.set()
            await asyncio.to_thread(self.go_on.wait, 60)
            return ends(effect)

        @idempotency.phased("book", version=1)
        async def book(op: AsyncPhasedOperation, _: Input) -> Response:
            if half:
                await op.effect("quote", quote, source="quotes")
            charged = await op.effect("charge", charge, source="cards")
            return Response(201, charged)

        self.app = Starlette(routes=[Route("/book", book, methods=["POST"])])
        self.app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _: "acme")
        self.client = threading.Thread(target=lambda: self.told.append(self.post()[0]))
        self.client.start()
        assert self.entered.wait(60)

    def post(self) -> tuple[int, Any]:
        with TestClient(self.app, raise_server_exceptions=False) as client:
            answer = client.post("/book", json={}, headers={"Idempotency-Key": "k"})
            return answer.status_code, answer.json()

    def finish(self) -> int:
        self.go_on.set()
        self.client.join(60)
        (status,) = self.told
        return status

    def complete(self) -> int:
        async def work() -> int:
            try:
                return await Completer(self.idempotency.engine).run_once()
            finally:
                await self.idempotency.engine.drivers.aio.close()

        return asyncio.run(work())


def charged(effect: Effect) -> Any:
    effect.provider_id = "ch_1"
    return {"id": "ch_1"}


def not_charged(node: Node) -> None:
    """Its outcome counts as unknown, and an operator says that the charge never happened."""
    record = node.record("k")
    assert node.run(lambda: node.keys.lose(record.lease(60_000), "max_run"))
    record = node.record("k")
    resolver = node.idempotency.engine.resolver
    assert node.run(lambda: resolver.apply(record, NotExecuted, SOMEBODY))


HALF = pytest.mark.parametrize("half", [False, True], ids=["its first effect", "half done"])


@HALF
def test_the_late_result_of_a_phase_is_the_result_of_whoever_goes_on(sql_node: Node, half: bool) -> None:
    node = sql_node
    booking = Booking(node.idempotency, charged, half=half)
    not_charged(node)
    assert booking.finish() == 409
    told = node.tell(Executed({"id": "ch_1"}, "ch_1"), tenant="acme", provider_id="ch_1")
    assert told in (Resolution.KEPT, Resolution.TOO_LATE, Resolution.RESOLVED), told
    booking.complete()
    assert booking.post() == (201, {"id": "ch_1"})
    assert len(booking.charges) == 1


@HALF
def test_a_phase_that_has_an_id_and_cannot_tell_is_not_called_again(sql_node: Node, half: bool) -> None:
    def timed_out(effect: Effect) -> Any:
        effect.provider_id = "ch_1"
        raise TimeoutError

    node = sql_node
    booking = Booking(node.idempotency, timed_out, half=half)
    not_charged(node)
    booking.finish()
    booking.complete()
    assert booking.post()[0] == 409
    assert len(booking.charges) == 1
    told = node.tell(Executed({"id": "ch_1"}, "ch_1"), tenant="acme", provider_id="ch_1")
    assert told is Resolution.RESOLVED
    booking.complete()
    assert booking.post() == (201, {"id": "ch_1"})
    assert len(booking.charges) == 1


def test_the_late_result_of_a_phase_reaches_the_attempt_that_has_begun_since(sql_node: Node) -> None:
    """The completer has taken it, and finds the result where it would call."""
    node = sql_node
    booking = Booking(node.idempotency, charged, half=True)
    not_charged(node)
    assert booking.finish() == 409
    assert booking.complete() == 1
    assert booking.post() == (201, {"id": "ch_1"})
    assert len(booking.charges) == 1


class Nameless(Holder):
    """One that never asks for a downstream key."""

    source = "cards"

    def _pay(self) -> Any:
        current_operation().source = self.source
        self.entered.set()
        assert self.go_on.wait(60)
        return self._ends()


class Elsewhere(Nameless):
    source = "other"


def test_a_late_yes_counts_where_the_next_attempt_went_to_another_provider(node: Node) -> None:
    first = Nameless(node, paid)
    found_nothing(node)
    second = Elsewhere(node, lambda: refused("o_1"))
    second.finish()
    assert node.state("k") is State.FAILED_RETRYABLE
    first.finish()
    assert node.state("k") is State.UNKNOWN
    assert not isinstance(retry(node), dict)


def test_a_late_yes_wakes_the_tombstone(node: Node) -> None:
    """As a provider's does: it does not matter whether the reaper was by."""
    holder = Holder(node, paid)
    found_nothing(node)
    later = node.clock() + 10_000 * HOUR
    assert node.run(lambda: node.upkeep.reap(batch=10, soft=True, now=later)) == 1
    assert node.state("k") is State.EXPIRED
    holder.finish()
    assert node.state("k") in (State.COMPLETED, State.UNKNOWN)


def test_what_the_answer_is_about_is_no_news(sql_node: Node) -> None:
    """The provider knows the key: both attempts have made the same object."""
    node = sql_node
    first = Holder(node, unsure)
    found_nothing(node)
    second = Holder(node, paid)
    assert second.finish() == {"paid": "ch_1"}
    first.finish()
    assert node.shown("k") == []

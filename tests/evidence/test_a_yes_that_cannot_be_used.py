"""A yes whose answer cannot be used is a yes: it is heard, its key is not free any more, and only then is it
said what to mend. The same event, said rightly, settles the operation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from samekey import (
    CallDeclined,
    ConfigurationError,
    Declined,
    Evidence,
    Executed,
    NotExecuted,
    OutcomeUnknown,
    Resolution,
    Response,
    current_operation,
)
from samekey.core.states import State
from samekey.errors import NotSerialisable, SignatureRefused
from samekey.workers.reconciler import Reconciler
from tests.evidence.conftest import Node
from tests.evidence.test_settled_by_others import Shop
from tests.operator.command import samekey

REFUSED = (ConfigurationError, NotSerialisable)


class Hostile(dict[str, Any]):
    """A value that cannot even be looked at."""

    def items(self) -> Any:
        raise RuntimeError("not now")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("not now")


class Call:
    """A call of once() that said that nothing happened: its key is free. A second one would pay."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.runs = 0

    def run(self) -> Any:
        current_operation().source = "cards"
        self.sent = current_operation().downstream_key()
        self.runs += 1
        raise NotExecuted("it never left")

    def make(self) -> Any:
        return self.node.idempotency.once(tenant="acme", key="k1", run=self.run, name="pay")

    def free(self) -> None:
        with pytest.raises(NotExecuted):
            self.make()
        assert self.node.state("k1") is State.FAILED_RETRYABLE

    def is_held(self) -> bool:
        try:
            self.make()
        except OutcomeUnknown:
            return self.runs == 1
        return False


@pytest.fixture
def call(node: Node) -> Call:
    made = Call(node)
    made.free()
    return made


CALLS = {
    "an HTTP answer": Executed(Response(201, {"id": "ch_1"}), "ch_1"),
    "what cannot be stored": Executed(object(), "ch_1"),
    "what comes back changed": Executed((1, 2), "ch_1"),
    "what cannot be looked at": Executed(Hostile(a=1), "ch_1"),
    "an id that no store holds": Executed({"id": "ch_1"}, "ch\0" * 200),
    "an id that is no text": Executed({"id": "ch_1"}, 5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("said", CALLS.values(), ids=CALLS)
def test_a_call_whose_yes_has_the_wrong_answer_does_not_run_again(call: Call, said: Evidence) -> None:
    for _ in range(2):  # the provider sends it again
        with pytest.raises(REFUSED):
            call.node.tell(said, downstream_key=call.sent)
        assert call.is_held()
    right = Executed({"id": "ch_1"}, "ch_1")
    assert call.node.tell(right, downstream_key=call.sent) is Resolution.RESOLVED
    assert call.make() == {"id": "ch_1"} and call.runs == 1


@pytest.mark.parametrize("said", [Declined(Response(402)), Declined(object())], ids=["an answer", "a thing"])
def test_a_refusal_that_cannot_be_used_changes_nothing(call: Call, said: Evidence) -> None:
    with pytest.raises(REFUSED):
        call.node.tell(said, downstream_key=call.sent)
    assert call.node.state("k1") is State.FAILED_RETRYABLE
    assert call.node.tell(Declined("no funds"), downstream_key=call.sent) is Resolution.RESOLVED
    with pytest.raises(CallDeclined):
        call.make()


TOLD: dict[str, dict[str, Any]] = {
    "a moment without its zone": {"occurred_at": datetime.now()},
    "a moment that is a number": {"occurred_at": 1_700_000_000},
    "no moment": {"occurred_at": None},
    "a source of many characters": {"source": "x" * 256},
    "a source with a NUL": {"source": "a\0b"},
    "no source": {"source": None},
    "an event of many characters": {"event_id": "x" * 256},
    "an event with half a character": {"event_id": "a\ud800"},
    "no event": {"event_id": None},
}


@pytest.mark.parametrize("wrong", TOLD.values(), ids=TOLD)
@pytest.mark.parametrize("by", ["key", "operation"])
def test_a_yes_that_is_told_wrongly_keeps_its_key(call: Call, wrong: dict[str, Any], by: str) -> None:
    operation = {"operation_id": call.node.record("k1").id}
    named = {"downstream_key": call.sent} if by == "key" else operation
    with pytest.raises(ConfigurationError):
        call.node.tell(Executed(1), **{**named, **wrong})
    assert call.is_held()
    assert call.node.tell(Executed(1), "right", **named) is Resolution.RESOLVED
    assert call.make() == 1 and call.runs == 1


def test_a_yes_with_an_impossible_step_keeps_its_key(call: Call) -> None:
    with pytest.raises(ConfigurationError):
        call.node.tell(Executed(1), operation_id=call.node.record("k1").id, step="a\0b")
    assert call.is_held()


def test_another_word_that_is_told_wrongly_changes_nothing(call: Call) -> None:
    for wrong in TOLD.values():
        with pytest.raises(ConfigurationError):
            call.node.tell(NotExecuted, **{"downstream_key": call.sent, **wrong})
    assert call.node.state("k1") is State.FAILED_RETRYABLE


def test_a_forger_is_not_heard_whatever_is_wrong_with_the_rest(call: Call) -> None:
    with pytest.raises(SignatureRefused):
        call.node.idempotency.resolve(
            Executed(Response(201), "\0"),
            source="cards",
            event_id="\0",
            tenant=None,
            occurred_at=datetime.now(UTC),
            downstream_key=call.sent,
            verify=lambda: False,
        )
    assert call.node.state("k1") is State.FAILED_RETRYABLE


def test_a_yes_of_an_unknown_voice_that_knows_the_operation_keeps_its_key(call: Call) -> None:
    told = call.node.tell(Executed(1), source="bank", operation_id=call.node.record("k1").id)
    assert told is Resolution.UNPLACED
    assert call.is_held()


def test_no_other_tenant_can_hold_a_key(call: Call) -> None:
    """The tenant is a fence: whoever may speak for another one is not heard here, and may send again."""
    told = call.node.tell(Executed(1), tenant="another", downstream_key=call.sent)
    assert told is Resolution.NOT_FOUND and call.node.state("k1") is State.FAILED_RETRYABLE


ANSWERS = {
    "a plain value": Executed({"id": 7}),
    "an error": Executed(Response(402)),
    "a redirection": Executed(Response(307)),
    "no status": Executed(Response("201")),  # type: ignore[arg-type]
    "no headers": Executed(Response(201, {}, None)),  # type: ignore[arg-type]
    "half a character": Executed(Response(201, "a\ud800")),
    "a strange header": Executed(Response(201, {}, {"x": "\u20ac"})),
    "what cannot be written": Executed(Response(201, object())),
    "what cannot be looked at": Executed(Response(201, Hostile(a=1))),
}


@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)
def test_a_request_whose_yes_has_the_wrong_answer_does_not_run_again(node: Node, said: Evidence) -> None:
    runs = []

    def never() -> Any:
        runs.append(1)
        raise NotExecuted("it never left")

    shop = Shop(node.idempotency, never)
    shop.go_on.set()
    assert shop.post()[0] == 503
    record = node.record("k1")
    assert record.state is State.FAILED_RETRYABLE
    with pytest.raises(REFUSED):
        node.tell(said, downstream_key=record.downstream_key())
    assert shop.post()[0] == 409 and runs == [1]
    right = Executed(Response(201, {"paid": 1}))
    assert node.tell(right, downstream_key=record.downstream_key()) is Resolution.RESOLVED
    assert shop.post() == (201, b'{"paid": 1}') and runs == [1]


def test_it_waits_while_its_operation_runs_and_frees_it_at_no_end(node: Node) -> None:
    said: list[type[Exception]] = []
    call = Call(node)

    def run() -> Any:
        current_operation().source = "cards"
        sent = current_operation().downstream_key()
        try:
            node.tell(Executed(Response(201)), downstream_key=sent)
        except ConfigurationError as error:
            said.append(type(error))
        raise NotExecuted("it never left")

    with pytest.raises((NotExecuted, OutcomeUnknown)):
        node.idempotency.once(tenant="acme", key="k1", run=run, name="pay")
    assert said == [ConfigurationError] and node.state("k1") is State.UNKNOWN
    with pytest.raises(OutcomeUnknown):
        call.make()
    assert not call.runs


def test_an_id_that_two_operations_have_and_an_answer_that_cannot_be_kept(node: Node) -> None:
    def lost() -> None:
        current_operation().source = "cards"
        current_operation().provider_id = "ch_1"
        raise NotExecuted("it never left")

    for key in ("k1", "k2"):
        with pytest.raises(NotExecuted):
            node.idempotency.once(tenant="acme", key=key, run=lost)
    told = node.tell(Executed(object()), provider_id="ch_1", tenant="acme")
    assert told is Resolution.AMBIGUOUS
    for key in ("k1", "k2"):
        with pytest.raises(OutcomeUnknown):
            node.idempotency.once(tenant="acme", key=key, run=lost)


def test_an_event_that_takes_back_its_yes_frees_nothing(sql_node: Node) -> None:
    call = Call(sql_node)
    call.free()
    with pytest.raises(ConfigurationError):
        sql_node.tell(Executed(Response(201)), downstream_key=call.sent)
    assert sql_node.tell(NotExecuted, downstream_key=call.sent) is Resolution.UNPLACED
    assert call.is_held()


def test_an_operator_is_shown_it_and_why(lite: Node) -> None:
    call = Call(lite)
    call.free()
    with pytest.raises(ConfigurationError):
        lite.tell(Executed(Response(201)), downstream_key=call.sent)
    shown = samekey("evidence", "list", "--json", env={"SAMEKEY_URL": lite.url})
    assert shown.code == 0 and "once()" in shown.json["events"][0]["unusable"]


def looked_up(node: Node, finding: Callable[[Any], Any]) -> State:
    node.idempotency.lookup()(finding)

    async def look() -> None:
        try:
            await Reconciler(node.idempotency.engine).run_once()
        finally:
            await node.idempotency.engine.drivers.aio.close()

    asyncio.run(look())
    return node.state("k1")


@pytest.mark.parametrize("said", CALLS.values(), ids=CALLS)
def test_a_lookup_whose_yes_cannot_be_used_is_a_dead_letter_that_says_why(node: Node, said: Evidence) -> None:
    def lost() -> None:
        current_operation().downstream_key()
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key="k1", run=lost)
    assert looked_up(node, lambda _: said) is State.DEAD_LETTER
    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key="k1", run=lost)

"""Evidence is checked by what it is about, where it comes in: a refusal is never told as done, nor what was
done as an error, and no text gets as far as a store that cannot hold it."""

from __future__ import annotations

import asyncio
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
from samekey.core.record import Record
from samekey.core.states import State
from samekey.errors import NotSerialisable
from samekey.workers.reconciler import Reconciler
from tests.evidence.conftest import Node
from tests.evidence.test_settled_by_others import Shop
from tests.operator.command import samekey

WRONG_ANSWERS: list[Evidence] = [
    Declined({"error": "card declined"}),
    Declined(None),
    Declined(Response(201, {"x": 1})),
    Declined(Response(303)),
    Executed({"id": 7}),
    Executed(None),
    Executed(Response(402)),
    Executed(Response(500)),
    Executed(Response(307)),
    Executed(Response(101)),
    Executed(Response(700)),
]


def unknown_request(node: Node) -> tuple[Shop, Record]:
    def lost() -> Any:
        raise TimeoutError("who knows")

    shop = Shop(node.idempotency, lost)
    shop.go_on.set()
    assert shop.post()[0] == 409
    return shop, node.record("k1")


def lost_call() -> None:
    current_operation().source = "cards"
    current_operation().provider_id = "ch_1"
    raise OutcomeUnknown


def unknown_call(node: Node, key: str = "call") -> Record:
    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key=key, run=lost_call)
    return node.record(key)


def test_an_answer_that_would_tell_the_client_something_else_is_refused(node: Node) -> None:
    shop, record = unknown_request(node)
    for number, evidence in enumerate(WRONG_ANSWERS):
        with pytest.raises(ConfigurationError):
            node.tell(evidence, f"e{number}", operation_id=record.id)
        assert node.state("k1") is State.UNKNOWN, evidence
    refusal = Declined(Response(402, {"error": "no"}))
    assert node.tell(refusal, "no", operation_id=record.id) is not Resolution.RESOLVED, "some said yes"
    assert node.tell(Executed(Response(201)), "good", operation_id=record.id) is Resolution.RESOLVED
    assert shop.post()[0] == 201


@pytest.mark.parametrize("evidence", WRONG_ANSWERS, ids=repr)
def test_a_lookup_that_would_tell_something_else_settles_nothing(lite: Node, evidence: Evidence) -> None:
    unknown_request(lite)
    lite.idempotency.lookup()(lambda _: evidence)

    async def look() -> int:
        try:
            return await Reconciler(lite.idempotency.engine).run_once()
        finally:
            await lite.idempotency.engine.drivers.aio.close()

    assert asyncio.run(look()) == 0
    assert lite.state("k1") is State.DEAD_LETTER, "asking again does not help"


def test_a_call_is_told_by_its_value(node: Node) -> None:
    for number, value in enumerate([None, "paid", 7, {"id": 1}, [1, {"a": None}]]):
        record = unknown_call(node, f"k{number}")
        assert node.tell(Executed(value), f"e{number}", operation_id=record.id) is Resolution.RESOLVED
        assert node.idempotency.once(tenant="acme", key=f"k{number}", run=lost_call) == value


def test_a_call_that_was_declined_raises_what_was_said(node: Node) -> None:
    record = unknown_call(node)
    assert node.tell(Declined({"error": "no"}), operation_id=record.id) is Resolution.RESOLVED
    with pytest.raises(CallDeclined) as told:
        node.idempotency.once(tenant="acme", key="call", run=lost_call)
    assert told.value.value == {"error": "no"}


def test_a_call_takes_no_http_answer(node: Node) -> None:
    record = unknown_call(node)
    for evidence in (Executed(Response(201, {"id": 1})), Declined(Response(402)), Executed((1, 2))):
        with pytest.raises((ConfigurationError, NotSerialisable)):
            node.tell(evidence, operation_id=record.id)
        assert node.state("call") is State.UNKNOWN


def test_the_command_line_has_the_same_check(lite: Node) -> None:
    _, answered = unknown_request(lite)
    called = unknown_call(lite)

    def resolve(record: Record, *words: str) -> int:
        more = ("--reason", "seen", "--dry-run")
        return samekey("keys", "resolve", record.id, *words, *more, env={"SAMEKEY_URL": lite.url}).code

    assert resolve(answered, "--executed", "--status", "201") == 0
    for wrong in (["--executed", "--status", "402"], ["--executed", "--status", "307"]):
        assert resolve(answered, *wrong) == 2
    assert resolve(answered, "--declined", "--status", "201") == 2
    assert resolve(answered, "--executed", "--result", "{}") == 2
    assert resolve(called, "--executed", "--result", "null") == 0
    assert resolve(called, "--executed", "--status", "200") == 2
    assert resolve(called, "--executed", "--result", "1", "--provider-id", "a\nb") == 2


TEXTS = {"NUL": "a\0b", "half a character": "a\ud800", "a line's end": "a\nb", "long": "x" * 256}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_text_reaches_a_store_that_cannot_hold_it(node: Node, text: str) -> None:
    record = unknown_call(node)
    for evidence in (Executed(1, text), Declined(1, text)):
        with pytest.raises(ConfigurationError):
            node.tell(evidence, operation_id=record.id)
    for wrong in ({"event_id": text}, {"source": text}):
        with pytest.raises(ConfigurationError):
            node.tell(NotExecuted, **{"operation_id": record.id, **wrong})
    with pytest.raises(ConfigurationError):
        node.tell(NotExecuted, operation_id=record.id, step=text)
    for named in ({"operation_id": text}, {"downstream_key": text}):
        assert node.tell(NotExecuted, **named) is Resolution.NOT_FOUND
    assert node.tell(NotExecuted, provider_id=text, tenant="acme") is Resolution.NOT_FOUND
    assert node.state("call") is State.UNKNOWN
    assert node.tell(Executed(1), operation_id=record.id) is Resolution.RESOLVED


def test_what_is_no_text_is_refused(node: Node) -> None:
    record = unknown_call(node)
    wrong: list[dict[str, Any]] = [
        {"operation_id": 5},
        {"downstream_key": b"x"},
        {"provider_id": 5, "tenant": "acme"},
        {"operation_id": record.id, "step": 5},
        {"operation_id": record.id, "source": 5},
    ]
    for named in wrong:
        with pytest.raises(ConfigurationError):
            node.tell(NotExecuted, **named)
    with pytest.raises(ConfigurationError):
        node.tell(Executed(1, 5), operation_id=record.id)  # type: ignore[arg-type]

"""Of one send, every word about it counts; and of several, no word counts for all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from samekey import (
    Declined,
    Evidence,
    Executed,
    NotExecuted,
    OutcomeUnknown,
    Resolution,
    current_operation,
)
from samekey.core.states import State
from tests.evidence.conftest import Node

WAITS = (Resolution.KEPT, Resolution.UNPLACED)


def test_a_word_about_the_only_send_counts_by_whichever_of_the_providers_ids(node: Node) -> None:
    """The handler noted the payment intent; the event names the charge."""
    sent: list[str] = []

    def pay() -> None:
        operation = current_operation()
        operation.source = "cards"
        sent.append(operation.downstream_key())
        operation.provider_id = "pi_1"
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key="k", run=pay, name="pay")
    told = node.tell(Declined("card declined", "ch_1"), downstream_key=sent[0])
    assert told is Resolution.RESOLVED
    assert node.state("k") is State.COMPLETED and len(sent) == 1


@pytest.mark.parametrize("evidence", [NotExecuted, Declined("no")], ids=["not executed", "declined"])
def test_a_no_that_names_nothing_is_not_about_an_attempt_that_has_made_something(
    node: Node, evidence: Evidence
) -> None:
    """The handler tried twice under its key: the first try failed, of which the event tells late."""
    sent: list[str] = []

    def pay() -> None:
        operation = current_operation()
        operation.source = "cards"
        sent.append(operation.downstream_key())
        operation.provider_id = "ch_2"
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key="k", run=pay, name="pay")
    assert node.tell(evidence, downstream_key=sent[0]) in WAITS
    assert node.state("k") is State.UNKNOWN
    assert node.tell(evidence, "e2", provider_id="ch_2", tenant="acme") is Resolution.RESOLVED


def test_of_two_sends_a_no_by_an_unknown_id_waits(node: Node) -> None:
    sent: list[str] = []
    ends = iter([NotExecuted, OutcomeUnknown])

    def pay() -> None:
        operation = current_operation()
        sent.append(operation.downstream_key())
        operation.provider_id = f"pi_{len(sent)}"
        raise next(ends)

    for end in (NotExecuted, OutcomeUnknown):
        with pytest.raises(end):
            node.idempotency.once(tenant="acme", key="k", run=pay, name="pay")
    later = datetime.now(UTC) + timedelta(seconds=30)
    assert node.tell(Declined("no", "ch_9"), downstream_key=sent[0], occurred_at=later) in WAITS
    assert node.state("k") is State.UNKNOWN


class Died(BaseException):
    """The process dies: nothing is noted, and its lease ends."""


@pytest.mark.parametrize("evidence", [NotExecuted, Executed("authorised")], ids=["no", "yes"])
def test_a_word_about_an_operation_that_died_settles_none_of_its_steps(
    node: Node, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _dead(node, monkeypatch, "authorise", "capture")
    assert node.tell(evidence, operation_id=record) is Resolution.UNPLACED
    assert node.state("k") is State.UNKNOWN


def test_a_word_about_the_plain_key_of_an_operation_that_died_settles_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _dead(node, monkeypatch, "")
    assert node.tell(Executed("paid"), operation_id=record, step="") is Resolution.RESOLVED
    assert node.state("k") is State.COMPLETED


def _dead(node: Node, monkeypatch: pytest.MonkeyPatch, *steps: str) -> str:
    """The id of an operation whose process died after it had sent these."""

    def pay() -> None:
        for step in steps:
            current_operation().downstream_key(step)

    with monkeypatch.context() as dying:

        def die(*_: object, **__: object) -> None:
            raise Died

        dying.setattr(node.keys, "complete", die)
        # A process that has died records nothing later either.
        dying.setattr(node.idempotency.engine.keeper, "record_later", lambda *_: None)
        with pytest.raises(Died):
            node.idempotency.once(tenant="acme", key="k", run=pay, name="pay")
    node.end_leases()
    assert node.state("k") is State.UNKNOWN
    return node.record("k").id

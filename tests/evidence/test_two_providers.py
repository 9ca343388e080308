"""A handler that calls two providers: each one's word is about its own call."""

from __future__ import annotations

import pytest

from samekey import Executed, NotExecuted, OutcomeUnknown, Resolution, current_operation
from samekey.core.states import State
from tests.evidence.conftest import Node

HEARD = (Resolution.KEPT, Resolution.UNPLACED)


class Order:
    """Charges at one provider, then has a label printed by another, which ends it as it is told."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.runs = 0
        self.sent: dict[str, str] = {}

    def place(self, end: type[Exception]) -> None:
        def run() -> None:
            self.runs += 1
            operation = current_operation()
            for source, step, made in (("cards", "charge", "ch_1"), ("courier", "label", None)):
                operation.source = source
                self.sent[step] = operation.downstream_key(step)
                if made is not None:  # None would take back the id before it
                    operation.provider_id = made
            raise end

        with pytest.raises((end, OutcomeUnknown)):
            self.node.idempotency.once(tenant="acme", key="k", run=run, name="order")


@pytest.fixture
def order(node: Node) -> Order:
    return Order(node)


@pytest.mark.parametrize("end", [NotExecuted, OutcomeUnknown])
def test_the_first_providers_yes_is_heard_and_nothing_runs_again(order: Order, end: type[Exception]) -> None:
    order.place(end)
    yes = Executed("charged")
    assert order.node.tell(yes, downstream_key=order.sent["charge"], source="cards") in HEARD
    order.place(end)
    assert order.runs == 1 and order.node.state("k") is State.UNKNOWN


def test_the_first_providers_id_finds_its_effect(order: Order) -> None:
    order.place(OutcomeUnknown)
    by_id = {"provider_id": "ch_1", "tenant": "acme"}
    assert order.node.tell(Executed("charged"), source="cards", **by_id) in HEARD
    assert order.node.tell(Executed("charged"), "e2", source="courier", **by_id) is Resolution.NOT_FOUND


def test_each_effect_is_shown_with_whom_it_was_sent_to(order: Order) -> None:
    order.place(OutcomeUnknown)
    operation_id = order.node.record("k").id
    effects = order.node.run(lambda: order.node.finding.effects(operation_id))
    assert [(one.step, one.source) for one in effects] == [("charge", "cards"), ("label", "courier")]


def test_a_yes_of_another_voice_that_knows_the_key_keeps_it_from_running(order: Order) -> None:
    """The provider goes by two names, or the call went to another one first."""
    order.place(OutcomeUnknown)
    said = order.node.tell(Executed("charged"), downstream_key=order.sent["charge"], source="bank")
    assert said is Resolution.UNPLACED
    no = order.node.tell(NotExecuted, "e2", downstream_key=order.sent["charge"], source="bank")
    assert no is Resolution.NOT_FOUND

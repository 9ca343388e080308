"""Every id that a provider gave finds its operation, and it stays that of the attempt that noted it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from samekey import Executed, NotExecuted, OutcomeUnknown, Resolution, current_operation
from samekey.core.states import State
from tests.evidence.conftest import Node
from tests.evidence.test_settled_by_others import Booking

PLACED = (Resolution.KEPT, Resolution.UNPLACED)
LATER = timedelta(seconds=30)


class Payment:
    """A call that notes ids and ends as it is told."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.runs = 0

    def run(self, ids: dict[str, str], end: type[Exception] | None) -> Any:
        def pay() -> str:
            self.runs += 1
            operation = current_operation()
            operation.source = "cards"
            for step, provider_id in ids.items():
                operation.downstream_key(step)
                operation.provider_id = provider_id
            if end is not None:
                raise end
            return "paid"

        return self.node.idempotency.once(tenant="acme", key="k", run=pay, name="pay")

    def ends(self, ids: dict[str, str], end: type[Exception]) -> None:
        with pytest.raises(end):
            self.run(ids, end)

    def told(self, evidence: Any, provider_id: str, event_id: str = "e1") -> Resolution:
        return self.node.tell(
            evidence, event_id, provider_id=provider_id, tenant="acme", occurred_at=datetime.now(UTC) + LATER
        )


@pytest.fixture
def payment(node: Node) -> Payment:
    return Payment(node)


def test_what_a_failed_attempt_made_is_found_and_nothing_runs_again(payment: Payment) -> None:
    payment.ends({"": "ch_1"}, NotExecuted)
    assert payment.told(Executed("it was paid"), "ch_1") is Resolution.RESOLVED
    assert payment.run({"": "ch_2"}, None) == "it was paid"
    assert payment.runs == 1


@pytest.mark.parametrize("end", [NotExecuted, OutcomeUnknown])
def test_the_id_of_every_step_finds_the_operation(payment: Payment, end: type[Exception]) -> None:
    payment.ends({"authorise": "au_1", "capture": "ca_1"}, end)
    for number, provider_id in enumerate(["au_1", "ca_1"]):
        told = payment.told(Executed(provider_id), provider_id, f"e{number}")
        assert told is not Resolution.NOT_FOUND, provider_id
    assert payment.told(Executed(1), "au_2", "e9") is Resolution.NOT_FOUND


@pytest.mark.parametrize("noted", [{"": "ch_2"}, {}], ids=["with an id of its own", "without a word"])
def test_a_no_about_what_a_former_attempt_made_frees_nothing(payment: Payment, noted: dict[str, str]) -> None:
    payment.ends({"": "ch_1"}, NotExecuted)
    payment.ends(noted, OutcomeUnknown)
    assert payment.told(NotExecuted, "ch_1") is Resolution.TOO_LATE
    assert payment.node.state("k") is State.UNKNOWN
    assert payment.told(Executed("paid at first"), "ch_1", "e2") is Resolution.RESOLVED
    assert payment.run({}, None) == "paid at first"
    assert payment.runs == 2


def test_ids_of_a_former_life_find_nothing(payment: Payment) -> None:
    node = payment.node
    payment.ends({"": "ch_1"}, NotExecuted)
    record = node.record("k")
    far: Callable[[], Any] = lambda: node.upkeep.reap(batch=10, now=record.expires_at + 40 * 86_400_000)  # noqa: E731
    node.run(far)
    assert payment.told(Executed(1), "ch_1") is Resolution.NOT_FOUND


def test_another_tenant_and_another_source_find_nothing(payment: Payment) -> None:
    payment.ends({"": "ch_1"}, NotExecuted)
    for other in ({"tenant": "mallory"}, {"tenant": "acme", "source": "bank"}):
        assert payment.node.tell(Executed(1), provider_id="ch_1", **other) is Resolution.NOT_FOUND


def test_a_paused_attempt_does_not_write_its_id_over_that_of_the_present_one(sql_node: Node) -> None:
    """It woke up after another one had been sent: what it made stays its own, and finds the operation."""
    node = sql_node
    booking = Booking(node.idempotency)
    phases = node.idempotency.engine.phases.phases
    assert booking.post() == 409
    record = node.record("k1")
    first = record.lease(60_000)
    node.run(lambda: phases.note_effect(first, record.id, "charge", "ch_1", "cards"))
    assert node.tell(NotExecuted, "e1", operation_id=record.id, step="charge") is Resolution.RESOLVED
    assert booking.post() == 409
    second = node.record("k1")
    assert second.run != record.run and second.state is State.UNKNOWN
    node.run(lambda: phases.note_effect(second.lease(60_000), record.id, "charge", "ch_2", "cards"))
    node.run(lambda: phases.note_effect(first, record.id, "charge", "ch_1", "cards"))  # it wakes up
    (effect,) = node.run(lambda: node.finding.effects(record.id))
    assert (effect.provider_id, effect.former_ids) == ("ch_2", ("ch_1",))
    no = node.tell(
        NotExecuted, "e2", provider_id="ch_1", tenant="single", occurred_at=datetime.now(UTC) + LATER
    )
    assert no is Resolution.TOO_LATE and node.state("k1") is State.UNKNOWN
    yes = node.tell(Executed({"id": "ch_2"}), "e3", provider_id="ch_2", tenant="single")
    assert yes is Resolution.RESOLVED

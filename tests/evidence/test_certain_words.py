"""What names this very operation is about it, whatever else is said; and that it happened is never passed
over, on any store."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from samekey import Executed, NotExecuted, OutcomeUnknown, Resolution, current_operation
from samekey.core.states import State
from tests.evidence.conftest import HOUR, Node

pytestmark = pytest.mark.filterwarnings("ignore:ttl=.* is under an hour")

EARLIER = timedelta(minutes=1)
"""By the provider's clock; or it is when the object was made, and not when it was paid."""


class Membership:
    """Renewed under one key; each life of it is about the same object of the provider's."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.id = self.sent = ""
        self.runs = 0

    def renew(self, noted: str | None, *, lost: bool = False) -> Any:
        def run() -> str:
            self.runs += 1
            operation = current_operation()
            operation.source = "cards"
            self.id, self.sent = operation.id, operation.downstream_key()
            operation.provider_id = noted
            if lost:
                raise OutcomeUnknown
            return f"run {self.runs}"

        ttl = timedelta(seconds=1)
        return self.node.idempotency.once(tenant="acme", key="k", run=run, name="renew", ttl=ttl)

    def expire(self) -> None:
        expires_at = self.node.record("k").expires_at
        for _ in range(1000):
            if self.node.clock() > expires_at:
                break
            time.sleep(0.01)

    def lose_second_life(self, noted: str | None) -> None:
        self.renew("sub_42")
        self.expire()
        with pytest.raises(OutcomeUnknown):
            self.renew(noted, lost=True)
        assert self.node.record("k").life == 2


@pytest.fixture
def membership(node: Node) -> Membership:
    return Membership(node)


def test_a_yes_by_the_operations_own_id_counts_although_a_former_life_has_its_object(
    membership: Membership,
) -> None:
    membership.lose_second_life(None)
    yes = Executed("renewed", "sub_42")
    assert membership.node.tell(yes, operation_id=membership.id) is Resolution.RESOLVED
    assert membership.renew(None) == "renewed"


def test_and_whatever_the_providers_clock_says(membership: Membership) -> None:
    membership.lose_second_life(None)
    early = datetime.now(UTC) - EARLIER
    yes = Executed("renewed", "inv_2")
    said = membership.node.tell(yes, operation_id=membership.id, occurred_at=early)
    assert said is Resolution.RESOLVED


def test_a_yes_about_what_this_life_has_made_is_not_passed_over_for_its_time(membership: Membership) -> None:
    membership.lose_second_life("inv_2")
    early = datetime.now(UTC) - EARLIER
    yes = Executed("renewed", "inv_2")
    said = membership.node.tell(yes, provider_id="inv_2", tenant="acme", occurred_at=early)
    assert said is Resolution.UNPLACED
    later = datetime.now(UTC) + EARLIER
    membership.node.tell(NotExecuted, "e2", downstream_key=membership.sent, occurred_at=later)
    assert membership.node.state("k") is State.UNKNOWN, "and no no frees it"


def test_a_yes_under_the_name_of_an_event_that_has_said_no_is_heard(membership: Membership) -> None:
    with pytest.raises(OutcomeUnknown):
        membership.renew(None, lost=True)
    assert membership.node.tell(NotExecuted, "pay_1", downstream_key=membership.sent) is Resolution.RESOLVED
    yes = Executed("renewed", "inv_1")
    assert membership.node.tell(yes, "pay_1", downstream_key=membership.sent) is Resolution.RESOLVED
    again = membership.node.tell(yes, "pay_1", downstream_key=membership.sent)
    assert again in (Resolution.DUPLICATE, Resolution.TOO_LATE)
    assert membership.renew(None) == "renewed" and membership.runs == 1


@pytest.mark.parametrize("named", [None, "pi_1"], ids=["no object", "another name of it"])
def test_a_life_that_was_released_before_it_sent_anything_is_not_what_a_provider_tells_of(
    membership: Membership, named: str | None
) -> None:
    """The event is about the former life, which had the same downstream key."""

    node = membership.node

    def refuse() -> None:
        lease = node.record("k").lease(HOUR)
        assert node.run(lambda: node.keys.release(lease)), "as after a 429 of its own"
        raise NotExecuted("too many requests; nothing was begun")

    membership.renew("ch_1")
    membership.expire()
    with pytest.raises(NotExecuted):
        node.idempotency.once(tenant="acme", key="k", run=refuse, name="renew", ttl=timedelta(minutes=5))
    record = node.record("k")
    assert (record.life, record.state, record.error_code) == (2, State.FAILED_RETRYABLE, "released")
    yes = Executed("run 1", named)
    assert node.tell(yes, downstream_key=membership.sent) is Resolution.TOO_LATE
    assert membership.renew("ch_2") == "run 2"

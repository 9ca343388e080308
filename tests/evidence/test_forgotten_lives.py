"""A key that is used again after the reaper has deleted its former life has the same downstream keys: a word
that may be about either settles nothing by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from samekey import Declined, Evidence, Executed, NotExecuted, OutcomeUnknown, Resolution, current_operation
from samekey.core.claim import call_part, scope_of
from samekey.core.decide import Execute
from samekey.core.states import Mode, State
from tests.evidence.conftest import HOUR, Node
from tests.operator.world import claim_of

pytestmark = pytest.mark.filterwarnings("ignore:ttl=.* is under an hour")


class Rent:
    """A debit under one key, again and again; each life is wholly forgotten before the next."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.runs = 0
        self.sent = ""

    def debit(self, noted: str | None, error: type[BaseException] | None = None) -> Any:
        def run() -> str:
            self.runs += 1
            operation = current_operation()
            operation.source = "cards"
            self.sent = operation.downstream_key()
            operation.provider_id = noted
            if error is not None:
                raise error
            return f"run {self.runs}"

        return self.node.idempotency.once(tenant="acme", key="k", run=run, name="rent")

    def forget(self) -> None:
        later = self.node.clock() + 100 * 24 * HOUR
        assert self.node.run(lambda: self.node.upkeep.reap(batch=10, soft=False, now=later))

    def told(self, evidence: Evidence, **named: Any) -> Resolution:
        """It happens now: a debit bounces days after the life that made it is forgotten."""
        given = named or {"downstream_key": self.sent}
        later = datetime.now(UTC) + timedelta(seconds=30)
        return self.node.tell(evidence, occurred_at=later, **given)


@pytest.fixture
def second(sql_node: Node) -> Rent:
    """The first life made ch_1 and is forgotten."""
    rent = Rent(sql_node)
    assert rent.debit("ch_1") == "run 1"
    rent.forget()
    return rent


@pytest.mark.parametrize(
    "evidence",
    [NotExecuted, Declined("it bounced", "ch_1"), Declined("it bounced"), Executed("settled", "ch_1")],
    ids=["not executed", "declined ch_1", "declined", "executed ch_1"],
)
def test_a_word_by_a_key_that_a_forgotten_life_had_too_settles_nothing(
    second: Rent, evidence: Evidence
) -> None:
    with pytest.raises(OutcomeUnknown):
        second.debit(None, OutcomeUnknown)
    assert second.told(evidence) is Resolution.KEPT
    assert second.node.state("k") is State.UNKNOWN
    with pytest.raises(OutcomeUnknown):
        second.debit(None)
    assert second.runs == 2


def test_what_settled_in_a_forgotten_life_is_not_the_answer_of_one_that_failed(second: Rent) -> None:
    """Nor may it run then: perhaps it has happened after all. An operator sees the event."""
    with pytest.raises(NotExecuted):
        second.debit(None, NotExecuted)
    assert second.told(Executed("settled", "ch_1")) is Resolution.KEPT
    assert second.node.state("k") is State.UNKNOWN
    assert second.node.shown("k") == ["waiting"]


@pytest.mark.parametrize("noted", ["ch_2", None], ids=["by its own object", "by its own id"])
@pytest.mark.parametrize(
    ("evidence", "state"),
    [
        (NotExecuted, State.FAILED_RETRYABLE),
        (Declined("no", "ch_2"), State.COMPLETED),
        (Executed("paid", "ch_2"), State.COMPLETED),
    ],
    ids=["not executed", "declined", "executed"],
)
def test_what_is_certainly_about_this_life_counts(
    second: Rent, evidence: Evidence, state: State, noted: str | None
) -> None:
    with pytest.raises(OutcomeUnknown):
        second.debit(noted, OutcomeUnknown)
    by_id = {"operation_id": second.node.record("k").id}
    named = {"provider_id": "ch_2", "tenant": "acme"} if noted else by_id
    assert second.told(evidence, **named) is Resolution.RESOLVED
    assert second.node.state("k") is state


@pytest.mark.parametrize("again", [False, True], ids=["once", "and then by its key"])
def test_what_named_this_very_operation_still_does_so_when_it_has_waited(second: Rent, again: bool) -> None:
    """It comes while the call runs, whose reply is lost; perhaps it is sent once more, by the downstream key,
    which the forgotten life had too."""
    told: list[Resolution] = []

    def run() -> str:
        operation = current_operation()
        operation.source = "cards"
        second.sent = operation.downstream_key()
        named: list[dict[str, Any]] = [{"operation_id": operation.id}]
        named += [{"downstream_key": second.sent}] if again else []
        told.extend(second.told(Executed("paid", "ch_2"), event_id="e1", **one) for one in named)
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        second.node.idempotency.once(tenant="acme", key="k", run=run, name="rent")
    assert told == [Resolution.KEPT, Resolution.DUPLICATE][: len(told)]
    operation_id = second.node.record("k").id
    resolver = second.node.idempotency.engine.resolver
    second.node.run(lambda: resolver.apply_waiting(operation_id))
    assert second.node.state("k") is State.COMPLETED


def test_a_claim_that_was_given_back_was_no_life(sql_node: Node) -> None:
    """Nothing was sent: a word about what follows can be about nothing else."""
    claim = replace(claim_of("k", Mode.LEASED, HOUR, HOUR, "acme", "rent"), scope=scope_of(call_part("acme")))
    decision = sql_node.run(lambda: sql_node.keys.claim(claim, sql_node.idempotency.engine.policy))
    assert isinstance(decision, Execute)
    assert sql_node.run(lambda: sql_node.keys.release(decision.record.lease(HOUR)))
    rent = Rent(sql_node)
    with pytest.raises(OutcomeUnknown):
        rent.debit(None, OutcomeUnknown)
    assert sql_node.record("k").scope == claim.scope
    assert rent.told(NotExecuted) is Resolution.RESOLVED
    assert rent.debit("ch_1") == "run 2"


def test_what_was_found_by_an_object_of_this_life_is_its_own_whatever_else_it_names(second: Rent) -> None:
    """A provider may have two ids for one payment."""
    with pytest.raises(OutcomeUnknown):
        second.debit("ch_2", OutcomeUnknown)
    told = second.told(Executed("paid", "pi_2"), provider_id="ch_2", tenant="acme")
    assert told is Resolution.RESOLVED
    assert second.node.state("k") is State.COMPLETED

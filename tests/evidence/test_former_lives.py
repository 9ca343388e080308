"""A key that runs again after its retention has the same downstream keys: what is said about a former life's
object is not about this one's."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from samekey import (
    ConfigurationError,
    Declined,
    Evidence,
    Executed,
    NotExecuted,
    OutcomeUnknown,
    Resolution,
    current_operation,
)
from samekey.core.record import Record
from samekey.core.states import State
from samekey.stores.protocols import Actor
from samekey.workers.reconciler import Reconciler
from tests.chosen import whole
from tests.evidence.conftest import Node

pytestmark = pytest.mark.filterwarnings("ignore:ttl=.* is under an hour")

LATER = timedelta(seconds=30)
FOR = timedelta(seconds=1)


class Rent:
    """A monthly debit: each life of its key makes an object of its own."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.runs = 0
        self.sent = ""

    def debit(self, noted: str | None, *, lost: bool = False) -> Any:
        def run() -> str:
            self.runs += 1
            operation = current_operation()
            operation.source = "cards"
            self.sent = operation.downstream_key()
            operation.provider_id = noted
            if lost:
                raise OutcomeUnknown
            return f"run {self.runs}"

        return self.node.idempotency.once(tenant="acme", key="k", run=run, name="rent", ttl=FOR)

    def next_life(self, *, buried: bool) -> None:
        node = self.node
        expires_at = node.record("k").expires_at
        if buried:
            node.run(lambda: node.upkeep.reap(batch=10, soft=True, now=expires_at + 1))
        for _ in range(1000):
            if node.clock() > expires_at:
                break
            time.sleep(0.01)
        else:
            raise AssertionError("its retention does not end")

    def told(self, evidence: Evidence, event_id: str = "e1") -> Resolution:
        later = datetime.now(UTC) + LATER
        return self.node.tell(evidence, event_id, downstream_key=self.sent, occurred_at=later)


@pytest.fixture(params=[pytest.param(False, id="as it was", marks=whole), pytest.param(True, id="buried")])
def second(node: Node, request: pytest.FixtureRequest) -> Rent:
    """The second life, whose answer is lost; the first made ch_1."""
    rent = Rent(node)
    assert rent.debit("ch_1") == "run 1"
    rent.next_life(buried=request.param)
    with pytest.raises(OutcomeUnknown):
        rent.debit(None, lost=True)
    assert rent.runs == 2 and node.record("k").life == 2
    return rent


@pytest.mark.parametrize(
    "evidence", [Declined("it bounced", "ch_1"), Executed("captured", "ch_1")], ids=["declined", "executed"]
)
def test_a_word_that_names_what_a_former_life_made_changes_nothing(second: Rent, evidence: Evidence) -> None:
    """That it happened is doubt, and not passed over: one object of the provider's may serve two lives."""
    doubt = Resolution.KEPT if second.node.is_sql else Resolution.UNPLACED
    declined = isinstance(evidence, Declined)
    assert second.told(evidence) is (Resolution.TOO_LATE if declined else doubt)
    assert second.node.state("k") is State.UNKNOWN


def test_a_yes_that_names_nothing_is_not_taken_for_this_life(second: Rent) -> None:
    """It comes by the key that both lives have. An operator sees it, and nothing runs before that."""
    doubt = Resolution.KEPT if second.node.is_sql else Resolution.UNPLACED
    assert second.told(Executed("captured")) is doubt
    assert second.node.state("k") is State.UNKNOWN
    assert second.told(Executed("captured", "ch_2"), "e2") is Resolution.RESOLVED
    assert second.debit(None) == "captured" and second.runs == 2


@pytest.mark.parametrize(
    "evidence", [Declined("it bounced", "ch_1"), Executed("captured", "ch_1")], ids=["declined", "executed"]
)
def test_nor_does_a_lookup_or_an_operator_that_names_it(second: Rent, evidence: Evidence) -> None:
    record, resolver = second.node.record("k"), second.node.resolver
    with pytest.raises(ConfigurationError, match="former life"):
        second.node.run(lambda: resolver.apply(record, evidence, Actor("reconciler", "lookup, try 1")))
    assert second.node.state("k") is State.UNKNOWN
    assert second.node.run(lambda: resolver.apply(record, Executed("captured", "ch_2"), Actor("ann", "seen")))
    assert second.node.state("k") is State.COMPLETED


def _ask(rent: Rent, lookup: Any) -> None:
    rent.node.idempotency.lookup("CALL rent")(lookup)
    asyncio.run(Reconciler(rent.node.idempotency.engine).run_once())


@pytest.mark.parametrize("finding", [Declined("refused"), Executed("captured")], ids=["declined", "executed"])
def test_a_lookup_that_names_nothing_may_have_found_what_a_former_life_made(
    second: Rent, finding: Executed | Declined
) -> None:
    _ask(second, lambda _record: finding)
    record = second.node.record("k")
    assert record.state is State.DEAD_LETTER
    by_hand = Actor("ann", "looked at the provider's page")
    assert second.node.run(lambda: second.node.resolver.apply(record, Executed("captured"), by_hand))
    assert second.debit(None) == "captured" and second.runs == 2


def test_a_lookup_that_looks_back_no_further_than_its_operation_is_believed(second: Rent) -> None:
    asked = []

    def look(record: Record) -> Executed:
        asked.append(record.since)
        return Executed("captured")

    _ask(second, look)
    record = second.node.record("k")
    began = datetime.fromtimestamp(record.created_at / 1000, UTC)
    assert record.state is State.COMPLETED
    assert asked == [began - FOR / 2], "its clock may be wrong, by less than lies between two lives"


def test_a_no_that_names_nothing_frees_no_later_life(second: Rent) -> None:
    assert second.told(NotExecuted) in (Resolution.KEPT, Resolution.UNPLACED)
    assert second.node.state("k") is State.UNKNOWN
    assert second.told(Executed("run 2", "ch_2"), "e2") is Resolution.RESOLVED
    assert second.debit(None) == "run 2" and second.runs == 2


def test_a_third_life_knows_the_first_ones_ids(second: Rent) -> None:
    assert second.told(Executed("run 2", "ch_2")) is Resolution.RESOLVED
    second.next_life(buried=False)
    with pytest.raises(OutcomeUnknown):
        second.debit("ch_3", lost=True)
    for number, former in enumerate(("ch_1", "ch_2")):
        assert second.told(Declined("it bounced", former), f"late{number}") is Resolution.TOO_LATE
    assert second.node.state("k") is State.UNKNOWN
    assert second.told(Declined("refused", "ch_3"), "e3") is Resolution.RESOLVED


def test_a_provider_that_gives_a_later_life_the_same_object_is_heard(node: Node) -> None:
    rent = Rent(node)
    rent.debit("ch_1")
    rent.next_life(buried=False)
    with pytest.raises(OutcomeUnknown):
        rent.debit("ch_1", lost=True)
    assert rent.told(Executed("the same", "ch_1")) is Resolution.RESOLVED

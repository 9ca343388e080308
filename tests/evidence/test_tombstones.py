"""A yes about an operation that failed counts the same, whether or not the reaper has buried it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse

from samekey import (
    AsyncPhasedOperation,
    ConfigurationError,
    Declined,
    Effect,
    Evidence,
    Executed,
    Input,
    NotExecuted,
    OutcomeUnknown,
    Resolution,
    Response,
    current_operation,
)
from samekey.core.states import State
from tests.evidence.conftest import Node
from tests.evidence.test_late_holders import SOMEBODY
from tests.evidence.test_no_against_yes import post, serve
from tests.evidence.test_older_findings import look

DAY = 86_400_000


class Failed:
    """A call that said that nothing happened, whose retention is over."""

    def __init__(self, node: Node, *, buried: bool, step: str = "") -> None:
        self.node, self.step, self.runs = node, step, 0
        with pytest.raises(NotExecuted):
            self.make()
        self.record = node.record("k1")
        if buried:
            # One life of the store's clock later.
            later = node.clock() + 30 * DAY
            assert node.run(lambda: node.upkeep.reap(batch=10, soft=True, now=later)) == 1
            assert node.state("k1") is State.EXPIRED

    def run(self) -> Any:
        current_operation().source = "cards"
        current_operation().downstream_key(self.step)
        self.runs += 1
        raise NotExecuted("it never left")

    def make(self) -> Any:
        return self.node.idempotency.once(tenant="acme", key="k1", run=self.run, name="pay")

    def tell(self, evidence: Evidence, event: str = "e1") -> Resolution:
        key = self.record.downstream_key(self.step)
        return self.node.tell(evidence, event, downstream_key=key)


@pytest.mark.parametrize("buried", [False, True], ids=["not yet", "buried"])
def test_it_settles_what_failed(node: Node, buried: bool) -> None:
    failed = Failed(node, buried=buried)
    assert failed.tell(Executed("paid", "ch_1")) is Resolution.RESOLVED
    assert failed.make() == "paid" and failed.runs == 1
    assert failed.tell(Executed("paid", "ch_1")) in (Resolution.DUPLICATE, Resolution.TOO_LATE)


@pytest.mark.parametrize("buried", [False, True], ids=["not yet", "buried"])
def test_one_whose_answer_cannot_be_used_keeps_its_key(node: Node, buried: bool) -> None:
    failed = Failed(node, buried=buried)
    with pytest.raises(ConfigurationError):
        failed.tell(Executed(Response(201)))
    assert node.state("k1") is State.UNKNOWN
    with pytest.raises(OutcomeUnknown):
        failed.make()
    assert failed.tell(Executed("paid")) is Resolution.RESOLVED
    assert failed.make() == "paid" and failed.runs == 1


def test_one_that_cannot_be_placed_keeps_its_key(node: Node) -> None:
    """What it had sent is forgotten with its effects, or the event names another."""
    failed = Failed(node, buried=True)
    strange = failed.record.downstream_key("strange")
    assert node.tell(Executed("paid"), downstream_key=strange) is Resolution.UNPLACED
    with pytest.raises(OutcomeUnknown):
        failed.make()
    assert failed.runs == 1


@pytest.mark.parametrize("said", [NotExecuted, Declined("no")], ids=["not executed", "declined"])
def test_any_other_word_leaves_a_tombstone_as_it_is(node: Node, said: Evidence) -> None:
    failed = Failed(node, buried=True)
    assert failed.tell(said) is Resolution.TOO_LATE
    assert node.state("k1") is State.EXPIRED


def test_what_happened_before_it_began_is_not_about_it(node: Node) -> None:
    failed = Failed(node, buried=True)
    long_ago = datetime.now(UTC) - timedelta(days=400)
    key = failed.record.downstream_key()
    told = node.tell(Executed("paid"), downstream_key=key, occurred_at=long_ago)
    assert told in (Resolution.TOO_LATE, Resolution.UNPLACED)


def test_the_tombstone_of_what_was_done_stays_one(node: Node) -> None:
    def pay() -> str:
        current_operation().downstream_key()
        return "paid"

    node.idempotency.once(tenant="acme", key="k1", run=pay)
    later = node.clock() + 30 * DAY
    assert node.run(lambda: node.upkeep.reap(batch=10, soft=True, now=later)) == 1
    key = node.record("k1").downstream_key()
    assert node.tell(Executed("paid"), downstream_key=key) is Resolution.TOO_LATE
    assert node.state("k1") is State.EXPIRED


@pytest.mark.parametrize("buried", [False, True], ids=["not yet", "buried"])
def test_one_that_names_the_operation_alone_does_not_settle_two_steps(node: Node, buried: bool) -> None:
    """Of a tombstone it may be forgotten how many there were: an authorisation is no capture."""

    async def pay(_: Request) -> JSONResponse:
        current_operation().source = "cards"
        current_operation().downstream_key("authorise")
        current_operation().downstream_key("capture")
        return JSONResponse({"busy": True}, 429)

    assert post(serve(node.idempotency, node.idempotency.leased(pay)))[0] == 429
    record = node.record("k")
    if buried:
        later = node.clock() + 30 * DAY
        assert node.run(lambda: node.upkeep.reap(batch=10, soft=True, now=later)) == 1
    for event in ("e1", "e2"):
        said = node.tell(Executed(Response(201, {}), "au_1"), event, operation_id=record.id)
        assert said is Resolution.UNPLACED
        assert node.state("k") is State.UNKNOWN


def test_phased_work_that_was_buried_is_completed_by_hand_and_runs_no_more(sql_node: Node) -> None:
    node, calls = sql_node, list[str]()

    async def charge(effect: Effect) -> None:
        calls.append(effect.key)
        raise NotExecuted

    @node.idempotency.phased("ride", version=1)
    async def ride(op: AsyncPhasedOperation, _: Input) -> Response:
        await op.effect("charge", charge, source="cards")
        return Response(201, {})

    app = serve(node.idempotency, ride)
    post(app)
    later = node.clock() + 30 * DAY
    assert node.run(lambda: node.upkeep.reap(batch=10, soft=True, now=later)) == 1
    assert node.tell(Executed({"id": "ch_1"}, "ch_1"), downstream_key=calls[0]) is Resolution.UNPLACED
    record = node.record("k")
    assert node.run(lambda: node.resolver.apply(record, Executed({"id": "ch_1"}, "ch_1"), SOMEBODY))
    assert node.state("k") is State.COMPLETED
    post(app)
    assert len(calls) == 1


def test_a_no_that_waited_keeps_nothing_that_is_free(sql_node: Node) -> None:
    """It says what is believed by now."""
    node, runs = sql_node, list[str]()

    def pay() -> None:
        current_operation().source = "cards"
        runs.append(current_operation().downstream_key())
        raise NotExecuted if len(runs) == 1 else OutcomeUnknown

    for error in (NotExecuted, OutcomeUnknown):
        with pytest.raises(error):
            node.idempotency.once(tenant="acme", key="k", run=pay, name="pay")
    assert node.tell(NotExecuted, downstream_key=runs[0]) is Resolution.KEPT  # which of the two is in doubt
    record = node.record("k")
    assert node.run(lambda: node.resolver.apply(record, NotExecuted, SOMEBODY))
    look(node)
    assert node.shown("k") == []

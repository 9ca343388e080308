"""What somebody has found out is about what was seen then.

A lookup takes its time, and the others do not wait for it: the holder may come back and note what it has
made, an operator may decide, a webhook may come, another attempt may begin. A "no" that is older than that
frees nothing; a yes is never lost, whoever was first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from samekey import Executed, NotExecuted, OutcomeUnknown, Response, current_operation
from samekey.core.record import Record
from samekey.core.states import State
from samekey.errors import Contradicted
from samekey.workers.reconciler import Looked, Reconciler
from tests.evidence.conftest import Node
from tests.evidence.test_late_holders import SOMEBODY, Holder, nothing, retry, unsure

YES = Executed({"paid": "ch_1"}, "ch_1")


def look(node: Node) -> list[Looked]:
    async def looking() -> list[Looked]:
        try:
            return await Reconciler(node.idempotency.engine).look(batch=1)
        finally:
            await node.idempotency.engine.drivers.aio.close()

    return asyncio.run(looking())


def lease_ends(node: Node) -> None:
    """And the reconciler may ask at once."""
    node.end_leases()
    record = node.record("k")
    node.run(lambda: node.finding.ask_again(record.id, pause_ms=-1))


class SlowLookup:
    """A lookup that has looked at the provider, and whose reply is on its way until the test lets it come."""

    def __init__(self, node: Node, finding: Any) -> None:
        self._node, self._finding = node, finding
        self._looked, self._reply = threading.Event(), threading.Event()
        self.asked: list[Record] = []
        self.looked: list[Looked] = []
        node.idempotency.lookup()(self._look)
        self._thread = threading.Thread(target=lambda: self.looked.extend(look(node)))
        self._thread.start()
        assert self._looked.wait(20)

    def _look(self, record: Record) -> Any:
        self.asked.append(record)
        if len(self.asked) > 1:
            return YES  # the provider has it by now
        self._looked.set()
        assert self._reply.wait(25)
        return self._finding

    def come(self) -> Looked:
        self._reply.set()
        self._thread.join(60)
        (looked,) = self.looked
        return looked


def unsure_and_nameless() -> Any:
    raise OutcomeUnknown


@pytest.mark.parametrize("ends", [unsure, unsure_and_nameless])
def test_a_no_that_is_older_than_what_the_holder_notes_frees_nothing(
    node: Node, ends: Callable[[], Any]
) -> None:
    holder = Holder(node, ends)
    lease_ends(node)
    lookup = SlowLookup(node, NotExecuted)
    holder.finish()
    assert not lookup.come().resolved
    assert node.state("k") is State.UNKNOWN
    assert not isinstance(retry(node), dict)
    look(node)
    assert retry(node) == {"paid": "ch_1"}


def an_operator_says_no(node: Node, _: Holder) -> None:
    record = node.record("k")
    assert node.run(lambda: node.resolver.apply(record, NotExecuted, SOMEBODY))


def a_webhook_says_no(node: Node, _: Holder) -> None:
    node.tell(NotExecuted, downstream_key=node.record("k").downstream_key())


def the_holder_says_no(_: Node, holder: Holder) -> None:
    holder.finish()


def given_up(node: Node, _: Holder) -> None:
    record = node.record("k")
    assert node.run(lambda: node.finding.give_up(record.id, SOMEBODY, attempt=record.attempt))


@pytest.mark.parametrize("meanwhile", [an_operator_says_no, a_webhook_says_no, the_holder_says_no, given_up])
def test_a_yes_is_heard_whoever_was_first(node: Node, meanwhile: Callable[[Node, Holder], None]) -> None:
    holder = Holder(node, nothing)
    lease_ends(node)
    lookup = SlowLookup(node, YES)
    meanwhile(node, holder)
    assert node.state("k") is not State.UNKNOWN
    assert lookup.come().resolved
    assert node.state("k") is State.COMPLETED
    if not holder.got:
        holder.finish()
    assert retry(node) == {"paid": "ch_1"}


def test_a_yes_is_heard_while_another_attempt_runs(node: Node) -> None:
    first = Holder(node, nothing)
    lease_ends(node)
    lookup = SlowLookup(node, YES)
    an_operator_says_no(node, first)
    second = Holder(node, nothing)
    lookup.come()
    second.finish()
    assert node.state("k") is State.UNKNOWN
    look(node)
    first.finish()
    assert retry(node) == {"paid": "ch_1"}


@pytest.mark.parametrize("of_two", [False, True], ids=["of another shape", "with the id of another step"])
def test_a_yes_that_cannot_be_used_is_not_contradicted_by_hand(node: Node, of_two: bool) -> None:
    def pay() -> None:
        if of_two:
            current_operation().downstream_key("authorise")
            current_operation().provider_id = "pi_1"
            current_operation().downstream_key("capture")
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key="k", name="pay", run=pay)
    misfit = Executed({"captured": True}, "pi_1") if of_two else Executed(Response(201, {}), "ch_1")
    node.idempotency.lookup()(lambda _: misfit)
    (looked,) = look(node)
    assert looked.became is State.DEAD_LETTER
    record = node.record("k")
    with pytest.raises(Contradicted, match="lookup-"):
        node.run(lambda: node.resolver.apply(record, NotExecuted, SOMEBODY))
    assert node.run(lambda: node.resolver.apply(record, YES, SOMEBODY))
    assert retry(node) == {"paid": "ch_1"}


def test_an_operator_finds_that_a_free_key_has_happened(node: Node) -> None:
    def pay() -> None:
        current_operation().downstream_key()
        raise NotExecuted

    with pytest.raises(NotExecuted):
        node.idempotency.once(tenant="acme", key="k", name="pay", run=pay)
    record = node.record("k")
    assert record.state is State.FAILED_RETRYABLE
    assert node.run(lambda: node.resolver.apply(record, YES, SOMEBODY))
    assert retry(node) == {"paid": "ch_1"}

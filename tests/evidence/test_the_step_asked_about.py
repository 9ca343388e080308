"""The same on every store: what one step has made does not settle the handler that has sent another since."""

from __future__ import annotations

import asyncio

import pytest

from samekey import Executed, OutcomeUnknown, current_operation
from samekey.core.record import OpenEffect, Record
from samekey.core.states import State
from samekey.workers.reconciler import Reconciler
from tests.evidence.conftest import Node


def look(node: Node) -> None:
    async def once() -> None:
        try:
            await Reconciler(node.idempotency.engine).run_once()
        finally:
            await node.idempotency.engine.drivers.aio.close()

    asyncio.run(once())


def test_an_authorisation_is_no_capture(node: Node) -> None:
    def two() -> None:
        operation = current_operation()
        operation.downstream_key("authorise")
        operation.provider_id = "au_1"
        operation.downstream_key("capture")
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key="k1", run=two)
    node.idempotency.lookup()(lambda _: Executed("captured", "au_1"))
    look(node)
    assert node.state("k1") is State.DEAD_LETTER


def test_a_lookup_is_told_what_was_sent(node: Node) -> None:
    asked: list[OpenEffect | None] = []

    def charge() -> None:
        current_operation().source = "cards"
        current_operation().downstream_key("charge")
        raise OutcomeUnknown

    def look_up(record: Record) -> Executed:
        asked.append(record.open_effect)
        return Executed("charged", "ch_1")

    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key="k1", run=charge)
    node.idempotency.lookup()(look_up)
    look(node)
    key = node.record("k1").downstream_key("charge")
    assert asked == [OpenEffect("charge", key, None, "cards")] and node.state("k1") is State.COMPLETED

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

from samekey import Executed, NotExecuted, OutcomeUnknown
from samekey.core.record import Record
from samekey.core.states import State
from samekey.workers.reconciler import Looked, Reconciler
from tests.evidence.conftest import Node
from tests.evidence.test_late_holders import Holder, retry, unsure

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

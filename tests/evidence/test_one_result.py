"""An effect has its result, whoever told it: all that was said of it besides has nothing more to say.

A provider tells of one charge twice (the charge and its payment intent), or a former attempt's holder tells
of the same object: once the effect has its result, nothing keeps the phases after it from being done.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from samekey import AsyncPhasedOperation, Effect, Executed, Input, Response
from samekey.core.states import State
from samekey.engine.evidence.said import Said
from samekey.workers.completer import Completer
from tests.evidence.conftest import Node
from tests.evidence.test_late_holders import SOMEBODY
from tests.evidence.test_no_against_yes import post, serve
from tests.evidence.test_older_findings import look

CHARGED = Executed({"id": "ch_1"}, "ch_1")


class Ride:
    """Phased work: a charge, of which a test has something said while it runs, and a receipt."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.calls: list[str] = []
        self.said: list[Any] = []
        self.lost = True
        self.noted: str | None = None

        async def charge(effect: Effect) -> dict[str, str]:
            self.calls.append("charge")
            await asyncio.to_thread(self.tell, effect.key)
            if self.lost:
                raise TimeoutError("the reply was lost")
            effect.provider_id = "ch_1"
            return {"id": "ch_1"}

        async def receipt(_: Effect) -> None:
            self.calls.append("receipt")

        @node.idempotency.phased("ride", version=1)
        async def ride(op: AsyncPhasedOperation, _: Input) -> Response:
            charged: Any = await op.effect("charge", charge, source="cards")
            await op.effect("receipt", receipt, source="mail")
            return Response(201, charged)

        self.app = serve(node.idempotency, ride)

    def tell(self, key: str) -> None:
        for number, evidence in enumerate(self.said):
            self.node.tell(evidence, f"e{number}", downstream_key=key)
        if self.noted is not None:
            record = self.node.record("k")
            evidence = Executed(None, self.noted)
            late = Said(evidence, "cards", "late-1", None, about=key, provider_id=self.noted, is_ours=True)
            self.node.run(lambda: self.node.resolver.note_ambiguous(late, record.id))

    def goes_on(self) -> None:
        look(self.node)

        async def complete() -> None:
            try:
                await Completer(self.node.idempotency.engine).run_once()
            finally:
                await self.node.idempotency.engine.drivers.aio.close()

        asyncio.run(complete())
        assert self.calls == ["charge", "receipt"]
        assert post(self.app) == (201, {"id": "ch_1"})


def test_two_events_about_one_effect_are_used_together(sql_node: Node) -> None:
    ride = Ride(sql_node)
    ride.said = [CHARGED, Executed({"id": "ch_1"}, "pi_1")]
    assert post(ride.app)[0] == 409
    ride.goes_on()


def test_an_operators_result_ends_what_waits_about_it(sql_node: Node) -> None:
    node, ride = sql_node, Ride(sql_node)
    ride.said = [CHARGED]
    assert post(ride.app)[0] == 409
    record = node.record("k")
    assert node.run(lambda: node.resolver.apply(record, CHARGED, SOMEBODY))
    ride.goes_on()


@pytest.mark.parametrize("noted", ["ch_1", "ch_2"])
def test_what_a_former_holder_has_made_is_no_news_if_it_is_the_result(sql_node: Node, noted: str) -> None:
    node, ride = sql_node, Ride(sql_node)
    ride.lost, ride.noted = False, noted
    answered = post(ride.app)
    if noted == "ch_1":
        assert answered == (201, {"id": "ch_1"})
        assert ride.calls == ["charge", "receipt"]
    else:
        assert node.state("k") is State.UNKNOWN  # there are two charges: somebody must look
        assert ride.calls == ["charge"]

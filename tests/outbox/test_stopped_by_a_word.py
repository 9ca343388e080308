"""A provider's word that has no place in phased work stops it; once the word is seen to, the work goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from samekey import Executed, Response
from samekey.asgi import IdempotencyMiddleware
from samekey.drivers.run import run
from samekey.stores.protocols import Actor
from samekey.workers.completer import Completer
from tests.edges.callers import AsgiClient
from tests.outbox.world import NO_PAUSE, Outbox, order, tenant_of


class Rides:
    """A ride is charged, then a letter is sent, whose first call fails while an event comes."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox, self.letters = outbox, 0
        self.told: list[str] = []
        idempotency = outbox.idempotency

        async def charge(effect: Any) -> str:
            effect.provider_id = "ch_1"
            return "ch_1"

        @idempotency.phased("ride", version=1, backoff=NO_PAUSE)
        async def ride(op: Any, input: Any) -> Response:
            async def letter(_effect: Any) -> str:
                self.letters += 1
                if self.letters == 1:
                    self.operation = op.id
                    self.told.append(await self.tell(Executed("something")))
                    raise ConnectionError("the mail server restarts")
                return "sent"

            got = await op.effect("charged", charge, source="acme")
            await op.effect("mailed", letter, source="acme", provider_window=timedelta(hours=24))
            return Response(201, {"charge": got})

        app = Starlette(routes=[Route("/rides", ride, methods=["POST"])])
        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=tenant_of)
        self._client = AsgiClient(app, outbox.loop)

    async def tell(self, evidence: Any, **how: Any) -> str:
        return await self.outbox.idempotency.resolve_async(
            evidence,
            source="acme",
            event_id="evt_1",
            tenant="ann",
            occurred_at=datetime.now(UTC),
            verify=lambda: True,
            operation_id=self.operation,
            **how,
        )

    def ask(self) -> int:
        """What a client gets, after a completer has been by."""
        self.outbox.ask("update {keys} set locked_until = 1 where state = 'in_progress'")
        self.outbox.run(Completer(self.outbox.idempotency.engine).run_once())
        return self._client.send(replace(order("k"), path="/rides")).status

    def stop(self) -> None:
        self.ask()
        assert self.told == ["unplaced"]
        assert self.ask() == 409 and self.letters == 1, "nothing more is sent"


@pytest.fixture
def rides(outbox: Outbox) -> Rides:
    return Rides(outbox)


def test_once_the_word_is_dismissed(rides: Rides) -> None:
    rides.stop()
    engine = rides.outbox.idempotency.engine
    effects = engine.store.tables.effects
    seen_to = effects.dismiss("acme", "evt_1", Actor("ann", "not ours"), rides.operation)
    assert run(engine.drivers.sync, lambda: seen_to)
    assert rides.ask() == 201 and rides.letters == 2


def test_once_the_word_names_an_effect_that_is_done(rides: Rides) -> None:
    rides.stop()
    again = rides.tell(Executed("ch_1", "ch_1"), step="charged")
    assert rides.outbox.run(again) == "too_late"
    assert rides.ask() == 201 and rides.letters == 2

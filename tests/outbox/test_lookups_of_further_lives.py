"""A key's second life has the same downstream keys: what the first one made is not the second one's result,
whether or not the reaper has been by. Its lookup must not give it, and is not believed if it may have."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from samekey import NOT_FOUND, Response
from samekey.asgi import IdempotencyMiddleware
from samekey.workers.completer import Completer
from samekey.workers.reaper import Reaper
from tests.edges.callers import AsgiClient
from tests.outbox.world import NO_PAUSE, Outbox, order, tenant_of


class Rides:
    """A ride is charged by a provider that can be asked by the downstream key."""

    def __init__(self, outbox: Outbox, *, looks_since: bool, notes_id: bool) -> None:
        self.outbox = outbox
        self.made: list[tuple[str, datetime]] = []
        self.loses_replies = False

        async def charge(effect: Any) -> str:
            if not self.loses_replies or looks_since:
                # Its clock ticks in whole seconds, as many a provider's does.
                self.made.append((f"ch_{len(self.made) + 1}", datetime.now(UTC).replace(microsecond=0)))
            if self.loses_replies:
                raise ConnectionError("nobody knows whether it was sent")
            effect.provider_id = self.made[-1][0]
            return self.made[-1][0]

        async def find(effect: Any) -> Any:
            since = effect.since if looks_since else datetime(2000, 1, 1, tzinfo=UTC)
            mine = [name for name, at in self.made if at >= since]
            if not mine:
                return NOT_FOUND
            effect.provider_id = mine[-1] if notes_id else None
            return mine[-1]

        @outbox.idempotency.phased("ride", version=1, backoff=NO_PAUSE)
        async def ride(op: Any, input: Any) -> Response:
            charged = await op.effect("charged", charge, lookup=find, source="acme")
            return Response(201, {"charge": charged})

        app = Starlette(routes=[Route("/rides", ride, methods=["POST"])])
        app.add_middleware(IdempotencyMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
        self._client = AsgiClient(app, outbox.loop)

    def post(self) -> Any:
        return self._client.send(replace(order("k"), path="/rides"))

    def second_life(self, *, reaped: bool) -> Any:
        """The first one has made ch_1 and is over; the second one's first call is lost."""
        assert self.post().json() == {"charge": "ch_1"}
        self.outbox.ask("update {keys} set expires_at = 1")
        if reaped:
            self.outbox.run(Reaper(self.outbox.idempotency.engine).run_once())
        self.loses_replies = True
        self.post()
        self.loses_replies = False
        for _ in range(3):
            self.outbox.ask("update {keys} set locked_until = 1 where state = 'in_progress'")
            self.outbox.run(Completer(self.outbox.idempotency.engine).run_once())
        return self.post()


@pytest.mark.parametrize("reaped", [True, False])
@pytest.mark.parametrize("notes_id", [True, False])
def test_what_a_former_life_may_have_made_is_not_adopted(
    outbox: Outbox, notes_id: bool, reaped: bool
) -> None:
    rides = Rides(outbox, looks_since=False, notes_id=notes_id)
    got = rides.second_life(reaped=reaped)
    assert (got.status, got.json()["code"]) == (409, "outcome_unknown")
    assert len(rides.made) == 1


@pytest.mark.parametrize("reaped", [True, False])
@pytest.mark.parametrize("notes_id", [True, False])
def test_a_lookup_that_looks_back_no_further_than_its_operation_is_believed(
    outbox: Outbox, notes_id: bool, reaped: bool
) -> None:
    rides = Rides(outbox, looks_since=True, notes_id=notes_id)
    assert rides.second_life(reaped=reaped).json() == {"charge": "ch_2"}
    assert len(rides.made) == 2

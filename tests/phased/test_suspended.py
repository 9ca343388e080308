"""A machine that was suspended, or a guest that was paused, between an intent and its call does not call."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency, Response
from samekey.asgi import IdempotencyMiddleware
from samekey.engine import keeper
from samekey.engine.phased.attempt import PhasedRun
from samekey.tenants import single_tenant

AN_HOUR = 3600.0


@pytest.mark.parametrize("style", ["sync", "async"])
def test_the_wall_clock_counts_what_the_other_one_has_slept_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    idempotency = Idempotency(f"sqlite:///{tmp_path}/x.db")
    idempotency.migrate()
    called, clock = list[str](), SimpleNamespace(monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(keeper, "time", clock)
    may_call = PhasedRun.may_call

    def suspended_before(self: Any, *args: Any, **kwargs: Any) -> Any:
        if clock.time is time.time:
            clock.time = lambda: time.time() + AN_HOUR
        return (yield from may_call(self, *args, **kwargs))

    monkeypatch.setattr(PhasedRun, "may_call", suspended_before)

    def charge(_effect: Any) -> int:
        called.append("charge")
        return 7

    async def charge_async(_effect: Any) -> int:
        return charge(_effect)

    @idempotency.phased("sync")
    def pay(op: Any, _input: Any) -> Response:
        return Response(201, {"id": op.effect("charge", charge)})

    @idempotency.phased("async")
    async def pay_async(op: Any, _input: Any) -> Response:
        return Response(201, {"id": await op.effect("charge", charge_async)})

    app = IdempotencyMiddleware(
        Starlette(routes=[Route("/pay", pay if style == "sync" else pay_async, methods=["POST"])]),
        idempotency=idempotency,
        tenant=single_tenant("acme"),
    )
    with TestClient(app, raise_server_exceptions=False) as client:
        first = client.post("/pay", headers={"Idempotency-Key": "k"}, json={})
        assert first.status_code in (409, 503) and called == [], first.text

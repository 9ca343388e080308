"""What was found out about one effect of phased work is its result, and the rest of the run goes on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import (
    AsyncPhasedOperation,
    Effect,
    Executed,
    Idempotency,
    Input,
    OutcomeUnknown,
    Resolution,
    Response,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant
from samekey.workers.completer import Completer


def test_a_booking_goes_on_after_its_capture_was_found_out(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    sent: dict[str, list[str]] = {"authorise": [], "capture": []}
    receipts: list[Any] = []

    async def authorise(effect: Effect) -> str:
        sent["authorise"].append(effect.key)
        effect.provider_id = "au_1"
        return "au_1"

    async def capture(effect: Effect) -> str:
        sent["capture"].append(effect.key)
        raise OutcomeUnknown("the answer was lost")

    async def receipt(_connection: Any, captured: str) -> None:
        receipts.append(captured)

    @idempotency.phased("book")
    async def book(op: AsyncPhasedOperation, _input: Input) -> Response:
        await op.effect("authorise", authorise, source="cards")
        captured = await op.effect("capture", capture, source="cards")
        await op.transaction("receipt", receipt, captured)
        return Response(201, {"captured": captured})

    app = Starlette(routes=[Route("/book", book, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    client = TestClient(app)

    def tell(event_id: str, key: str, found: str) -> Resolution:
        return idempotency.resolve(
            Executed(found, found),
            source="cards",
            event_id=event_id,
            tenant="single",
            occurred_at=datetime.now(UTC),
            verify=lambda: True,
            downstream_key=key,
        )

    def ask() -> Any:
        return client.post("/book", headers={"Idempotency-Key": "k"}, json={})

    assert ask().json()["code"] == "outcome_unknown"
    assert tell("e1", sent["authorise"][0], "au_1") is Resolution.TOO_LATE
    assert ask().json()["code"] == "outcome_unknown", "the word about the other effect settles nothing"
    assert tell("e2", sent["capture"][0], "ca_1") is Resolution.RESOLVED
    assert receipts == []

    async def complete() -> None:
        await Completer(idempotency.engine).run_once()
        await idempotency.engine.drivers.aio.close()

    asyncio.run(complete())
    answer = ask()
    assert (answer.status_code, answer.json()) == (201, {"captured": "ca_1"})
    assert receipts == ["ca_1"], "the phases after it have run"
    assert {step: len(keys) for step, keys in sent.items()} == {"authorise": 1, "capture": 1}
    for provider_id in ("au_1", "ca_1"):
        found = idempotency.engine.find_by_provider_id(provider_id, tenant="single", source="cards")
        assert found is not None and found.state == "completed", "each effect's id finds its operation"
    idempotency.close()

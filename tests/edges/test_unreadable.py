"""What a handler returns or raises whose status nobody can read: it has ended, and is finished."""

from __future__ import annotations

from typing import Any, cast

import pytest
from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import StreamingResponse
from litestar import Litestar, post
from litestar.response import Stream

from samekey import current_operation
from samekey.asgi import IdempotencyMiddleware
from tests.edges.apps import tenant_of
from tests.edges.shop import Shop


def _raises_none(_: Response) -> Any:
    raise HTTPException(status_code=None, detail="an SDK's error that had no answer")  # type: ignore[arg-type]


def _raises_text(_: Response) -> Any:
    raise HTTPException(status_code="card_declined", detail="declined")  # type: ignore[arg-type]


def _gives_back_its_own(response: Response) -> Any:
    return response


def _streams_no_pieces(_: Response) -> Any:
    response = StreamingResponse(iter([b"a"]))
    response.body_iterator = 5  # type: ignore[assignment]
    return response


def insert(shop: Shop, connection: Any) -> tuple[Any, ...]:
    if hasattr(connection, "fetchval"):  # asyncpg's
        return "insert into effects values ($1, $2)", shop.world.name, 1
    return shop.store.insert, (shop.world.name, 1)


@pytest.mark.parametrize("end", [_raises_none, _raises_text, _gives_back_its_own, _streams_no_pieces])
@pytest.mark.parametrize("mode", ["leased", "atomic", "undecorated"])
@pytest.mark.parametrize("sync", [True, False])
def test_it_is_finished(shop: Shop, end: Any, mode: str, sync: bool) -> None:
    app, ran = FastAPI(), []

    def write() -> Any:
        ran.append(mode)
        connection = current_operation().connection if mode == "atomic" else None
        return connection and connection.execute(*insert(shop, connection))

    def pay(response: Response) -> Any:
        write()
        return end(response)

    async def pay_async(response: Response) -> Any:
        written = write()
        if written is not None:
            await written
        return end(response)

    handler: Any = pay if sync else pay_async
    guarded = handler if mode == "undecorated" else getattr(shop.idempotency, mode)(handler)
    app.post("/pay", response_model=None)(guarded)
    first, again = shop.send(shop.guard(app))
    assert first.status == 500 or first.code == "outcome_unknown"
    if mode == "atomic":
        assert (again.status, len(ran), shop.store.effects(shop.world)) == (500, 2, 0)
    else:
        assert (again.code, len(ran)) == ("outcome_unknown", 1)


def test_pieces_that_cannot_be_begun(shop: Shop) -> None:
    """Litestar begins them when it sends the answer; the report's storage is away."""
    ran = []

    def pieces() -> Any:
        raise ConnectionError("the storage is away")

    @post("/pay")
    @shop.idempotency.leased
    async def pay() -> Stream:
        ran.append("leased")
        return Stream(pieces)

    app = IdempotencyMiddleware(
        cast("Any", Litestar([pay], openapi_config=None)), idempotency=shop.idempotency, tenant=tenant_of
    )
    first, again = shop.send(app)
    assert first.status == 500 or first.code == "outcome_unknown"
    assert (again.code, len(ran)) == ("outcome_unknown", 1)

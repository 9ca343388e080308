"""How often a request speaks to PostgreSQL, counted on the wire."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.load import Relay
from lab.walk import _send
from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Statement
from samekey.drivers.run import run
from samekey.drivers.spelled import spelled
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for
from samekey.tenants import single_tenant


def shop(idempotency: Idempotency) -> Any:
    @idempotency.atomic
    async def pay(_request: Request) -> JSONResponse:
        await current_operation().connection.execute("insert into paid (n) values (1)")
        return JSONResponse({"paid": True}, 201)

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    return app


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "as behind a pooler"])
def test_a_new_atomic_key_takes_four_round_trips_beside_its_handlers(
    postgres_url: str, prepared: bool
) -> None:
    """A look; BEGIN, the lock and a look; the record; COMMIT and the reset. A replay takes one."""
    url = postgres_url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table paid (n bigint)")

    async def count(relay: Relay) -> tuple[int, int]:
        idempotency = Idempotency(relay.url(url), prepared_statements=prepared)
        app = shop(idempotency)
        try:
            for _ in range(3):  # connections are made, and statements prepared
                warm = secrets.token_hex(8)
                await _send(app, "/pay", warm)
                await _send(app, "/pay", warm)
            key = secrets.token_hex(8)
            before = relay.trips
            await _send(app, "/pay", key)
            between = relay.trips
            headers = await _send(app, "/pay", key)
            assert b"idempotent-replayed" in headers
            return between - before, relay.trips - between
        finally:
            await idempotency.aclose()

    idempotency = Idempotency(url)
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    idempotency.close()
    with Relay.before(url) as relay:
        new, replay = asyncio.run(count(relay))
    # A statement that is not prepared is described first, which is a round trip more.
    handlers, twice = 1, 0 if prepared else 2
    assert (new, replay) == (4 + handlers + twice, 1 if prepared else 2)


HOSTILE = [
    "",
    "plain 1",
    "it's",
    "\\",
    "\\'; drop table paid; --",
    "$1",
    ":key",
    "é☃𝄞",
    "a\nb",
    "%s",
    "$$",
    "x" * 5000,
]


def test_a_spelled_value_arrives_as_it_is_whatever_the_session_was_told(postgres_url: str) -> None:
    queries = queries_for("postgres")
    query = queries.build("echo", "select :text::text, :number::bigint, :bytes::bytea, :nothing::text")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for conforming in ("on", "off"):
            connection.execute(f"set standard_conforming_strings = {conforming}")
            for text in HOSTILE:
                for number in (0, -5, 2**63 - 1, -(2**63)):
                    values: dict[str, Any] = {"text": text, "number": number, "bytes": text.encode()}
                    values["nothing"] = None
                    row = connection.execute(spelled(Statement(query, values)).encode()).fetchone()
                    assert row == (text, number, text.encode(), None)

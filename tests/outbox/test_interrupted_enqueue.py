"""A time-out around ``op.enqueue``: a job that may have been written never shares its place with another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from lab.processes import wait_until
from lab.servers import mariadb
from samekey import current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import FailedTransaction
from tests.chosen import stores
from tests.edges.apps import tenant_of
from tests.edges.callers import AsgiClient
from tests.outbox.world import Outbox, order


@contextmanager
def jobs_locked(outbox: Outbox) -> Iterator[None]:
    """Whoever writes a job has to wait."""
    if outbox.dialect == "mysql":
        with mariadb.connected(outbox.url) as blocker, blocker.cursor() as cursor:
            cursor.execute("lock tables samekey_jobs write")
            yield
        return
    with psycopg.connect(outbox.url) as other:
        other.execute("lock table samekey.jobs in access exclusive mode")
        yield
        other.rollback()
    other.close()


def waits(outbox: Outbox) -> bool:
    """Whether the server has been asked to write a job and cannot yet."""
    if outbox.dialect == "mysql":
        asked = "select count(*) from information_schema.processlist where state like 'Waiting for table%%'"
        return bool(mariadb.ask(outbox.url, asked + " and db = database()")[0][0])
    asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    return bool(outbox.ask(asked + " and datname = current_database()")[0][0])


@pytest.mark.parametrize("store", stores("postgres", "mariadb", first=1))
def test_an_enqueue_that_was_cancelled_on_its_way_never_shares_its_key(
    request: pytest.FixtureRequest, store: str, loop: Any, threads: Any
) -> None:
    outbox = Outbox(request.getfixturevalue(f"{store}_url"), loop, threads)
    charged: list[tuple[str, str]] = []

    @outbox.idempotency.job("charge")
    def charge(job: Any, payload: Any) -> Any:
        charged.append((job.key, payload["who"]))
        return {"charged": payload["who"]}

    hurried = True

    @outbox.idempotency.deferred
    async def place(_request: Any) -> Any:
        operation = current_operation()
        if hurried:
            with jobs_locked(outbox):
                alice = asyncio.ensure_future(operation.enqueue("charge", {"who": "alice"}))
                await asyncio.to_thread(wait_until, lambda: waits(outbox))
                alice.cancel()
                await asyncio.wait({alice})
            assert alice.cancelled()
        else:
            await operation.enqueue("charge", {"who": "alice"})
        await operation.enqueue("charge", {"who": "bob"})
        return PlainTextResponse("accepted", 202)

    app = Starlette(routes=[Route("/orders", place, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
    client = AsgiClient(app, outbox.loop)
    got = client.send(order("k"))
    assert got.status >= 500, "nobody knows whether alice's job was written, so nothing stands"
    if store == "mariadb":
        assert isinstance(got.error, FailedTransaction) and "was interrupted" in str(got.error)
    assert outbox.jobs() == []

    hurried = False
    assert client.send(order("k")).status == 202, "the same key may be tried again"
    outbox.work(rounds=2)
    assert sorted(who for _, who in charged) == ["alice", "bob"]
    assert len({key for key, _ in charged}) == 2
    outbox.close()

"""A whole application around phased work, on any store, in async and in sync code from one body.

The bodies are async functions. In the sync world nothing in them ever has to wait, so they run to their end
in one step; ``now`` takes what a sync ``op`` returns as well as what an async one does.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any, Self

import psycopg

from lab.servers import mariadb
from samekey import Idempotency, Response
from samekey.drivers.run import run
from samekey.stores.sql.migrations import migrate
from samekey.testing.crash import Points
from samekey.workers.completer import Completer
from tests.edges.callers import Got, LoopThread, Request, call_asgi, call_wsgi
from tests.phased.provider import ProviderClient

Body = Callable[..., Coroutine[Any, Any, Any]]
DAY = 86_400


# ------------------------------------------------------------------ the database, from outside


def prepare(url: str) -> None:
    """The tables of samekey, and those of the application."""
    idempotency = Idempotency(url)
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    idempotency.close()
    execute(url, "create table rides (label text)")
    execute(url, "create table receipts (label text)")


_servers: dict[tuple[int, str], psycopg.Connection[Any]] = {}
"""Kept for all questions that this process asks; connecting takes longer than any of them."""


def execute(url: str, sql: str) -> list[Any]:
    """One statement on a connection of our own, committed: the world outside of samekey."""
    if url.startswith("sqlite"):
        sql = sql.replace("samekey.", "samekey_")
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection, connection:
            return connection.execute(sql).fetchall()
    if url.startswith("mysql"):
        return mariadb.ask(url, sql.replace("samekey.", "samekey_"))
    here = (os.getpid(), url)
    if here not in _servers:
        _servers[here] = psycopg.connect(url, autocommit=True)
    cursor = _servers[here].execute(sql.encode())
    return cursor.fetchall() if cursor.description else []


def hang_up() -> None:
    """Closes what ``execute`` has kept, so that no database is held open."""
    for server in _servers.values():
        server.close()
    _servers.clear()


def clear(url: str) -> None:
    """Empties the tables. Deleting a few rows is faster than truncating."""
    for table in ("samekey.keys", "samekey.audit", "samekey.inputs", "samekey.phases", "rides", "receipts"):
        execute(url, f"delete from {table}")


def count(url: str, table: str, label: str) -> int:
    found: int = execute(url, f"select count(*) from {table} where label = '{label}'")[0][0]
    return found


def column(url: str, key: str, name: str) -> Any:
    """One column of the record of a key; None if there is none."""
    rows = execute(url, f"select {name} from samekey.keys where key = '{key}'")
    return rows[0][0] if rows else None


def state_of(url: str, key: str) -> Any:
    return column(url, key, "state")


def end_lease(url: str, key: str) -> None:
    """As if the lease's time had passed: the holder is gone and will not renew it."""
    execute(url, f"update samekey.keys set locked_until = 1 where key = '{key}' and state = 'in_progress'")


def age_intents(url: str, seconds: float) -> None:
    """As if every effect had been meant so much earlier."""
    execute(url, f"update samekey.phases set intent_at = intent_at - {int(seconds * 1000)}")


def kept(url: str) -> dict[str, int]:
    """How many inputs and phases are stored."""
    return {
        table: execute(url, f"select count(*) from samekey.{table}")[0][0] for table in ("inputs", "phases")
    }


def snapshot(url: str, key: str) -> Any:
    """All that a refusal must leave as it was."""
    operation = column(url, key, "id")
    return (
        execute(
            url,
            "select state, mode, attempts, recovery_point, provider_id, fingerprint, expires_at, "
            f"answer_status from samekey.keys where key = '{key}'",
        ),
        execute(url, f"select * from samekey.inputs where operation_id = '{operation}'"),
        execute(url, f"select * from samekey.phases where operation_id = '{operation}' order by position"),
    )


# ------------------------------------------------------------------ async and sync from one body


async def now(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def to_the_end(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that never has to wait."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("something waited in a world without an event loop")


def _tenant(context: Any) -> str | None:
    if "wsgi.version" in context:
        found = context.get("HTTP_X_TENANT", "acme").encode("latin-1").decode()
    else:
        found = dict(context["headers"]).get(b"x-tenant", b"acme").decode()
    return str(found)


class World:
    """An engine, an application around it, and a completer: everything in this process."""

    def __init__(self, url: str, style: str, *, points: Points | None = None, **settings: Any) -> None:
        self.url = url
        self.is_async = style == "async"
        self.loop = LoopThread()
        self.engine = Idempotency(url, **settings)
        self.points = points
        if points is not None:
            points.watch(self.engine)
        self._routes: dict[str, Any] = {}
        self._app: Any = None

    # What an application is made of

    def define(self, body: Body, name: str = "ride", *, path: str | None = "/rides", **options: Any) -> Any:
        """Registers a body as a phased operation and gives it a route."""
        endpoint = self.engine.phased(name, **options)(self.function(body))
        if path is not None:
            self.route(path, endpoint)
        return endpoint

    def route(self, path: str, endpoint: Any) -> None:
        self._routes[path] = endpoint

    def function(self, body: Body) -> Any:
        if self.is_async:
            return body

        def function(op: Any, input: Any) -> Any:
            return to_the_end(body(op, input))

        return function

    def outside(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call to another service, with a point before it and one after it."""

        def sync_call(*args: Any) -> Any:
            self.reach("before the call")
            result = call(*args)
            self.reach("after the call")
            return result

        async def async_call(*args: Any) -> Any:
            self.reach("before the call")
            result = await asyncio.to_thread(call, *args)
            self.reach("after the call")
            return result

        return async_call if self.is_async else sync_call

    def insert(self, table: str) -> Callable[..., Any]:
        """A phase's own write, in the words of whichever driver the connection belongs to."""
        sql = f"insert into {table} (label) values ({{}})"
        postgres, sqlite = self.url.startswith("postgres"), self.url.startswith("sqlite")

        def sync_write(connection: Any, label: str) -> str:
            self.reach(f"before {table}")
            connection.execute(sql.format("?" if sqlite else "%s"), (label,))
            self.reach(f"inside {table}")
            return label

        async def async_write(connection: Any, label: str) -> str:
            self.reach(f"before {table}")
            if postgres:
                await connection.execute(sql.format("$1"), label)
            else:
                await connection.execute(sql.format("?" if sqlite else "%s"), (label,))
            self.reach(f"inside {table}")
            return label

        return async_write if self.is_async else sync_write

    def reach(self, name: str) -> None:
        if self.points is not None:
            self.points.reach(name)

    # What happens to it

    @property
    def app(self) -> Any:
        if self._app is None:
            self._app = self._asgi() if self.is_async else self._wsgi()
        return self._app

    def _asgi(self) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Route

        from samekey.asgi import IdempotencyMiddleware

        app = Starlette(routes=[Route(path, to, methods=["POST"]) for path, to in self._routes.items()])
        app.add_middleware(IdempotencyMiddleware, idempotency=self.engine, tenant=_tenant)
        return app

    def _wsgi(self) -> Any:
        from flask import Flask

        from samekey.wsgi import IdempotencyMiddleware

        app = Flask(__name__)
        for path, endpoint in self._routes.items():
            rule = path.replace("{", "<").replace("}", ">")
            app.add_url_rule(rule, rule, endpoint, methods=["POST"])
        app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, idempotency=self.engine, tenant=_tenant
        )
        return app

    def post(self, key: str, content: Any = None, *, path: str = "/rides", tenant: str = "acme") -> Got:
        return self.send(
            Request(
                path=path,
                headers=(
                    (b"idempotency-key", key.encode()),
                    (b"content-type", b"application/json"),
                    (b"x-tenant", tenant.encode()),
                ),
                body=json.dumps({"ride": key} if content is None else content).encode(),
            )
        )

    def send(self, request: Request) -> Got:
        if self.is_async:
            return self.loop.run(call_asgi(self.app, request))
        return call_wsgi(self.app, request)

    def status(self, operation_id: str, tenant: str = "acme") -> Got:
        path = f"/idempotency/{operation_id}"
        return self.send(Request("GET", path, headers=((b"x-tenant", tenant.encode()),)))

    def complete(self) -> int:
        """One pass of a completer, which knows no application."""
        return self.loop.run(Completer(self.engine.engine).run_once())

    def close(self) -> None:
        try:
            self.loop.run(self.engine.aclose())
        finally:
            self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ------------------------------------------------------------------ the ride


def ride_body(world: World, client: ProviderClient, **effect: Any) -> Body:
    """A local row, a card charge, a receipt."""
    if "lookup" in effect:
        effect["lookup"] = world.outside(client.find) if effect["lookup"] else None

    async def ride(op: Any, input: Any) -> Response:
        label = await now(op.transaction("ride_created", world.insert("rides"), input.json()["ride"]))
        charge = await now(op.effect("charge_created", world.outside(client.charge), label, **effect))
        if "declined" in charge:
            return Response(402, {"ride": label, "reason": charge["declined"]})
        await now(op.transaction("receipt_queued", world.insert("receipts"), label))
        return Response(201, {"ride": label, "charge": charge["id"]}, {"set-cookie": "a=b"})

    return ride

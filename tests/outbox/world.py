"""A shop whose handlers do what a test tells them, in an async and a sync framework, and what tests ask of
its database behind its back."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeVar, Unpack

import flask
import psycopg
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route

from lab.servers import mariadb
from samekey import Backoff, Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware as AsgiMiddleware
from samekey.drivers.run import run
from samekey.engine.handler.options import TransactionOptions
from samekey.stores.sql.jobs import Job
from samekey.stores.sql.migrations import migrate
from samekey.workers.outbox import OutboxWorker
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.callers import AsgiClient, Client, Got, LoopThread, Request, WsgiClient
from tests.taking import begin

T = TypeVar("T")
Kind = Literal["async", "sync"]
NO_PAUSE = Backoff(first=timedelta(0), longest=timedelta(0))


@dataclass(frozen=True, slots=True)
class Act:
    """What a handler does: write an order, enqueue, then answer or raise."""

    jobs: tuple[tuple[str, Any], ...] = (("charge", {"cents": 100}),)
    status: int = 202
    body: bytes = b""
    raises: Callable[[], BaseException] | None = None


@dataclass(slots=True)
class JobRow:
    """A job as the table has it."""

    id: str
    name: str
    state: str
    attempts: int
    attempt: str | None
    answers: int
    error: str | None
    provider_id: str | None
    due_at: int


@dataclass(slots=True)
class Outbox:
    """One ``Idempotency`` on one database, with a table of orders beside it."""

    url: str
    loop: LoopThread
    threads: ThreadPoolExecutor
    options: dict[str, Any] = field(default_factory=dict)
    idempotency: Idempotency = field(init=False)

    def __post_init__(self) -> None:
        self.idempotency = Idempotency(self.url, **self.options)
        if self.dialect != "sqlite":  # which makes its tables by itself
            ready = Idempotency(self.url)  # with time for it, whatever the options are
            run(ready.engine.drivers.sync, lambda: migrate(ready.engine.queries))
            ready.close()
        self.ask("create table if not exists orders (note text not null)")

    @property
    def dialect(self) -> str:
        return self.idempotency.engine.drivers.dialect

    def close(self) -> None:
        self.run(self.idempotency.aclose())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    # ---------------------------------------------------------------- the shop

    def client(self, kind: Kind, act: Act | None = None, **options: Unpack[TransactionOptions]) -> Client:
        """A client of a new application: ``POST /orders`` does as it is told."""
        told = act or Act()
        insert = "insert into orders values ('written')"

        if kind == "sync":
            app = flask.Flask(__name__)

            @app.post("/orders")
            @self.idempotency.deferred(**options)
            def place() -> Any:
                operation = current_operation()
                operation.connection.execute(insert)
                for name, payload in told.jobs:
                    operation.enqueue(name, payload)
                if told.raises is not None:
                    raise told.raises()
                return flask.Response(told.body, status=told.status)

            app.config["PROPAGATE_EXCEPTIONS"] = True
            app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
                app.wsgi_app, idempotency=self.idempotency, tenant=tenant_of
            )
            return WsgiClient(app, self.threads)

        @self.idempotency.deferred(**options)
        async def place_async(_request: StarletteRequest) -> StarletteResponse:
            operation = current_operation()
            await operation.connection.execute(insert)
            for name, payload in told.jobs:
                await operation.enqueue(name, payload)
            if told.raises is not None:
                raise told.raises()
            return StarletteResponse(told.body, status_code=told.status)

        starlette = Starlette(routes=[Route("/orders", place_async, methods=["POST"])])
        starlette.add_middleware(AsgiMiddleware, idempotency=self.idempotency, tenant=tenant_of)
        return AsgiClient(starlette, self.loop)

    def place(self, name: str, payload: Any = None, *, key: str | None = None) -> str:
        """Enqueues one job through the whole deferred path; gives its operation's id."""
        got = self.client("async", Act(jobs=((name, payload),))).send(order(key or uuid.uuid4().hex))
        assert got.status == 202, (got.status, got.body, got.error)
        found = got.json()["id"]
        assert isinstance(found, str)
        return found

    # ---------------------------------------------------------------- the worker

    def worker(self, **options: Any) -> OutboxWorker:
        return OutboxWorker(self.idempotency.engine, **options)

    def work(self, worker: OutboxWorker | None = None, *, rounds: int = 1) -> OutboxWorker:
        """Runs what is due to its end, a number of times; pauses are over at once."""
        chosen = worker or self.worker()
        for _ in range(rounds):
            self.make_due()
            self.run(_round(chosen))
        return chosen

    def take(self, batch: int = 1, **options: Any) -> list[Job]:
        """Takes jobs by hand and enters them, as a worker would that then dies."""
        outbox = self.idempotency.engine.outbox
        return run(self.idempotency.engine.drivers.sync, lambda: begin(outbox, batch=batch, **options))

    # ---------------------------------------------------------------- behind its back

    def ask(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Asks the database itself; ``{keys}`` and ``{jobs}`` are samekey's tables, parameters are ``?``."""
        if self.dialect == "sqlite":
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=10)
            try:
                with connection:
                    text = sql.replace("{keys}", "samekey_keys").replace("{jobs}", "samekey_jobs")
                    return connection.execute(text, parameters).fetchall()
            finally:
                connection.close()
        if self.dialect == "mysql":
            text = sql.replace("{keys}", "samekey_keys").replace("{jobs}", "samekey_jobs")
            return mariadb.ask(self.url, text, parameters)
        text = sql.replace("{keys}", "samekey.keys").replace("{jobs}", "samekey.jobs").replace("?", "%s")
        with psycopg.connect(self.url) as other:
            cursor = other.execute(text.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def jobs(self) -> list[JobRow]:
        columns = "id, name, state, attempts, attempt, answers, error, provider_id, due_at"
        return [JobRow(*row) for row in self.ask(f"select {columns} from {{jobs}} order by created_at, id")]

    def job(self) -> JobRow:
        (found,) = self.jobs()
        return found

    def make_due(self) -> None:
        """As if every pause and every lease were over."""
        self.ask("update {jobs} set due_at = 0 where state = 'live'")

    def states(self) -> list[tuple[str, str | None]]:
        """State and error code of every operation."""
        return [
            (row[0], row[1]) for row in self.ask("select state, error_code from {keys} order by created_at")
        ]

    def orders(self) -> list[str]:
        return [row[0] for row in self.ask("select note from orders")]


async def _round(worker: OutboxWorker) -> None:
    await worker.run_once()
    await worker.drain()


def tenant_of(context: Any) -> str | None:
    if "wsgi.input" in context:
        return str(context.get("HTTP_X_TENANT"))
    return next(str(v, "ascii") for k, v in context["headers"] if k == b"x-tenant")


def order(key: str, *, tenant: str = "ann", body: Any = None) -> Request:
    """A request for an order."""
    headers = ((b"x-tenant", tenant.encode()), (b"idempotency-key", key.encode()))
    return Request("POST", "/orders", headers, json.dumps(body or {"item": "coffee"}).encode())


def status_of(location: str | None, *, tenant: str = "ann") -> Request:
    """A request for the status resource that an answer pointed to."""
    assert location is not None
    return Request("GET", location, ((b"x-tenant", tenant.encode()),))


def assert_accepted(got: Got, operation_id: str | None = None) -> str:
    """A 202 as it must be; gives the operation's id."""
    assert got.status == 202, (got.status, got.body, got.error)
    location = got.header("location")
    assert location is not None
    found = location.rpartition("/")[2]
    assert location == f"/idempotency/{found}"
    assert int(got.header("retry-after") or 0) >= 1
    assert got.header("idempotency-key-expires") is not None
    assert not got.replayed
    assert operation_id in (None, found)
    return found


async def hang(*_: Any) -> None:
    await asyncio.Event().wait()

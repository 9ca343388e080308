"""Everybody who may move a record, at one key at one moment: what runs in each process of the contest.

Three nodes with a few roles each. The effect is a row in a table that refuses nothing, so a second one shows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lab.processes import Turn
from samekey import Executed, Idempotency, Input, NotExecuted, Response, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Row, Statement
from samekey.core.record import Record
from samekey.core.states import Mode
from samekey.engine.phased.phased import Effect
from samekey.engine.phased.phases import AsyncPhasedOperation
from samekey.errors import StoreError
from samekey.tenants import single_tenant
from samekey.workers.completer import Completer
from samekey.workers.reaper import Reaper
from samekey.workers.reconciler import Reconciler
from samekey.workers.sweeper import Sweeper
from tests.operator.world import TENANT


@dataclass(frozen=True)
class Bout:
    """One key in the contest."""

    key: str
    operation_id: str
    path: str
    mode: Mode = Mode.LEASED
    is_over: bool = False
    """The operation is of a former life, and was completed."""


@dataclass(frozen=True)
class Said:
    """What a client was told."""

    status: int
    body: bytes

    @property
    def final(self) -> bool:
        return self.status == 201


class Node:
    """One process of the deployment: the application, and the workers."""

    def __init__(self, url: str) -> None:
        # The records are made by hand, with no request to take a fingerprint of.
        self.engine = Idempotency(url, policy=ietf(on_mismatch="replay"), pool_size=4)
        self._statements: dict[str, Any] = {}
        self._app = self._application()
        self.engine.lookup()(self._lookup)

    async def sql(self, text: str, **values: Any) -> list[Row]:
        if text not in self._statements:
            self._statements[text] = self.engine.engine.queries.build("contest", text)
        return [*await self.engine.engine.drivers.aio.execute(Statement(self._statements[text], values))]

    # The application

    def _application(self) -> Any:
        engine = self.engine

        async def act(key: str) -> dict[str, str]:
            cast = "::text" if engine.engine.drivers.dialect == "postgres" else ""
            await self.sql(f"insert into effects values (:key{cast})", key=key)
            return {"done": key}

        async def charge(effect: Effect, key: str) -> dict[str, str]:
            return await act(key)

        @engine.leased
        async def pay(request: Request) -> JSONResponse:
            return JSONResponse(await act(request.headers["idempotency-key"]), 201)

        @engine.phased("ride")
        async def ride(op: AsyncPhasedOperation, given: Input) -> Response:
            done = await op.effect("charge", charge, given.json()["key"], provider_window=3600)
            return Response(201, done)

        routes = [Route("/payments", pay, methods=["POST"]), Route("/rides", ride, methods=["POST"])]
        app = Starlette(routes=routes)
        app.add_middleware(IdempotencyMiddleware, idempotency=engine, tenant=single_tenant(TENANT))
        return app

    async def post(self, bout: Bout) -> Said:
        """One request, through the middleware."""
        sent: list[dict[str, Any]] = []
        body = json.dumps({"key": bout.key}).encode()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"idempotency-key", bout.key.encode()), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": bout.path,
            "raw_path": bout.path.encode(),
            "root_path": "",
            "query_string": b"",
            "scheme": "http",
            "headers": headers,
            "server": ("test", 80),
            "client": ("test", 1),
        }
        await self._app(scope, receive, send)
        chunks = [message.get("body", b"") for message in sent[1:]]
        return Said(int(sent[0]["status"]), b"".join(chunks))

    # What the provider knows

    async def happened(self, key: str) -> bool:
        cast = "::text" if self.engine.engine.drivers.dialect == "postgres" else ""
        column = self.engine.engine.queries.column("key")
        return bool(await self.sql(f"select 1 from effects where {column} = :key{cast}", key=key))

    async def _evidence(self, key: str, mode: Mode) -> Any:
        """About phased work it is what the call would have returned, and else the answer."""
        if not await self.happened(key):
            return NotExecuted
        done = {"done": key}
        return Executed(done if mode is Mode.PHASED else Response(201, done))

    async def _lookup(self, record: Record) -> Any:
        return await self._evidence(record.key, record.mode)

    # The roles

    async def client(self, bout: Bout) -> Said:
        return await self.post(bout)

    async def webhook(self, bout: Bout) -> None:
        # Of what was completed no provider says that it never was.
        done = Executed(Response(201, {"done": bout.key}))
        evidence = done if bout.is_over else await self._evidence(bout.key, bout.mode)
        await self.engine.resolve_async(
            evidence,
            source="provider",
            event_id=f"evt {bout.key}",
            tenant=None,
            occurred_at=datetime.now(UTC),
            verify=lambda: True,
            operation_id=bout.operation_id,
        )

    async def completer(self, _bout: Bout) -> None:
        await Completer(self.engine.engine).run_once()

    async def sweeper(self, _bout: Bout) -> None:
        await Sweeper(self.engine.engine).run_once()

    async def reaper(self, _bout: Bout) -> None:
        await Reaper(self.engine.engine).run_once()

    async def reconciler(self, _bout: Bout) -> None:
        await Reconciler(self.engine.engine).run_once()


ROLES = (("client", "sweeper", "reconciler"), ("client", "completer", "webhook"), ("client", "reaper"))
"""By process; those of one process run at the same time in its event loop."""

ABOUT_ONE_KEY = {"client", "webhook"}
STRIDE = 4

_kept: dict[str, Any] = {}


def fight(turn: Turn, url: str, bouts: list[Bout]) -> list[tuple[str, Said]]:
    """This process's part in some bouts; each process goes through them from another place on."""
    if "node" not in _kept:
        _kept["loop"] = asyncio.new_event_loop()
        _kept["node"] = Node(url)
    node: Node = _kept["node"]
    start = turn.racer * len(bouts) // len(ROLES) if turn.round % 2 else 0
    order = bouts[start:] + bouts[:start]

    async def role(name: str) -> list[tuple[str, Said]]:
        act: Callable[[Bout], Awaitable[Said | None]] = getattr(node, name)
        said = []
        for number, bout in enumerate(order):
            if name not in ABOUT_ONE_KEY and number % STRIDE:
                continue  # one look of a worker's is about all keys
            try:
                answer = await act(bout)
            except StoreError:
                continue  # busy: somebody else was at it, and the next round comes
            if answer is not None:
                said.append((bout.key, answer))
        return said

    async def all_roles() -> list[tuple[str, Said]]:
        return [pair for said in await asyncio.gather(*map(role, ROLES[turn.racer])) for pair in said]

    answers: list[tuple[str, Said]] = _kept["loop"].run_until_complete(all_roles())
    return answers


def leave(_turn: Turn) -> None:
    loop, node = _kept.pop("loop"), _kept.pop("node")
    loop.run_until_complete(node.engine.aclose())
    loop.close()

"""The event loop's default executor is the application's: what hangs there holds nothing of samekey's."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import samekey
from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from tests.chosen import stores
from tests.stores.crash_scenarios import execute

PATIENCE = 20.0


@contextmanager
def every_thread_hangs() -> Iterator[None]:
    """The default executor of the running loop, with nobody free in it."""
    hang = threading.Event()
    executor = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(executor)
    executor.submit(hang.wait, 3 * PATIENCE)
    try:
        yield
    finally:
        hang.set()


@pytest.mark.parametrize("store", stores("sqlite", "postgres", "mariadb"))
@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_a_sync_handlers_outcome_is_recorded(request: pytest.FixtureRequest, store: str, mode: str) -> None:
    url = request.getfixturevalue(f"{store}_url")
    idempotency = Idempotency(url)
    idempotency.migrate()
    execute(url, "create table effects (n int)")

    def charge(_request: Request) -> JSONResponse:
        if mode == "atomic":
            current_operation().connection.cursor().execute("insert into effects values (1)")
        return JSONResponse({"charged": True}, 201)

    guarded: Any = getattr(idempotency, mode)(charge)
    app = Starlette(routes=[Route("/charges", guarded, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _: "t")

    async def post() -> int:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"idempotency-key", b"k"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/charges", "raw_path": b"/charges"}
        scope |= {"headers": headers, "query_string": b"", "server": ("h", 80), "scheme": "http"}
        async with asyncio.timeout(PATIENCE):
            await app(scope, receive, send)
        return int(sent[0]["status"])

    async def story() -> None:
        with every_thread_hangs():
            assert await post() == 201
            async with asyncio.timeout(PATIENCE):
                await idempotency.aclose()
            assert await post() == 201  # the record's
            async with asyncio.timeout(PATIENCE), idempotency.background():
                pass
            await idempotency.aclose()

    asyncio.run(story())


def test_nothing_of_ours_is_run_there() -> None:
    """Whoever wants a thread takes one of samekey's own: ``Lane``, ``in_a_thread``, ``Apart``. A client and
    the kit of users' tests are no part of the engine."""
    package = Path(samekey.__file__).parent
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).parts[0] not in {"client", "testing"}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("to_thread", "run_in_executor")
    ]
    assert found == []

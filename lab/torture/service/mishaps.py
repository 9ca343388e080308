"""What goes wrong inside a process of the service, on order: deadlines, cancellations, errors of an SDK,
answers that break. The torture writes its orders into a file; the process takes them up as requests come.

It wraps the application on both sides of samekey's middleware, and the HTTP client that the service calls its
provider with. Nothing here knows samekey.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

Mishap: TypeAlias = Literal[
    "deadline_inside",  # asyncio.timeout between samekey's middleware and the handler, answered with 504
    "deadline_outside",  # the same around samekey's middleware
    "cancel_inside",  # the application's task is cancelled, and nobody answers
    "cancel_outside",  # the same around samekey's middleware
    "answer_broken",  # the handler has returned, and what it returned cannot be made an answer of
    "sdk_error_before",  # the provider's SDK raises an error with a status, and has sent nothing
    "sdk_error_after",  # it raises one though the money has moved
]
MISHAPS: Final[frozenset[str]] = frozenset(get_args(Mishap))
IN_CALLS: Final[frozenset[str]] = frozenset({"sdk_error_before", "sdk_error_after"})
"""Those of calls to the provider, which workers make too."""

VARIABLE: Final = "SAMEKEY_TORTURE_MISHAPS"
"""The environment variable that names a process's file of orders."""
STATUSES: Final = (429, 500, 503, 408, 401, 403, 400, 404)
AT_THE_ANSWER: Final = 0.01
"""Seconds after the handler's answer was handed on: by then its outcome is being made durable."""

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Order:
    """A mishap for the next ``times`` requests, within ``seconds`` of their begin where it has a time."""

    kind: str
    times: int
    seconds: float


class Book:
    """The file of orders: one process writes, the other takes. Safe between threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._read = path.stat().st_size if path.exists() else 0  # former orders were for a former process
        self._orders: list[Order] = []

    def write(self, order: Order | None) -> None:
        """None: from here on all is well."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(None if order is None else asdict(order)) + "\n")

    def take(self, *kinds: str) -> Order | None:
        """The oldest order of one of these kinds, once less."""
        with self._lock:
            self._look()
            for place, order in enumerate(self._orders):
                if order.kind in kinds:
                    self._orders[place] = replace(order, times=order.times - 1)
                    self._orders = [one for one in self._orders if one.times > 0]
                    return order
            return None

    def _look(self) -> None:
        try:
            if os.stat(self._path).st_size <= self._read:
                return
        except FileNotFoundError:
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        for line in whole.splitlines():
            content = json.loads(line)
            self._orders = [] if content is None else [*self._orders, Order(**content)]
        self._read += len(whole) + 1 if whole else 0


class SDKError(Exception):
    """As every HTTP SDK has one: its status is the provider's, and says nothing about our own answer."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"The provider's SDK raised {status_code}.")
        self.status_code = status_code


class _Around:
    """A piece of middleware that has bad luck with requests that carry a key."""

    def __init__(self, app: App, book: Book) -> None:
        self.app = app
        self._book = book

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not any(name == b"idempotency-key" for name, _ in scope["headers"]):
            await self.app(scope, receive, send)
            return
        await self._befall(self._take(), scope, receive, send)

    def _take(self) -> Order | None:
        raise NotImplementedError

    async def _befall(self, order: Order | None, scope: Scope, receive: Receive, send: Send) -> None:
        match order.kind if order is not None else None:
            case "deadline_inside" | "deadline_outside":
                assert order is not None
                await self._within(order, scope, receive, send)
            case "cancel_inside" | "cancel_outside":
                assert order is not None
                await self._cancelled(order, scope, receive, send)
            case "answer_broken":
                await self.app(scope, receive, _breaking(send))
            case _:
                await self.app(scope, receive, send)

    async def _within(self, order: Order, scope: Scope, receive: Receive, send: Send) -> None:
        """A deadline, as people write it: one that expires while the answer is handed on, too."""
        aimed = random.random() < 0.5
        try:
            async with asyncio.timeout(None if aimed else random.uniform(0, order.seconds)) as deadline:

                async def sending(message: Message) -> None:
                    if aimed and message["type"] == "http.response.body":
                        now = asyncio.get_running_loop().time()
                        deadline.reschedule(now + random.uniform(0, AT_THE_ANSWER))
                    await send(message)

                await self.app(scope, receive, sending)
        except TimeoutError:
            if not deadline.expired():
                raise
            await _answer(send, 504, "It took too long.")

    async def _cancelled(self, order: Order, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.ensure_future(self.app(scope, receive, send))
        done, _ = await asyncio.wait({task}, timeout=random.uniform(0, order.seconds))
        if not done:
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()


class Outside(_Around):
    """Between the server and samekey's middleware."""

    def _take(self) -> Order | None:
        return self._book.take("deadline_outside", "cancel_outside")


class Inside(_Around):
    """Between samekey's middleware and the handlers."""

    def _take(self) -> Order | None:
        return self._book.take("deadline_inside", "cancel_inside", "answer_broken")


def _breaking(send: Send) -> Send:
    """An answer that fails once the handler has returned: it cannot be serialised, breaks off in its first
    piece, or somebody makes an error page of it."""
    way = random.choice(("raise", "break_off", "page"))

    async def sending(message: Message) -> None:
        begins = message["type"] == "http.response.start"
        if begins and message["status"] >= 300:
            nonlocal way
            way = "pass"  # a refusal is made of plain text: it does not fail
        match way:
            case "raise":
                raise TypeError("Object of type Decimal is not JSON serializable")
            case "break_off" if not begins:
                await send({"type": "http.response.body", "body": b"{", "more_body": True})
                raise TypeError("Object of type Decimal is not JSON serializable")
            case "page" if begins:
                await _answer(send, 500, "Something broke.")
            case "page":
                pass
            case _:
                await send(message)

    return sending


async def _answer(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def surround(app: Any, book: Book) -> App:
    """An application of Starlette's kind, with both pieces of middleware."""
    from starlette.middleware import Middleware

    app.user_middleware.append(Middleware(Inside, book))  # the last is the innermost
    return Outside(app, book)


def spoil_calls(book: Book) -> None:
    """From here on the HTTP client of this process has bad luck when it sends."""
    import httpx2

    request = httpx2.AsyncClient.request

    async def spoilt(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        order = book.take(*IN_CALLS) if method == "POST" else None
        if order is None:
            return await request(self, method, *arguments, **options)
        if order.kind == "sdk_error_after":
            await request(self, method, *arguments, **options)
        raise SDKError(random.choice(STATUSES))

    httpx2.AsyncClient.request = spoilt  # type: ignore[method-assign]

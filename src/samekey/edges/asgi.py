"""The ASGI edge: pure ASGI, for Starlette, FastAPI and any other application of that kind.

    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=by_user)

What is not guarded passes untouched. A guarded request's body is read whole, its handler runs shielded from
the client's disconnect, its answer is held back until the outcome is durable, and only then sent.

Outside the promise: a framework's background tasks, which run after the answer was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal

from ..core.fingerprint import RequestParts
from ..core.problem import Refusal, refuse
from ..core.record import Answer
from ..engine.exchange import UNGUARDED, Exchange, current_exchange
from ..engine.gate import tenant_of
from ..engine.operation import _current
from ..engine.rules import Rules
from ..engine.way import Handled
from ..errors import Answered, ConfigurationError
from ..idempotency import Idempotency
from ..tenants import Tenant
from .guards import Found, Route, RouteGuard, RouteGuards, exceeds, too_large
from .starlette import find_route, make_response

logger = logging.getLogger("samekey")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_WITHHELD_EXTENSIONS = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push"}
)
"""Ways to send a body past us."""


class IdempotencyMiddleware:
    """Guards the application that it wraps.

    ``tenant``: whose key it is (see ``samekey.tenants``). There is no default: a shared scope would let one
    caller's key meet another's.

    ``routes``: by path or route template, ``"required"``, ``"optional"`` or ``"exempt"``; for undecorated
    routes.

    ``undecorated``: ``"guard"`` (the default) claims at the edge for routes without a decorator, where
    authentication is in front of this middleware; ``"pass"`` leaves them alone.

    ``binding``: a function like ``tenant`` that gives a session or credential, if a key shall mean something
    only there as well; None from it is a 401. A retry from another session is then another operation.
    """

    def __init__(
        self,
        app: App,
        *,
        idempotency: Idempotency,
        tenant: Tenant,
        routes: dict[str, RouteGuard] | None = None,
        undecorated: Literal["guard", "pass"] = "guard",
        binding: Tenant | None = None,
    ) -> None:
        if not callable(tenant):
            raise ConfigurationError("tenant must be a function of the ASGI scope; see samekey.tenants.")
        self.app = app
        self._idempotency = idempotency
        self._policy = idempotency.policy
        self._tenant = tenant
        self._binding = binding
        self._guards = RouteGuards(idempotency, routes or {}, undecorated)
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, self._before_shutdown(receive), send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        operation_id = self._guards.status_id(scope["method"], scope.get("path", ""))
        if operation_id is not None:
            await send_answer(send, await self._status(scope, operation_id), head=scope["method"] == "HEAD")
        elif scope["method"] not in self._policy.methods:
            token = current_exchange.set(UNGUARDED)  # a decorated handler must know that it may run
            try:
                await self.app(scope, receive, send)
            finally:
                current_exchange.reset(token)
        else:
            await self._guard(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = find_route(scope, self.app)
        guard = self._guards.for_route(route, scope.get("path", ""))
        if guard == "exempt":
            await self.app(scope, receive, send)
            return
        lines = [value for name, value in scope["headers"] if name.lower() == self._guards.header]
        if not lines and guard != "handler" and not guard.required:
            await self.app(scope, receive, send)
            return
        body: bytes | None = None
        if lines:
            read = await read_body(scope, receive, self._policy.max_body)
            if read is None:
                return  # the client is gone half-way: nothing was claimed, nobody is there to answer
            if isinstance(read, Refusal):
                await send_answer(send, refuse(read, self._policy))
                return
            body = read
            receive = _replay_body(body)
        exchange = self._exchange(scope, lines, body, route)
        routed = guard == "handler" or (isinstance(route, Route) and not route.opaque)
        work = _Guarded(self, exchange, guard, receive, send, routed=routed)
        task = asyncio.create_task(work.run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # A cancelled connection does not cancel the operation: it runs on, and its record is written.
        await asyncio.shield(task)

    def _exchange(
        self, scope: Scope, lines: list[bytes], body: bytes | None, route: Found = None
    ) -> Exchange:
        headers = tuple((name.lower(), value) for name, value in scope["headers"])
        has_body = bool(body) or any(n in (b"content-length", b"transfer-encoding") for n, _ in headers)
        parts = RequestParts(
            method=scope["method"],
            path=scope.get("path", ""),
            query=scope.get("query_string", b""),
            headers=headers,
            body=body if has_body else None,
        )
        return Exchange(
            parts,
            lines,
            scope,
            self._tenant,
            endpoint=route.template if isinstance(route, Route) else parts.path,
            respond=make_response(scope),
            binding=self._binding,
        )

    async def _status(self, scope: Scope, operation_id: str) -> Answer:
        exchange = self._exchange(scope, [], None)
        tenant = tenant_of(exchange, self._policy)
        if isinstance(tenant, Answer):
            return tenant
        return await self._idempotency.status_async(tenant, operation_id)

    def _before_shutdown(self, receive: Receive) -> Receive:
        """Shutdown waits for handlers that outlived their connections."""

        async def receive_lifespan() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.drain()
            return message

        return receive_lifespan

    async def drain(self) -> None:
        """Waits for every guarded handler that is still running, then gives back connections."""
        while self._running:
            await asyncio.wait(set(self._running))
        await self._idempotency.aclose()


class _Guarded:
    """One guarded request: runs the application and holds its answer back."""

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        exchange: Exchange,
        guard: Rules | Literal["handler"],
        receive: Receive,
        send: Send,
        *,
        routed: bool,
    ) -> None:
        self._app = middleware.app
        self._idempotency = middleware._idempotency
        self._exchange = exchange
        self._guard = guard
        self._scope: Scope = exchange.context
        self._receive = receive
        self._send = send
        self._routed = routed
        """A handler, not a router, gives the answer."""
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._passing = False
        """What the application sends goes straight to the client."""
        self._held = False
        """The answer is whole but not finished yet."""
        self._answered = False
        """The client has its answer; whatever else the application sends is dropped."""

    async def run(self) -> None:
        token = current_exchange.set(self._exchange)
        try:
            if self._guard != "handler":
                begun = await self._idempotency.begin_async(self._exchange, self._guard)
                if isinstance(begun, Answer):
                    await self._deliver(begun)
                    return
                if begun is None:
                    self._passing = True
                else:
                    _current.set(begun.operation)  # this task's own context: it ends with the request
            await self._run_app()
        finally:
            current_exchange.reset(token)

    async def _run_app(self) -> None:
        scope = self._scope
        if scope.get("extensions"):
            kept = {k: v for k, v in scope["extensions"].items() if k not in _WITHHELD_EXTENSIONS}
            scope["extensions"] = kept
        try:
            await self._app(scope, self._receive, self._capture)
        except BaseException as error:
            if await self._handle_error(error):
                raise
            return
        if not self._answered and not self._passing:
            if self._exchange.answer is not None:
                await self._deliver(self._exchange.answer)
            elif self._held:
                await self._finish(streamed=False)
            elif self._exchange.running is not None:
                silence = RuntimeError("The application returned without sending an answer.")
                await self._handle_error(silence)
                raise silence

    async def _handle_error(self, error: BaseException) -> bool:
        """Records what the error means. True: raise it, so that the server reports it."""
        exchange = self._exchange
        if self._answered or self._passing:
            # After the answer: a background task or a clean-up failed. Our own sign to the framework that
            # the answer was decided is no failure.
            return not (isinstance(error, Answered) and exchange.answer is not None)
        if exchange.answer is not None:
            await self._deliver(exchange.answer)
            return False
        if exchange.running is None:
            return True
        # What the handler raised counts; a framework may have wrapped it on the way out.
        page = self._answer() if self._held else None
        finished = await self._idempotency.finish_async(
            exchange.running, Handled(page, exchange.error or error, routed=self._routed)
        )
        if finished.answer is not None:
            await self._deliver(finished.answer)
        self._answered = True
        if page is not None:
            return True
        if finished.error is None or finished.error in (error, exchange.error):
            return finished.error is not None
        raise finished.error from error

    async def _capture(self, message: Message) -> None:
        """What the application sends to: holds the answer back until its outcome is durable."""
        if self._passing:
            await self._send(message)
        elif self._answered or self._held:
            return
        elif self._exchange.answer is not None:
            await self._deliver(self._exchange.answer)
        elif self._exchange.running is None:
            # No handler claimed: the router refused, validation failed, or no key was sent.
            self._passing = True
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            await self._collect(message)
        else:
            await self._send(message)

    async def _collect(self, message: Message) -> None:
        chunk = bytes(message.get("body", b""))
        self._chunks.append(chunk)
        self._size += len(chunk)
        running = self._exchange.running
        assert running is not None
        if not message.get("more_body", False):
            if self._guard != "handler" and self._start is not None and self._start["status"] >= 500:
                # An error page: what was raised may follow, and says more than the page does.
                self._held = True
            else:
                await self._finish(streamed=False)
        elif self._size > running.rules.policy.max_answer or self._is_endless():
            await self._finish(streamed=True)

    def _is_endless(self) -> bool:
        assert self._start is not None
        types = [value for name, value in self._start.get("headers", ()) if name.lower() == b"content-type"]
        return any(value.strip().lower().startswith(b"text/event-stream") for value in types)

    async def _finish(self, *, streamed: bool) -> None:
        """The outcome becomes durable; only then does the first byte leave."""
        running, answer = self._exchange.running, self._answer()
        assert running is not None
        handled = Handled(answer, self._exchange.error, streamed=streamed, routed=self._routed)
        finished = await self._idempotency.finish_async(running, handled)
        assert finished.answer is not None
        if streamed and finished.answer.body is answer.body:
            self._passing = True
            await self._send(
                {
                    "type": "http.response.start",
                    "status": answer.status,
                    "headers": list(finished.answer.headers),
                }
            )
            await self._send({"type": "http.response.body", "body": answer.body, "more_body": True})
        else:
            await self._deliver(finished.answer)
        if finished.error is not None:
            raise finished.error

    def _answer(self) -> Answer:
        """What the application has sent so far."""
        if self._start is None:
            raise RuntimeError("The application sent a body before http.response.start.")
        headers = tuple((bytes(name), bytes(value)) for name, value in self._start.get("headers", ()))
        body = b"".join(self._chunks)
        self._chunks.clear()
        return Answer(self._start["status"], headers, body)

    async def _deliver(self, answer: Answer) -> None:
        self._answered = True
        try:
            await send_answer(self._send, answer)
        except OSError:
            logger.info("The client was gone before its answer; a retry with the same key will get it")


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | Refusal | None:
    """The whole body; a refusal if it is too large; None if the client left before the end."""
    for name, value in scope["headers"]:
        if name.lower() == b"content-length" and value.isdigit() and exceeds(value, limit):
            return too_large(limit)
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            return too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _replay_body(body: bytes) -> Receive:
    """Hands the body on, once; then waits for ever: the handler does not see the client leave."""
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    return receive


async def send_answer(send: Send, answer: Answer, *, head: bool = False) -> None:
    headers = list(answer.headers)
    if answer.header(b"content-length") is None and answer.status not in (204, 304):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body, "more_body": False})

"""The ASGI edge: pure ASGI, for Starlette, FastAPI and any other application of that kind.

    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=by_user)

What is not guarded passes untouched. A claim reads the body whole, the handler runs shielded from the
client's disconnect, its answer is held back until the outcome is durable, and only then sent.

Outside the promise: a framework's background tasks, which run after the answer was sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal, cast

from ..core.fingerprint import RequestParts
from ..core.outcome import OnError
from ..core.problem import refuse
from ..core.record import Answer
from ..engine.errands import Waiting
from ..engine.exchange import SEEN, Asked, Exchange, Unguarded, passed
from ..engine.gate import asker_of
from ..engine.handler.body import Callers
from ..errors import ConfigurationError
from ..idempotency import Idempotency
from ..tenants import Resolver, Tenant
from .bodies import AsgiBody
from .callers import asked_of, is_async, met_by
from .guards import (
    TWO_MIDDLEWARES,
    Decorators,
    Found,
    Route,
    RouteGuard,
    RouteGuards,
    leads_to,
    of_the_application,
    too_large,
)
from .held import Held
from .messages import PATH, App, Message, Receive, Scope, Send, from_outside, noticing, send_answer
from .routing import router_behind, ways_of
from .startup import Wrong, look
from .walk import READ_ONLY, state_changing

logger = logging.getLogger("samekey")


class AsgiMiddleware:
    """Guards the application that it wraps.

    ``tenant``: whose key it is (see ``samekey.tenants``). There is no default: a shared scope would let one
    caller's key meet another's.

    ``routes``: by path or route template, ``"required"``, ``"optional"`` or ``"exempt"``; for undecorated
    routes.

    ``undecorated``: ``"guard"`` (the default) guards routes without a decorator: at their handler where the
    framework is Starlette or FastAPI, else before the application runs, which then must authenticate in front
    of this middleware; ``"pass"`` leaves them alone. It must be said where the application cannot be looked
    into and has decorated handlers.

    ``on_error``: what an error means on an undecorated route; ``"retry"`` only where all of them are safe to
    repeat.

    ``binding``: a function like ``tenant`` that gives a session or credential, if a key shall mean something
    only there as well; None from it is a 401. A retry from another session is then another operation.

    ``decorators``: what becomes of an undecorated route whose handler has decorators of its own, or holds
    another function. ``"refuse"`` (the default) does not start; ``"around"`` guards around all of it: a
    replay runs none of them, so none of them may authenticate.
    """

    def __init__(
        self,
        app: App,
        *,
        idempotency: Idempotency,
        tenant: Tenant,
        routes: dict[str, RouteGuard] | None = None,
        undecorated: Literal["guard", "pass"] | None = None,
        on_error: OnError = "unknown",
        binding: Tenant | None = None,
        decorators: Decorators = "refuse",
    ) -> None:
        if not callable(tenant):
            raise ConfigurationError("tenant must be a function of the ASGI scope; see samekey.tenants.")
        self.app = app
        self._engine = idempotency.engine
        self._policy = idempotency.engine.policy
        self._tenant = asked_of(tenant)
        self._binding = None if binding is None else asked_of(binding)
        self._asks_async = is_async(tenant) or is_async(binding)
        self._guards = RouteGuards(idempotency, routes or {}, undecorated, on_error, decorators)
        self._routes = routes
        self._wrong: Wrong | None = None
        self._handlers_guarded = False
        self._router: Any = None
        self._find_route, self._framework_of = ways_of(None)
        self._running: dict[asyncio.Task[None], Held] = {}
        self._looks: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}
        """By the event loop, when it is looked next whose longest run is over."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"].upper()
        operation_id = self._guards.status_id(method, scope.get("path", ""), scope.get("root_path", ""))
        if operation_id is not None:
            await self._show_status(scope, receive, send, operation_id)
        elif method not in self._policy.methods:
            as_it_came = dict(scope)  # mounts change it on the way
            self._guard_handlers()
            again = method not in READ_ONLY and self._guards.header in dict(scope["headers"])
            unguarded = Unguarded(lambda: leads_to(self._find(as_it_came)), self._policy, again)
            await self._pass(scope, receive, send, unguarded)
        else:
            await self._guard(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send, seen: Unguarded | None) -> None:
        if passed(Asked(scope)) is not None:
            await self.app(scope, receive, send)  # another middleware of ours guards it, further out
            return
        scope[SEEN] = seen
        try:
            with self._engine.unclaimed(seen, scope.get("path", "")):
                await self.app(scope, receive, send)
        finally:
            if seen is not None:
                seen.over = True

    def _find(self, scope: Scope) -> Found:
        if self._router is None:
            self._router = router_behind(self.app)
            self._find_route, self._framework_of = ways_of(self._router)
        return self._find_route(scope, self._router) or of_the_application(self.app, scope.get("path", ""))

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        wrong = self.look(scope.get("root_path", ""))
        route = self._find(scope)
        wrong.refuse(route)
        guarded = self._guards.for_route(route, scope.get("path", ""))
        lines = [value for name, value in scope["headers"] if name.lower() == self._guards.header]
        left_alone = guarded is not None and guarded.leaves_alone(bool(lines))
        outer = passed(Asked(scope))
        if guarded is None or self._guards.passes(guarded, bool(lines)) or (left_alone and outer is not None):
            if guarded is not None and outer is None:
                self._guards.note_keyless(guarded, scope, lambda: self._exchange(scope, [], route))
            await self._pass(scope, receive, send, None)
            return
        if outer is not None:
            raise ConfigurationError(TWO_MIDDLEWARES)
        if isinstance(scope.get(SEEN), Exchange):
            scope = dict(scope)  # somebody outside has sent it in before, and that still runs
        send = from_outside(send)
        exchange = self._exchange(scope, lines, route)
        exchange.rules = guarded.rules
        if lines:
            exchange.body = body = AsgiBody(scope, receive, self._engine.largest_body)
            receive = body.receive
            if guarded.is_certain and body.is_larger(guarded.max_body):
                await send_answer(send, refuse(too_large(guarded.max_body), self._policy))
                return
        else:
            receive, send = from_outside(receive), noticing(send, exchange)
        scope[SEEN] = exchange
        work = Held(self.app, self._guards.below, exchange, receive, send, guarded)
        task = asyncio.create_task(work.run())
        self._running[task] = work
        task.add_done_callback(self._ended)
        try:
            await self._see_through(task, work)
        except asyncio.CancelledError:
            if work.is_on_their_connection:
                await self._outlast(task, work)
            work.is_alone = True
            # A cancelled connection does not cancel the operation: it runs on, and its record is written.
            # What passes straight to the client, or is nobody's to guard, has nothing to record.
            if work.passing or (left_alone and exchange.let_go()):
                task.cancel()
            raise
        finally:
            if task.done():
                scope.pop(SEEN, None)

    async def _see_through(self, task: asyncio.Task[None], work: Held) -> None:
        """Waits for it until its longest run is over. Then the request ends, so that its server can."""
        loop = task.get_loop()
        if loop not in self._looks:
            self._looks = {other: timer for other, timer in self._looks.items() if not other.is_closed()}
            self._looks[loop] = loop.call_later(_SHORTEST_WAIT, self._look, loop)
        work.over = Waiting(task)
        await work.over
        if task.done():
            await task
            return
        work.is_alone = True
        if work.is_recorded:
            task.cancel()  # an endless answer, which nobody will get

    async def _outlast(self, task: asyncio.Task[None], work: Held) -> None:
        """Whoever lent the connection gives it back when the request ends, so that must not come before the
        transaction's end."""
        while not (task.done() or work.passing or (work.running_out is not None and work.running_out.done())):
            work.over = Waiting(task)
            with suppress(asyncio.CancelledError):
                await work.over
                return

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """From time to time: whose longest run is over?"""
        longest, now = self._policy.max_run.total_seconds(), time.monotonic()
        here = [work for task, work in self._running.items() if task.get_loop() is loop]
        pause = _SHORTEST_WAIT
        for work in here:
            if work.has_begun and not work.is_alone and work.running_out is None:
                left = work.ends(longest) + _SHORTEST_WAIT - now
                if left <= 0:
                    work.running_out = loop.create_task(work.run_out())
                else:
                    pause = min(pause, left)
        if here:
            self._looks[loop] = loop.call_later(pause, self._look, loop)
        else:
            del self._looks[loop]

    def _ended(self, task: asyncio.Task[None]) -> None:
        work = self._running.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and work.is_alone:
            logger.error(
                "%s failed after its client had left; what became of it is on record",
                work.name,
                exc_info=error,
            )

    def _exchange(self, scope: Scope, lines: list[bytes], route: Found = None) -> Exchange:
        parts = RequestParts(
            method=scope["method"].upper(),
            path=scope.get(PATH) or scope.get("path", ""),
            query=scope.get("query_string", b""),
            headers=tuple((name.lower(), value) for name, value in scope["headers"]),
            body=None,
        )
        callers: Callers | None = None
        tenant, binding = self._tenant, self._binding
        if self._asks_async:
            tenant, binding, callers = met_by(tenant, binding, scope)
        return Exchange(
            parts,
            lines,
            scope,
            cast(Resolver, tenant),
            endpoint=route.template if isinstance(route, Route) else parts.path,
            templated=isinstance(route, Route) and route.templated,
            framework=self._framework_of(scope, self._router),
            binding=cast(Resolver | None, binding),
            callers=callers,
            engine=self._engine,
            around=self._guards.decorators == "around",
        )

    async def _show_status(self, scope: Scope, receive: Receive, send: Send, operation_id: str) -> None:
        answer = await self._status(scope, operation_id)
        await send_answer(send, answer, head=scope["method"].upper() == "HEAD")

    async def _status(self, scope: Scope, operation_id: str) -> Answer:
        exchange = self._exchange(scope, [])
        if exchange.callers is not None:
            await exchange.callers.meet_async()
        asker = asker_of(exchange, self._policy)
        if isinstance(asker, Answer):
            return asker
        return await self._engine.status_async(operation_id, *asker)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start-up refuses what can be seen to be wrong; shutdown waits for handlers that outlived their
        connections."""
        first: Message | None = await receive()
        assert first is not None
        if first["type"] == "lifespan.startup":
            found = "\n".join(self.look(scope.get("root_path", "")))
            if found:
                await send({"type": "lifespan.startup.failed", "message": found})
                raise ConfigurationError(found)  # test clients go by this, and else wait for ever at the end

        async def receive_lifespan() -> Message:
            nonlocal first
            message, first = first or await receive(), None
            if message["type"] == "lifespan.shutdown":
                await self.drain()
            return message

        await self.app(scope, receive_lifespan, send)

    def look(self, root: str = "") -> Wrong:
        """What would have no effect. Once: at start-up where the server says so, else at the first request.
        ``root`` is what the server has taken off the path."""
        if self._wrong is None:
            wrong = look(
                self.app,
                self._engine,
                self._routes,
                undecorated=self._guards.said,
                decorators=self._guards.decorators,
                root=root,
            )
            self._guard_handlers()
            self._wrong = wrong.logged()
        return self._wrong

    def _guard_handlers(self) -> None:
        if not self._handlers_guarded:
            self._guards.guard_all(state_changing(self.app))
            self._handlers_guarded = True

    async def drain(self) -> None:
        """Waits for the guarded handlers that still run, each until its longest run is over; then gives back
        connections. What passes straight to a client is not waited for: nothing of it is left to record."""
        began = time.monotonic()
        longest = self._policy.max_run.total_seconds()
        while waiting := {task: work for task, work in self._running.items() if work.is_waited_for}:
            left = max(work.ends(longest) for work in waiting.values()) - time.monotonic()
            if left <= 0:
                logger.error("Shutting down although these have not ended: %s", _named(waiting.values()))
                break
            logger.info("Shutdown waits up to %.0f s for: %s", left, _named(waiting.values()))
            await asyncio.wait(waiting, timeout=min(left, _DRAIN_BEAT), return_when=asyncio.FIRST_COMPLETED)
        await self._engine.drain(max(0.0, longest - (time.monotonic() - began)))
        await self._engine.aclose()


_SHORTEST_WAIT = 1.0
"""Seconds between looks at a request that has not reached its handler within the longest run, and for which
a handler whose longest run is over may still say what it says about that."""
_DRAIN_BEAT = 10.0
"""Seconds between two lines of the log about what a shutdown waits for."""


def _named(works: Iterable[Held]) -> str:
    names = sorted(work.name for work in works)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

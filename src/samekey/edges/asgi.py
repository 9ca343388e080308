"""The ASGI edge: pure ASGI, for Starlette, FastAPI and any other application of that kind.

    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=by_user)

What is not guarded passes untouched. A guarded request's body is read whole, its handler runs shielded from
the client's disconnect, its answer is held back until the outcome is durable, and only then sent.

Outside the promise: a framework's background tasks, which run after the answer was sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Literal

from ..core.decide import Outstanding
from ..core.fingerprint import RequestParts
from ..core.outcome import OnError
from ..core.problem import Refusal, refuse, verdict_answer, withheld_answer
from ..core.record import Answer
from ..core.states import Mode
from ..engine.boundary import Place
from ..engine.exchange import (
    SEEN,
    Answered,
    AnsweredInThread,
    Asked,
    Exchange,
    Unguarded,
    current_exchange,
    passed,
)
from ..engine.gate import tenant_of
from ..engine.operation import Running, _current
from ..engine.way import Finished, Handled, with_expiry
from ..errors import ConfigurationError
from ..idempotency import Idempotency
from ..tenants import Tenant
from .guards import (
    TWO_MIDDLEWARES,
    Decorators,
    Found,
    Route,
    RouteGuard,
    RouteGuards,
    exceeds,
    leads_to,
    of_the_application,
    own_word,
    too_large,
    unguarded_answer,
)
from .starlette import find_route, framework_of, lower_case, router_behind
from .startup import refuse as refuse_at_start
from .walk import state_changing

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

    ``undecorated``: ``"guard"`` (the default) guards routes without a decorator: at their handler where the
    framework is Starlette or FastAPI, else before the application runs, which then must authenticate in front
    of this middleware; ``"pass"`` leaves them alone.

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
        undecorated: Literal["guard", "pass"] = "guard",
        on_error: OnError = "unknown",
        binding: Tenant | None = None,
        decorators: Decorators = "refuse",
    ) -> None:
        if not callable(tenant):
            raise ConfigurationError("tenant must be a function of the ASGI scope; see samekey.tenants.")
        self.app = app
        self._engine = idempotency.engine
        self._policy = idempotency.engine.policy
        self._tenant = tenant
        self._binding = binding
        self._guards = RouteGuards(idempotency, routes or {}, undecorated, on_error, decorators)
        self._routes = routes
        self._checked = False
        self._handlers_guarded = False
        self._router: Any = None
        self._running: dict[asyncio.Task[None], _Guarded] = {}

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
            await send_answer(send, await self._status(scope, operation_id), head=method == "HEAD")
        elif method not in self._policy.methods:
            as_it_came = dict(scope)  # mounts change it on the way
            self._guard_handlers()
            unguarded = Unguarded(lambda: leads_to(self._find(as_it_came)), self._policy.methods)
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
        return find_route(scope, self._router) or of_the_application(self.app, scope.get("path", ""))

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check(scope)
        route = self._find(scope)
        guarded = self._guards.for_route(route, scope.get("path", ""))
        lines = [value for name, value in scope["headers"] if name.lower() == self._guards.header]
        if guarded is None or (not lines and not guarded.needs_key):
            await self._pass(scope, receive, send, None)
            return
        if passed(Asked(scope)) is not None:
            raise ConfigurationError(TWO_MIDDLEWARES)
        if isinstance(scope.get(SEEN), Exchange):
            scope = dict(scope)  # somebody outside has sent it in before, and that still runs
        body: bytes | None = None
        if lines:
            read = await self._read(scope, receive, guarded.max_body)
            if read is None:
                return  # the client is gone half-way: nothing was claimed, nobody is there to answer
            if isinstance(read, Refusal):
                await send_answer(send, refuse(read, self._policy))
                return
            body = read
        exchange = self._exchange(scope, lines, body, route)
        exchange.rules = guarded.rules
        scope[SEEN] = exchange
        work = _Guarded(self, exchange, receive, send, body, at_edge=not guarded.at_handler)
        task = asyncio.create_task(work.run())
        self._running[task] = work
        task.add_done_callback(self._ended)
        try:
            await self._see_through(task, work)
        except asyncio.CancelledError:
            work.is_alone = True
            # A cancelled connection does not cancel the operation: it runs on, and its record is written.
            # What passes straight to the client has nothing left to record.
            if work.passing:
                task.cancel()
            raise
        finally:
            if task.done():
                scope.pop(SEEN, None)

    async def _read(self, scope: Scope, receive: Receive, limit: int) -> bytes | Refusal | None:
        """The body. A server gives it once, but one request may meet several guards, one after the other."""
        source, body = scope.get(_BODY, (None, b""))
        if source is receive:
            return too_large(limit) if len(body) > limit else body
        read = await read_body(scope, receive, limit)
        if isinstance(read, bytes):
            scope[_BODY] = (receive, read)
        return read

    async def _see_through(self, task: asyncio.Task[None], work: _Guarded) -> None:
        """Waits for it until its longest run is over. Then the request ends, so that its server can."""
        loop, longest = asyncio.get_running_loop(), self._policy.max_run.total_seconds()
        over = loop.create_future()
        timers: list[asyncio.TimerHandle] = []

        def look() -> None:
            timers.clear()
            left = work.ends(longest) + _SHORTEST_WAIT - time.monotonic()
            if work.has_begun and left <= 0:
                work.running_out = loop.create_task(work.run_out(over))
            else:
                pause = left if work.has_begun else _SHORTEST_WAIT
                timers.append(loop.call_later(pause, look))

        timers.append(loop.call_later(_SHORTEST_WAIT, look))
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for timer in timers:
                timer.cancel()
        if task.done():
            await task
            return
        work.is_alone = True
        if work.is_recorded:
            task.cancel()  # an endless answer, which nobody will get

    def _ended(self, task: asyncio.Task[None]) -> None:
        work = self._running.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and work.is_alone:
            logger.error(
                "%s failed after its client had left; what became of it is on record",
                work.name,
                exc_info=error,
            )

    def _exchange(
        self, scope: Scope, lines: list[bytes], body: bytes | None, route: Found = None
    ) -> Exchange:
        headers = tuple((name.lower(), value) for name, value in scope["headers"])
        has_body = bool(body) or any(n in (b"content-length", b"transfer-encoding") for n, _ in headers)
        parts = RequestParts(
            method=scope["method"].upper(),
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
            framework=framework_of(scope, self._router),
            binding=self._binding,
            engine=self._engine,
            around=self._guards.decorators == "around",
        )

    async def _status(self, scope: Scope, operation_id: str) -> Answer:
        exchange = self._exchange(scope, [], None)
        tenant = tenant_of(exchange, self._policy)
        if isinstance(tenant, Answer):
            return tenant
        return await self._engine.status_async(tenant, operation_id)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start-up refuses what can be seen to be wrong; shutdown waits for handlers that outlived their
        connections."""
        first: Message | None = await receive()
        assert first is not None
        if first["type"] == "lifespan.startup":
            try:
                self._check(scope)
            except ConfigurationError as error:
                logger.error("%s", error)
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return

        async def receive_lifespan() -> Message:
            nonlocal first
            message, first = first or await receive(), None
            if message["type"] == "lifespan.shutdown":
                await self.drain()
            return message

        await self.app(scope, receive_lifespan, send)

    def _check(self, scope: Scope) -> None:
        """Once: at start-up where the server says so, else at the first request."""
        if not self._checked:
            refuse_at_start(
                self.app,
                self._engine,
                self._routes,
                undecorated=self._guards.undecorated,
                decorators=self._guards.decorators,
                root=scope.get("root_path", ""),
            )
            self._guard_handlers()
            self._checked = True

    def _guard_handlers(self) -> None:
        if not self._handlers_guarded:
            self._guards.guard_all(state_changing(self.app))
            self._handlers_guarded = True

    async def drain(self) -> None:
        """Waits for the guarded handlers that still run, each until its longest run is over; then gives back
        connections. What passes straight to a client is not waited for: nothing of it is left to record."""
        began = time.monotonic()
        longest = self._policy.max_run.total_seconds()
        while waiting := {task: work for task, work in self._running.items() if not work.passing}:
            left = max(work.ends(longest) for work in waiting.values()) - time.monotonic()
            if left <= 0:
                logger.error("Shutting down although these have not ended: %s", _named(waiting.values()))
                break
            logger.info("Shutdown waits up to %.0f s for: %s", left, _named(waiting.values()))
            await asyncio.wait(waiting, timeout=min(left, _DRAIN_BEAT), return_when=asyncio.FIRST_COMPLETED)
        await self._engine.drain(max(0.0, longest - (time.monotonic() - began)))
        await self._engine.aclose()


_BODY = "samekey.body"
"""The key in the scope under which the body is that was read, and what it was read from."""
_ENDLESS = (b"text/event-stream", b"multipart/x-mixed-replace")
"""Types of answers that have no end."""
_SILENCE = "The application returned without sending a whole answer."
_SHORTEST_WAIT = 1.0
"""Seconds between looks at a request that has not reached its handler within the longest run, and for which
a handler whose longest run is over may still say what it says about that."""
STREAM_PATIENCE = 15.0
"""Seconds after the first piece of an answer in which the last one must come for the answer to be kept. One
that takes longer may never end; it passes to the client as it comes."""
_DRAIN_BEAT = 10.0
"""Seconds between two lines of the log about what a shutdown waits for."""


def _is_sign(error: BaseException) -> bool:
    """Whether it is our own sign that nothing may run, alone or in a task group's wrapping."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_sign, error.exceptions))
    return isinstance(error, Answered | AnsweredInThread)


def _is_cancelled() -> bool:
    """Whether the event loop is torn down; a deadline inside the application takes its own word back."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _named(works: Iterable[_Guarded]) -> str:
    names = sorted(work.name for work in works)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class _Guarded:
    """One guarded request: runs the application and holds its answer back."""

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        exchange: Exchange,
        receive: Receive,
        send: Send,
        body: bytes | None,
        *,
        at_edge: bool,
    ) -> None:
        self._app = middleware.app
        self._engine = middleware._engine
        self._exchange = exchange
        self._claims = at_edge
        """The edge claims, before the application runs."""
        self._policy = middleware._policy
        self._root: str = exchange.context.get("root_path", "")
        self._below = middleware._guards.below
        self._scope: Scope = exchange.context
        self._client_receive = receive
        self._send = send
        self._body = body
        """To be handed on, once; None where it was not read."""
        self._body_given = False
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self.is_alone = False
        """Whoever waited for it has left."""
        self.passing = False
        """What the application sends goes straight to the client."""
        self._passes = asyncio.Event()
        self._page: Answer | None = None
        """An error page of an application that has not ended yet: what it raises may follow."""
        self._handled: Handled | None = None
        """How the handler ended, once that is being made durable; whatever else the application sends is
        dropped, except for the rest of a stream."""
        self._answered = False
        """The client has its answer."""
        self._began = time.monotonic()
        self.running_out: asyncio.Task[None] | None = None
        self._patience: asyncio.Task[None] | None = None
        """Waits for the rest of an answer whose first piece is there."""
        self._streams = False
        """The rest was not waited for any longer."""

    @property
    def name(self) -> str:
        return f"{self._exchange.parts.method} {self._exchange.endpoint}"

    def ends(self, longest: float) -> float:
        """When its longest run is over; ``longest`` for what has not reached its handler."""
        running = self._exchange.running
        if running is None:
            return self._began + longest
        return running.started + running.rules.policy.max_run.total_seconds()

    @property
    def has_begun(self) -> bool:
        """Whether a handler holds the key."""
        return self._exchange.running is not None

    @property
    def is_recorded(self) -> bool:
        """Whether the outcome is, or is being, made durable."""
        return self._handled is not None

    async def run_out(self, over: asyncio.Future[None]) -> None:
        """The longest run is over, and ``over`` hears when nothing is left to wait for: a handler that still
        runs is left to whoever runs it, and what passes to the client is waited for."""
        running = self._exchange.running
        if running is None or self._answered or self.passing or self._handled is not None:
            return
        try:
            if self._start is not None and self._is_answering(running):
                await self._finish(self._answer(), streamed=True)
            elif running.boundary.place is Place.RETURNED:
                await self._finish(None)
            else:
                self._abandon()
                await self._deliver(self._still_runs())
        except Exception:
            logger.exception("%s was ended at its longest run", self.name)
        if not self.passing and not over.done():
            over.set_result(None)

    def _is_answering(self, running: Running) -> bool:
        """Whether what was sent so far is the handler's own answer."""
        if running.boundary.place is Place.RUNNING and running.boundary.said is not None:
            running.boundary.returned()  # a bare application sends while it runs
        return self._exchange.at_edge or running.boundary.place is Place.RETURNED

    async def _lose_patience(self) -> None:
        await asyncio.sleep(STREAM_PATIENCE)
        running = self._exchange.running
        assert running is not None
        if (
            self._handled is None
            and not self._answered
            and self._page is None
            and self._is_answering(running)
        ):
            self._streams = True
            await self._finish(self._answer(), streamed=True)

    async def _calm(self) -> None:
        """Whoever waits for the rest of the answer does not any more, or has passed it on."""
        patience = self._patience
        if patience is None or patience.done():
            return
        if self._streams:
            await asyncio.wait({patience})
        else:
            patience.cancel()

    async def run(self) -> None:
        token = current_exchange.set(self._exchange)
        try:
            if self._claims:
                rules = self._exchange.rules
                assert rules is not None
                begun = await self._engine.begin_async(self._exchange, rules)
                if isinstance(begun, Answer):
                    await self._deliver(begun)
                    return
                _current.set(begun.operation)  # this task's own context: it ends with the request
                begun.boundary.enter()
                self._exchange.at_edge = True
            await self._run_app()
        finally:
            current_exchange.reset(token)

    async def _run_app(self) -> None:
        scope = self._scope
        if scope.get("extensions"):
            kept = {k: v for k, v in scope["extensions"].items() if k not in _WITHHELD_EXTENSIONS}
            scope["extensions"] = kept
        # A retry may not be able to read what a compressor inside would make of the answer for this client.
        sent = scope["headers"]
        scope["headers"] = [pair for pair in sent if pair[0].lower() != b"accept-encoding"]
        try:
            await self._app(scope, self._receive, self._capture)
        except BaseException as error:
            await self._calm()
            if await self._app_raised(error):
                raise
        else:
            await self._calm()
            await self._app_returned()
        finally:
            scope["headers"] = sent

    async def _app_returned(self) -> None:
        exchange = self._exchange
        if self._answered or self.passing:
            return
        if exchange.answer is not None:
            await self._deliver(exchange.answer)
        elif self._start is not None and exchange.running is None:
            await self._pass_held({"type": "http.response.body", "body": b"", "more_body": False})
        elif not exchange.let_go():
            if self._page is None and self._handled is None:
                raise_again = await self._app_raised(silence := RuntimeError(_SILENCE))
                if raise_again:
                    raise silence
            else:
                await self._finish(self._page)

    async def _app_raised(self, error: BaseException) -> bool:
        """Records what is to be recorded. True: raise the error, so that the server reports it."""
        exchange = self._exchange
        if self._answered or self.passing:
            # After the answer: a background task or a clean-up failed. Our own sign to the framework that
            # nothing may run is no failure.
            return not _is_sign(error)
        if exchange.answer is not None:
            await self._deliver(exchange.answer)
            return False
        if exchange.let_go():
            return True
        assert exchange.running is not None
        boundary = exchange.running.boundary
        late = self._handled is not None  # it was raised while its outcome was being made durable
        if not late and exchange.at_edge:
            boundary.raised(error)
        elif not late and self._abandon():
            if exchange.running.anonymous:
                return True  # no key was sent, so there is nothing to say of one
            await self._deliver(self._still_runs())
            return not isinstance(error, asyncio.CancelledError) or _is_cancelled()
        try:
            finished = await self._finish(self._page)
        except Exception as found:
            if found is error:
                return True
            raise found from error
        if isinstance(error, asyncio.CancelledError):
            return _is_cancelled()
        # An error that was answered on purpose (``NotExecuted``) is nobody's failure.
        return finished.answer is None or late or boundary.place is Place.RETURNED or self._page is not None

    def _abandon(self) -> bool:
        """Whether the handler still runs: then whoever runs it will finish, and nobody else."""
        running = self._exchange.running
        assert running is not None
        return self._engine.abandon(running)

    async def _receive(self) -> Message:
        """The body, once. Then the client's own messages, but only for a stream that passes: a handler whose
        outcome is still to be recorded does not see the client leave."""
        if self._body is None:
            return await self._client_receive()
        if self._body_given:
            await self._passes.wait()
            return await self._client_receive()
        self._body_given = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _capture(self, message: Message) -> None:
        """What the application sends to: holds the answer back until its outcome is durable."""
        exchange = self._exchange
        if self._streams:
            await self._calm()
        if self.passing:
            await self._send(message)
        elif self._answered or self._handled is not None or self._page is not None:
            return
        elif exchange.answer is not None:
            await self._deliver(exchange.answer)
        elif exchange.stream_due:
            self._hold(message)
        elif exchange.running is None and self._start is not None:
            await self._pass_held(message)
        elif exchange.running is None and message["type"] != "http.response.start":
            await self._send(message)  # an early hint, say: it decides nothing
        elif exchange.running is None:
            # No handler claimed: the router refused, validation failed, or no key was sent.
            if exchange.let_go():
                if exchange.key_lines:
                    unguarded_answer(self.name, message["status"])
                self._pass()
                await self._send(message)
            else:
                await self._capture(message)
        elif message["type"] == "http.response.start":
            if self._start is not None:
                raise RuntimeError("The application sent http.response.start twice.")
            self._start = message
        elif message["type"] == "http.response.body":
            await self._collect(message)
        else:
            await self._send(message)

    def _hold(self, message: Message) -> None:
        """A generator has been called, and claims at its first step: what is sent before waits for that."""
        if message["type"] == "http.response.start":
            self._start = message
        else:
            self._chunks.append(bytes(message.get("body", b"")))
            self._size += len(self._chunks[-1])

    async def _pass_held(self, message: Message) -> None:
        """Nobody has claimed after all: what was held is the client's."""
        if not self._exchange.let_go():
            await self._capture(message)
            return
        held, self._start = self._start, None
        assert held is not None
        self._pass()
        await self._send(held)
        for chunk in self._chunks:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send(message)

    async def _collect(self, message: Message) -> None:
        if self._start is None:
            raise RuntimeError("The application sent a body before http.response.start.")
        chunk = bytes(message.get("body", b""))
        self._chunks.append(chunk)
        self._size += len(chunk)
        running = self._exchange.running
        assert running is not None
        if not message.get("more_body", False):
            await self._calm()
            if self._exchange.at_edge and self._start["status"] >= 500:
                self._page = self._answer()
            else:
                await self._finish(self._answer())
        elif self._size > running.rules.policy.max_answer or self._is_endless():
            await self._calm()
            await self._finish(self._answer(), streamed=True)
        elif self._patience is None and running.rules.mode in (Mode.LEASED, Mode.REPEATABLE):
            self._patience = asyncio.create_task(self._lose_patience())

    def _is_endless(self) -> bool:
        assert self._start is not None
        types = [value for name, value in self._start.get("headers", ()) if name.lower() == b"content-type"]
        return any(value.strip().lower().startswith(_ENDLESS) for value in types)

    async def _finish(self, page: Answer | None, *, streamed: bool = False) -> Finished:
        """The outcome becomes durable, once; only then does the first byte leave.

        Whoever is cancelled while it waits here comes back at the application's end for the same result.
        """
        running = self._exchange.running
        assert running is not None
        policy, first = running.rules.policy, self._handled is None
        if self._handled is None:
            at_edge = self._exchange.at_edge
            if at_edge and running.boundary.place is Place.RUNNING and page is not None:
                running.boundary.said = own_word(page.status, running.rules)
                running.boundary.returned()
            elif running.boundary.place is Place.RUNNING and self._sends_itself(running):
                running.boundary.returned()
            elif not at_edge and self._abandon():
                # Somebody answers in the place of a handler that still runs; whoever runs it will finish.
                assert page is not None
                dated = page if running.anonymous else with_expiry(page, policy, running.expires_at)
                shown = Finished(dated)
                await self._deliver(shown.answer)
                return shown
            self._handled = self._exchange.handled(page, streamed=streamed)
        handled = self._handled
        finished = await self._engine.finish_async(running, handled)
        answer = finished.answer
        if handled.streamed and answer is not None and handled.answer is not None:
            if answer.body is not handled.answer.body:
                await self._deliver(answer)
            elif first:
                await self._begin_stream(answer)
            else:  # cancelled meanwhile: what should have followed is lost
                await self._deliver(withheld_answer(policy, running.operation.id, running.expires_at))
        else:
            await self._deliver(answer)
        if finished.error is not None and not isinstance(finished.error, asyncio.CancelledError):
            raise finished.error
        return finished

    def _sends_itself(self, running: Running) -> bool:
        """Whether the answer comes from the handler itself while it runs, as a bare application's does."""
        boundary = running.boundary
        if _current.get() is running.operation and self._start is not None:
            boundary.said = self._start["status"]
            return True
        return boundary.sent_all

    async def _begin_stream(self, answer: Answer) -> None:
        """Sends what there is; the rest passes."""
        self._pass()
        answer = self._below(self._root, answer) if self._root else answer
        await self._send(
            {"type": "http.response.start", "status": answer.status, "headers": lower_case(answer.headers)}
        )
        await self._send({"type": "http.response.body", "body": answer.body, "more_body": True})

    def _pass(self) -> None:
        self.passing = True
        self._passes.set()

    def _still_runs(self) -> Answer:
        """The application gave up while its handler still runs, and its outcome is not known yet."""
        running = self._exchange.running
        assert running is not None
        if running.anonymous:  # no key was sent, so there is nothing to say of one
            return refuse(
                Refusal(503, "The operation still runs; how it will end is not known."), self._policy
            )
        operation_id = None if running.lease is None else running.operation.id
        return verdict_answer(Outstanding(operation_id, running.expires_at), running.rules.policy)

    def _answer(self) -> Answer:
        """What the application has sent so far."""
        assert self._start is not None
        headers = tuple((bytes(name), bytes(value)) for name, value in self._start.get("headers", ()))
        body = b"".join(self._chunks)
        self._chunks.clear()
        return Answer(self._start["status"], headers, body)

    async def _deliver(self, answer: Answer | None) -> None:
        """Sends the answer. None: the error that follows is for the server to answer."""
        self._answered = True
        if answer is None:
            return
        try:
            await send_answer(self._send, self._below(self._root, answer) if self._root else answer)
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


async def send_answer(send: Send, answer: Answer, *, head: bool = False) -> None:
    headers = lower_case(answer.headers)
    if answer.header(b"content-length") is None and answer.status not in (204, 304):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body, "more_body": False})

"""The WSGI edge: for Flask and any other application of that kind.

    app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, idempotency=idempotency, tenant=by_user)

It makes the same promises as the ASGI edge, in the plain way of a world where a request is a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any, Final, Literal, cast

from ..core.decide import Outstanding
from ..core.fingerprint import RequestParts
from ..core.outcome import OnError
from ..core.problem import refuse, verdict_answer
from ..core.record import Answer
from ..core.states import Mode
from ..engine.engine import Engine
from ..engine.exchange import SEEN, Asked, Exchange, Unguarded, current_exchange, passed
from ..engine.gate import asker_of
from ..engine.handler.boundary import Pieces, Place
from ..engine.modes.anonymous import anonymous_operation
from ..engine.modes.mode import Finished, with_expiry
from ..engine.operation import Running, _current
from ..errors import ConfigurationError
from ..idempotency import Idempotency
from ..tenants import Resolver, Tenant
from .bodies import WsgiBody
from .callers import asked_of, must_be_sync
from .flask import (
    decide_callbacks,
    find_route,
    framework_of,
    note_answers,
    reached_view,
    runs_callbacks,
)
from .guards import (
    TWO_MIDDLEWARES,
    Decorators,
    Found,
    Guarded,
    Route,
    RouteGuard,
    RouteGuards,
    leads_to,
    of_the_application,
    own_word,
    too_large,
    unguarded_answer,
)
from .messages import announced, is_replaced
from .startup import Wrong, look
from .unclaimed import Unclaimed, close, noticing
from .walk import READ_ONLY, state_changing

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class WsgiMiddleware:
    """Guards the application that it wraps. The options are those of the ASGI middleware."""

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
            raise ConfigurationError("tenant must be a function of the WSGI environ; see samekey.tenants.")
        self.app = app
        self._engine = idempotency.engine
        self._policy = idempotency.engine.policy
        must_be_sync(tenant, binding)
        self._tenant = cast(Resolver, asked_of(tenant))
        self._binding = None if binding is None else cast(Resolver, asked_of(binding))
        self._guards = RouteGuards(idempotency, routes or {}, undecorated, on_error, decorators)
        self._routes = routes
        self._wrong: Wrong | None = None
        self._variable = "HTTP_" + idempotency.engine.policy.header.upper().replace("-", "_")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"].upper(), full_path(environ)
        root = environ.get("SCRIPT_NAME", "")
        operation_id = self._guards.status_id(method, path, root)
        if operation_id is not None:
            status = send_answer(start_response, self._status(environ, operation_id))
            return [] if method == "HEAD" else status
        if method not in self._policy.methods:
            as_it_came = dict(environ)  # dispatchers change it on the way
            methods = self._policy.methods
            unguarded = Unguarded(
                lambda: leads_to(reached_view(methods) or self._find(as_it_came, path)),
                self._policy,
                again=method not in READ_ONLY and self._variable in environ,
            )
            return self._pass(environ, start_response, unguarded)
        wrong = self._look(root)
        route = self._find(environ, path)
        wrong.refuse(route)
        guarded = self._guards.for_route(route, path)
        sent = environ.get(self._variable)
        left_alone = guarded is not None and guarded.leaves_alone(sent is not None)
        outer = passed(Asked(environ))
        if guarded is None or self._guards.passes(guarded, sent is not None) or (left_alone and outer):
            if guarded is not None and not outer:
                self._guards.note_keyless(guarded, environ, lambda: self._exchange(environ, [], route))
            return self._pass(environ, start_response, None)
        if outer is not None:
            raise ConfigurationError(TWO_MIDDLEWARES)
        # A server joins repeated header lines with a comma, which no key may hold.
        lines = [] if sent is None else [sent.encode("utf-8", "surrogatepass")]
        exchange = self._exchange(environ, lines, route)
        exchange.rules = guarded.rules
        if lines:
            exchange.body = body = WsgiBody.of(environ, self._engine.largest_body)
            if guarded.is_certain and body.is_larger(guarded.max_body):
                return send_answer(start_response, refuse(too_large(guarded.max_body), self._policy))
        environ[SEEN] = exchange
        below = partial(self._guards.below, root)
        work = _Guarded(self.app, self._engine, exchange, below, guarded)
        return work.run(start_response if lines else noticing(start_response, exchange))

    def _look(self, root: str) -> Wrong:
        """Once, at the first request: no server of this kind says when it starts."""
        if self._wrong is None:
            wrong = look(
                self.app,
                self._engine,
                self._routes,
                undecorated=self._guards.said,
                decorators=self._guards.decorators,
                root=root,
            )
            self._guards.guard_all(state_changing(self.app))
            note_answers()
            self._wrong = wrong.logged()
        return self._wrong

    def _find(self, environ: Environ, path: str) -> Found:
        return find_route(self.app, environ) or of_the_application(self.app, path)

    def _pass(
        self, environ: Environ, start_response: StartResponse, seen: Unguarded | None
    ) -> Iterable[bytes]:
        if passed(Asked(environ)) is not None:
            return self.app(environ, start_response)  # another middleware of ours guards it, further out
        environ[SEEN] = seen
        context = partial(self._engine.unclaimed, seen, full_path(environ))
        return Unclaimed(context, seen).run(self.app, environ, start_response)

    def _exchange(self, environ: Environ, lines: list[bytes], route: Found = None) -> Exchange:
        parts = RequestParts(
            method=environ["REQUEST_METHOD"].upper(),
            path=full_path(environ),
            query=environ.get("QUERY_STRING", "").encode("latin-1", "replace"),
            headers=tuple(_headers(environ)),
            body=None,
        )
        template = route.template if isinstance(route, Route) else parts.path
        return Exchange(
            parts,
            lines,
            environ,
            self._tenant,
            template,
            framework_of(),
            self._binding,
            engine=self._engine,
            around=self._guards.decorators == "around",
            templated=isinstance(route, Route) and route.templated,
        )

    def _status(self, environ: Environ, operation_id: str) -> Answer:
        exchange = self._exchange(environ, [])
        asker = asker_of(exchange, self._policy)
        if isinstance(asker, Answer):
            return asker
        return self._engine.status(operation_id, *asker)


class _Guarded:
    """One guarded request: runs the application and holds its answer back."""

    def __init__(
        self,
        app: App,
        engine: Engine,
        exchange: Exchange,
        below: Callable[[Answer], Answer],
        guarded: Guarded,
    ) -> None:
        self._app = app
        self._engine = engine
        self._exchange = exchange
        self._below = below
        self._claims = guarded.claims(bool(exchange.key_lines))
        """The edge claims, before the application runs."""
        self._left_alone = guarded.leaves_alone(bool(exchange.key_lines))
        self._start: tuple[str, list[tuple[str, str]]] | None = None
        self._written: list[bytes] = []
        self._client: StartResponse | None = None
        self._client_write: Callable[[bytes], object] | None = None
        """Where an answer that passes goes, once it does."""
        self._replaced = False
        """The client gets another answer than the one that the application made."""

    def run(self, start_response: StartResponse) -> Iterable[bytes]:
        token, operation = current_exchange.set(self._exchange), None
        try:
            if self._claims:
                rules = self._exchange.rules
                assert rules is not None
                begun = self._engine.begin(self._exchange, rules)
                if isinstance(begun, Answer):
                    return self._send(start_response, begun)
                operation = _current.set(begun.operation)
                begun.boundary.enter()
                self._exchange.at_edge = True
            elif self._left_alone:
                operation = _current.set(anonymous_operation(Mode.LEASED, self._exchange.endpoint))
            return self._run_app(start_response)
        finally:
            decide_callbacks(self._exchange.context, wanted=not self._replaced)
            if operation is not None:
                _current.reset(operation)
            current_exchange.reset(token)

    def _run_app(self, start_response: StartResponse) -> Iterable[bytes]:
        # A retry may not be able to read what a compressor inside would make of the answer for this client.
        environ = self._exchange.context
        accepted = environ.pop("HTTP_ACCEPT_ENCODING", None) if self._exchange.key_lines else None
        try:
            return self._run_inside(start_response)
        finally:
            if accepted is not None:
                environ["HTTP_ACCEPT_ENCODING"] = accepted

    def _run_inside(self, start_response: StartResponse) -> Iterable[bytes]:
        exchange = self._exchange
        chunks: Iterable[bytes] = ()
        try:
            chunks = self._app(exchange.context, self._capture)
            iterator = iter(chunks)
            # An application may be a generator, and run no earlier than this.
            first = next(iterator, None)
            whole = iterator if first is None else chain((first,), iterator)
            if exchange.answer is None and exchange.let_go():
                # No handler claimed: the router refused, validation failed, or no key was sent.
                return self._pass_on(whole, chunks, start_response)
            if exchange.answer is not None:
                return _Stream(self._send(start_response, exchange.answer), chunks)
            body, streamed = self._collect(whole)
            page = self._answer(body, streamed=streamed)
        except BaseException as error:
            try:
                return self._app_raised(error, start_response)
            finally:
                close(chunks)
        try:
            finished = self._finish(page, streamed=streamed)
        except BaseException:
            close(chunks)
            raise
        if finished.answer is None:
            close(chunks)
            assert finished.error is not None
            raise finished.error
        if streamed and finished.answer.body is body:
            _start(start_response, self._below(finished.answer))
            return _Stream(chain((body,), iterator), chunks)
        # The server closes the application's iterable after it has sent this, as it would without us; and
        # it logs what is raised, while a client in need of an answer gets one all the same.
        assert exchange.running is not None
        self._replaced = is_replaced(page, finished.answer, exchange.running.rules.mode)
        if self._replaced and runs_callbacks(chunks, exchange.context):
            chunks = ()  # what was to follow the application's own answer must not
        return _Stream(self._send(start_response, finished.answer), chunks, finished.error)

    def _send(self, start_response: StartResponse, answer: Answer) -> list[bytes]:
        return send_answer(start_response, self._below(answer))

    def _capture(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        if self._client is not None:
            return self._client(status, headers, exc_info)
        self._start = (status, headers)
        return self._write

    def _write(self, data: bytes) -> None:
        """The old way to send: a function that ``start_response`` gives."""
        if self._client_write is None:
            self._written.append(data)
        else:
            self._client_write(data)

    def _collect(self, chunks: Iterator[bytes]) -> tuple[bytes, bool]:
        """The body, and whether there is more of it than can be kept."""
        running = self._exchange.running
        limit = running.rules.policy.max_answer if running is not None else 0
        collected = self._written
        size = sum(map(len, collected))
        for chunk in chunks:
            collected.append(chunk)
            size += len(chunk)
            if size > limit and running is not None and not _is_all_there(running):
                more = next(chunks, None)
                if more is None:
                    break
                collected.append(more)
                return b"".join(collected), True
            if self._is_endless():
                return b"".join(collected), True
        return b"".join(collected), False

    def _is_endless(self) -> bool:
        headers = self._start[1] if self._start is not None else []
        return any(
            name.lower() == "content-type" and value.lower().startswith("text/event-stream")
            for name, value in headers
        )

    def _answer(self, body: bytes, *, streamed: bool) -> Answer:
        if self._start is None:
            raise RuntimeError("The application gave a body without calling start_response.")
        status, headers = self._start
        encoded = tuple((n.encode("latin-1"), v.encode("latin-1")) for n, v in headers)
        number = _status(status)
        if not streamed and len(body) < (announced(number, encoded) or 0):
            raise RuntimeError(_SHORT)
        return Answer(number, encoded, body)

    def _finish(self, page: Answer, *, streamed: bool) -> Finished:
        """The outcome becomes durable, once; only then does the first byte leave."""
        running = self._exchange.running
        assert running is not None
        if self._exchange.at_edge:
            running.boundary.said = own_word(page.status, running.rules)
            running.boundary.returned()
        elif self._engine.abandon(running):
            # Somebody answers in the place of a handler that still runs; whoever runs it will finish.
            policy = running.rules.policy
            return Finished(page if running.anonymous else with_expiry(page, policy, running.expires_at))
        return self._engine.finish(running, self._exchange.handled(page, streamed=streamed))

    def _app_raised(self, error: BaseException, start_response: StartResponse) -> Iterable[bytes]:
        exchange = self._exchange
        if exchange.answer is not None:
            return self._send(start_response, exchange.answer)
        if exchange.let_go():
            raise error
        running = exchange.running
        assert running is not None
        if exchange.at_edge:
            running.boundary.raised(error)
        elif self._engine.abandon(running):
            if running.anonymous:
                raise error  # no key was sent, so there is nothing to say of one
            operation_id = None if running.lease is None else running.operation.id
            waiting = verdict_answer(Outstanding(operation_id, running.expires_at), running.rules.policy)
            return _Stream(self._send(start_response, waiting), (), error)
        # An answer was made, and the client gets another one, or none.
        self._replaced = running.boundary.place is Place.RETURNED
        finished = self._engine.finish(running, exchange.handled(None))
        if finished.answer is None:
            raise error
        # What failed after the handler had returned is for the server's log, like any other error.
        failed = error if running.boundary.place is Place.RETURNED else None
        return _Stream(self._send(start_response, finished.answer), (), finished.error or failed)

    def _pass_on(
        self, whole: Iterator[bytes], chunks: Iterable[bytes], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Hands an unguarded answer on as it comes."""
        if self._start is None:
            raise RuntimeError("The application gave a body without calling start_response.")
        if self._exchange.key_lines and not self._left_alone:
            unguarded_answer(
                f"{self._exchange.parts.method} {self._exchange.endpoint}", _status(self._start[0])
            )
        self._client = start_response
        self._client_write = start_response(*self._start)
        for written in self._written:
            self._client_write(written)
        return _Stream(whole, chunks)


def _is_all_there(running: Running) -> bool:
    """Whether the handler's answer is in memory already, and a layer only hands it on in pieces: it is
    waited for, since a transaction commits no stream."""
    return running.session is not None and running.boundary.pieces is Pieces.WHOLE


_SHORT: Final = "The application sent less than it had announced by Content-Length."


def _status(line: str) -> int:
    return int(line.split(" ", 1)[0])


class _Stream:
    """An answer as it comes; closing it closes the application's own iterable."""

    def __init__(
        self, body: Iterable[bytes], source: Iterable[bytes], error: BaseException | None = None
    ) -> None:
        self._body = body
        self._source = source
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        close(self._source)


def full_path(environ: Environ) -> str:
    """The path as received: WSGI splits it in two and hands it over as Latin-1."""
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return str(path).encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def _headers(environ: Environ) -> Iterator[tuple[bytes, bytes]]:
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            header = name.removeprefix("HTTP_")
        elif name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value:
            header = name
        else:
            continue
        yield header.lower().replace("_", "-").encode("latin-1"), str(value).encode("latin-1", "replace")


def send_answer(start_response: StartResponse, answer: Answer) -> list[bytes]:
    if answer.header(b"content-length") is None and answer.status not in (204, 304):
        length = (b"content-length", str(len(answer.body)).encode())
        answer = Answer(answer.status, (*answer.headers, length), answer.body)
    _start(start_response, answer)
    return [answer.body]


def _start(start_response: StartResponse, answer: Answer) -> None:
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Unknown"
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
    start_response(f"{answer.status} {phrase}", headers)

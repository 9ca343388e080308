"""The edge inside Django: a middleware that holds a guarded view's answer back until its outcome is durable.

It claims for nobody: a view claims when Django reaches it, after the middleware around and its own
authentication. It works as Django calls it, sync or async, and hops to no thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import Http404, HttpRequest
from django.urls import get_resolver, resolve

from ..core.fingerprint import RequestParts
from ..core.problem import refuse
from ..core.record import Answer
from ..core.states import Mode
from ..edges.guards import NO_ROUTE, Found, Route, RouteGuards, leads_to, too_large, unguarded_answer
from ..edges.startup import Wrong, look
from ..edges.walk import READ_ONLY, Guard, ReachedRoute, state_changing
from ..engine.exchange import SEEN, Exchange, Unguarded, current_exchange
from ..engine.gate import asker_of
from ..engine.modes.anonymous import anonymous_operation
from ..engine.modes.mode import Finished, Handled, with_expiry
from ..engine.operation import Running, _current
from ..errors import ConfigurationError
from .body import Caller, RequestBody, RequestCallers
from .conf import read, the_idempotency
from .driver import IN_TRANSACTION, is_in_transaction
from .framework import DJANGO, answer_of, in_place_of, noticing, response_of, take_headers
from .leaving import whatever_becomes_of_the_client
from .routes import Urlconf, handler_of, route_of, stand_in_transactions, template_of, two_guards
from .status import SHOWN, is_shown_by_a_view, tell_who_could_know

logger = logging.getLogger("samekey")


class IdempotencyMiddleware:
    """``MIDDLEWARE = [..., "samekey.django.IdempotencyMiddleware"]``: after authentication, before whatever
    compresses. Its options are in ``settings.SAMEKEY``."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.app = get_response
        said = read()
        idempotency = the_idempotency()
        tenant = said.function("TENANT")
        if tenant is None:
            raise ConfigurationError(NO_TENANT)
        self._tenant, self._binding = tenant, said.function("BINDING")
        self._engine = idempotency.engine
        self._policy = self._engine.policy
        self._alias = said.alias
        self._routes = dict(said.given.get("ROUTES", {}))
        self._guards = RouteGuards(
            idempotency,
            self._routes,
            said.given.get("UNDECORATED"),
            said.given.get("ON_ERROR", "unknown"),
            said.given.get("DECORATORS", "refuse"),
        )
        self._variable = "HTTP_" + self._policy.header.upper().replace("-", "_")
        self._walking = threading.Lock()
        self._walked: dict[int, tuple[Any, Wrong]] = {}
        self._leading: dict[tuple[type | None, str], str] = {}
        """Methods at which two guards would meet, and why they are not run."""
        self._told: list[bool] = []
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._call_async(request)
        operation_id = self._status_id(request)
        if operation_id is not None:
            return response_of(tell_who_could_know(self._status(request, operation_id), self._told))
        exchange = self._seen(request)
        if not isinstance(exchange, Exchange):
            with self._engine.unclaimed(exchange, request.path):
                return self.app(request)
        request.META[_AROUND] = is_in_transaction()
        with _in(exchange):
            try:
                response = self.app(request)
                done = self._before_the_end(request, exchange, response)
                page = answer_of(response) if isinstance(done, Running) else None
            except BaseException:
                # Our own sign, or the process ends, or a middleware gave what is no page that can be read:
                # of any other error Django has made a page.
                if exchange.answer is not None:
                    return response_of(self._below(request, exchange.answer))
                running = self._broken_off(exchange)
                if running is not None:
                    self._engine.finish(running, exchange.handled(None))
                raise
            if page is None:
                return done
            finished = self._engine.finish(done, exchange.handled(page, streamed=response.streaming))
            return self._sent(request, response, finished)

    async def _call_async(self, request: HttpRequest) -> Any:
        operation_id = self._status_id(request)
        if operation_id is not None:
            answer = await self._status_async(request, operation_id)
            return response_of(tell_who_could_know(answer, self._told))
        exchange = self._seen(request)
        if not isinstance(exchange, Exchange):
            with self._engine.unclaimed(exchange, request.path):
                return await self.app(request)
        return await whatever_becomes_of_the_client(self._run_async(request, exchange), exchange)

    async def _run_async(self, request: HttpRequest, exchange: Exchange) -> Any:
        with _in(exchange):
            try:
                response = await self.app(request)
                done = self._before_the_end(request, exchange, response)
                page = answer_of(response) if isinstance(done, Running) else None
            except BaseException:
                if exchange.answer is not None:
                    return response_of(self._below(request, exchange.answer))
                running = self._broken_off(exchange)
                if running is not None:
                    await self._finish_async(running, exchange.handled(None))
                raise
            if page is None:
                return done
            handled = exchange.handled(page, streamed=response.streaming)
            return self._sent(request, response, await self._finish_async(done, handled))

    async def _finish_async(self, running: Running, handled: Handled) -> Finished:
        if not running.sync:
            return await self._engine.finish_async(running, handled)
        # A sync view ran in Django's own thread, and its transaction is on that thread's connection.
        finished: Finished = await sync_to_async(self._engine.finish, thread_sensitive=True)(running, handled)
        return finished

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> Any:
        """Django has found the view: now it is known who guards it, and by which rules."""
        exchange = request.META.get(SEEN)
        if not isinstance(exchange, Exchange) or request.resolver_match is None:
            return None
        wrong = self._walk(request)
        exchange.endpoint, exchange.templated = template_of(request.resolver_match.route), True
        route = route_of(view, exchange.parts.method, exchange.endpoint) or NO_ROUTE
        wrong.refuse(route)
        handler = handler_of(view, exchange.parts.method)
        if handler is not None and (handler.owner, handler.name) in self._leading:
            raise ConfigurationError(self._leading[handler.owner, handler.name])
        guarded = self._guards.for_route(route, request.path)
        has_key = bool(exchange.key_lines)
        if guarded is None or guarded.leaves_alone(has_key):
            if guarded is not None:
                self._guards.note_keyless(guarded, request.META, lambda: exchange)
            return None
        exchange.rules = guarded.rules
        if has_key and request.META.get(_AROUND):
            raise ConfigurationError(IN_TRANSACTION)
        if not guarded.at_handler:
            raise ConfigurationError(
                f"{request.path} is of a URLconf that was not known when the request came, so its view was "
                "not guarded and not run. Set request.urlconf in a middleware before samekey's."
            )
        body = exchange.body
        if isinstance(body, RequestBody) and guarded.is_certain and body.is_larger(guarded.max_body):
            exchange.answer = refuse(too_large(guarded.max_body), self._policy)
            return response_of(exchange.answer)
        return None

    def _seen(self, request: HttpRequest) -> Exchange | Unguarded:
        """What a request is to those whom it will meet, which it carries with it."""
        method = request.META["REQUEST_METHOD"].upper()
        if method not in self._policy.methods:
            again = method not in READ_ONLY and self._variable in request.META
            seen = Unguarded(lambda: leads_to(_found(request, method)), self._policy, again)
            request.META[SEEN] = seen
            return seen
        if isinstance(request.META.get(SEEN), Exchange):
            raise ConfigurationError(
                "samekey.django.IdempotencyMiddleware stands twice in MIDDLEWARE. Keep one."
            )
        self._walk(request)
        sent = request.META.get(self._variable)
        lines = [] if sent is None else [str(sent).encode("utf-8", "surrogatepass")]
        exchange = self._asks(request, lines)
        if lines:
            exchange.body = RequestBody(request, self._engine.largest_body)
        request.META[SEEN] = exchange
        return exchange

    def _exchange(
        self, request: HttpRequest, lines: list[bytes], tenant: Caller, binding: Caller | None
    ) -> Exchange:
        parts = RequestParts(
            method=request.META["REQUEST_METHOD"].upper(),
            path=request.path,
            query=request.META.get("QUERY_STRING", "").encode("latin-1", "replace"),
            headers=tuple(
                (name.lower().encode("latin-1"), str(value).encode("latin-1", "replace"))
                for name, value in request.headers.items()
            ),
            body=None,
        )
        return Exchange(
            parts,
            lines,
            request.META,
            tenant,
            request.path,
            DJANGO,
            binding,
            engine=self._engine,
            around=self._guards.decorators == "around",
            ends_sync=not self._is_async,
        )

    def _walk(self, request: HttpRequest) -> Wrong:
        """Once for each URLconf: what would have no effect is refused, and every view knows its request."""
        urlconf = getattr(request, "urlconf", None)
        resolver = get_resolver(urlconf)
        with self._walking:
            known = self._walked.get(id(resolver))
            if known is not None and known[0] is resolver:
                return known[1]
            views = Urlconf(urlconf)
            # A view with decorators around it is refused where a key is sent to it, and is left alone else:
            # a project has many such views (the admin's for one) to which nobody ever sends a key.
            wrong = look(
                views, self._engine, self._routes, undecorated=self._guards.said, decorators="around"
            )
            exempt = [path for path, how in self._routes.items() if how == "exempt"]
            for method, sentence in two_guards(urlconf, self._engine, self._guards.said, exempt):
                logger.error("%s", sentence)
                self._leading[method] = sentence
            self._guards.guard_all(state_changing(views))
            stand_in_transactions(urlconf, self._alias)
            if not self._is_async:
                from .checks import async_in_transactions

                for sentence in async_in_transactions():
                    logger.warning("%s", sentence)
            self._walked[id(resolver)] = resolver, wrong.logged()
            return wrong

    def _before_the_end(self, request: HttpRequest, exchange: Exchange, response: Any) -> Any:
        """The operation whose outcome is to be made durable, or the response where there is none."""
        if exchange.answer is not None:
            return in_place_of(response, response_of(self._below(request, exchange.answer)))
        if exchange.let_go():
            # No view claimed: Django refused it by itself, or no key was sent.
            if exchange.key_lines and exchange.rules is not None:
                unguarded_answer(f"{exchange.parts.method} {exchange.endpoint}", response.status_code)
            return noticing(exchange, response)
        running = exchange.running
        assert running is not None
        if self._engine.abandon(running):
            # Somebody answers in the place of a view that still runs; whoever runs it will finish.
            if not running.anonymous:
                page = with_expiry(answer_of(response), running.rules.policy, running.expires_at)
                take_headers(response, page)
            return response
        return running

    def _sent(self, request: HttpRequest, response: Any, finished: Finished) -> Any:
        """The answer that is recorded. Where it is the view's own, it is the view's own response."""
        answer = finished.answer
        if finished.error is not None:
            logger.error("%s %s: %s", request.method, request.path, finished.error, exc_info=finished.error)
        if answer is None:
            assert finished.error is not None
            raise finished.error
        answer = self._below(request, answer)
        same = answer.status == response.status_code
        if same and (response.streaming or answer.body == response.content):
            take_headers(response, answer)
        else:
            response = in_place_of(response, response_of(answer))
        return noticing(request.META[SEEN], response)

    def _below(self, request: HttpRequest, answer: Answer) -> Answer:
        return self._guards.below(request.META.get("SCRIPT_NAME", ""), answer)

    # The status resource

    def _status_id(self, request: HttpRequest) -> str | None:
        """The operation that is asked about, where it is for us to answer."""
        root = request.META.get("SCRIPT_NAME", "")
        found = self._guards.status_id(request.META["REQUEST_METHOD"].upper(), request.path, root)
        if found is not None and is_shown_by_a_view(request):
            request.META[SHOWN] = partial(self._status, request, found)
            return None
        return found

    def _status(self, request: HttpRequest, operation_id: str) -> Answer:
        exchange = self._asks(request, [])
        assert exchange.callers is not None
        exchange.callers.meet()
        asker = asker_of(exchange, self._policy)
        return asker if isinstance(asker, Answer) else self._engine.status(operation_id, *asker)

    async def _status_async(self, request: HttpRequest, operation_id: str) -> Answer:
        exchange = self._asks(request, [])
        assert exchange.callers is not None
        await exchange.callers.meet_async()
        asker = asker_of(exchange, self._policy)
        return asker if isinstance(asker, Answer) else await self._engine.status_async(operation_id, *asker)

    def _asks(self, request: HttpRequest, lines: list[bytes]) -> Exchange:
        """A request, and whom it must show itself to be."""
        tenant = Caller(self._tenant, request)
        binding = None if self._binding is None else Caller(self._binding, request)
        exchange = self._exchange(request, lines, tenant, binding)
        exchange.callers = RequestCallers([tenant] if binding is None else [tenant, binding])
        return exchange

    def _broken_off(self, exchange: Exchange) -> Running | None:
        """The operation of an application that ended without a page, if there is one to finish."""
        if exchange.let_go():
            return None
        running = exchange.running
        assert running is not None
        return None if self._engine.abandon(running) else running


_AROUND: Final = "samekey.around"
"""Whether a transaction was open when the request came to us."""
NO_TENANT: Final = (
    "SAMEKEY['TENANT'] is missing: a key belongs to a caller, and nobody may get another's answer. "
    "Give the dotted path of a function of the request, 'samekey.django.by_user' say."
)


@contextmanager
def _in(exchange: Exchange) -> Iterator[None]:
    """Around what Django does with a request that may be guarded."""
    exchange.anonymous.append(anonymous_operation(Mode.LEASED, exchange.endpoint))
    token, operation = current_exchange.set(exchange), _current.set(exchange.anonymous[-1])
    # A retry may not be able to read what a compressor inside would make of the answer for this client.
    meta = exchange.context
    accepted = meta.pop("HTTP_ACCEPT_ENCODING", None) if exchange.key_lines else None
    try:
        yield
    finally:
        if accepted is not None:
            meta["HTTP_ACCEPT_ENCODING"] = accepted
        exchange.over()
        _current.reset(operation)
        current_exchange.reset(token)


def _found(request: HttpRequest, method: str) -> Found:
    """The view of a request by a method that is not guarded, once Django has found it."""
    match = request.resolver_match
    if match is None:
        return None
    return route_of(match.func, method, template_of(match.route)) or NO_ROUTE


class DjangoGuard(Guard):
    """The middleware as the coverage audit asks it."""

    def find(self, reached: ReachedRoute) -> Found:
        return Route(reached.handler, reached.path, guard_handler=reached.guard_handler)

    def find_path(self, method: str, path: str, host: str = "") -> Found:
        try:
            match = resolve(path)
        except Http404:
            return NO_ROUTE
        return route_of(match.func, method, template_of(match.route)) or NO_ROUTE


def around(handler: Any) -> Iterator[DjangoGuard]:
    """Every middleware of ours that a Django application has loaded."""
    for method in getattr(handler, "_view_middleware", None) or ():
        middleware = getattr(method, "__self__", None)
        if isinstance(middleware, IdempotencyMiddleware):
            yield DjangoGuard(middleware, "")

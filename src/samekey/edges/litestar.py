"""What the ASGI edge can learn from Litestar, without importing it first.

Litestar keeps a route for each path, with a handler for each method. A handler that is to claim is called
through a route of its own class (``_guarded``): it knows the request, below guards, dependencies and
validation, and gives an answer that the key decides past whatever shapes the handler's own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterable, Callable, Iterable, MutableMapping, Sequence
from functools import cache, partial
from typing import Any, Final

from ..core.record import Answer
from ..engine.exchange import UNKNOWN_FRAMEWORK, Asked, Framework
from ..engine.handler.around import is_wrapped
from ..engine.handler.boundary import Pieces
from ..engine.handler.marks import stands_in
from ..engine.handler.streams import GIVES_MORE, WatchedPiecesAsync
from ..engine.operation import Running
from .bound import bound
from .guards import NO_ROUTE, Found, Route
from .messages import send_answer
from .wrapped import attribute, behind, is_flask, is_litestar, routes_of

Scope = MutableMapping[str, Any]

_REQUEST: Final = "samekey_request"
"""By this name a handler's stand-in is given its request."""


def find_route(scope: Scope, app: Any) -> Found:
    """What the router of Litestar says of a request, before it runs or after."""
    if scope.get("litestar_app") is app and "route_handler" in scope:
        handler, template = scope["route_handler"], scope.get("path_template", "")
    else:
        root, path = scope.get("root_path", ""), scope["path"]
        path = path.split(root, maxsplit=1)[-1] if root else path
        try:
            normalized = sys.modules["litestar.utils"].normalize_path(path)
            _, handler, _, _, template = app.asgi_router.handle_routing(
                path=normalized, method=scope["method"]
            )
        except Exception:
            return (
                NO_ROUTE  # no such path, another method, a parameter of another kind: it will say so itself
            )
    route = _route_of(app, handler, template)
    if route is None:
        function = function_of(handler)  # a mounted application
        known = behind(function, lambda app: routes_of(app) is not None or is_flask(app) or is_litestar(app))
        return Route(function, scope["path"], opaque=True, walked=known is not None)
    guard = partial(guard_handler, route, scope["method"])
    return Route(function_of(handler), template, guard_handler=guard)


def _route_of(app: Any, handler: Any, template: str) -> Any:
    """The route by which a handler is reached, as the router keeps them; None for a mounted application."""
    routes = app.asgi_router.route_mapping.get(handler.name or str(handler), ())
    return next((route for route in routes if is_http(route) and route.path_format == template), None)


def is_http(route: Any) -> bool:
    """Whether a route of Litestar has handlers by method; not a websocket's, nor a mounted application's."""
    return isinstance(attribute(route, "route_handler_map"), dict)


def function_of(handler: Any) -> Any:
    """The function of a handler; one that Litestar would call in a thread is within an object of its own."""
    function = handler.fn
    kind = getattr(sys.modules.get("litestar.utils.sync"), "AsyncCallable", ())
    return function.func if isinstance(function, kind) else function


def sample_of(route: Any) -> str | None:
    """A path that a route takes; None where no value of a parameter can be thought of."""
    pieces = []
    for piece in route.path_components:
        if isinstance(piece, str):
            pieces.append(piece)
            continue
        value = next((text for text in _VALUES if _takes(piece, text)), None)
        if value is None:
            return None
        pieces.append(value)
    return "/" + "/".join(pieces)


_VALUES: Final = ("samekey-coverage", "1", "00000000-0000-0000-0000-000000000000", "2000-01-01", "00:00:01")


def _takes(parameter: Any, text: str) -> bool:
    try:
        if parameter.parser is not None:
            parameter.parser(text)
    except Exception:
        return False
    return True


# Handlers that claim


def guard_handler(route: Any, method: str, decorated: bool) -> bool:
    """Puts a stand-in in the place of the function that a route calls for a method. False where the route is
    not called in the way that is known here."""
    known, handler = _http_route(), route.route_handler_map[method][0]
    if type(route) is known and is_known():
        route.__class__ = _guarded(known)
    standing = getattr(type(route), "samekey_stands", None)
    if standing is None:
        return False
    function = function_of(handler)
    if method not in standing and not stands_in(function):
        standing[method] = bound(function, _finds, decorated=decorated, wrapped=is_wrapped(function))
    return True


def _http_route() -> Any:
    return getattr(sys.modules.get("litestar.routes"), "HTTPRoute", None)


def is_known() -> bool:
    """Whether this version of Litestar calls its handlers in the way that is known here."""
    calls = getattr(_http_route(), "_call_handler_function", None)
    return calls is not None and list(inspect.signature(calls).parameters) == _CALLED


_CALLED: Final = ["self", "scope", "request", "parameter_model", "route_handler"]
"""What Litestar gives to the method of a route that calls its handler."""


def _guarded(known: Any) -> Any:
    """A class for one route of Litestar's."""

    class GuardedRoute(known):  # type: ignore[misc]
        __slots__ = ()
        samekey_stands: dict[str, Callable[..., Any]] = {}  # noqa: RUF012 - there is a class for each route

        async def _call_handler_function(
            self, scope: Scope, request: Any, parameter_model: Any, route_handler: Any
        ) -> Any:
            stand = self.samekey_stands.get(scope["method"])
            if stand is not None:
                route_handler = _Called(route_handler, partial(stand, **{_REQUEST: request}))
            return await super()._call_handler_function(scope, request, parameter_model, route_handler)

    return GuardedRoute


class _Called:
    """A handler of Litestar's for one request."""

    has_sync_callable: Final = False

    def __init__(self, handler: Any, stand: Callable[..., Any]) -> None:
        self._handler = handler
        # What claims speaks to a database, so a sync handler has a thread whatever its `sync_to_thread` says.
        is_async = inspect.iscoroutinefunction(stand.func)  # type: ignore[attr-defined]
        self.fn = stand if is_async else partial(sys.modules["litestar.concurrency"].sync_to_thread, stand)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    async def to_response(self, app: Any, data: Any, request: Any) -> Any:
        if isinstance(data, Decided):
            return data
        return await self._handler.to_response(app=app, data=data, request=request)


class Decided:
    """An answer that the key decides, as an application: no DTO, hook or default of the route changes it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await send_answer(send, self._answer)


def _finds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked | None:
    return _asked(kwargs.pop(_REQUEST, None))


def _asked(request: Any) -> Asked | None:
    return None if request is None else Asked(request.scope, framework_of())


class LitestarFramework(Framework):
    """Litestar."""

    def __init__(self) -> None:
        response = sys.modules["litestar.response"]
        base = sys.modules["litestar.response.base"]
        self._responses = (response.Response, base.ASGIResponse)
        self._streams = (response.Stream, sys.modules["litestar.response.streaming"].ASGIStreamingResponse)
        whole = (response.Response, response.Redirect, response.Template)
        self._at_once = {one.to_asgi_response for one in whole}
        self._connection = sys.modules["litestar.connection"].ASGIConnection
        self._exception = sys.modules["litestar.exceptions"].HTTPException

    def respond(self, answer: Answer) -> Any:
        return Decided(answer)

    def own_status(self, value: Any, noted: Any) -> int | None:
        status = value.status_code if isinstance(value, self._responses) else None
        return None if status is None else int(status)

    def watch(self, value: Any, running: Running) -> Any:
        if isinstance(value, self._streams):
            pieces = value.iterator
            if callable(pieces) and not isinstance(pieces, Iterable | AsyncIterable):
                pieces = pieces()
            if not isinstance(pieces, AsyncIterable):
                pieces = sys.modules["litestar.utils.sync"].AsyncIteratorWrapper(pieces)
            value.iterator = WatchedPiecesAsync(pieces, running)
        elif self._is_whole(value) and not running.boundary.wrapped:
            running.boundary.pieces = Pieces.WHOLE
        return value

    def _is_whole(self, value: Any) -> bool:
        """Whether nothing of it is left to come: Litestar sends whatever is no response at once, and so do
        responses of its own that are no files. What makes its own message may do anything."""
        kind = type(value)
        if isinstance(value, self._responses):
            return kind is self._responses[1] or getattr(kind, "to_asgi_response", None) in self._at_once
        return not any(GIVES_MORE & one.__dict__.keys() for one in kind.__mro__)

    def asked(self, arguments: Sequence[Any]) -> Asked | None:
        return _asked(next((one for one in arguments if isinstance(one, self._connection)), None))

    def refusal(self, error: BaseException) -> int | None:
        return int(error.status_code) if isinstance(error, self._exception) else None


def framework_of() -> Framework:
    """Litestar, where it is there."""
    return _made() if "litestar.response" in sys.modules else UNKNOWN_FRAMEWORK


@cache
def _made() -> Framework:
    return LitestarFramework()

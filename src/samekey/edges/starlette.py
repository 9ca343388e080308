"""What the ASGI edge can learn from Starlette and FastAPI, without importing them first.

Everything here answers None where the application is of another kind; the edge works all the same.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cache, partial
from types import FunctionType
from typing import Any

from ..core.record import Answer
from ..engine.exchange import UNKNOWN_FRAMEWORK, Asked, Framework
from ..engine.handler.around import is_wrapped
from ..engine.handler.boundary import Pieces
from ..engine.handler.marks import mark_of, own_handler, stands_in
from ..engine.handler.streams import GIVES_MORE, WatchedPiecesAsync, is_stream
from ..engine.operation import Running
from . import litestar
from .bound import bound, bound_stream
from .dependencies import as_declared
from .guards import NO_ROUTE, Found, Route
from .messages import lower_case
from .wrapped import _DEEPEST, behind, is_flask, is_litestar, routes_of

logger = logging.getLogger("samekey")

Scope = MutableMapping[str, Any]

_REQUEST = "samekey_request"
"""By this name FastAPI hands its request to a handler that has not asked for it."""


def find_route(scope: Scope, router: Any) -> Found:
    """Asks a router before it runs; where it is not known (None), the application of the scope."""
    app: Any = scope.get("app") if router is None else router
    if router is None and routes_of(app) is None:
        return None
    try:
        found = _match(app, app.routes, dict(scope), "")
    except Exception:
        # A router that looks like Starlette's and is none, or a route that fails: the application will too.
        logger.exception("The router could not be asked, so the application is guarded as a whole")
        return None
    # The scope's may be an application further out, whose router does not know what is mounted here.
    return None if router is None and found is NO_ROUTE else found


def router_behind(wrapped: Any) -> Any:
    """The router behind other middleware."""
    return behind(wrapped, lambda app: routes_of(app) is not None)


def _match(app: Any, routes: Any, scope: dict[str, Any], prefix: str) -> Found:
    for route in _flat(routes):
        matches = getattr(route, "matches", None)
        if matches is None:
            return None  # not a router that we know
        match, child = matches(scope)
        if match.name != "FULL":
            continue
        template = f"{prefix}{getattr(route, 'path', '')}"
        if isinstance(getattr(route, "endpoint", None), FunctionType):  # nearly always
            return _by_method(route, child.get("endpoint", route.endpoint), scope["method"], template)
        if is_litestar(getattr(route, "app", None)):
            return _below(template, litestar.find_route({**scope, **child}, route.app))
        inner = getattr(route, "routes", None)
        if inner:
            return _match(getattr(route, "app", None), inner, {**scope, **child}, template)
        endpoint = child.get("endpoint", getattr(route, "endpoint", None))
        if getattr(route, "endpoint", None) is None:
            mounted = router_behind(getattr(route, "app", None))
            if mounted is not None:  # behind a middleware of its own
                return _match(mounted, routes_of(mounted), {**scope, **child}, template)
            walked = behind(getattr(route, "app", None), is_flask) is not None
            return Route(endpoint, scope.get("path", ""), opaque=True, walked=walked)
        return _by_method(route, endpoint, scope["method"], template)
    return NO_ROUTE if _refuses(app) else None


def _below(prefix: str, found: Found) -> Found:
    return replace(found, template=f"{prefix}{found.template}") if isinstance(found, Route) else found


def _by_method(route: Any, endpoint: Any, method: str, template: str) -> Found:
    """A class-based endpoint is guarded method by method."""
    if not isinstance(endpoint, type):
        endpoint = as_declared(route, endpoint, method)
        return Route(endpoint, template, guard_handler=partial(_guard_handler, route))
    handler, dispatch = (getattr(endpoint, name, None) for name in (method.lower(), "dispatch"))
    if mark_of(dispatch) is not None:
        return Route(dispatch, template)
    known = getattr(sys.modules.get("starlette.endpoints"), "HTTPEndpoint", None)
    if known is None or not issubclass(endpoint, known):
        return Route(endpoint if mark_of(handler) is None else handler, template)
    if mark_of(handler) is None and own_handler(dispatch) is not known.dispatch:
        return Route(endpoint, template, guard_handler=partial(_guard_dispatch, endpoint))
    if handler is None:
        return NO_ROUTE
    return Route(handler, template, guard_handler=partial(_guard_method, endpoint, method.lower()))


def is_wrapped_handler(handler: Any) -> bool:
    """Whether others stand around the function of a route, or its class dispatches by itself. What the route
    was given counts: what a tracer puts around that is no decorator of the handler's."""
    return hasattr(handler, "dispatch") if isinstance(handler, type) else is_wrapped(handler)


def _guard_handler(route: Any, decorated: bool) -> bool:
    """Puts a stand-in around the function that a route calls, below its dependencies and its middleware."""
    route = getattr(route, "starlette_route", None) or route
    dependant = getattr(route, "dependant", None)
    if dependant is not None:  # FastAPI asks for the function anew at each request
        return _guard_dependant(dependant, decorated, is_wrapped(route.endpoint))
    held = _called_by(route)
    if held is None:
        return decorated
    cell, function, runs = held
    if not stands_in(function):
        wrapped = is_wrapped(getattr(route, "original_route", route).endpoint)
        cell.cell_contents = runs(bound(function, _in_arguments, decorated=decorated, wrapped=wrapped))
    return True


def _called_by(route: Any) -> tuple[Any, Any, Callable[[Any], Any]] | None:
    """The function that a route of Starlette calls, the cell of Starlette's own closure that holds it, and
    what must be put there for another one. None unless that is certain."""
    original = getattr(route, "original_route", route)
    routing = sys.modules.get("starlette.routing")
    inner: Any = getattr(original, "app", None)
    if routing is None or not inspect.isroutine(_unwrapped(getattr(original, "endpoint", None))):
        return None
    for _ in range(_DEEPEST):  # whatever stands around it stays as it is
        if not hasattr(inner, "app"):
            break
        inner = inner.app
    if not inspect.isfunction(inner) or inner.__code__ is not routing.request_response(_called_by).__code__:
        return None
    cell = next((one for one in inner.__closure__ or () if callable(one.cell_contents)), None)
    called = None if cell is None else cell.cell_contents
    if isinstance(called, partial) and called.func is routing.run_in_threadpool:
        return cell, called.args[0], partial(partial, called.func)
    return None if called is None else (cell, called, lambda function: function)


def _guard_dependant(dependant: Any, decorated: bool, wrapped: bool) -> bool:
    if stands_in(dependant.call):
        return True
    name = getattr(dependant, "request_param_name", None) or _REQUEST

    def finds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _asked(kwargs.pop(name, None) if name == _REQUEST else kwargs.get(name))

    dependant.request_param_name = name
    if is_stream(dependant.call):
        dependant.call = bound_stream(dependant.call, finds, wrapped=wrapped)
    else:
        dependant.call = bound(dependant.call, finds, decorated=decorated, wrapped=wrapped)
    return True


def _in_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The request that Starlette calls a handler with."""
    connection = getattr(sys.modules.get("starlette.requests"), "HTTPConnection", None)
    for one in (*args, *kwargs.values()):
        if connection in type(one).__mro__:  # it is an abstract class, of which instances are dear to ask for
            return _asked(one)
    return None


def _asked(request: Any) -> Asked | None:
    return None if request is None else Asked(request.scope, _framework())


def _guard_method(endpoint: type, name: str, decorated: bool) -> bool:
    handler = getattr(endpoint, name)
    if not stands_in(handler):
        stands = bound(handler, _in_arguments, decorated=decorated, wrapped=is_wrapped(handler))
        setattr(endpoint, name, stands)
    return True


def _guard_dispatch(endpoint: type, decorated: bool) -> bool:
    """A class that dispatches by itself, as a whole; its decorated methods claim for themselves."""
    dispatch: Any = endpoint.dispatch  # type: ignore[attr-defined]
    if not stands_in(dispatch):
        stands = bound(dispatch, _of_itself, decorated=False, wrapped=True, leaves=_is_for_decorated)
        endpoint.dispatch = stands  # type: ignore[attr-defined]
    return True


def _of_itself(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
    return Asked(args[0].scope, _framework())


def _is_for_decorated(args: tuple[Any, ...]) -> bool:
    return mark_of(getattr(args[0], args[0].scope["method"].lower(), None)) is not None


def _unwrapped(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _refuses(app: Any) -> bool:
    """Whether this router answers 404 where it has no route; a user may have put something else there."""
    router = getattr(app, "router", app)
    default = getattr(router, "default", None)
    return default is not None and default == getattr(router, "not_found", None)


def _flat(routes: Any) -> Any:
    """FastAPI keeps included routers as they are; it has a public function that looks through them."""
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    return routes if contexts is None else contexts(routes)


class StarletteFramework(Framework):
    """Starlette and FastAPI."""

    def __init__(self, responses: Any, exceptions: Any) -> None:
        self._connection = getattr(sys.modules.get("starlette.requests"), "HTTPConnection", None)
        self._response = responses.Response
        self._exception = exceptions.HTTPException

    def respond(self, answer: Answer) -> Any:
        response = self._response(content=answer.body, status_code=answer.status)
        response.raw_headers = lower_case(answer.headers)
        return response

    def noted(self, arguments: Mapping[str, Any]) -> list[tuple[Any, int | None]]:
        # FastAPI lets a handler set the status on a response that it asked for. Its dependencies share it.
        # By type: a lazy proxy shows the class of what it stands for, and would be woken to say so.
        return [(one, one.status_code) for one in arguments.values() if self._response in type(one).__mro__]

    def own_status(self, value: Any, noted: Any) -> int | None:
        if isinstance(value, self._response):
            return int(value.status_code)
        chosen = [one.status_code for one, before in noted or () if one.status_code != before]
        return next((int(status) for status in chosen if status is not None), None)

    def watch(self, value: Any, running: Running) -> Any:
        kind, pieces = type(value), getattr(value, "body_iterator", None)
        if isinstance(value, self._response) and pieces is not None:
            value.body_iterator = WatchedPiecesAsync(pieces, running)
            return value
        # FastAPI sends whatever is no response at once; what sends by itself, or has more to give, may do
        # anything.
        if self._response in kind.__mro__:
            whole = kind.__call__ is self._response.__call__ and type(getattr(value, "body", None)) is bytes
        else:
            whole = not any(GIVES_MORE & one.__dict__.keys() for one in kind.__mro__)
        if whole and not running.boundary.wrapped:
            # Nothing of it is left to come, so its last message is its end, also where a layer in between
            # sends it on in pieces.
            running.boundary.pieces = Pieces.WHOLE
        return value

    def asked(self, arguments: Sequence[Any]) -> Asked | None:
        return _asked(next((one for one in arguments if self._connection in type(one).__mro__), None))

    def refusal(self, error: BaseException) -> int | None:
        return int(error.status_code) if isinstance(error, self._exception) else None


class HiddenStarlette(StarletteFramework):
    """Starlette where it is not seen. It goes by types, so it knows its own; but whether a handler may give
    its caller a response, only what is seen can tell."""

    respond = Framework.respond


def framework_of(scope: Scope, router: Any) -> Framework:
    """The framework behind a middleware: the one whose router it asks."""
    return _framework(HiddenStarlette if "app" not in scope and router is None else StarletteFramework)


def _framework(kind: Any = StarletteFramework) -> Framework:
    responses = sys.modules.get("starlette.responses")
    exceptions = sys.modules.get("starlette.exceptions")
    if responses is None or exceptions is None:
        return UNKNOWN_FRAMEWORK
    return _made(kind, responses, exceptions)


@cache
def _made(kind: Any, responses: Any, exceptions: Any) -> Framework:
    made: Framework = kind(responses, exceptions)
    return made

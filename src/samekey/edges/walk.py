"""Every route that can be reached through an application, and every middleware of ours on the way to it.

It walks Starlette, FastAPI, Litestar, Flask, what they mount and what wraps them. It runs no handler and no
middleware, and touches no store. What it cannot see into counts as a route that takes everything.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType
from typing import Any, Final
from wsgiref.util import setup_testing_defaults

from ..core.policy import Policy
from ..engine.handler.around import is_wrapped
from ..engine.handler.marks import GUARD, own_handler
from . import flask, litestar, routing, starlette
from .guards import Found, GuardHandler, Route
from .wrapped import attribute, inside, is_flask, is_litestar, routes_of

READ_ONLY: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})
"""Methods that change nothing by their definition."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A middleware, and what a request looks like where it stands."""

    middleware: Any
    """Of either edge, or of an integration; they have the same attributes."""
    root: str
    """The prefix that mounts have taken off the path by then."""
    app: Any = None
    """The application that the ASGI scope names by then."""

    @property
    def policy(self) -> Policy:
        policy: Policy = self.middleware._policy
        return policy

    def find(self, reached: ReachedRoute) -> Found:
        """What the middleware's own look for the route gives. Where no example of the path could be made,
        or an earlier route takes the example: the route itself, if the middleware sees routes at all."""
        sample = reached.sample or f"{_sample(self.root) or ''}/{_EXAMPLE}"
        found = self.find_path(reached.method, sample, reached.host)
        if found is None or (isinstance(found, Route) and found.opaque):
            return found
        shadowed = isinstance(found, Route) and plain(found.endpoint) is not plain(reached.handler)
        if reached.sample is None or shadowed:
            return Route(reached.handler, reached.path)
        return found

    def find_path(self, method: str, path: str, host: str = "") -> Found:
        return find_path(
            self.middleware.app, method, path, root=_sample(self.root) or "", host=host, scope_app=self.app
        )


@dataclass(frozen=True, slots=True)
class ReachedRoute:
    """A method of a route, and every middleware on the way to it, outermost first."""

    method: str
    path: str
    handler: Any
    guards: tuple[Guard, ...]
    sample: str | None
    """A path that the route takes, where one could be made."""
    host: str = ""
    opaque: bool = False
    """An application that cannot be looked into: its methods are a guess."""
    guard_handler: GuardHandler = lambda decorated: False
    """Puts a stand-in in the place of the handler, where there is a way to."""
    route: Any = None
    """As the framework has it."""
    wrapped: bool = False
    """Others stand around the function of the handler."""
    method_of: tuple[type, str] | None = None
    """The class of the handler, and its name there, where it is a method of one."""
    in_class: bool = False
    """The handler is a method that other classes may inherit as well, and guard."""


@dataclass(frozen=True, slots=True)
class RoutePlace:
    """How far the walk has come."""

    prefix: str = ""
    guards: tuple[Guard, ...] = ()
    app: Any = None
    host: str = ""
    past: Any = None
    """A middleware in which the walk began: it stands between what is looked at here."""

    def behind(self, middleware: Any) -> RoutePlace:
        return replace(self, guards=(*self.guards, Guard(middleware, self.prefix, self.app)))


_CHANGING: Final = ("DELETE", "PATCH", "POST", "PUT")


OTHERS: Final[list[Callable[[Any, RoutePlace], Iterator[ReachedRoute] | None]]] = []
"""Frameworks that have an integration of their own, which puts itself here; each gives None for an
application that is not its own."""


def walk(app: Any, place: RoutePlace) -> Iterator[ReachedRoute]:
    """Everything that can be reached through an application, whatever it is."""
    owner = app.__self__ if isinstance(app, MethodType) else None
    if is_ours(type(app)):
        yield from walk(app.app, place.behind(app))
    elif is_flask(app):
        yield from walk(app.wsgi_app, place)
    elif owner is not None and is_flask(owner):
        yield from _flask_routes(owner, place)
    elif owner is not None and routes_of(owner) is not None and app.__name__ == "app":
        yield from _routes(owner, place)  # a router's own, behind its middleware
    elif is_litestar(app):
        yield from _litestar(app, place)
    elif attribute(app, "user_middleware") is not None and routes_of(app) is not None:
        yield from _starlette(app, place)
    elif routes_of(app) is not None:
        yield from _router(app, place)
    elif (
        isinstance(attribute(app, "mounts"), dict) and attribute(app, "app") is not None
    ):  # werkzeug's dispatcher
        for path, mounted in app.mounts.items():
            yield from walk(mounted, replace(place, prefix=f"{place.prefix}{path.rstrip('/')}"))
        yield from walk(app.app, place)
    elif (found := next((one for one in (other(app, place) for other in OTHERS) if one), None)) is not None:
        yield from found
    else:
        # A decorated application is a handler; what it wraps is called by it alone.
        inner = None if attribute(app, GUARD) is not None else inside(app)
        place = replace(place, past=attribute(app, "samekey_past") or place.past)
        yield from _opaque(app, place) if inner is None else walk(inner, place)


def state_changing(app: Any) -> Iterator[tuple[str, Any, GuardHandler]]:
    """Every handler that may change something, after its path, and how a stand-in is put in its place."""
    for one in walk(app, RoutePlace()):
        if one.method not in READ_ONLY:
            yield one.path, plain(one.handler), one.guard_handler


def is_ours(kind: object) -> bool:
    """Whether a class is one of our two middlewares. They look at applications when they start, so they
    import this file, and not the other way round."""
    return isinstance(kind, type) and any(
        base.__name__ in {"AsgiMiddleware", "WsgiMiddleware"} and base.__module__.startswith("samekey.edges.")
        for base in kind.__mro__
    )


def find_path(
    app: Any, method: str, path: str, *, root: str = "", host: str = "", scope_app: Any = None
) -> Found:
    """What the router behind ``app`` says of a path, asked in the way in which a middleware asks it.

    ``root`` is the prefix that mounts or the server have taken off, ``scope_app`` what the ASGI scope names.
    """
    if flask.behind(app) is not None and not _is_asgi(app):
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "SCRIPT_NAME": root, "QUERY_STRING": ""}
        environ["PATH_INFO"] = path.removeprefix(root)
        if host:
            environ["HTTP_HOST"] = environ["SERVER_NAME"] = host
        setup_testing_defaults(environ)
        return flask.find_route(app, environ)
    headers = [(b"host", (host or "localhost").encode())]
    scope = {"type": "http", "method": method, "path": path, "root_path": root, "headers": headers}
    if scope_app is not None:
        scope["app"] = scope_app
    return routing.find_route(scope, routing.router_behind(app))


def _is_asgi(app: Any) -> bool:
    """An adapter may have a Flask application behind it that an ASGI middleware cannot ask."""
    call = getattr(type(app), "__call__", None)  # noqa: B004 - whether it is async, not whether it is there
    return inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(call)


def _opaque(app: Any, place: RoutePlace) -> Iterator[ReachedRoute]:
    """An application that cannot be looked into may take anything; only files are known to be read."""
    if type(app).__name__ == "StaticFiles":
        return
    for method in _methods(place, None):
        sample = _sample(f"{place.prefix}/{_EXAMPLE}")
        path = f"{place.prefix}/{{path:path}}"
        yield ReachedRoute(method, path, app, place.guards, sample, place.host, opaque=True)


def _methods(place: RoutePlace, methods: Any) -> list[str]:
    if methods is not None:
        return sorted(methods)
    return sorted({*_CHANGING, *(method for guard in place.guards for method in guard.policy.methods)})


def _starlette(app: Any, place: RoutePlace) -> Iterator[ReachedRoute]:
    place = replace(place, app=app)
    for added in app.user_middleware:
        made: Any = added.cls
        args, kwargs = added.args, added.kwargs
        while isinstance(made, partial):
            made, args, kwargs = made.func, (*made.args, *args), {**made.keywords, **kwargs}
        if is_ours(made):
            place = place.behind(made(app, *args, **kwargs))
    yield from _router(app.router, place)


def _router(router: Any, place: RoutePlace) -> Iterator[ReachedRoute]:
    """The routes of a router, behind its own middleware."""
    yield from _routes(router, _behind_all(getattr(router, "middleware_stack", None), place))


def _routes(router: Any, place: RoutePlace) -> Iterator[ReachedRoute]:
    for route in starlette._flat(router.routes):
        original = getattr(route, "original_route", route)
        sockets = getattr(sys.modules.get("starlette.routing"), "WebSocketRoute", ())
        if isinstance(original, sockets):
            continue
        path, mounted = getattr(route, "path", None), getattr(route, "app", None)
        endpoint = getattr(route, "endpoint", None)
        if endpoint is None and mounted is not None:
            host = getattr(route, "host", None)
            inside = replace(
                place, prefix=f"{place.prefix}{path or ''}", host=_sample(host or "") or place.host
            )
            yield from walk(mounted, inside)
        elif endpoint is not None:
            template = f"{place.prefix}{path or ''}"
            yield from _endpoint(route, endpoint, template, _behind_all(mounted, place))
        else:  # a route of a kind that we do not know
            yield from _opaque(route, place)


def _endpoint(route: Any, endpoint: Any, template: str, place: RoutePlace) -> Iterator[ReachedRoute]:
    sample = _sample(template)
    for method in _methods(place, getattr(route, "methods", None)):
        found = starlette._by_method(route, endpoint, method, template)
        if isinstance(found, Route):
            hook = found.guard_handler
            yield ReachedRoute(
                method,
                template,
                found.endpoint,
                place.guards,
                sample,
                place.host,
                route=route,
                guard_handler=hook,
                wrapped=starlette.is_wrapped_handler(found.endpoint),
                method_of=(endpoint, method.lower()) if isinstance(endpoint, type) else None,
                in_class=isinstance(endpoint, type),
            )


def _litestar(app: Any, place: RoutePlace) -> Iterator[ReachedRoute]:
    """Litestar keeps its middleware with each handler, from the outermost."""
    for route in app.routes:
        prefix = replace(place, prefix=f"{place.prefix}{route.path_format.rstrip('/')}")
        if not litestar.is_http(route):
            handler = attribute(route, "route_handler")
            if attribute(handler, "is_mount") is not None and not handler.is_static:
                yield from walk(litestar.function_of(handler), _behind_litestar(handler, prefix))
            continue
        for method, (handler, _) in sorted(route.route_handler_map.items()):
            function, before, path = (
                litestar.function_of(handler),
                _sample(place.prefix),
                litestar.sample_of(route),
            )
            yield ReachedRoute(
                method,
                f"{place.prefix}{route.path_format}",
                function,
                _behind_litestar(handler, place).guards,
                None if before is None or path is None else f"{before}{path}",
                place.host,
                route=route,
                guard_handler=partial(litestar.guard_handler, route, method),
                wrapped=is_wrapped(function),
            )


def _behind_litestar(handler: Any, place: RoutePlace) -> RoutePlace:
    for middleware in reversed(handler.resolve_middleware()):
        ours = attribute(middleware, "samekey_middleware")
        place = place if ours is None or ours is place.past else place.behind(ours)
    return place


def _behind_all(app: Any, place: RoutePlace) -> RoutePlace:
    """Behind every middleware of a chain."""
    while app is not None and not isinstance(app, MethodType):
        if is_ours(type(app)):
            place = place.behind(app)
        app = inside(app)
    return place


def _flask_routes(app: Any, place: RoutePlace) -> Iterator[ReachedRoute]:
    server, by_host = app.config.get("SERVER_NAME") or "", app.url_map.host_matching
    for rule in app.url_map.iter_rules():
        if rule.build_only or rule.redirect_to is not None:
            continue
        host = (
            rule.host if by_host else ".".join(part for part in (rule.subdomain, server) if part and server)
        )
        sample = _sample(place.prefix)
        path = _flask_sample(rule)
        sample = None if sample is None or path is None else f"{sample}{path}"
        for method in _methods(place, rule.methods):
            view = flask._view(app.view_functions.get(rule.endpoint), method)
            template = f"{place.prefix}{rule.rule}"
            yield ReachedRoute(
                method,
                template,
                view,
                place.guards,
                sample,
                host or place.host,
                guard_handler=partial(flask._guard_view, app.view_functions, rule.endpoint, method),
                wrapped=flask.is_wrapped_view(app.view_functions.get(rule.endpoint), method),
                method_of=flask._method_of(app.view_functions.get(rule.endpoint), method),
            )


def named_paths(reached: list[ReachedRoute]) -> Iterator[ReachedRoute]:
    """Single paths of a template that a middleware's ``routes`` speaks of: each is a route of its own."""
    guards = {id(guard.middleware): guard for one in reached for guard in one.guards}
    for guard in guards.values():
        for path in guard.middleware._guards._routes:
            for method in sorted(guard.policy.methods):
                found = guard.find_path(method, path)
                if not isinstance(found, Route) or found.opaque or found.template == path:
                    continue
                for one in reached:
                    if one.method == method and plain(one.handler) is plain(found.endpoint):
                        yield replace(one, path=path, sample=path)
                        break


# Examples of paths

_EXAMPLE: Final = "samekey-coverage"
_VALUES: Final = (_EXAMPLE, "1", "1.5", "00000000-0000-0000-0000-000000000000", "2000-01-01", "a", "aa", "AA")
_PARAMETER: Final = re.compile(r"{(\w+)(?::(\w+))?}")
_FLASK_PARAMETER: Final = re.compile(r"<(?:[^<>]*:)?(\w+)>")


def _sample(template: str) -> str | None:
    """A path that a Starlette template takes; None where no value can be thought of."""
    known = getattr(sys.modules.get("starlette.convertors"), "CONVERTOR_TYPES", {})

    def value(match: re.Match[str]) -> str:
        return _fitting(known.get(match[2] or "str"), "convert")

    try:
        return _PARAMETER.sub(value, template)
    except LookupError:
        return None


def _flask_sample(rule: Any) -> str | None:
    """A path that a rule of Flask takes; None where no value can be thought of."""
    try:
        return _FLASK_PARAMETER.sub(
            lambda match: _fitting(rule._converters[match[1]], "to_python"), rule.rule
        )
    except LookupError:
        return None


def _fitting(converter: Any, convert: str) -> str:
    """A value that a converter of Starlette's or Werkzeug's takes, or LookupError."""
    if converter is None:
        return _EXAMPLE
    for value in (*getattr(converter, "items", ()), *_VALUES):
        if re.fullmatch(converter.regex, value):
            try:
                getattr(converter, convert)(value)
            except Exception:  # noqa: S112 - the user's own converter: whatever it refuses, another may do
                continue
            return str(value)
    raise LookupError


def plain(handler: Any) -> Any:
    """The function that a user wrote, without partials and what stands in its place."""
    return own_handler(handler)

"""The coverage audit: every state-changing route of an application, and how each is guarded.

    def test_every_route_is_guarded():
        assert [route for route in coverage(app) if not route.ok] == []

It walks the application (Starlette, FastAPI, Flask, what they mount, what wraps them) and asks each
middleware that it meets what it would do with a request for each route. It runs no handler and no middleware,
and touches no store. What it cannot see into counts as a route that takes everything.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from types import MethodType
from typing import Any, Final
from wsgiref.util import setup_testing_defaults

from ..core.policy import Policy
from ..edges import asgi, flask, starlette, wsgi
from ..edges.guards import NO_ROUTE, Found, Route
from ..engine.decorate import GUARD
from ..engine.rules import Rules
from ..errors import ConfigurationError

READ_ONLY: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})
"""Methods that change nothing by their definition."""


class How(StrEnum):
    """How a route is guarded."""

    HANDLER = "handler"
    """Its handler is decorated and claims."""
    EDGE = "edge"
    """The middleware claims for it, as leased."""
    EXEMPT = "exempt"
    """Somebody said that it needs no guard."""
    METHOD = "method"
    """Its method is not one of the policy's methods, so the middleware lets it pass."""
    UNGUARDED = "unguarded"
    """Nothing keeps a retry from running it again."""
    BROKEN = "broken"
    """It was meant to be guarded, and every request would fail."""


@dataclass(frozen=True, slots=True)
class RouteCoverage:
    """One method of one route."""

    method: str
    path: str
    """The route's template, with the prefixes of what it is mounted in."""
    handler: str
    how: How
    mode: str | None = None
    required: bool | None = None
    """Whether a request without a key is refused."""
    why: str = ""
    """What is wrong, in a sentence; empty where nothing is."""
    rules: Rules | None = field(default=None, repr=False, compare=False)
    """What it is guarded by, where it is."""
    edge: Policy | None = field(default=None, repr=False, compare=False)
    """The policy of the middleware around it, which reads the header and the body."""

    @property
    def ok(self) -> bool:
        """False where a retry may run it twice, or where it cannot run at all."""
        return self.how not in (How.UNGUARDED, How.BROKEN)

    @property
    def guarded(self) -> bool:
        return self.how in (How.HANDLER, How.EDGE)

    def __str__(self) -> str:
        return f"{self.method} {self.path}: {self.describe()}"

    def describe(self) -> str:
        """How it is guarded, in words."""
        key = "required" if self.required else "optional"
        match self.how:
            case How.HANDLER:
                return f"{self.mode}, {key}"
            case How.EDGE:
                return f"at the edge ({self.mode}), {key}"
            case How.EXEMPT:
                return "exempt"
            case How.METHOD:
                return "not guarded by method"
            case How.UNGUARDED | How.BROKEN:
                return f"{self.how.upper()}: {self.why}"


def coverage(app: Any) -> list[RouteCoverage]:
    """How every state-changing route of an ASGI or WSGI application is guarded, by path and method."""
    if not callable(app):
        raise ConfigurationError(f"A {type(app).__name__} is no ASGI or WSGI application.")
    found: dict[tuple[str, str, str], RouteCoverage] = {}
    reached = [one for one in _walk(app, _Place()) if one.method not in READ_ONLY]
    for one in [*reached, *_named(reached)]:
        row = _judge(one)
        found.setdefault((row.path, row.method, row.handler), row)
    return [found[key] for key in sorted(found)]


def is_allowed(route: RouteCoverage, allowed: Collection[str]) -> bool:
    """Whether an allow-list names the route: ``/path``, ``/path/*`` or ``POST:/path``."""
    names = (route.path, f"{route.method}:{route.path}")
    return any(name == one or fnmatchcase(name, one) for one in allowed for name in names)


# What a middleware would do with a route


def _judge(reached: _Reached) -> RouteCoverage:
    mark = getattr(_plain(reached.handler), GUARD, None)
    active = [guard for guard in reached.guards if reached.method in guard.policy.methods]
    if not active:
        return _without_a_guard(reached, mark)
    asked = [(guard, *_ask(guard, reached)) for guard in active]
    edge = active[-1].policy
    for _, _, wrong in asked:
        if wrong:
            return _row(reached, How.BROKEN, why=wrong, edge=edge)
    answers = [answer for _, answer, _ in asked]
    claims = [answer for answer in answers if isinstance(answer, Rules)]
    if isinstance(mark, Rules):
        if claims:
            return _row(
                reached,
                How.BROKEN,
                why="the middleware cannot see the decorator and would claim too. Wrap the application "
                'itself, or set undecorated="pass".',
                edge=edge,
            )
        if "handler" in answers:
            return _row(reached, How.HANDLER, rules=mark, edge=edge)
        return _row(reached, How.BROKEN, why=_LOST, edge=edge)
    if len(claims) > 1:
        return _row(reached, How.BROKEN, why="two middlewares would claim the same key.", edge=edge)
    if claims:
        return _row(reached, How.EDGE, rules=claims[0], edge=edge)
    if "exempt" in answers:
        return _row(reached, How.EXEMPT, edge=edge)
    if "lost" in answers:
        return _row(reached, How.UNGUARDED, why=_LOST, edge=edge)
    return _row(
        reached,
        How.UNGUARDED,
        why='it has no decorator, and the middleware has undecorated="pass".',
        edge=edge,
    )


_LOST: Final = (
    "the middleware does not find this route in the router that it asks, and so lets it pass. Add it to "
    "the application that has the route."
)


def _without_a_guard(reached: _Reached, mark: object) -> RouteCoverage:
    if mark == "exempt":
        return _row(reached, How.EXEMPT)
    if reached.guards:
        edge = reached.guards[-1].policy
        if isinstance(mark, Rules):
            why = f"it is decorated, but {reached.method} is not one of the policy's methods."
            return _row(reached, How.UNGUARDED, why=why, edge=edge)
        return _row(reached, How.METHOD, edge=edge)
    if isinstance(mark, Rules):
        why = "it is decorated, but no IdempotencyMiddleware is around it, so every request fails."
        return _row(reached, How.BROKEN, why=why)
    if reached.method not in Policy().methods:
        return _row(reached, How.METHOD)
    return _row(reached, How.UNGUARDED, why="no IdempotencyMiddleware is around it.")


def _ask(guard: _Guard, reached: _Reached) -> tuple[Rules | str, str]:
    """What a middleware would do: claim by these rules, leave it to the "handler", pass it as "exempt", or
    pass it because its route is "lost" to it; and what it would complain about."""
    route, path = guard.find(reached), reached.sample or reached.path
    guards = guard.middleware._guards
    try:
        answer: Rules | str = guards.for_route(route, path)
        if route is NO_ROUTE and answer == "exempt" and guards.for_route(None, path) != "exempt":
            answer = "lost"
    except ConfigurationError as error:
        return "handler", str(error)
    return answer, ""


def _row(
    reached: _Reached, how: How, *, rules: Rules | None = None, why: str = "", edge: Policy | None = None
) -> RouteCoverage:
    return RouteCoverage(
        reached.method,
        reached.path,
        _name(reached.handler),
        how,
        None if rules is None else str(rules.mode),
        None if rules is None else rules.required,
        why,
        rules,
        edge,
    )


def _name(handler: Any) -> str:
    handler = _plain(handler)
    if not hasattr(handler, "__qualname__"):
        handler = type(handler)
    return f"{handler.__module__}.{handler.__qualname__}"


def _plain(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    return handler


# Walking an application


@dataclass(frozen=True, slots=True)
class _Guard:
    """A middleware, and what a request looks like where it stands."""

    middleware: asgi.IdempotencyMiddleware | wsgi.IdempotencyMiddleware
    root: str
    """The prefix that mounts have taken off the path by then."""
    app: Any = None
    """The application that the ASGI scope names by then."""

    @property
    def policy(self) -> Policy:
        return self.middleware._policy

    def find(self, reached: _Reached) -> Found:
        """What the middleware's own look for the route gives. Where no example of the path could be made,
        or an earlier route takes the example: the route itself, if the middleware sees routes at all."""
        sample = reached.sample or f"{_sample(self.root) or ''}/{_EXAMPLE}"
        found = self.find_path(reached.method, sample, reached.host)
        if found is None or (isinstance(found, Route) and found.opaque):
            return found
        shadowed = isinstance(found, Route) and _plain(found.endpoint) is not _plain(reached.handler)
        if reached.sample is None or shadowed:
            return Route(reached.handler, reached.path)
        return found

    def find_path(self, method: str, path: str, host: str = "") -> Found:
        root = _sample(self.root) or ""
        if isinstance(self.middleware, wsgi.IdempotencyMiddleware):
            environ: dict[str, Any] = {"REQUEST_METHOD": method, "SCRIPT_NAME": root, "QUERY_STRING": ""}
            environ["PATH_INFO"] = path.removeprefix(root)
            if host:
                environ["HTTP_HOST"] = environ["SERVER_NAME"] = host
            setup_testing_defaults(environ)
            return flask.find_route(self.middleware.app, environ)
        headers = [(b"host", (host or "localhost").encode())]
        scope = {"type": "http", "method": method, "path": path, "root_path": root, "headers": headers}
        if self.app is not None:
            scope["app"] = self.app
        return starlette.find_route(scope, self.middleware.app)


@dataclass(frozen=True, slots=True)
class _Reached:
    """A method of a route, and every middleware on the way to it, outermost first."""

    method: str
    path: str
    handler: Any
    guards: tuple[_Guard, ...]
    sample: str | None
    """A path that the route takes, where one could be made."""
    host: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """How far the walk has come."""

    prefix: str = ""
    guards: tuple[_Guard, ...] = ()
    app: Any = None
    host: str = ""

    def behind(self, middleware: Any) -> _Place:
        return replace(self, guards=(*self.guards, _Guard(middleware, self.prefix, self.app)))


_MIDDLEWARE: Final = (asgi.IdempotencyMiddleware, wsgi.IdempotencyMiddleware)
_WRAPPED: Final = ("app", "wsgi_app", "application", "wsgi_application", "asgi_app", "__wrapped__")
"""Where middlewares, by convention, keep what they wrap."""
_CHANGING: Final = ("DELETE", "PATCH", "POST", "PUT")


def _walk(app: Any, place: _Place) -> Iterator[_Reached]:
    """Everything that can be reached through an application, whatever it is."""
    owner = app.__self__ if isinstance(app, MethodType) else None
    if isinstance(app, _MIDDLEWARE):
        yield from _walk(app.app, place.behind(app))
    elif _is_flask(app):
        yield from _walk(app.wsgi_app, place)
    elif owner is not None and _is_flask(owner):
        yield from _flask_routes(owner, place)
    elif hasattr(app, "user_middleware") and hasattr(app, "routes"):
        yield from _starlette(app, place)
    elif getattr(app, "routes", None) is not None:
        yield from _router(app, place)
    elif isinstance(getattr(app, "mounts", None), dict) and hasattr(app, "app"):  # werkzeug's dispatcher
        for path, mounted in app.mounts.items():
            yield from _walk(mounted, replace(place, prefix=f"{place.prefix}{path.rstrip('/')}"))
        yield from _walk(app.app, place)
    else:
        inner = _inside(app)
        yield from _opaque(app, place) if inner is None else _walk(inner, place)


def _inside(app: Any) -> Any:
    for name in _WRAPPED:
        inner = getattr(app, name, None)
        if callable(inner) and inner is not app:
            return inner
    return None


def _is_flask(app: Any) -> bool:
    return all(hasattr(app, name) for name in ("view_functions", "url_map", "wsgi_app"))


def _opaque(app: Any, place: _Place) -> Iterator[_Reached]:
    """An application that cannot be looked into may take anything; only files are known to be read."""
    if type(app).__name__ == "StaticFiles":
        return
    for method in _methods(place, None):
        sample = _sample(f"{place.prefix}/{_EXAMPLE}")
        path = f"{place.prefix}/{{path:path}}"
        yield _Reached(method, path, app, place.guards, sample, place.host)


def _methods(place: _Place, methods: Any) -> list[str]:
    if methods is not None:
        return sorted(methods)
    return sorted({*_CHANGING, *(method for guard in place.guards for method in guard.policy.methods)})


def _starlette(app: Any, place: _Place) -> Iterator[_Reached]:
    place = replace(place, app=app)
    for added in app.user_middleware:
        made: Any = added.cls
        args, kwargs = added.args, added.kwargs
        while isinstance(made, partial):
            made, args, kwargs = made.func, (*made.args, *args), {**made.keywords, **kwargs}
        if isinstance(made, type) and issubclass(made, asgi.IdempotencyMiddleware):
            place = place.behind(made(app, *args, **kwargs))
    yield from _router(app.router, place)


def _router(router: Any, place: _Place) -> Iterator[_Reached]:
    """The routes of a router, behind its own middleware."""
    place = _behind_all(getattr(router, "middleware_stack", None), place)
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
            yield from _walk(mounted, inside)
        elif endpoint is not None:
            template = f"{place.prefix}{path or ''}"
            yield from _endpoint(route, endpoint, template, _behind_all(mounted, place))


def _endpoint(route: Any, endpoint: Any, template: str, place: _Place) -> Iterator[_Reached]:
    sample = _sample(template)
    for method in _methods(place, getattr(route, "methods", None)):
        found = starlette._by_method(endpoint, method, template)
        if isinstance(found, Route):
            yield _Reached(method, template, found.endpoint, place.guards, sample, place.host)


def _behind_all(app: Any, place: _Place) -> _Place:
    """Behind every middleware of a chain."""
    while app is not None and not isinstance(app, MethodType):
        if isinstance(app, _MIDDLEWARE):
            place = place.behind(app)
        app = _inside(app)
    return place


def _flask_routes(app: Any, place: _Place) -> Iterator[_Reached]:
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
            yield _Reached(method, template, view, place.guards, sample, host or place.host)


def _named(reached: list[_Reached]) -> Iterator[_Reached]:
    """Single paths of a template that a middleware's ``routes`` speaks of: each is a route of its own."""
    guards = {id(guard.middleware): guard for one in reached for guard in one.guards}
    for guard in guards.values():
        for path in guard.middleware._guards._routes:
            for method in sorted(guard.policy.methods):
                found = guard.find_path(method, path)
                if not isinstance(found, Route) or found.opaque or found.template == path:
                    continue
                for one in reached:
                    if one.method == method and _plain(one.handler) is _plain(found.endpoint):
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

"""The coverage audit: every state-changing route of an application, and how each is guarded.

    def test_every_route_is_guarded():
        assert [route for route in coverage(app) if not route.ok] == []

It walks the application (Starlette, FastAPI, Flask, what they mount, what wraps them) and asks each
middleware that it meets what it would do with a request for each route. It runs no handler and no middleware,
and touches no store. What it cannot see into counts as a route that takes everything.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from ..core.policy import Policy
from ..edges.guards import NO_ROUTE
from ..edges.startup import Declared, Guarded, guarded_on, wrong_with
from ..edges.walk import READ_ONLY, Guard, ReachedRoute, RoutePlace, named_paths, plain, walk
from ..engine.handler.marks import Mark, mark_of
from ..engine.handler.rules import Rules
from ..errors import ConfigurationError


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
    tenant: Any = field(default=None, repr=False, compare=False)
    """How that middleware finds whose key it is."""

    @property
    def ok(self) -> bool:
        """False where a retry may run it twice, or where it cannot run at all."""
        return self.how not in (How.UNGUARDED, How.BROKEN)

    @property
    def guarded(self) -> bool:
        return self.how in (How.HANDLER, How.EDGE)

    @property
    def required_from(self) -> datetime | None:
        """The day on which a key becomes required, if that is still to come."""
        if not self.required or self.rules is None or self.rules.refuses_without_key:
            return None
        return self.rules.policy.required_from

    @property
    def refuses_without_key(self) -> bool:
        """Whether a request without a key is refused by now."""
        return bool(self.required) and self.required_from is None

    def __str__(self) -> str:
        return f"{self.method} {self.path}: {self.describe()}"

    def describe(self) -> str:
        """How it is guarded, in words."""
        key = "required" if self.required else "optional"
        if self.required_from is not None:
            key = f"required from {self.required_from:%Y-%m-%d}"
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
    reached = [one for one in walk(app, RoutePlace()) if one.method not in READ_ONLY]
    guarded = guarded_on(reached)
    for one in [*reached, *named_paths(reached)]:
        row = _judge(one, guarded)
        found.setdefault((row.path, row.method, row.handler), row)
    return [found[key] for key in sorted(found)]


def is_allowed(route: RouteCoverage, allowed: Collection[str]) -> bool:
    """Whether an allow-list names the route: ``/path``, ``/path/*`` or ``POST:/path``."""
    names = (route.path, f"{route.method}:{route.path}")
    return any(name == one or fnmatchcase(name, one) for one in allowed for name in names)


# What a middleware would do with a route


def _judge(reached: ReachedRoute, guarded: Guarded) -> RouteCoverage:
    mark = mark_of(reached.handler)
    refused = _refused_at_start(reached, guarded)
    if refused is not None:
        return _row(reached, How.BROKEN, why=refused, edge=reached.guards[-1].policy)
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
    if isinstance(mark, Mark):
        if claims:
            return _row(
                reached,
                How.BROKEN,
                why="the middleware cannot see the decorator and would claim too. Wrap the application "
                'itself, or set undecorated="pass".',
                edge=edge,
            )
        if "handler" in answers:
            return _row(reached, How.HANDLER, rules=mark.rules, edge=edge)
        return _row(reached, How.BROKEN, why=_LOST, edge=edge)
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


def _refused_at_start(reached: ReachedRoute, guarded: Guarded) -> str | None:
    """Why a middleware around this route would not let the application start."""
    one = Declared.of([reached])
    for guard in reached.guards:
        said = guard.middleware._guards
        wrong = next(
            wrong_with(
                one,
                guard.middleware._engine,
                said._routes,
                guarded,
                undecorated=said.undecorated,
                decorators=said.decorators,
            ),
            None,
        )
        if wrong is not None:
            return wrong
    if sum(guard.middleware._guards._routes.get(reached.path) != "exempt" for guard in reached.guards) > 1:
        return "two IdempotencyMiddlewares are around it. Keep one of them."
    return None


def _without_a_guard(reached: ReachedRoute, mark: object) -> RouteCoverage:
    if mark == "exempt":
        return _row(reached, How.EXEMPT)
    if reached.guards:
        edge = reached.guards[-1].policy
        return _row(reached, How.METHOD, edge=edge)
    if isinstance(mark, Mark):
        why = "it is decorated, but no IdempotencyMiddleware is around it, so every request fails."
        return _row(reached, How.BROKEN, why=why)
    if reached.method not in Policy().methods:
        return _row(reached, How.METHOD)
    return _row(reached, How.UNGUARDED, why="no IdempotencyMiddleware is around it.")


def _ask(guard: Guard, reached: ReachedRoute) -> tuple[Rules | str, str]:
    """What a middleware would do: claim by these rules, leave it to the "handler", pass it as "exempt", or
    pass it because its route is "lost" to it; and what it would complain about."""
    route, path = guard.find(reached), reached.sample or reached.path
    guards = guard.middleware._guards
    try:
        guarded = guards.for_route(route, path)
        if guarded is not None:
            return "handler" if guarded.decorated else guarded.rules or "handler", ""
        if guards.is_exempt(route, path):
            return "exempt", ""
    except ConfigurationError as error:
        return "handler", str(error)
    return "lost" if route is NO_ROUTE else "handler", ""


def _row(
    reached: ReachedRoute, how: How, *, rules: Rules | None = None, why: str = "", edge: Policy | None = None
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
        reached.guards[-1].middleware._tenant if reached.guards else None,
    )


def _name(handler: Any) -> str:
    handler = plain(handler)
    if not hasattr(handler, "__qualname__"):
        handler = type(handler)
    return f"{handler.__module__}.{handler.__qualname__}"

"""Routes of FastAPI that are guarded by one of their dependencies.

A dependency alone cannot guard: it runs before the handler, and a replay must not run that. So it only
declares, and the handler of each route that has it, its own or its router's, is guarded as if it were
decorated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ..engine.engine import Engine
from ..engine.handler.forms import in_form_of, value_of
from ..engine.handler.marks import mark_of
from ..engine.operation import current_operation
from ..errors import ConfigurationError, NoOperation

DECLARES: Final = "__samekey_declares__"
"""The attribute of a dependency that declares how the handlers of its routes are guarded."""


@dataclass(slots=True, eq=False)
class Declaration:
    """How handlers are guarded, and those that are."""

    engine: Engine
    guard: Callable[[Any], Any]
    """A decorator of samekey's."""
    guarded: dict[Any, Any] = field(default_factory=dict)
    """By the function that a route was given."""

    def of(self, endpoint: Any) -> Any:
        if endpoint not in self.guarded:
            self.guarded[endpoint] = self.guard(_given_its_operation(endpoint))
        return self.guarded[endpoint]


class Later:
    """What a dependency gives before there is an operation; the guarded handler gets that in its place."""

    def __getattr__(self, name: str) -> Any:
        raise NoOperation(
            f"{name!r} was asked of an operation that has not begun: it begins when the handler is reached, "
            "after all dependencies, and only for guarded methods (POST). Ask for it in the handler."
        )


def declare(dependency: Any, engine: Engine, guard: Callable[[Any], Any]) -> Any:
    """Has a dependency guard the routes that it is a part of."""
    setattr(dependency, DECLARES, Declaration(engine, guard))
    _known.append(dependency)
    return dependency


_known: list[Any] = []
"""Where there are none, no route is looked at."""


def as_declared(route: Any, endpoint: Any, method: str) -> Any:
    """The handler of a route; the guarded one, put in its place, where a dependency declares that."""
    if not _known:
        return endpoint
    place = getattr(route, "_effective_route", route)  # a route of an included router
    dependant = getattr(place, "dependant", None)
    if dependant is None:
        return endpoint
    found = {id(one): one for one in _declarations(dependant)}
    if not any(method in one.engine.policy.methods for one in found.values()):
        return endpoint
    declaration = next(iter(found.values()))
    if place.endpoint in declaration.guarded.values():
        return place.endpoint
    if len(found) > 1 or mark_of(endpoint) is not None:
        raise ConfigurationError(
            f"{getattr(endpoint, '__qualname__', endpoint)} is guarded twice, by dependencies or also by a "
            "decorator. Keep one of them."
        )
    place.endpoint = dependant.call = declaration.of(endpoint)
    return place.endpoint


def _declarations(dependant: Any) -> Iterator[Declaration]:
    for one in dependant.dependencies:
        declaration = getattr(one.call, DECLARES, None)
        if isinstance(declaration, Declaration):
            yield declaration
        yield from _declarations(one)


def _given_its_operation(endpoint: Any) -> Any:
    """A handler that gets the operation where it has asked for it."""

    def filled(arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            name: current_operation() if isinstance(value, Later) else value
            for name, value in arguments.items()
        }

    async def run_async(**kwargs: Any) -> Any:
        return await value_of(endpoint(**filled(kwargs)))

    def run_sync(**kwargs: Any) -> Any:
        return endpoint(**filled(kwargs))

    return in_form_of(endpoint, run_async, run_sync)

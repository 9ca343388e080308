"""What can be seen to be wrong before the first request: declarations that would have no effect.

A guard that nobody reaches looks like a guard. So each edge looks at the application that it wraps when it
starts, and refuses to start where a request would run past what was declared. Every problem is a sentence
that says what to change. It runs no handler and touches no store.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..engine.engine import Engine
from ..engine.handler.around import REFUSED
from ..engine.handler.marks import GUARD, Mark, hidden_mark, identity, mark_of
from ..engine.handler.shape import DEFINITION, Shape
from ..errors import ConfigurationError
from .calls import guarded_call, meets_another, two_guards_of
from .guards import Decorators, Found, Route, RouteGuard, Undecorated
from .hidden import two_guards
from .walk import READ_ONLY, ReachedRoute, RoutePlace, plain, walk

logger = logging.getLogger("samekey")

_NAMED: Final = 3
"""So many routes are named in a sentence; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with an application, as sentences."""

    everywhere: list[str]
    by_handler: dict[tuple[int, int], list[str]]

    def __iter__(self) -> Iterator[str]:
        yield from self.everywhere
        for sentences in self.by_handler.values():
            yield from sentences

    def logged(self) -> Wrong:
        for sentence in self:
            logger.error("%s", sentence)
        return self

    def refuse(self, route: Found) -> None:
        """``ConfigurationError`` for a request to what is wrong. One route does not take the others down; but
        where it cannot be told which is reached, nothing is run."""
        if not self.everywhere and not self.by_handler:
            return
        found = self.everywhere
        if not found and isinstance(route, Route) and not route.opaque:
            found = self.by_handler.get(identity(plain(route.endpoint)), [])
        elif not found:
            found = list(self)
        if found:
            raise ConfigurationError("\n".join(found))


def look(
    app: Any,
    idempotency: Engine,
    routes: Mapping[str, RouteGuard] | None = None,
    *,
    undecorated: Undecorated | None = None,
    decorators: Decorators = "refuse",
    root: str = "",
) -> Wrong:
    """Every declaration that would have no effect, as a sentence with its fix.

    ``app`` is what the middleware wraps, the others are its options. ``root`` is the prefix that a mount or
    the server has taken off by then, where that is known (``root_path``, ``SCRIPT_NAME``): paths in
    ``routes`` may begin with it.
    """
    said = dict(routes or {})
    reached = list(walk(app, RoutePlace()))
    _learn_shapes(reached)
    everywhere = [*_second_middleware(reached, said), *two_guards(reached, idempotency, undecorated)]
    everywhere += _routes_without_effect(reached, idempotency, said, root)
    guarded = guarded_on(reached)
    by_handler: dict[tuple[int, int], list[str]] = {}
    for one in _by_handler(reached):
        found = list(wrong_with(one, idempotency, said, guarded, root, undecorated or "guard", decorators))
        if found:
            by_handler.setdefault(identity(one.handler), []).extend(found)
    return Wrong(everywhere, by_handler)


def _learn_shapes(reached: Iterable[ReachedRoute]) -> None:
    """So that a completer in this process can finish phased work before the first request has come."""
    for one in reached:
        definition: Any = getattr(plain(one.handler), DEFINITION, None)
        shape = None if definition is None else Shape.of(one.route)
        if shape is not None and shape.filters:
            definition.shapes.setdefault(f"{one.method} {one.path}", shape)


@dataclass(frozen=True, slots=True)
class Declared:
    """One handler at one path, with every method that leads to it."""

    path: str
    handler: Any
    methods: frozenset[str]
    opaque: bool = False
    route: Any = None
    """As the framework has it."""
    wrapped: frozenset[str] = frozenset()
    """The methods by which it is reached with others around its function."""
    method_of: tuple[type, str] | None = None
    """Its class, and its name there."""
    in_class: bool = False

    @classmethod
    def of(cls, reached: Sequence[ReachedRoute]) -> Declared:
        one, methods = reached[0], frozenset(each.method for each in reached)
        wrapped = frozenset(each.method for each in reached if each.wrapped)
        method_of = next((each.method_of for each in reached if each.method not in READ_ONLY), None)
        more = (one.opaque, one.route, wrapped, method_of, one.in_class)
        return cls(one.path, plain(one.handler), methods, *more)

    def __str__(self) -> str:
        changing = sorted(self.methods - READ_ONLY) or sorted(self.methods)
        return f"{'/'.join(changing)} {self.path} ({_name(self.handler)})"


def _by_handler(reached: Iterable[ReachedRoute]) -> Iterator[Declared]:
    grouped: dict[tuple[str, tuple[int, int]], list[ReachedRoute]] = {}
    for one in reached:
        grouped.setdefault((one.path, identity(plain(one.handler))), []).append(one)
    yield from map(Declared.of, grouped.values())


Guarded = Mapping[tuple[int, int], Collection[tuple[str, str]]]
"""By the identity of a bare function, the methods and paths that lead to it through its guard."""


def guarded_on(reached: Iterable[ReachedRoute]) -> Guarded:
    """Where functions are routed with their guard: such a one may be routed without it as well, elsewhere."""
    found: dict[tuple[int, int], set[tuple[str, str]]] = {}
    for one in reached:
        mark = mark_of(one.handler)
        for function in _chain(mark.function) if isinstance(mark, Mark) else ():
            found.setdefault(identity(function), set()).add((one.method, one.path))
    return found


def wrong_with(
    one: Declared,
    idempotency: Engine,
    said: Mapping[str, RouteGuard],
    guarded: Guarded,
    root: str = "",
    undecorated: Undecorated = "guard",
    decorators: Decorators = "refuse",
) -> Iterator[str]:
    """What is wrong with how one handler is declared."""
    yield from _guarded_dependencies(one)
    of_path = _said_of(one, said, root)
    mark = mark_of(one.handler)
    if mark is None:
        copied = getattr(one.handler, GUARD, None)
        if copied is not None and one.methods - READ_ONLY:
            yield (
                f"{one}: functools.wraps has copied the mark of {_name(copied.function)} to this function, "
                "which cannot be seen to call it, so nothing may guard it. Decorate this function "
                "itself, or have it call the guarded one by a name that it holds."
            )
        elif one.methods - READ_ONLY and _is_bare(one, idempotency, guarded, of_path):
            yield (
                f"{one}: the route calls the function itself, past its decorator, so nothing guards it. The "
                "decorators stand in the wrong order: write the route's (@app.post) above samekey's, so that "
                "it is given the guarded function. If it is meant so, say it: "
                f"routes={{{one.path!r}: 'exempt'}}."
            )
        elif (
            of_path != "exempt"
            and (of_path is not None or undecorated == "guard")
            and one.methods & idempotency.policy.methods
            and (hidden := hidden_mark(one.handler)) is not None
        ):
            yield (
                f"{one}: a decorator above that of {_name(hidden.function)} hides it, for want of "
                "functools.wraps: two guards would meet, or a replay would pass that decorator by. Put "
                f"functools.wraps on it, or @idempotency.{hidden.rules.mode} above it; or give the "
                'middleware undecorated="pass", so that only decorated functions are guarded, each by itself.'
            )
        elif (
            (of_path in ("required", "optional") or (of_path is None and undecorated == "guard"))
            and one.wrapped & idempotency.policy.methods
            and decorators == "refuse"
        ):
            yield f"{one}: {REFUSED}"
        elif of_path != "exempt" and one.methods & idempotency.policy.methods and one.method_of is not None:
            found = guarded_call(*one.method_of)
            if found is not None and meets_another(found, said_of_others=of_path or undecorated):
                owner, name = one.method_of
                yield two_guards_of(str(one), f"{owner.__qualname__}.{name}", found)
    elif mark == "exempt":
        if of_path in ("required", "optional"):
            yield (
                f"{one}: the handler is declared exempt, but routes={{{one.path!r}: {of_path!r}}}. Keep one "
                "of the two."
            )
    else:
        yield from _decorated(one, mark.engine, idempotency, of_path)


def _said_of(one: Declared, said: Mapping[str, RouteGuard], root: str) -> RouteGuard | None:
    return next((said[path] for path in (one.path, f"{root}{one.path}") if path in said), None)


def _decorated(
    one: Declared, engine: Engine, idempotency: Engine, of_path: RouteGuard | None
) -> Iterator[str]:
    guarded = idempotency.policy.methods
    if engine is not idempotency:
        yield (
            f"{one}: the handler is decorated by another Idempotency than the middleware's, so its answer "
            "would be lost. Make one Idempotency, and use it for both."
        )
    unguarded = [] if one.opaque else sorted(one.methods - READ_ONLY - guarded)
    if unguarded:
        wanted = ", ".join(repr(method) for method in sorted({*guarded, *unguarded}))
        yield (
            f"{one}: the handler is decorated, but {_list(unguarded)} is not guarded ({_list(guarded)} is), "
            "so every retry would run it. Route it by a guarded method, or guard this one in the policy: "
            f"methods={{{wanted}}}."
        )
    elif not one.methods & guarded:
        yield (
            f"{one}: the handler is decorated, but {_list(one.methods)} is never guarded, so the decorator "
            "has no effect. Remove it, or route what changes something by POST."
        )
    if of_path == "exempt":
        yield (
            f"{one}: the handler is decorated, but routes={{{one.path!r}: 'exempt'}}. Keep one of the two: "
            "remove the decorator, or the entry in routes."
        )
    elif of_path is not None:
        yield (
            f"{one}: routes={{{one.path!r}: {of_path!r}}} has no effect, because the handler is decorated. "
            f"Say it there: required={of_path == 'required'}."
        )


def _is_bare(one: Declared, idempotency: Engine, guarded: Guarded, of_path: RouteGuard | None) -> bool:
    """Whether a handler without a mark is, or wraps, a function that was declared, and nothing says that this
    is meant so: that its path is exempt, or is guarded in another way than another route of it is. A method
    that a class inherits is its own: that another class guards it says nothing of this one."""
    here = {(method, one.path) for method in one.methods}
    known = [identity(each) for each in _chain(one.handler) if identity(each) in idempotency.declared]
    if not known or of_path == "exempt" or one.in_class:
        return False
    return of_path is None or any(not set(guarded.get(each, ())) - here for each in known)


def _chain(handler: Any) -> Iterator[Any]:
    """A function, and whatever it says that it wraps."""
    seen: set[tuple[int, int]] = set()
    while handler is not None and identity(handler) not in seen:
        seen.add(identity(handler))
        yield handler
        handler = getattr(handler, "__wrapped__", None)


def _guarded_dependencies(one: Declared) -> Iterator[str]:
    """FastAPI's: a dependency that is decorated would take the request's key before the handler."""
    route = getattr(one.route, "starlette_route", None) or one.route
    waiting = list(getattr(getattr(route, "dependant", None), "dependencies", ()))
    seen: set[int] = set()
    while waiting:
        dependant = waiting.pop()
        waiting += [each for each in dependant.dependencies if id(each) not in seen]
        seen.update(map(id, dependant.dependencies))
        if isinstance(mark_of(dependant.call), Mark):
            yield (
                f"{one}: its dependency {_name(dependant.call)} is decorated, so it would take the request's "
                "key before the handler. Decorate the handler, and let it call that function; or give the "
                "dependency a key of its own: idempotency.once(…)."
            )


def _second_middleware(reached: Iterable[ReachedRoute], said: Mapping[str, RouteGuard]) -> Iterator[str]:
    """One request must meet one guard; whatever the outer one leaves alone may have its own."""
    behind = sorted({one.path for one in reached if one.guards and said.get(one.path) != "exempt"})
    if behind:
        yield (
            f"Two IdempotencyMiddlewares are around {_list(behind)}: both would answer for one key. Keep one "
            "of them, or give the outer one routes={…: 'exempt'} for what the inner one guards."
        )


def _routes_without_effect(
    reached: list[ReachedRoute], idempotency: Engine, said: Mapping[str, RouteGuard], root: str
) -> Iterator[str]:
    for path, guard in said.items():
        wanted = {path, path.removeprefix(root)}
        here = [one for one in reached if wanted & {one.path} or any(map(_taken_by(one.path), wanted))]
        if not here:
            known = sorted({one.path for one in reached})
            yield (
                f"routes={{{path!r}: {guard!r}}}: the application has no such route, so this has no effect. "
                f"Name a path or a template as it has it: {_list(known) or 'it has none'}."
            )
        elif guard != "exempt" and not any(one.method in idempotency.policy.methods for one in here):
            methods = {one.method for one in here}
            yield (
                f"routes={{{path!r}: {guard!r}}} has no effect: {_list(methods)} is not guarded "
                f"({_list(idempotency.policy.methods)} are). Guard it too (the policy's `methods`), or leave "
                "the entry out."
            )


_PARAMETER: Final = re.compile(r"{\w+(?::(\w+))?}|<(?:(\w+)(?:\([^<>]*\))?:)?\w+>")
_ONE_SEGMENT: Final = frozenset({"", "str", "string", "int", "float", "uuid", "any", "default"})


def _taken_by(template: str) -> Any:
    """Whether a template of Starlette's or Flask's may take a path; a converter is not asked for its own."""
    pattern, end = "", 0
    for match in _PARAMETER.finditer(template):
        converter = match[1] or match[2] or ""
        pattern += re.escape(template[end : match.start()])
        pattern += "[^/]+" if converter in _ONE_SEGMENT else ".*"
        end = match.end()
    return re.compile(pattern + re.escape(template[end:])).fullmatch


def _list(names: Iterable[str]) -> str:
    known = sorted(names)
    shown = ", ".join(known[:_NAMED])
    return shown if len(known) <= _NAMED else f"{shown} and {len(known) - _NAMED} more"


def _name(handler: Any) -> str:
    handler = plain(handler)
    return str(getattr(handler, "__qualname__", type(handler).__qualname__))

"""``samekey coverage module:app``: every state-changing route, and how each is guarded."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..engine.keyuse import KEY_USE
from ..errors import ConfigurationError, SamekeyError
from ..logs import one_line
from ..ops.coverage import How, RouteCoverage, coverage, is_allowed
from ..ops.live import LiveUse, read_live
from .speech import complain, print_json, say

UNGUARDED = 1
"""The exit code if a route is unguarded."""
COULD_NOT_LOOK = 2
"""The exit code if the application could not be loaded."""


def coverage_command(
    target: Annotated[
        str,
        typer.Argument(
            envvar="SAMEKEY_WEB_APP", help="Your application: module:app, or module:create_app() to make it."
        ),
    ],
    allow: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SAMEKEY_ALLOW",
            help="A path that may stay unguarded, such as /login, /internal/* or POST:/login; repeatable. "
            "In the environment: separated by spaces.",
        ),
    ] = None,
    all_methods: Annotated[
        bool,
        typer.Option(
            "--all-methods",
            envvar="SAMEKEY_ALL_METHODS",
            help="Fail for routes that only their method leaves unguarded, such as PUT and DELETE.",
        ),
    ] = False,
    required: Annotated[
        bool,
        typer.Option(
            "--required",
            envvar="SAMEKEY_REQUIRED",
            help="Fail for routes that also run without a key: the last step of a roll-out.",
        ),
    ] = False,
    live: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SAMEKEY_LIVE",
            help="Also show how many requests came with and without a key: the address of an application's "
            "metrics, or a file of them; repeatable, one for each process. In the environment: separated by "
            "spaces.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", envvar="SAMEKEY_JSON", help="JSON for scripts.")] = False,
) -> None:
    """List how every state-changing route is guarded; fail if one is not. Nothing is run or changed."""
    try:
        routes = coverage(load_app(target))
        counted = placed(routes, read_live(live)) if live else None
    except SamekeyError as error:
        complain(error)
        raise typer.Exit(COULD_NOT_LOOK) from None
    allowed = allow or []
    failing = [
        route for route in routes if _fails(route, all_methods, required) and not is_allowed(route, allowed)
    ]
    if as_json:
        print_json(_content(routes, allowed, failing, counted))
    else:
        _print(routes, allowed, failing, counted)
    for pattern in allowed:
        if not any(is_allowed(route, [pattern]) for route in routes):
            complain(f"--allow {pattern} names no route; remove it.")
    if failing:
        raise typer.Exit(UNGUARDED)


def _fails(route: RouteCoverage, all_methods: bool, required: bool) -> bool:
    only_by_key = required and route.guarded and not route.refuses_without_key
    return not route.ok or only_by_key or (all_methods and route.how is How.METHOD)


def _content(
    routes: Sequence[RouteCoverage],
    allowed: Sequence[str],
    failing: Sequence[RouteCoverage],
    counted: Placed | None,
) -> dict[str, Any]:
    return {
        "ok": not failing,
        "routes": [
            {
                "method": route.method,
                "path": route.path,
                "handler": route.handler,
                "how": str(route.how),
                "mode": route.mode,
                "required": route.required,
                "required_from": None if route.required_from is None else route.required_from.isoformat(),
                "why": route.why or None,
                "allowed": is_allowed(route, allowed),
                "ok": route not in failing,
                **({} if counted is None else {"live": _numbers(counted.of(route))}),
            }
            for route in routes
        ],
        **({} if counted is None else {"elsewhere": {n: _numbers(u) for n, u in counted.elsewhere.items()}}),
    }


def _numbers(use: LiveUse) -> dict[str, Any]:
    return {**{key: use.by_key[key] for key in KEY_USE}, "keyless_by_tenant": dict(use.keyless)}


def _print(
    routes: Sequence[RouteCoverage],
    allowed: Sequence[str],
    failing: Sequence[RouteCoverage],
    counted: Placed | None,
) -> None:
    cells = []
    for route in routes:
        note = route.describe()
        if route not in failing and is_allowed(route, allowed):
            note = f"allowed ({route.how})"
        use = () if counted is None else _columns(counted.of(route)) if route.guarded else ("", "", "")
        cells.append((route.method, route.path, note, *use))
    titles = () if counted is None else ("with key", "without", "who sends none")
    print_table(("method", "path", "guarded", *titles), cells)
    for name, elsewhere in ({} if counted is None else counted.elsewhere).items():
        kept, keyless, _ = _columns(elsewhere)
        say(f"{name} is no route of this application: {kept} with a key, {keyless} without.")
    if not routes:
        say("The application has no state-changing route.")
    elif failing:
        optional = sum(route.ok and route.guarded for route in failing)
        if len(failing) > optional:
            say("")
            say(f"{len(failing) - optional} of {len(routes)} routes may run twice, or not at all.")
        if optional:
            say("")
            say(f"{optional} of {len(routes)} routes also run without a key.")
    else:
        say("")
        say(f"All {len(routes)} state-changing routes are accounted for.")


def _columns(use: LiveUse) -> tuple[str, str, str]:
    """How many came with a key and without, and who sends none, the most first."""
    total = use.sent + use.without
    if not total:
        return "0", "0", ""
    most = [f"{tenant} ({count})" for tenant, count in use.keyless.most_common(_SHOWN) if count]
    more = len(use.keyless) - _SHOWN
    who = ", ".join([*most, f"and {more} more"] if more > 0 else most)
    return str(use.sent), f"{use.without} ({use.without / total:.0%})", who


_SHOWN = 3
"""Tenants that are named in a line; JSON has them all."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What was counted, by route."""

    by_route: Mapping[tuple[str, str], LiveUse]
    elsewhere: Mapping[str, LiveUse]
    """What belongs to no route of this application: it is another one's, or runs another version."""

    def of(self, route: RouteCoverage) -> LiveUse:
        return self.by_route.get((route.method, route.path), LiveUse())


def placed(routes: Sequence[RouteCoverage], counted: Mapping[str, LiveUse]) -> Placed:
    """A template may be one below a mount, and know nothing of that: the end of a path will do, if there is
    one such path only."""
    known, by_route, elsewhere = {(one.method, one.path) for one in routes}, {}, {}
    for name, use in counted.items():
        method, _, template = name.partition(" ")
        ends = [one for one in known if one[0] == method and one[1].endswith(template)]
        if (method, template) in known:
            by_route[method, template] = use
        elif template and len(ends) == 1 and ends[0] not in by_route:
            by_route[ends[0]] = use
        else:
            elsewhere[name] = use
    return Placed(by_route, elsewhere)


def print_table(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """With rich on a terminal; as plain columns anywhere else, where a script or a pipe reads it."""
    if not cells:
        return
    clean = [[one_line(cell) for cell in row] for row in cells]
    if sys.stdout.isatty() and _print_rich(titles, clean):
        return
    widths = [max(map(len, column)) for column in zip(titles, *clean, strict=True)]
    for row in (titles, *clean):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    table = Table(*titles)
    for row in cells:
        # Text, not a string: what looks like markup in a path or an id is not.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
    return True


def load_app(target: str) -> Any:
    """What ``module:name`` means, with the current directory importable; ``module:name()`` is called."""
    module_name, _, attribute = target.partition(":")
    name = attribute.removesuffix("()")
    if not module_name or not name:
        raise ConfigurationError(f"{target!r} names nothing: write module:name, say shop.web:app.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"There is no module {module_name!r} here.") from None
        raise ConfigurationError(f"{module_name} could not be imported: {error}.") from error
    except Exception as error:
        raise ConfigurationError(
            f"{module_name} could not be imported: {type(error).__name__}: {error}."
        ) from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
        return found() if attribute.endswith("()") else found
    except AttributeError as error:
        raise ConfigurationError(f"{module_name} has no {name!r}: {error}.") from error
    except Exception as error:
        raise ConfigurationError(f"{target} failed: {type(error).__name__}: {error}.") from error

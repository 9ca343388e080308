"""``samekey coverage module:app``: every state-changing route, and how each is guarded."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..errors import ConfigurationError, SamekeyError
from ..ops.coverage import How, RouteCoverage, coverage, is_allowed

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
    as_json: Annotated[bool, typer.Option("--json", envvar="SAMEKEY_JSON", help="JSON for scripts.")] = False,
) -> None:
    """List how every state-changing route is guarded; fail if one is not. Nothing is run or changed."""
    try:
        routes = coverage(load_app(target))
    except SamekeyError as error:
        typer.echo(f"samekey: {error}", err=True)
        raise typer.Exit(COULD_NOT_LOOK) from None
    allowed = allow or []
    failing = [
        route for route in routes if _fails(route, all_methods, required) and not is_allowed(route, allowed)
    ]
    if as_json:
        typer.echo(json.dumps(_content(routes, allowed, failing), indent=2))
    else:
        _print(routes, allowed, failing)
    for pattern in allowed:
        if not any(is_allowed(route, [pattern]) for route in routes):
            typer.echo(f"samekey: --allow {pattern} names no route; remove it.", err=True)
    if failing:
        raise typer.Exit(UNGUARDED)


def _fails(route: RouteCoverage, all_methods: bool, required: bool) -> bool:
    only_by_key = required and route.guarded and not route.required
    return not route.ok or only_by_key or (all_methods and route.how is How.METHOD)


def _content(
    routes: Sequence[RouteCoverage], allowed: Sequence[str], failing: Sequence[RouteCoverage]
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
                "why": route.why or None,
                "allowed": is_allowed(route, allowed),
                "ok": route not in failing,
            }
            for route in routes
        ],
    }


def _print(routes: Sequence[RouteCoverage], allowed: Sequence[str], failing: Sequence[RouteCoverage]) -> None:
    cells = []
    for route in routes:
        note = route.describe()
        if route not in failing and is_allowed(route, allowed):
            note = f"allowed ({route.how})"
        cells.append((route.method, route.path, note))
    print_table(("method", "path", "guarded"), cells)
    if not routes:
        typer.echo("The application has no state-changing route.")
    elif failing:
        optional = sum(route.ok and route.guarded for route in failing)
        if len(failing) > optional:
            typer.echo(f"\n{len(failing) - optional} of {len(routes)} routes may run twice, or not at all.")
        if optional:
            typer.echo(f"\n{optional} of {len(routes)} routes also run without a key.")
    else:
        typer.echo(f"\nAll {len(routes)} state-changing routes are accounted for.")


def print_table(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """With rich on a terminal; as plain columns anywhere else, where a script or a pipe reads it."""
    if not cells:
        return
    clean = [[printable(cell) for cell in row] for row in cells]
    if sys.stdout.isatty() and _print_rich(titles, clean):
        return
    widths = [max(map(len, column)) for column in zip(titles, *clean, strict=True)]
    for row in (titles, *clean):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


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


def printable(text: str) -> str:
    """Text that cannot steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


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

"""How the operator's commands speak: tables for people, JSON for scripts, sentences for errors.

Exit codes: 0 it was done; 1 it was refused, or there is a finding; 2 it could not be tried: the store cannot
be reached, its tables do not fit, or the command line makes no sense.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..errors import SamekeyError
from ..ops.doctor import span
from .target import CommandRefused

Json = Annotated[bool, typer.Option("--json", envvar="SAMEKEY_JSON", help="JSON, for scripts.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", envvar="SAMEKEY_DRY_RUN", help="Say what would be done; change nothing.")
]

REFUSED: Final = 1
COULD_NOT: Final = 2
WIDE: Final = 160
"""Columns where there is no terminal to fit: a pipe has no width, and a cut id is of no use."""


@contextmanager
def sentences() -> Iterator[None]:
    """Turns what can go wrong into a sentence on standard error and an exit code."""
    try:
        yield
    except CommandRefused as refusal:
        typer.echo(f"samekey: {refusal}", err=True)
        raise typer.Exit(REFUSED) from None
    except SamekeyError as error:
        typer.echo(f"samekey: {error}", err=True)
        raise typer.Exit(COULD_NOT) from None


def console() -> Console:
    """Standard output, as it is now."""
    fits = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if fits else WIDE, highlight=False, soft_wrap=False)


def say(sentence: str) -> None:
    typer.echo(sentence)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """A plain table; the first column, an id, is never broken."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    _print(table)


def print_facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values, one to a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, _plain(value))
    _print(table)


def _print(table: Table) -> None:
    """Without the blanks that rich pads lines with: they would end up in files and diffs."""
    target = console()
    with target.capture() as capture:
        target.print(table)
    for line in capture.get().splitlines():
        typer.echo(line.rstrip())


def _plain(text: str) -> Text:
    """Text of a user's is no markup, and cannot move the cursor."""
    return Text(printable(text))


def printable(text: str) -> str:
    """What came from outside, without what could move the cursor."""
    return "".join(char if char.isprintable() or char == "\n" else "�" for char in text)


@contextmanager
def progress(what: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows long work on a terminal's standard error; gives a function that takes how much was done."""
    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with shown:
        task = shown.add_task(what, total=total)
        yield lambda count: shown.advance(task, count)


@contextmanager
def quietly() -> Iterator[None]:
    """Without the log lines of a worker: the command itself says what was done."""
    logger = logging.getLogger("samekey")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def when(ms: int | None) -> str:
    """A moment, in UTC."""
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def moment(ms: int | None) -> str | None:
    """A moment, for scripts."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age(ms: int) -> str:
    return span(max(ms, 0))


def tenant_name(stored: str) -> str:
    """A tenant as the user knows it, unless it was too long for that and only its digest was kept."""
    return stored[1:] if stored.startswith("=") else stored

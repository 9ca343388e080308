"""How the operator's commands speak: tables for people, JSON for scripts, sentences for errors.

Exit codes: 0 it was done; 1 it was refused, or there is a finding; 2 it could not be tried: the store cannot
be reached, its tables do not fit, or the command line makes no sense.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..errors import SamekeyError
from ..logs import one_line
from ..ops.doctor import span
from .options import CommandRefused
from .speech import complain, show
from .target import OperatorStore

Json = Annotated[bool, typer.Option("--json", envvar="SAMEKEY_JSON", help="JSON, for scripts.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", envvar="SAMEKEY_DRY_RUN", help="Say what would be done; change nothing.")
]

REFUSED: Final = 1
COULD_NOT: Final = 2
WIDE: Final = 10_000
"""Columns where there is no terminal to fit: a pipe has no width, one record is one line, and none is cut."""
NARROW: Final = 120
"""Below that a terminal has no room for everything: what an operator decides by is shown."""
SHORT_ID: Final = 12
"""Characters of an id that are enough to name it."""
WHOLE: Final = frozenset({"state", "is now", "from", "to", "age", "when", "mode", "kind", "attempts"})
"""Columns that are never broken."""
COLOURS: Final[dict[str, str]] = {
    "pending": "cyan",
    "in_progress": "cyan",
    "completed": "green",
    "failed_retryable": "yellow",
    "unknown": "bold red",
    "dead_letter": "red",
    "expired": "dim",
}
"""By state: what somebody must see to is red."""


@contextmanager
def sentences() -> Iterator[None]:
    """Turns what can go wrong into a sentence on standard error and an exit code."""
    try:
        yield
    except CommandRefused as refusal:
        complain(refusal)
        raise typer.Exit(REFUSED) from None
    except SamekeyError as error:
        complain(error)
        raise typer.Exit(COULD_NOT) from None


def console() -> Console:
    """Standard output, as it is now."""
    fits = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if fits else WIDE, highlight=False, soft_wrap=False)


def is_narrow() -> bool:
    return console().width < NARROW


def shown_id(store: OperatorStore, whole: str) -> str:
    """An id as a list shows it: on a narrow terminal, what is enough to name it. A key store takes whole ones
    only, since its ids say where a record is."""
    return whole[:SHORT_ID] if is_narrow() and store.has_tables else whole


def coloured(state: str) -> Text:
    """A state; without colours where there is no terminal."""
    return Text(state, style=COLOURS.get(state, ""))


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[str | Text]], *, narrow: Sequence[str] | None = None
) -> None:
    """A plain table. Ids, states and times are never broken, what is longer than its place is folded. On a
    narrow terminal only the columns in ``narrow``, if that is given."""
    chosen = [name for name in columns if narrow is None or name in narrow or not is_narrow()]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, name in enumerate(chosen):
        table.add_column(name, no_wrap=number == 0 or name in WHOLE, overflow="fold")
    for row in rows:
        cells = dict(zip(columns, row, strict=True))
        table.add_row(*(_plain(cells[name]) for name in chosen))
    _print(table)


def print_facts(pairs: Iterable[tuple[str, str | Text]]) -> None:
    """Names and values, one to a line. No line is broken: a downstream key is copied into a search."""
    told = [(name, _plain(value)) for name, value in pairs]
    width = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        line = Text(f"{name:{width}}  ", style="bold") + value
        _print(line)


def _print(shown: Table | Text) -> None:
    """Without the blanks that rich pads lines with: they would end up in files and diffs."""
    target = console()
    with target.capture() as capture:
        target.print(shown, soft_wrap=isinstance(shown, Text))
    for line in capture.get().splitlines():
        show(line.rstrip(), colours=target.is_terminal)


def _plain(text: str | Text) -> Text:
    """Text of a user's is no markup, and cannot move the cursor."""
    return text if isinstance(text, Text) else Text(one_line(text))


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

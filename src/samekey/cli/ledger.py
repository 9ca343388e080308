"""``samekey ledger compare`` and ``run``: our ledger against the provider's. They only report."""

from __future__ import annotations

import asyncio
import csv
import logging
import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Final, NoReturn, cast

import typer

from ..core.ledger import (
    FIELDS,
    CannotCompare,
    Comparison,
    Entry,
    Field,
    Ledgers,
    amount_text,
    as_csv,
    as_json,
    check_fields,
    compare,
    compare_sorted,
    rows,
)
from ..errors import SamekeyError
from ..idempotency import Idempotency
from ..workers.ledger import LedgerCheck
from .coverage import print_table
from .spec import write
from .speech import complain, say
from .worker import load

DIFFER = 1
"""The exit code if the ledgers differ."""
COULD_NOT_COMPARE = 2
"""The exit code if nothing can be said about them."""

ledger_app = typer.Typer(
    help="Compare your ledger with the provider's. Nothing is ever changed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", envvar="SAMEKEY_JSON", help="JSON for scripts.")]
AsCsv = Annotated[bool, typer.Option("--csv", envvar="SAMEKEY_CSV", help="CSV for spreadsheets.")]
Output = Annotated[
    Path | None,
    typer.Option(envvar="SAMEKEY_OUTPUT", help="Write the report to this file; a summary is printed."),
]
Limit = Annotated[
    int,
    typer.Option(envvar="SAMEKEY_LIMIT", min=1, help="Lines of the table; JSON and CSV always hold all."),
]


@ledger_app.command("compare")
def compare_command(
    ours: Annotated[Path, typer.Argument(envvar="SAMEKEY_OURS", help="Your ledger, a CSV file.")],
    theirs: Annotated[Path, typer.Argument(envvar="SAMEKEY_THEIRS", help="The provider's, a CSV file.")],
    fields: Annotated[
        str,
        typer.Option(
            envvar="SAMEKEY_FIELDS", help="What is compared: of amount,currency,status,at,reference."
        ),
    ] = ",".join(FIELDS),
    in_order: Annotated[
        bool,
        typer.Option(
            "--sorted",
            envvar="SAMEKEY_SORTED",
            help="Both files are in the order of their ids (by bytes), and need not fit into memory.",
        ),
    ] = False,
    json_report: AsJson = False,
    csv_report: AsCsv = False,
    output: Output = None,
    limit: Limit = 50,
) -> None:
    """Compare two CSV files: 0 if they agree, 1 if they differ, 2 if they could not be compared."""
    try:
        names = tuple(name.strip() for name in fields.split(","))
        check_fields(names)
        chosen = cast("tuple[Field, ...]", names)
        how = compare_sorted if in_order else compare
        comparison = how(read_entries(ours), read_entries(theirs), chosen)
    except CannotCompare as error:
        _stop(str(error))
    _report([("", comparison)], json_report=json_report, csv_report=csv_report, output=output, limit=limit)


@ledger_app.command("run")
def run_command(
    target: Annotated[
        str, typer.Argument(envvar="SAMEKEY_APP", help="Where your Idempotency is: module:name.")
    ],
    name: Annotated[
        str | None, typer.Option(envvar="SAMEKEY_LEDGER", help="Only the comparison of this name.")
    ] = None,
    json_report: AsJson = False,
    csv_report: AsCsv = False,
    output: Output = None,
    limit: Limit = 50,
) -> None:
    """Make the comparisons that your code declares: 0 if all agree, 1 if one differs, 2 if one failed."""
    # The check logs its result; here it is printed, and once is enough.
    logging.getLogger("samekey").addHandler(logging.NullHandler())
    try:
        idempotency = load(target)
        declared = [one for one in declared_ledgers(idempotency) if name in (None, one.name)]
        if not declared:
            _stop(f"{target} declares no comparison of ledgers{f' named {name!r}' if name else ''}.")
        if len(declared) > 1 and (csv_report or json_report):
            names = ", ".join(one.name for one in declared)
            _stop(f"There are several comparisons ({names}); choose one with --name.")
        found = asyncio.run(_run(idempotency, declared))
    except (SamekeyError, CannotCompare) as error:
        _stop(str(error))
    _report(found, json_report=json_report, csv_report=csv_report, output=output, limit=limit)


def declared_ledgers(idempotency: Idempotency) -> list[Ledgers]:
    """The comparisons that the user's code declares."""
    return list(idempotency.engine.ledgers)


async def _run(idempotency: Idempotency, declared: list[Ledgers]) -> list[tuple[str, Comparison]]:
    found = []
    try:
        for ledgers in declared:
            try:
                found.append((ledgers.name, await LedgerCheck.of(idempotency.engine, ledgers).run_once()))
            except (SamekeyError, CannotCompare):
                raise
            except Exception as error:  # the user's own code failed; its traceback is the cause
                sentence = f"{ledgers.name} could not be compared: {type(error).__name__}: {error}"
                raise CannotCompare(sentence) from error
    finally:
        await idempotency.aclose()
    return found


def _stop(sentence: str) -> NoReturn:
    complain(sentence)
    raise typer.Exit(COULD_NOT_COMPARE)


# The report


def _report(
    found: list[tuple[str, Comparison]],
    *,
    json_report: bool,
    csv_report: bool,
    output: Path | None,
    limit: int,
) -> None:
    if json_report and csv_report:
        _stop("Choose one of --json and --csv.")
    as_csv_file = csv_report or (output is not None and not json_report and output.suffix.lower() == ".csv")
    if json_report or as_csv_file or output is not None:
        if len(found) > 1:
            _stop("A report holds one comparison; choose one with --name.")
        write(as_csv(found[0][1]) if as_csv_file else as_json(found[0][1]), output, COULD_NOT_COMPARE)
        if output is not None:
            say(str(found[0][1]))
    else:
        for name, comparison in found:
            _print(name, comparison, limit)
    if any(comparison.differences for _, comparison in found):
        raise typer.Exit(DIFFER)


def _print(name: str, comparison: Comparison, limit: int) -> None:
    every = list(rows(comparison))
    cells = [
        (
            kind,
            identity,
            side,
            amount_text(entry.amount),
            entry.currency,
            entry.status,
            entry.reference or "",
            ", ".join(fields),
        )
        for kind, identity, side, entry, fields in every[:limit]
    ]
    titles = ("difference", "id", "side", "amount", "currency", "status", "reference", "differs in")
    print_table(titles, cells)
    if len(every) > limit:
        say(f"… and {len(every) - limit} more lines; --csv and --json have them all.")
    if cells:
        say("")
    say(f"{name}: {comparison}" if name else str(comparison))


# Reading CSV

_AMOUNT: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?", re.ASCII)
_MINOR: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_COLUMNS: Final = ("id", "amount", "amount_minor", "currency", "status", "at", "reference")
_LONGEST: Final = 60
"""Characters of an amount; a longer one is no amount, and would take long to read."""


def read_entries(path: Path) -> Iterator[Entry]:
    """The entries of a CSV file, one line after the other. What cannot be read is named by its line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            if header is None:
                raise CannotCompare(f"{path} is empty; its first line must name the columns.")
            columns = _columns(path, header)
            for cells in reader:
                if cells:
                    yield _entry(path, reader.line_num, columns, len(header), cells)
    except OSError as error:
        raise CannotCompare(f"{path} could not be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise CannotCompare(f"{path} is not UTF-8.") from None
    except csv.Error as error:
        raise CannotCompare(f"{path}, line {reader.line_num}: {error}.") from None


def _columns(path: Path, header: list[str]) -> dict[str, int]:
    names = [name.strip().lower() for name in header]
    for name in _COLUMNS:
        if names.count(name) > 1:
            raise CannotCompare(f"{path}, line 1: the column {name} stands there twice.")
    found: dict[str, int] = {name: names.index(name) for name in _COLUMNS if name in names}
    for name in ("id", "currency"):
        if name not in found:
            raise CannotCompare(f"{path}, line 1: there is no column {name}; there are {', '.join(names)}.")
    if ("amount" in found) == ("amount_minor" in found):
        raise CannotCompare(
            f"{path}, line 1: there must be one of the columns amount (12.50) and amount_minor (1250)."
        )
    return found


def _entry(path: Path, line: int, columns: dict[str, int], width: int, cells: list[str]) -> Entry:
    where = f"{path}, line {line}"
    if len(cells) != width:
        raise CannotCompare(f"{where}: there are {len(cells)} cells, but {width} columns.")
    values = {name: cells[place].strip() for name, place in columns.items()}
    amount = _amount(where, values)
    try:
        at = datetime.fromisoformat(values["at"]) if values.get("at") else None
    except ValueError:
        raise CannotCompare(f"{where}: {values['at']!r} is no ISO 8601 time.") from None
    reference = values.get("reference") or None
    try:
        return Entry(values["id"], amount, values["currency"], values.get("status", ""), at, reference)
    except CannotCompare as error:
        raise CannotCompare(f"{where}: {error}") from None


def _amount(where: str, values: dict[str, str]) -> int | Decimal:
    minor = "amount_minor" in values
    text = values["amount_minor" if minor else "amount"]
    if len(text) > _LONGEST or not (_MINOR if minor else _AMOUNT).fullmatch(text):
        example = "whole minor units such as 1250" if minor else "a number such as 12.50"
        raise CannotCompare(f"{where}: the amount {text[:_LONGEST]!r} is not {example}.")
    try:
        return int(text) if minor else Decimal(text)
    except (InvalidOperation, ValueError):
        raise CannotCompare(f"{where}: the amount {text!r} cannot be read.") from None

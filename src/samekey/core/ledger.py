"""Two ledgers, ours and the provider's, held against each other. It reports and never changes anything.

Each id falls into exactly one place:

    equal         both have it once, and what is compared is the same
    missing       the provider has it, we do not
    extra         we have it, the provider does not
    different     both have it once, with another amount, currency, status …
    duplicated    one side has it more than once, so it cannot be compared one to one

Amounts are exact: whole minor units (``int``) or ``Decimal``, never ``float``, and never one kind on one
side and the other kind on the other: 100 cents are not 100 euros.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, Literal

Field = Literal["amount", "currency", "status", "at", "reference"]

FIELDS: Final[tuple[Field, ...]] = ("amount", "currency", "status")
"""What is compared unless said otherwise. Not the time, because two clocks never agree, and not the
reference, which is often known to one side alone."""

ALL_FIELDS: Final[tuple[Field, ...]] = (*FIELDS, "at", "reference")

_MOST_DIGITS: Final = 40
"""Before and after the point. More than any currency needs, and a bound on what a hostile file can cost."""


class CannotCompare(ValueError):
    """What was given cannot be compared, so nothing is said about the ledgers. The sentence says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One movement of money. ``id`` is what both sides know it by, such as the provider's own id.

    ``amount``: an ``int`` of minor units (cents), or a ``Decimal``. ``status`` is yours to map: both sides
    must use the same words. A value that makes no sense raises ``CannotCompare``.
    """

    id: str
    amount: int | Decimal
    currency: str
    status: str = ""
    at: datetime | None = None
    reference: str | None = None

    def __post_init__(self) -> None:
        for name in ("id", "currency", "status"):
            if not isinstance(getattr(self, name), str):
                raise CannotCompare(f"An entry's {name} must be a string, not {getattr(self, name)!r}.")
        if not self.id:
            raise CannotCompare("An entry has no id, so it cannot be found on the other side.")
        if not self.currency:
            raise CannotCompare(f"Entry {self.id!r} has no currency.")
        _check_amount(self.id, self.amount)
        # Providers write eur, ledgers EUR; they mean the same.
        object.__setattr__(self, "currency", self.currency.upper())


def _check_amount(entry: str, amount: object) -> None:
    if isinstance(amount, bool) or not isinstance(amount, int | Decimal):
        raise CannotCompare(
            f"The amount of entry {entry!r} is {amount!r}; it must be whole minor units (int) or a Decimal. "
            "A float cannot hold most amounts exactly."
        )
    if isinstance(amount, int):
        too_long = abs(amount) >= 10**_MOST_DIGITS
    elif not amount.is_finite():
        raise CannotCompare(f"The amount of entry {entry!r} is {amount}, which is no amount.")
    else:
        exponent = amount.as_tuple().exponent
        assert isinstance(exponent, int)
        too_long = amount.adjusted() >= _MOST_DIGITS or exponent < -_MOST_DIGITS
    if too_long:
        raise CannotCompare(
            f"The amount of entry {entry!r} has more than {_MOST_DIGITS} digits on a side of the point."
        )


@dataclass(frozen=True, slots=True)
class Different:
    """Both sides have it once, and they disagree in ``fields``."""

    ours: Entry
    theirs: Entry
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Duplicated:
    """A side has this id more than once."""

    id: str
    ours: tuple[Entry, ...]
    theirs: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two ledgers disagree about, each list in the order of the ids."""

    ours: int
    """How many entries we have."""
    theirs: int
    """How many entries the provider has."""
    equal: int
    """How many ids are equal on both sides."""
    missing: tuple[Entry, ...]
    extra: tuple[Entry, ...]
    different: tuple[Different, ...]
    duplicated: tuple[Duplicated, ...]

    @property
    def differences(self) -> int:
        """How many ids are not equal."""
        return len(self.missing) + len(self.extra) + len(self.different) + len(self.duplicated)

    def __str__(self) -> str:
        if not self.differences:
            return f"The ledgers agree: {_count(self.equal, 'entry', 'entries')} on both sides."
        return (
            f"The ledgers differ in {_count(self.differences, 'entry', 'entries')}: {len(self.missing)} "
            f"missing, {len(self.extra)} extra, {len(self.different)} different, {len(self.duplicated)} "
            f"duplicated; {self.equal} equal. Ours has {self.ours}, the provider's {self.theirs}."
        )


@dataclass(frozen=True, slots=True)
class Ledgers:
    """A comparison that is to be made again and again: where both sides come from, and who is told.

    ``ours`` and ``theirs`` take nothing and give entries: an iterable, an async iterable, or a coroutine that
    gives an iterable. ``report`` gets every ``Comparison``, also one without differences; it may be async.
    """

    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    report: Callable[[Comparison], Any] | None = None
    fields: tuple[Field, ...] = FIELDS
    name: str = "ledger"

    def __post_init__(self) -> None:
        for side in ("ours", "theirs"):
            if not callable(getattr(self, side)):
                raise CannotCompare(f"{side} must be a function that gives entries.")
        if self.report is not None and not callable(self.report):
            raise CannotCompare("report must be a function of the comparison.")
        check_fields(self.fields)


def check_fields(fields: Iterable[str]) -> None:
    """Raises ``CannotCompare`` for a field that entries do not have, and if there is none."""
    names = tuple(fields)
    if not names:
        raise CannotCompare(f"Name at least one field to compare: {', '.join(ALL_FIELDS)}.")
    for name in names:
        if name not in ALL_FIELDS:
            raise CannotCompare(f"There is no field {name!r} to compare; there are {', '.join(ALL_FIELDS)}.")


def compare(ours: Iterable[Entry], theirs: Iterable[Entry], fields: Iterable[Field] = FIELDS) -> Comparison:
    """Compares entries in whatever order they come. Both sides are held in memory."""
    return compare_sorted(sorted(ours, key=_order), sorted(theirs, key=_order), fields)


def compare_sorted(
    ours: Iterable[Entry], theirs: Iterable[Entry], fields: Iterable[Field] = FIELDS
) -> Comparison:
    """Compares entries that come in the order of their ids, by code points: ``order by id collate "C"``.

    Neither side is held in memory, only what differs. An id out of order raises ``CannotCompare``.
    """
    compared = tuple(fields)
    check_fields(compared)
    equal = 0
    missing: list[Entry] = []
    extra: list[Entry] = []
    different: list[Different] = []
    duplicated: list[Duplicated] = []
    left, right = _Side("our", ours), _Side("the provider's", theirs)
    for identity, mine, yours in _merge(left.groups(), right.groups()):
        _check_kinds(left, right)
        if len(mine) > 1 or len(yours) > 1:
            duplicated.append(Duplicated(identity, mine, yours))
        elif not mine:
            missing.append(yours[0])
        elif not yours:
            extra.append(mine[0])
        elif changed := tuple(f for f in compared if getattr(mine[0], f) != getattr(yours[0], f)):
            different.append(Different(mine[0], yours[0], changed))
        else:
            equal += 1
    return Comparison(
        left.count, right.count, equal, tuple(missing), tuple(extra), tuple(different), tuple(duplicated)
    )


class _Side:
    """One ledger as it is read: how many entries, and in which kind of amount it counts."""

    def __init__(self, name: str, entries: Iterable[Entry]) -> None:
        self.name = name
        self.count = 0
        self.kind: type | None = None
        self._entries = entries

    def groups(self) -> Iterator[tuple[str, tuple[Entry, ...]]]:
        """The entries of each id together."""
        for identity, group in groupby(self._read(), key=lambda entry: entry.id):
            # The order inside a group is the input's own; a report must not depend on it.
            yield identity, tuple(sorted(group, key=_order))

    def _read(self) -> Iterator[Entry]:
        last = ""
        for entry in self._entries:
            if not isinstance(entry, Entry):
                raise CannotCompare(f"In {self.name} ledger there is {entry!r}, which is not an Entry.")
            if entry.id < last:
                raise CannotCompare(
                    f"In {self.name} ledger {entry.id!r} comes after {last!r}: it is not in the order of its "
                    "ids. Sort it by code points, or compare without relying on the order."
                )
            last = entry.id
            self.count += 1
            kind = int if isinstance(entry.amount, int) else Decimal
            if self.kind not in (None, kind):
                raise CannotCompare(
                    f"In {self.name} ledger some amounts are minor units (int) and others are Decimals; at "
                    f"entry {entry.id!r} the kind changes. Use one kind."
                )
            self.kind = kind
            yield entry


def _check_kinds(left: _Side, right: _Side) -> None:
    if left.kind is not None and right.kind is not None and left.kind is not right.kind:
        names = {int: "minor units (int)", Decimal: "Decimals"}
        raise CannotCompare(
            f"Our amounts are {names[left.kind]}, the provider's are {names[right.kind]}. Convert one side: "
            "100 cents are not 100 euros."
        )


_Groups = Iterator[tuple[str, tuple[Entry, ...]]]


def _merge(left: _Groups, right: _Groups) -> Iterator[tuple[str, tuple[Entry, ...], tuple[Entry, ...]]]:
    """Each id once, in order, with what either side has of it."""
    mine, yours = next(left, None), next(right, None)
    while mine is not None or yours is not None:
        if yours is None or (mine is not None and mine[0] < yours[0]):
            assert mine is not None
            yield mine[0], mine[1], ()
            mine = next(left, None)
        elif mine is None or yours[0] < mine[0]:
            yield yours[0], (), yours[1]
            yours = next(right, None)
        else:
            yield mine[0], mine[1], yours[1]
            mine, yours = next(left, None), next(right, None)


def _order(entry: Entry) -> tuple[str, int | Decimal, str, str, str, str]:
    if not isinstance(entry, Entry):
        raise CannotCompare(f"A ledger holds {entry!r}, which is not an Entry.")
    return (entry.id, entry.amount, entry.currency, entry.status, _time(entry.at), entry.reference or "")


# The report, for scripts and for spreadsheets


def as_json(comparison: Comparison) -> str:
    """The report as one JSON object. Decimals are strings, so that nobody reads them as floats."""
    content = {
        "agree": not comparison.differences,
        "differences": comparison.differences,
        "ours": comparison.ours,
        "theirs": comparison.theirs,
        "equal": comparison.equal,
        "missing": [_json_entry(entry) for entry in comparison.missing],
        "extra": [_json_entry(entry) for entry in comparison.extra],
        "different": [
            {
                "id": pair.ours.id,
                "fields": list(pair.fields),
                "ours": _json_entry(pair.ours),
                "theirs": _json_entry(pair.theirs),
            }
            for pair in comparison.different
        ],
        "duplicated": [
            {
                "id": group.id,
                "ours": [_json_entry(entry) for entry in group.ours],
                "theirs": [_json_entry(entry) for entry in group.theirs],
            }
            for group in comparison.duplicated
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _json_entry(entry: Entry) -> dict[str, object]:
    amount: dict[str, object] = (
        {"amount_minor": entry.amount}
        if isinstance(entry.amount, int)
        else {"amount": amount_text(entry.amount)}
    )
    return {
        "id": entry.id,
        **amount,
        "currency": entry.currency,
        "status": entry.status,
        "at": _time(entry.at) or None,
        "reference": entry.reference,
    }


Row = tuple[str, str, str, Entry, tuple[Field, ...]]


def rows(comparison: Comparison) -> Iterator[Row]:
    """Every entry of the report: what is wrong, the id, the side, the entry, and the fields that differ."""
    for entry in comparison.missing:
        yield "missing", entry.id, "theirs", entry, ()
    for entry in comparison.extra:
        yield "extra", entry.id, "ours", entry, ()
    for pair in comparison.different:
        yield "different", pair.ours.id, "ours", pair.ours, pair.fields
        yield "different", pair.ours.id, "theirs", pair.theirs, pair.fields
    for group in comparison.duplicated:
        for side, entries in (("ours", group.ours), ("theirs", group.theirs)):
            for entry in entries:
                yield "duplicated", group.id, side, entry, ()


def as_csv(comparison: Comparison) -> str:
    """The report as CSV (RFC 4180), one line per entry. No cell can act as a formula in a spreadsheet."""
    found = list(rows(comparison))
    minor = bool(found) and isinstance(found[0][3].amount, int)
    amount = "amount_minor" if minor else "amount"
    lines = [("difference", "id", "side", amount, "currency", "status", "at", "reference", "fields")]
    lines.extend(
        (
            kind,
            identity,
            side,
            amount_text(entry.amount),
            entry.currency,
            entry.status,
            _time(entry.at),
            entry.reference or "",
            " ".join(fields),
        )
        for kind, identity, side, entry, fields in found
    )
    return "".join(",".join(map(_cell, line)) + "\r\n" for line in lines)


_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_FORMULA: Final = re.compile(r"(^|[;,|\t\r\n\"'])(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])|^(?=[\t\r\n])")
"""A character that begins a formula, where a cell begins, or where one would if another separator counted."""
_NEEDS_QUOTES: Final = re.compile(r"[\",;|'\r\n\t]|^\s|\s$")


def _cell(text: str) -> str:
    text = text.replace("\0", "")  # first: what is left may begin a formula
    if not _NUMBER.fullmatch(text):
        text = _FORMULA.sub(r"\1'", text)
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text


def amount_text(amount: int | Decimal) -> str:
    """An amount without an exponent."""
    return str(amount) if isinstance(amount, int) else format(amount, "f")


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat()


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"

"""Batches of records for the background services: what one cannot read does not keep it from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..core.program import Row
from ..core.record import Record, decode_record
from ..errors import CorruptRecord

NONE_SUCH = "\n"
"""Stands in a list that would be empty: no id, tenant or endpoint is a line break, and ``in ()`` no SQL."""

Tell = Callable[[CorruptRecord], None]


def readable(rows: Iterable[tuple[object, Row]], tell: Tell | None) -> list[tuple[int, Record]]:
    """The records among them, each with its number.

    ``tell`` hears of the others, which are left as they are: a newer version wrote them, and can do it.
    Without it the first one is an error.
    """
    found = []
    for number, row in rows:
        try:
            record = decode_record(row)
        except CorruptRecord as error:
            if tell is None:
                raise
            tell(error)
            continue
        assert isinstance(number, int)
        found.append((number, record))
    return found


def records(rows: Iterable[Row], tell: Tell | None) -> list[Record]:
    """The same of rows that begin with the store's clock."""
    return [record for _, record in readable(((row[0], row[1:]) for row in rows), tell)]


def never_empty(names: Sequence[str]) -> list[str]:
    """The same as a list that a statement can compare with."""
    return list(names) or [NONE_SUCH]

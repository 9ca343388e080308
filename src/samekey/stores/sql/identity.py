"""Whose keys the tables hold, as two numbers in a row of the table of limits that no tenant can have."""

from __future__ import annotations

from ...core.program import Program
from ..identity import NOBODYS, must_agree
from .queries import Queries

_HALF = 15
"""Hexadecimal digits that fit a column: 120 bits are more than enough to tell two secrets apart."""


def agree(queries: Queries, mark: str | None) -> Program[None]:
    """Writes the mark down where the tables are new; ``SchemaMismatch`` if their keys are another's."""
    rows = yield queries.statement("identity", None)
    if mark is None:
        must_agree("" if rows else NOBODYS, None)
        return
    numbers = int(mark[1 : 1 + _HALF], 16), int(mark[1 + _HALF : 1 + 2 * _HALF], 16)
    if not rows:
        yield queries.statement("note_identity", None, first=numbers[0], second=numbers[1])
        rows = yield queries.statement("identity", None)
    if not rows or tuple(rows[0]) != numbers:
        must_agree("" if rows else NOBODYS, mark)

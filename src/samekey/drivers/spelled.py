"""A statement as a text without parameters, which can be sent together with others in one round trip.

PostgreSQL takes several statements in one text only where none has parameters. Values that could mean
anything to its parser are written in hexadecimal: there is nothing to quote, so nothing to get out of,
whatever the session was told about backslashes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final
from weakref import WeakSet

from ..core.program import Statement, Value
from ..errors import StoreError
from .postgres.sqlstate import CLEAN, LEFT, RESET, UNLOCK

_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)\b")
OURS: Final = "samekey_"
"""How the names of our prepared statements begin."""
_PREPARE_RESET: Final = (f"prepare {OURS}unlock as {UNLOCK}", f"prepare {OURS}left as {LEFT}")
_PREPARED_RESET: Final = f"execute {OURS}unlock; {CLEAN}; execute {OURS}left"
_HARMLESS: Final = re.compile(r"[A-Za-z0-9 _./=+-]*")


def spelled(statement: Statement) -> str:
    """The statement and what follows it."""
    values = statement.parameters
    return ";".join(
        "".join(_literal(values[part]) if place % 2 else part for place, part in enumerate(_parts(query.sql)))
        for query in (statement.query, *statement.query.then)
    )


class Prepared:
    """Which connections have a statement prepared by its name: planning it anew costs more than it does."""

    def __init__(self) -> None:
        self._on: WeakSet[Any] = WeakSet()

    def text(self, connection: Any, statement: Statement) -> str:
        """The statement by its name, for one kind of statement only; the first time with what prepares it."""
        query, values = statement.query, statement.parameters
        parts = [
            (f"{OURS}{query.name}_{place}", *one.rendered["numeric"])
            for place, one in enumerate((query, *query.then))
        ]
        calls = [f"execute {name}({','.join(_literal(values[x]) for x in xs)})" for name, _, xs in parts]
        if connection in self._on:
            return ";".join(calls)
        return ";".join([*(f"prepare {name} as {sql}" for name, sql, _ in parts), *_PREPARE_RESET, *calls])

    def reset(self, connection: Any) -> str:
        """``RESET``, with what is worth it by its name."""
        return _PREPARED_RESET if connection in self._on else RESET

    def done(self, connection: Any) -> None:
        """That text was carried out."""
        self._on.add(connection)


def rows_in(answer: str | None) -> int:
    """How many rows the last statement of a text gave, by the server's answer to it (``SELECT 1``)."""
    if answer is None or not answer.startswith("SELECT "):
        raise StoreError(f"PostgreSQL answered {answer!r} where rows were asked for.")
    return int(answer[7:])


@lru_cache(maxsize=100)
def _parts(sql: str) -> list[str]:
    """Text and names of parameters, in turn."""
    return _PARAMETER.split(sql)


def _literal(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, int):
        return f"({value:d})"
    if isinstance(value, bytes):
        return f"decode('{value.hex()}', 'hex')"
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} cannot be spelled out")
    if _HARMLESS.fullmatch(value):
        return f"'{value}'"
    return f"convert_from(decode('{value.encode().hex()}', 'hex'), 'utf8')"

"""Statements that sessions have prepared on a connection of asyncpg's, for the next operation on it.

SQLAlchemy prepares every statement, and keeps it with its own adapter of the connection. Ours is made for one
operation, so they are kept with the connection itself: bare, and lent to each operation with a face that is
cut at its end, as the connection is.
"""

from __future__ import annotations

import weakref
from typing import Any

from sqlalchemy.util import LRUCache

MOST = 100
"""Statements on one connection, as in SQLAlchemy's own pools."""

_kept: weakref.WeakKeyDictionary[Any, LRUCache[str, Any]] = weakref.WeakKeyDictionary()


def prepared_on(face: Any) -> PreparedStatements | None:
    """What is prepared on the connection that this face is lent of. None where nothing may be kept: behind a
    pooler a statement stays with a session of the server's that is another one's by the next operation."""
    connection = face._target
    if connection._config.statement_cache_size == 0:
        return None
    if connection not in _kept:
        _kept[connection] = LRUCache(MOST)
    return PreparedStatements(_kept[connection], face)


class PreparedStatements:
    """As the adapter wants its cache: by text, a statement, its columns, and when it was prepared."""

    def __init__(self, kept: LRUCache[str, Any], face: Any) -> None:
        self._bare = kept
        self._face = face

    def __contains__(self, text: str) -> bool:
        return text in self._bare

    def __getitem__(self, text: str) -> Any:
        statement, columns, since = self._bare[text]
        return self._face._lent.faced(statement), columns, since

    def __setitem__(self, text: str, prepared: Any) -> None:
        statement, columns, since = prepared
        self._bare[text] = statement._target, columns, since

"""The service's own statements, from one text for every database.

A ``Run`` carries out one statement and gives its rows. There are two: ``database.run`` commits by itself;
``database.within(connection)`` is part of the transaction that samekey has opened, and commits or rolls back
together with samekey's own record. SQL is written with ``$1``, ``$2`` …; ``dialects`` says what else holds.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .dialects import DIALECTS, DatabaseUnavailable, Row

__all__ = ["Database", "DatabaseUnavailable", "Row", "Run"]

Run = Callable[..., Awaitable[list[Row]]]


class Database:
    """One database, reached by a URL that samekey takes too."""

    def __init__(self, url: str) -> None:
        scheme = url.partition(":")[0]
        if scheme not in DIALECTS:
            raise ValueError(f"DATABASE_URL begins with {scheme}:; it must be one of {', '.join(DIALECTS)}.")
        self.dialect = DIALECTS[scheme](url)

    async def run(self, sql: str, *arguments: Any) -> list[Row]:
        """One statement, committed by itself. ``DatabaseUnavailable`` if that cannot be done now."""
        with self._in_our_words():
            return await self.dialect.run(sql, arguments)

    def within(self, connection: Any) -> Run:
        """Statements in the transaction of a connection that samekey gave to a handler, a phase or a job."""

        async def run(sql: str, *arguments: Any) -> list[Row]:
            with self._in_our_words():
                return await self.dialect.run_within(connection, sql, arguments)

        return run

    async def now(self) -> int:
        """Milliseconds since 1970 by the database's clock, which is what samekey's times are by."""
        rows = await self.run(self.dialect.now)
        return int(rows[0][0])

    async def close(self) -> None:
        await self.dialect.close()

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        """A database that is away or busy is one error, whatever its driver calls it."""
        try:
            yield
        except self.dialect.away() as error:
            raise DatabaseUnavailable(f"The database could not be used: {error}") from error

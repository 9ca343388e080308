"""What a driver is: it executes one statement, and opens a transaction. Nothing else is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ..core.program import Row, Statement


class _Late:
    """In place of a connection: one of ours, whose transaction begins with its first statement, in the same
    round trip. PostgreSQL only. That statement has no columns, and the session is not used before it."""

    def __repr__(self) -> str:
        return "LATE"


LATE: Final = _Late()


class _Short:
    """In place of a connection: one of ours, for a program of ours and nobody's code between its statements.
    The server may end it where it falls silent: its process stands still, or its machine is gone."""

    def __repr__(self) -> str:
        return "SHORT"


SHORT: Final = _Short()


class Session(Protocol):
    """One transaction on one connection. It may begin as late as its first use."""

    @property
    def connection(self) -> Any:
        """What the handler writes through. Its own commit is refused where the driver can."""

    def wrote(self) -> bool | None:
        """Whether anything was written so far; None where only the database can tell."""

    def in_transaction(self) -> bool:
        """Whether the transaction is still open, as far as the driver can tell by itself."""

    def execute(self, statement: Statement) -> Sequence[Row]: ...

    def commit(self) -> None:
        """Commits and gives the connection back. ``CommitUncertain`` if nobody can tell."""

    def rollback(self) -> None:
        """Rolls back and gives the connection back. Never raises."""


class Lending(Protocol):
    """What a session on PostgreSQL has besides, sync and async: it has no lease that would end by itself.

    ``expire_after`` and ``sent`` are there on every database.
    """

    def sent(self) -> int:
        """How many statements were sent so far, by whomever: who knows its own knows of others'."""

    def cut(self) -> None:
        """The handler has ended: nothing that was lent to it can be used any more.

        ``UnfinishedWork`` if it was being used, ``FailedTransaction`` if a statement of it was interrupted;
        then everything is rolled back already.
        """

    def give_up(self) -> None:
        """Ends the session without waiting for anybody: the connection is closed, the server rolls back."""

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Gives it up, and calls ``then``, if the handler has not ended by that time."""


class Ready(Protocol):
    """Makes a connection of ours what those of the user's own pool are: their types, their settings."""

    counts_found_rows: bool
    """MySQL: whether an UPDATE counts the rows that it found, also those that stay as they were."""

    def ready(self, connection: Any) -> None:
        """Before each transaction on it."""

    async def ready_async(self, connection: Any) -> None: ...


class Driver(Protocol):
    """Synchronous I/O with one database. Safe to use from many threads and after a fork."""

    def execute(self, statement: Statement) -> Sequence[Row]:
        """One statement that commits by itself."""

    def open(self, connection: Any = None) -> Session:
        """A transaction, on a connection of ours or on the user's; or see ``LATE`` and ``SHORT``."""

    def close(self) -> None: ...


class AsyncSession(Protocol):
    """``Session`` for async code."""

    @property
    def connection(self) -> Any: ...

    def wrote(self) -> bool | None: ...

    def in_transaction(self) -> bool: ...

    async def execute(self, statement: Statement) -> Sequence[Row]: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class AsyncDriver(Protocol):
    """``Driver`` for async code."""

    async def execute(self, statement: Statement) -> Sequence[Row]: ...

    async def open(self, connection: Any = None) -> AsyncSession: ...

    async def close(self) -> None: ...

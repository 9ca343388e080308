"""A PyMySQL connection whose transaction is watched: whether it still stands, and if not, how it ended.

Every answer of the server's but an error says whether a transaction is open. So whoever sees all answers
knows of a transaction that ended before samekey ended it. A rollback of the server's own (a deadlock) is
proof that nothing stands, for as long as nothing else was sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, cast

from pymysql.connections import Connection as PlainConnection  # type: ignore[import-untyped]
from pymysql.constants import COMMAND  # type: ignore[import-untyped]
from pymysql.err import MySQLError  # type: ignore[import-untyped]

from .text import ends_transaction, may_hide_an_end
from .url import IN_TRANSACTION, MULTI_STATEMENTS


class Ended(Enum):
    """What became of a transaction that ended before samekey ended it."""

    ROLLED_BACK = "rolled back"
    """The server gave it up (a deadlock, a lock that could not be had): nothing stands."""
    SOMEHOW = "somehow"
    """By a statement that went through, or may have committed before it failed: nobody can tell."""


class Watched(PlainConnection):  # type: ignore[misc]
    """What a connection is while a handler has it."""

    in_hands: bool = False
    """Whether a handler has it. Our own migrations end transactions as they like."""
    certain: bool = True
    """Whether nothing that was sent may have ended the transaction and begun another."""
    ended: Ended | None = None
    _user: int | None = None
    """The thread that is in the middle of something."""
    _refused: bool = False
    """Whether the server has just answered with an error, which says nothing of the transaction."""
    _patience: float | None = None
    """Seconds that the server has to say whether the transaction stands."""
    _read_timeout: float | None
    """PyMySQL's."""

    @contextmanager
    def _using(self) -> Iterator[None]:
        before, self._user = self._user, threading.get_ident()
        try:
            yield
        finally:
            if before is None:
                self.look_whether_it_stands()
            self._user = before

    def look_whether_it_stands(self) -> None:
        """After whatever was sent."""
        refused, self._refused = self._refused, False
        if not self.in_hands:
            return
        if refused and self.open:
            self._ask()
        if self.open and self.ended is None and not self.server_status & IN_TRANSACTION:
            self.ended = Ended.ROLLED_BACK if refused and self.certain else Ended.SOMEHOW
            self._found_ended()

    def _found_ended(self) -> None:
        """For those that do something about it."""

    def _ask(self) -> None:
        """Any answer brings the server's status, except for an error."""
        patience, self._read_timeout = self._read_timeout, self._patience
        try:
            self._execute_command(COMMAND.COM_PING, b"")
            self._read_ok_packet()
        except Exception:
            self._force_close()  # then the server rolls back
        finally:
            self._read_timeout = patience

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        with self._using():
            return super().query(sql, unbuffered)

    def next_result(self, unbuffered: bool = False) -> Any:
        with self._using():
            return super().next_result(unbuffered)

    def _read_packet(self, *arguments: Any, **options: Any) -> Any:
        if self._user != threading.get_ident():
            with self._using():  # rows that are fetched one by one
                return self._read_packet(*arguments, **options)
        try:
            packet = super()._read_packet(*arguments, **options)
        except MySQLError:
            self._refused = True
            raise
        if packet.is_eof_packet():  # PyMySQL does not keep the status that comes with rows
            self.server_status = int.from_bytes(packet.get_all_data()[3:5], "little")
        return packet


NOTES: Final = ("in_hands", "certain", "ended", "_user", "_refused", "_patience")
"""What a watched connection has that another has not."""


class OwnWatched(Watched):
    """The user's own connection, which does all that it did before."""

    def _execute_command(self, command: int, sql: Any) -> None:
        if command == COMMAND.COM_QUERY:
            self.look_whether_it_stands()  # PyMySQL's own commit() and begin() keep the status too late
            text = sql if isinstance(sql, str) else bytes(sql).decode("latin-1")
            if self.ended is Ended.ROLLED_BACK:
                if text.strip("; \n").lower() != "rollback":
                    self.ended = Ended.SOMEHOW  # it goes on without a transaction, or in another
            elif ends_transaction(text) or may_hide_an_end(text) or self._are_several(text):
                self.certain = False  # should its answer be lost, nobody can tell what stands
        super()._execute_command(command, sql)

    def _are_several(self, text: str) -> bool:
        return bool(self.client_flag & MULTI_STATEMENTS) and ";" in text.rstrip("; \n")


_WATCHED: Final[dict[type, type]] = {}


def unwrapped(connection: Any) -> Any:
    """The connection itself, where a tracer has put a proxy around it."""
    while not issubclass(type(connection), PlainConnection):
        connection = connection.__wrapped__
    return connection


def watch(connection: Any, patience: float) -> Watched:
    """The user's own connection, watched until ``leave_alone``. It stays the same object: others hold it."""
    kind: type = type(connection)
    if kind not in _WATCHED:
        _WATCHED[kind] = type(kind.__name__, (OwnWatched, kind), {})
    connection.__class__ = _WATCHED[kind]
    connection.in_hands, connection._patience = True, patience
    return cast(Watched, connection)


def leave_alone(connection: Any) -> None:
    connection.__class__ = type(connection).__bases__[1]
    for name in NOTES:
        connection.__dict__.pop(name, None)

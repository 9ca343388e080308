"""The face of a psycopg connection that a handler is lent.

It is a connection of the same class on the same session, with settings of its own (row factory, adapters,
handlers), which go with it. It refuses to end the transaction or to be closed. It is cut when the operation
ends, with every cursor, copy and savepoint that came from it: all that they send goes through ``wait``.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Final, NoReturn

import psycopg
from psycopg._cursor_base import BaseCursor
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable

from ...errors import CommitRefused, OperationOver
from ..sqltext import CLOSE_REFUSED, COMMIT_REFUSED, leaves_traces, may_change_role

Connection = psycopg.Connection[Any]


class PsycopgLoan:
    """What becomes of a connection while it is lent."""

    __slots__ = ("cut", "escaped", "interrupted", "role", "sent", "traces")

    def __init__(self) -> None:
        self.cut = False
        """The operation has ended: nothing more goes through."""
        self.interrupted = False
        """Somebody stopped waiting in the middle, so nobody knows what the server still sends."""
        self.traces = False
        """Something stays in the session that the next holder must not meet."""
        self.escaped = False
        """The transaction has ended before samekey ended it: nothing more goes through."""
        self.role = False
        """Statements of ours may run with other rights."""
        self.sent = 0
        """How many statements were sent through a face, whoever sent them."""


def face_of(connection: Connection, lent: PsycopgLoan) -> Connection:
    """A face of the connection, of the same class."""
    kind: Any = type(connection)
    face: Any = object.__new__(_face_class(kind))
    face.__dict__.update(connection.__dict__)  # the session, its lock and its prepared statements are shared
    face._samekey_lent = lent
    face._samekey_real = connection
    if face._adapters is not None:
        face._adapters = AdaptersMap(face._adapters)
    result: Connection = face
    return result


def our_face(face: Connection) -> Connection:
    """A face for one statement of ours: it goes the handler's way, into its pipeline too, and is cut with
    the handler's; its text is not looked at."""
    made: Any = object.__new__(type(face))
    made.__dict__.update(face.__dict__)
    made._samekey_ours = True
    result: Connection = made
    return result


def behind(connection: Connection) -> Connection:
    """The connection itself, where this is a face of one."""
    real: Connection = getattr(connection, "_samekey_real", connection)
    return real


@cache
def _face_class(kind: Any) -> Any:
    return type(f"Lent{kind.__name__}", (_Face, kind), {"__module__": kind.__module__})


class _Face:
    """What differs from the connection. It stands before the connection's class in a class of both."""

    _samekey_lent: PsycopgLoan
    _samekey_real: Connection
    _samekey_ours = False

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Every statement of whoever has this face, or something that came from it, passes here.

        The lock of the connection is held meanwhile, and while it is cut.
        """
        try:
            self._look_whether_it_stands()
            self._check()
            if not self._samekey_ours:
                self._look(gen)
        except BaseException:
            gen.close()
            raise
        if getattr(gen, "gi_code", None) is None or gen.gi_code.co_name not in _SEND_NO_TEXT:
            self._samekey_lent.sent += 1
        try:
            return super().wait(gen, *args, **kwargs)  # type: ignore[misc]
        except Exception:
            raise
        except BaseException:
            self._samekey_lent.interrupted = True
            raise
        finally:
            self._look_whether_it_stands()

    def _look(self, gen: Any) -> None:
        """At the text that is about to be sent, whoever made the cursor. It has not begun: its arguments are
        all that it has."""
        lent, frame = self._samekey_lent, getattr(gen, "gi_frame", None)
        given = {} if frame is None else frame.f_locals
        query = given.get("query", given.get("statement"))
        if query is None:
            is_cursors = isinstance(given.get("self"), BaseCursor)
            lent.traces = lent.traces or (is_cursors and gen.gi_code.co_name not in _SEND_NO_TEXT)
            return
        text = _text_of(query, self._samekey_real)
        if text is None:
            return
        strings = self._samekey_real.pgconn.parameter_status(b"standard_conforming_strings")
        lent.traces = leaves_traces(text, backslashes=strings == b"off") or lent.traces
        lent.role = lent.role or may_change_role(text)

    def _look_whether_it_stands(self) -> None:
        """Once the transaction has ended, by whatever way, every statement would commit by itself."""
        lent = self._samekey_lent
        if not lent.cut and self._samekey_real.pgconn.transaction_status == TransactionStatus.IDLE:
            lent.escaped = True

    @property
    def pgconn(self) -> Any:
        """The bare connection of libpq. Who takes it by hand may leave anything in the session."""
        if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] != "psycopg":
            self._samekey_lent.traces = True
        return self.__dict__["pgconn"]

    @pgconn.setter
    def pgconn(self, found: Any) -> None:
        self.__dict__["pgconn"] = found

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return super().cursor(*args, **kwargs)  # type: ignore[misc]

    @property
    def closed(self) -> bool:
        return self._samekey_lent.cut or bool(self._samekey_real.closed)

    # What stays with the driver's object

    def add_notice_handler(self, callback: Any) -> None:
        self._samekey_lent.traces = True
        self._samekey_real.add_notice_handler(callback)

    def add_notify_handler(self, callback: Any) -> None:
        self._samekey_lent.traces = True
        self._samekey_real.add_notify_handler(callback)

    # What is not the handler's to do

    def __enter__(self) -> NoReturn:
        raise CommitRefused(COMMIT_REFUSED)  # psycopg commits and closes at the end of such a block

    def __exit__(self, *error: object) -> None:
        return None

    def __del__(self) -> None:
        """Nothing ends with a face."""

    def commit(self) -> NoReturn:
        raise CommitRefused(COMMIT_REFUSED)

    def rollback(self) -> NoReturn:
        raise CommitRefused(COMMIT_REFUSED)

    def tpc_begin(self, *_: Any) -> NoReturn:
        raise CommitRefused(COMMIT_REFUSED)

    def tpc_prepare(self, *_: Any) -> NoReturn:
        raise CommitRefused(COMMIT_REFUSED)

    def tpc_commit(self, *_: Any) -> NoReturn:
        raise CommitRefused(COMMIT_REFUSED)

    def tpc_rollback(self, *_: Any) -> NoReturn:
        raise CommitRefused(COMMIT_REFUSED)

    def close(self) -> NoReturn:
        raise CommitRefused(CLOSE_REFUSED)

    def cancel(self) -> None:
        self._check()
        self._samekey_real.cancel()

    def cancel_safe(self, **kwargs: Any) -> None:
        self._check()
        self._samekey_real.cancel_safe(**kwargs)

    def _check(self) -> None:
        if self._samekey_lent.cut or self._samekey_lent.escaped:
            raise OperationOver


_SEND_NO_TEXT: Final = frozenset({"_fetch_gen", "_close_gen", "_scroll_gen", "_stream_fetchone_gen"})
"""What cursors do with a text that was sent before."""


def _text_of(query: Any, connection: Connection) -> str | None:
    """The text that will be sent; None where psycopg itself will refuse it."""
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        try:
            return query.decode(connection.info.encoding)
        except (UnicodeError, LookupError):
            return query.decode("latin-1")
    if isinstance(query, Composable):
        return query.as_string(connection)
    pieces = getattr(query, "strings", None)  # a template string
    return "".join(pieces) if isinstance(pieces, tuple) else None

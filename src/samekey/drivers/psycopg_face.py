"""The face of a psycopg connection that a handler is lent.

It is a connection of the same class on the same session, with settings of its own (row factory, adapters,
handlers), which go with it. It refuses to end the transaction or to be closed. It is cut when the operation
ends, with every cursor, copy and savepoint that came from it: all that they send goes through ``wait``.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.sql import Composable

from ..errors import CommitRefused, OperationOver
from .sqltext import CLOSE_REFUSED, COMMIT_REFUSED, leaves_traces

Connection = psycopg.Connection[Any]


class Lent:
    """What becomes of a connection while it is lent."""

    __slots__ = ("cut", "interrupted", "traces")

    def __init__(self) -> None:
        self.cut = False
        """The operation has ended: nothing more goes through."""
        self.interrupted = False
        """Somebody stopped waiting in the middle, so nobody knows what the server still sends."""
        self.traces = False
        """Something stays in the session that the next holder must not meet."""


def face_of(connection: Connection, lent: Lent) -> Connection:
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


@cache
def _face_class(kind: Any) -> Any:
    return type(f"Lent{kind.__name__}", (_Face, kind), {"__module__": kind.__module__})


class _Face:
    """What differs from the connection. It stands before the connection's class in a class of both."""

    _samekey_lent: Lent
    _samekey_real: Connection

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Every statement of whoever has this face, or something that came from it, passes here.

        The lock of the connection is held meanwhile, and while it is cut.
        """
        if self._samekey_lent.cut:
            gen.close()
            raise OperationOver
        try:
            return super().wait(gen, *args, **kwargs)  # type: ignore[misc]
        except Exception:
            raise
        except BaseException:
            self._samekey_lent.interrupted = True
            raise

    @property
    def cursor_factory(self) -> Any:
        return _watched(self.__dict__["cursor_factory"])

    @cursor_factory.setter
    def cursor_factory(self, kind: Any) -> None:
        self.__dict__["cursor_factory"] = kind

    @property
    def server_cursor_factory(self) -> Any:
        return _watched(self.__dict__["server_cursor_factory"])

    @server_cursor_factory.setter
    def server_cursor_factory(self, kind: Any) -> None:
        self.__dict__["server_cursor_factory"] = kind

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
        if self._samekey_lent.cut:
            raise OperationOver


@cache
def _watched(kind: Any) -> Any:
    """A class of cursors whose texts are looked at before they are sent."""
    if not isinstance(kind, type) or issubclass(kind, _Watched):
        return kind
    return type(kind.__name__, (_Watched, kind), {"__module__": kind.__module__})


class _Watched:
    """What differs from the cursor."""

    def _look(self, query: Any) -> None:
        face: Any = self.connection  # type: ignore[attr-defined]
        face._check()
        text = _text_of(query, face)
        if text is not None and leaves_traces(text):
            face._samekey_lent.traces = True

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self._look(query)
        return super().execute(query, *args, **kwargs)  # type: ignore[misc]

    def executemany(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self._look(query)
        return super().executemany(query, *args, **kwargs)  # type: ignore[misc]

    def stream(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self._look(query)
        return super().stream(query, *args, **kwargs)  # type: ignore[misc]

    def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        self._look(statement)
        return super().copy(statement, *args, **kwargs)  # type: ignore[misc]


def _text_of(query: Any, connection: Connection) -> str | None:
    """The text that will be sent; None where psycopg itself will refuse it."""
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode("latin-1")
    if isinstance(query, Composable):
        return query.as_string(connection)
    pieces = getattr(query, "strings", None)  # a template string
    return "".join(pieces) if isinstance(pieces, tuple) else None

"""Whether an error of a job's own write will last: then trying the same write again cannot help.

A lock, a deadlock, a server that restarts: gone in a moment, and the provider need not be called again for
it. A constraint, a table that is not there, a mistake in the code: there tomorrow as well. What nobody can
tell counts as one that may pass.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from ..drivers.mysql.errors import from_code
from ..drivers.postgres.sqlstate import from_sqlstate
from ..errors import CommitRefused, ConfigurationError, HandlerError, StoreError

_MISTAKES: Final = (
    CommitRefused,
    ConfigurationError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    NameError,
    ImportError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
)
_PASSING_SQLITE: Final = frozenset(
    {
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_NOMEM),
    }
)
_DEEP: Final = 16
"""Errors in a chain of causes that are looked at; more is a loop."""


def will_last(error: BaseException) -> bool:
    """By whatever in its chain of causes is known: one that may pass outweighs those that will last."""
    known = [found for one in _chain(error) if (found := _lasts(one)) is not None]
    return bool(known) and all(known)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_DEEP):
        if error is None:
            return
        yield error
        driver = getattr(error, "orig", None)  # what SQLAlchemy wraps
        error = driver if isinstance(driver, BaseException) else error.__cause__


def _lasts(error: BaseException) -> bool | None:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str) and len(state) == 5:
        return _refused(from_sqlstate(state, ""))
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        return code & 0xFF not in _PASSING_SQLITE
    if type(error).__module__.partition(".")[0] in ("pymysql", "MySQLdb", "mysql"):
        number = error.args[0] if error.args else None
        return _refused(from_code(number, "")) if isinstance(number, int) else None
    if isinstance(error, OSError | StoreError):
        return False
    if isinstance(error, _MISTAKES):
        return True
    return None


def _refused(meaning: Exception) -> bool:
    """Whether the server has said no, rather than not now."""
    return type(meaning) is StoreError or isinstance(meaning, ConfigurationError | HandlerError)

"""What code of an operation would write past its transaction, found on every connection of Django's.

Another thread has another connection, another alias has one too, and a task that outlives its view finds the
connection in autocommit again: what is written there stands although the operation failed, and each retry
writes it once more. So it is refused before it is sent.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ..engine.within import current_transaction
from ..errors import ConfigurationError, OperationOver
from . import conf
from .before import is_bare, refuse_before_claim
from .driver import AsyncDjangoSession
from .session import DjangoSession, SavepointSession


def watch(connection: Any, **_: Any) -> None:
    """Receives ``connection_created``. First in the list: ``execute_wrapper()`` takes off the last one."""
    if _refuse_outside not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _refuse_outside)


def _refuse_outside(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    """Around every query that goes through Django."""
    wrapper = context["connection"]
    if is_bare(wrapper.alias) and (writes(sql, wrapper) or _LOCKS.search(str(sql))):
        refuse_before_claim(wrapper.alias)
    transaction = current_transaction.get()
    session = None if transaction is None else transaction.session
    if isinstance(session, AsyncDjangoSession):
        session = session.session
    if isinstance(session, DjangoSession | SavepointSession):
        own = session.connection
        if not (wrapper is own and session.is_open) and writes(sql, wrapper):
            _refuse(wrapper.alias, own.alias, is_open=session.is_open)
    return execute(sql, params, many, context)


def _refuse(alias: str, own: str, *, is_open: bool) -> None:
    if alias != own:
        if alias not in conf.read().other_databases:
            raise ConfigurationError(_OTHER_ALIAS.format(alias=alias, own=own))
    elif is_open:
        raise ConfigurationError(_OTHER_THREAD.format(alias=alias))
    else:
        raise OperationOver(_OVER)


def writes(sql: Any, wrapper: Any) -> bool:
    """Whether a statement may write: whatever is not known to read."""
    if hasattr(sql, "as_string"):  # psycopg's composed ones
        sql = sql.as_string(wrapper.connection)
    text = sql.decode("utf-8", "replace") if isinstance(sql, bytes) else str(sql)
    first = _FIRST.match(text)
    word = "" if first is None else first[1].lower()
    if word in ("with", "explain"):
        return _WRITES.search(text) is not None
    return word not in _READS


_FIRST: Final = re.compile(r"(?:[\s(;]|--[^\n]*+(?:\n|$)|/\*.*?\*/)*+([a-z]+)", re.IGNORECASE | re.DOTALL)
_WRITES: Final = re.compile(r"\b(?:insert|update|delete|replace|merge)\b", re.IGNORECASE)
_LOCKS: Final = re.compile(r"\bfor\s+(?:no\s+key\s+)?update\b", re.IGNORECASE)
_READS: Final = frozenset(
    {
        *("select", "values", "table", "show", "describe", "desc", "pragma", "declare", "fetch", "close"),
        *("set", "use", "begin", "start", "savepoint", "release", "rollback", "commit"),
    }
)
"""And what only frames a transaction: what would be written inside of it is refused."""

_OTHER_ALIAS: Final = (
    "In an operation on the database {own!r} something was to be written to {alias!r}, and was not sent: it "
    "would stand whatever becomes of the operation, once for each retry. Write it in "
    "transaction.on_commit(…), which runs after the commit, or declare the view leased. What shall stand in "
    "any case (a log, a cache) is allowed by SAMEKEY['OTHER_DATABASES'] = [{alias!r}]."
)
_OTHER_THREAD: Final = (
    "In an operation something was to be written to {alias!r} from another thread, on a connection of its "
    "own, and was not sent: it would stand whatever becomes of the operation. Use the ORM's async methods or "
    "sync_to_async(…) as it is, without thread_sensitive=False, and not asyncio.to_thread or threads of your "
    "own."
)
_OVER: Final = (
    "The operation in which this was started is over, so it is not written: it would stand although the "
    "operation may have failed, once for each retry. Await every task before the view returns (gather leaves "
    "the others running when one fails: use asyncio.TaskGroup), or do it in transaction.on_commit(…). What "
    "outlives its request is started with context=contextvars.Context()."
)

"""What would go past an operation's transaction, on the engine that ``Idempotency`` was given.

A session of another class, ``engine.begin()``, a bare connection: what is written there stands although the
operation failed, and each retry writes it once more. So what is known to read is let through, and nothing
else is sent.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.sql.expression import TextClause

from ..engine.within import current_transaction
from ..errors import ConfigurationError
from .before import calls_nothing_else, without_comments
from .joined import OperationConnection, reads

_PAST: Final = (
    "In an operation something was to be sent past its transaction, on the engine that Idempotency was "
    "given, that is not known to read only, and was not sent: what it writes would stand whatever becomes of "
    "the operation. Make your sessionmaker with class_=samekey.sqlalchemy.Session (AsyncSession, or those of "
    "samekey.sqlmodel), or use current_operation().session. What shall stand in any case is written through "
    "an engine of its own."
)
_BARE: Final = (
    "In an operation a bare connection was taken from the pool of the engine that Idempotency was given. "
    "Nobody could see what is written over it, and that would stand whatever becomes of the operation. Use "
    "current_operation().connection, which is the driver's own in the operation's transaction. What shall "
    "stand in any case is written through an engine of its own."
)

_LOOKS: Final = re.compile(
    r"\s*(?:show|describe|desc|explain|values|set)\b|\s*pragma\s+[\w.\"]+\s*(?:\([^)]*\)\s*)?;?\s*$",
    re.IGNORECASE,
)
"""How a text begins that neither is a query nor writes."""


def watch(engine: Engine) -> None:
    """Once for each engine, however many ``Idempotency`` are on it."""
    if not event.contains(engine, "before_cursor_execute", _refuse_outside):
        event.listen(engine, "before_cursor_execute", _refuse_outside)
        event.listen(engine, "checkout", _refuse_bare)


def _is_in_operation() -> bool:
    transaction = current_transaction.get()
    return transaction is not None and not transaction.over


def _refuse_outside(
    connection: Any, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: bool
) -> None:
    """Before everything that is sent over a connection of the engine's."""
    if not _is_in_operation() or isinstance(connection, OperationConnection):
        return
    sent = getattr(context, "compiled", None) or statement
    if not reads(sent) and not _only_looks(sent):
        raise ConfigurationError(_PAST)


def _only_looks(sent: Any) -> bool:
    clause = getattr(sent, "statement", sent)
    if isinstance(clause, TextClause):
        clause = clause.text
    if not isinstance(clause, str):
        return False
    said = without_comments(clause)
    found = _LOOKS.match(said)
    return found is not None and (found[0] == said or calls_nothing_else(said))


def _refuse_bare(_dbapi: Any, _record: Any, _proxy: Any) -> None:
    """A connection leaves the pool. What SQLAlchemy's own ``Connection`` sends is seen; others are not."""
    if _is_in_operation() and not _is_for_a_connection():
        raise ConfigurationError(_BARE)


_TAKERS: Final = (Connection.__init__.__code__, Connection._revalidate_connection.__code__)


def _is_for_a_connection() -> bool:
    """Whether the pool was asked by a ``Connection``. The event does not tell."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code not in _TAKERS:
        frame = frame.f_back
    return frame is not None

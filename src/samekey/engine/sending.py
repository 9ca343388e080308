"""From where an outside call is made: the effect or the job whose key it carries, or the operation itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .jobs import JobContext
from .operation import Operation, _current
from .phased.definition import Effect

Sender = Operation | Effect | JobContext

_sending: ContextVar[tuple[Effect | JobContext, Operation | None] | None] = ContextVar(
    "samekey_sending", default=None
)


@contextmanager
def sends(source: Effect | JobContext) -> Iterator[None]:
    """Calls inside are this one's, unless an operation is begun in between: then they are that one's."""
    token = _sending.set((source, _current.get()))
    try:
        yield
    finally:
        _sending.reset(token)


def sender() -> Sender | None:
    """Whose call one would be that is made here. None: nobody's."""
    innermost, found = _current.get(), _sending.get()
    return found[0] if found is not None and found[1] is innermost else innermost

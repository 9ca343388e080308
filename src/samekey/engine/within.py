"""The transaction that a user's function runs in, for what joins it by itself: SQLAlchemy's sessions, say.

A connection is handed to those who ask for it. A guest is told nothing: it looks for the transaction when it
is first used, and at the end of the function it is asked to send what it still holds back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ..errors import HandlerError

logger = logging.getLogger("samekey")


class Guest(Protocol):
    """What has joined a transaction, or may join it, and may hold something back."""

    def must_be_free(self) -> None:
        """Right before a claim: raises where it could not join an operation's transaction any more."""

    def settle(self) -> None:
        """Sends what was held back; raises where it cannot stand for what it was given."""

    async def settle_async(self) -> None: ...

    def drop(self, transaction: SharedTransaction) -> None:
        """The transaction falls: what was held back is not sent by anybody any more."""


_line: ContextVar[tuple[weakref.ref[asyncio.Task[Any]], ...]] = ContextVar("samekey_line", default=())
"""The task that runs, and those that it comes from, as far as they have been noted."""


def here() -> asyncio.Task[Any] | None:
    """The task that runs; it is noted in its context, which the tasks that it starts will have too."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None  # a thread
    if task is not None and not _in_line(task):
        _line.set((*_line.get(), weakref.ref(task)))
    return task


def is_ours(task: asyncio.Task[Any] | None) -> bool:
    """Whether what was made in that task may be used by what runs here: by this task, by one that waits for
    it, or by one that has ended. What this one has started, and what goes on beside it, is its own."""
    return task is None or task.done() or here() is task or _in_line(task)


def _in_line(task: asyncio.Task[Any]) -> bool:
    return any(one() is task for one in _line.get())


class Binding(Protocol):
    """What ``Idempotency`` was given in the place of a URL: the database as some library knows it."""

    counts_found_rows: bool
    """MySQL: as ``Ready`` has it."""

    @property
    def url(self) -> str: ...

    def ready(self, connection: Any) -> None:
        """Makes a connection of ours what the library's own are, before each transaction."""

    async def ready_async(self, connection: Any) -> None: ...

    def must_fit(self, function: Callable[..., Any]) -> None:
        """``ConfigurationError`` for a function that cannot use the library's sessions."""

    def session(self, transaction: SharedTransaction) -> Any:
        """A session in this transaction."""


class SharedTransaction:
    """One transaction of samekey's, while a function of the user's runs in it."""

    def __init__(
        self, session: Any, binding: Binding | None, *, sync: bool, visitors: Sequence[Guest] = ()
    ) -> None:
        self._visitors = visitors
        self.session = session
        """The driver's."""
        self.binding = binding
        self.sync = sync
        self.settled = False
        """The function has returned: from here on its guests may read, until the end, and no more."""
        self.over = False
        self.broken: HandlerError | None = None
        """Why it must not be committed, whatever the function says."""
        self.guests: list[Guest] = []
        self.shared: Any = None
        """What the guests share."""
        self.joining = threading.Lock()
        """Around the making of that."""
        self._made: Any = None

    @property
    def guests_session(self) -> Any:
        """One session for everybody who asks."""
        if self._made is None and self.binding is not None:
            self._made = self.binding.session(self)
        return self._made

    def settle(self) -> None:
        """The function has returned: what its guests hold back is sent now."""
        for guest in (*self._visitors, *self.guests):
            guest.settle()
        self.settled = True
        if self.broken is not None:
            raise self.broken

    def refuse(self) -> None:
        """The function has returned a refusal, which falls: what its guests hold back is not sent. They may
        read until the end, as after ``settle``."""
        self.settled = True
        self.drop()

    def drop(self) -> None:
        """The function has raised: what its guests hold back falls with it. Nothing is sent, and nothing is
        raised: what the function raised says more."""
        for guest in (*self._visitors, *self.guests):
            try:
                guest.drop(self)
            except Exception:
                logger.exception("What a session held back could not be dropped: roll it back yourself.")

    async def settle_async(self) -> None:
        """``settle`` for async code."""
        for guest in (*self._visitors, *self.guests):
            await guest.settle_async()
        self.settled = True
        if self.broken is not None:
            raise self.broken


current_transaction: ContextVar[SharedTransaction | None] = ContextVar("samekey_transaction", default=None)


@contextmanager
def inside(session: Any, binding: Binding | None, *, sync: bool) -> Iterator[SharedTransaction]:
    """Around a function that runs in a transaction of its own, which is not an operation's."""
    transaction = SharedTransaction(session, binding, sync=sync)
    token = current_transaction.set(transaction)
    try:
        yield transaction
    finally:
        transaction.over = True
        current_transaction.reset(token)

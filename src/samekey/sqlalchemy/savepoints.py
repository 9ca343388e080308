"""Savepoints of several sessions in one transaction, and whose writes lie in which of them.

Savepoints lie in each other, sessions do not: what is written lies in every savepoint that is open, whoever
has set it. So who wrote is noted with each, and nobody undoes what another was told that it stands.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sqlalchemy.engine import Engine
from sqlalchemy.util import await_only

from ..engine.within import SharedTransaction
from ..errors import FailedTransaction
from .lent import ThreadedConnection, command, lent_connection

if TYPE_CHECKING:
    from .joined import Part

UNDOES_ANOTHER: Final = (
    "This session was rolled back, or closed without a commit, after it had written and another session of "
    "the operation, op.enqueue() or op.connection had too: its savepoint lies around their work, which would "
    "be undone with it. So everything is rolled back. Commit a session, or roll it back, before others write."
)


@dataclass(slots=True, eq=False)
class Savepoint:
    name: str
    owner: Part
    done: bool = False
    writers: set[Part | None] = field(default_factory=set)
    """Whose writes lie in it, and in none that was set after it. None: of whoever is no session (the
    operation's jobs, what is sent through its bare connection)."""


class _Lock:
    """One thread at a time, where it matters in which order things are sent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __call__(self) -> AbstractContextManager[object]:
        return self._lock


class _Turn:
    """One task at a time: several, each with a session of its own, share one connection."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[object] | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        task = asyncio.current_task()
        if self._holder is task:
            yield  # a statement inside of one: a savepoint before it, a listener's
            return
        await_only(self._lock.acquire())
        self._holder = task
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()


class Shared:
    """What the sessions of one transaction share: its connection, and the order of their savepoints."""

    def __init__(self, transaction: SharedTransaction, engine: Engine) -> None:
        self.transaction = transaction
        self.engine = engine
        self.turn: Callable[[], AbstractContextManager[object]] = _Lock() if transaction.sync else _Turn()
        """Around a statement, and around a change of the savepoints with what is sent for it."""
        self.is_pymysql = transaction.sync and engine.dialect.name in ("mysql", "mariadb")
        self._open: list[Savepoint] = []
        self._names = 0
        self._counting = threading.Lock()
        self._speaking = 0
        self.lent = lent_connection(transaction, engine, self.speaking)
        threaded = isinstance(self.lent, ThreadedConnection)
        self.around = nullcontext if threaded else self.speaking
        """For what is sent where the connection itself does not tell when a session speaks."""
        self.unheard = lent_connection(transaction, engine, nullcontext) if threaded else self.lent
        """For cursors past SQLAlchemy: they are kept and used at any time, so nobody can tell for whom."""
        self._seen = transaction.session.sent()
        """Of the statements that were sent in the transaction: those that were ours, or have been noted."""

    def command(self, sql: str) -> None:
        with self.around():
            command(self.transaction, self.lent, sql)

    def name(self) -> str:
        self._names += 1
        return f"samekey_session_{self._names}"

    # Who has written where

    def wrote(self, who: Part | None) -> None:
        """What is written lies in the savepoint that was set last, whoever has set it, and in those around
        it."""
        if self._open:
            self._open[-1].writers.add(who)

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Around what a session sends: everything else that is sent is somebody else's."""
        self.look()
        with self._counting:
            self._speaking += 1
        try:
            yield
        finally:
            with self._counting:
                self._speaking -= 1
                self._seen = self.transaction.session.sent()

    def look(self) -> None:
        """Whether somebody else has sent something. Before each change of the savepoints."""
        with self._counting:
            sent = self.transaction.session.sent()
            if sent != self._seen and not self._speaking:
                self._seen = sent
                self.wrote(None)

    def inside(self, savepoint: Savepoint) -> set[Part | None]:
        """Who has written since it was set, and would be undone with it."""
        return set().union(*(one.writers for one in self._open[self._open.index(savepoint) :]))

    # The savepoints

    def note(self, owner: Part, name: str) -> Savepoint:
        """A savepoint is about to be set."""
        self.look()
        made = Savepoint(name, owner)
        self._open.append(made)
        return made

    def forget(self, savepoint: Savepoint) -> None:
        """It was not set after all."""
        if savepoint in self._open:
            self._open.remove(savepoint)

    def named(self, owner: Part, name: str) -> Savepoint | None:
        found = [one for one in self._open if one.owner is owner and one.name == name]
        return found[-1] if found else None

    def release(self, savepoint: Savepoint) -> list[str]:
        """It stands, as far as its session is concerned. Gives the names that can be released: those in
        which there is none that is still needed."""
        self.look()
        savepoint.done = True
        names = []
        while self._open and self._open[-1].done:
            ended = self._open.pop()
            names.append(ended.name)
            if self._open:
                self._open[-1].writers |= ended.writers
        return names

    def may_undo(self, savepoint: Savepoint) -> bool:
        """Whether it can be rolled back. False where there is nothing to undo but what others have written.
        Raises where both lie in it."""
        self.look()
        if savepoint not in self._open:
            return False
        writers = self.inside(savepoint)
        if writers <= {savepoint.owner}:
            return True
        if savepoint.owner in writers:
            self.transaction.broken = FailedTransaction(UNDOES_ANOTHER)
            raise self.transaction.broken
        return False

    def drop(self, savepoint: Savepoint) -> None:
        """It was rolled back, and those in it are gone."""
        if savepoint in self._open:
            place = self._open.index(savepoint)
            gone, self._open = self._open[place:], self._open[:place]
            for one in gone:
                one.owner.lost(one)

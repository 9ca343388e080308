"""The boundary of a handler: whether it has begun, runs, returned or raised.

Whoever calls the handler notes it here. The outcome of an operation is judged from this alone, once the
handler has ended. An edge that gave up waiting (a deadline around a thread, say) does not judge: it abandons
the run, and the caller of the handler finishes the operation when the handler really ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any


class Place(StrEnum):
    """Where a run stands."""

    NOT_BEGUN = "not_begun"
    RUNNING = "running"
    RETURNED = "returned"
    RAISED = "raised"


class Pieces(StrEnum):
    """How far the pieces of the answer were seen to come that the handler gives one by one."""

    NOT_SEEN = "not_seen"
    """There are none, or they cannot be looked at."""
    OPEN = "open"
    """They have not come to their end: there are more, or nobody wants the rest."""
    BROKEN = "broken"
    """What gives them has failed."""
    WHOLE = "whole"


class Boundary:
    """One run of one handler. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._abandoned = False
        self.place = Place.NOT_BEGUN
        self.word: int | None = None
        """The status that the handler returned, read when it did: others may change the object later on."""
        self.noted: Any = None
        """What its framework has noted before it was called: a dependency may have set a status already."""
        self.error: BaseException | None = None
        """What it raised."""
        self._home: object = None
        self._inside = 0
        self._straight = False
        self.window_open = True
        """Nothing has happened yet, for all that can be seen."""
        self.said: int | None = None
        """The status that a bare ASGI or WSGI application gave by itself, without a framework."""
        self.streams = False
        """The handler is a generator, has given its first piece, and runs on."""
        self.pieces = Pieces.NOT_SEEN
        """The end of an answer is its handler's to say: a middleware may end one that broke off."""
        self.sent_all = False
        """A bare ASGI application has sent its whole answer, and may still run."""
        self.unsure = False
        self.open_calls: set[str] = set()
        """The keys of calls to providers that went out, and whose end is not known."""
        self._parts = 0
        """A guarded function that the handler called ended in a way that would not free its own key."""
        self.wrapped = False
        """Others stand around the handler, so nothing that comes out of it is its own word."""
        self.proof: BaseException | None = None
        """What was raised inside ``before_effect()``."""

    def enter(self, noted: Any = None, *, wrapped: bool = False) -> bool:
        """Right before the handler is called. False: it must not be, because nobody waits any more."""
        with self._lock:
            if self._abandoned:
                return False
            self.noted, self.wrapped = noted, wrapped
            self.place = Place.RUNNING
            self._home = _here()
            return True

    @property
    def runs(self) -> bool:
        """Whether the handler's own lines are still being run."""
        return self.place is Place.RUNNING or self.streams or self.pieces is Pieces.OPEN

    @contextmanager
    def nothing_yet(self) -> Iterator[None]:
        """A block of which the handler says that nothing has happened yet.

        An error that leaves it is proof only while nothing can have happened before, and only on the
        handler's own way: what runs beside it may have acted.
        """
        self._inside += 1
        try:
            yield
        except BaseException as error:
            if self.window_open and self._home == _here():
                self.proof = error
            raise
        finally:
            self._inside -= 1
        self._close_window()

    @contextmanager
    def calls_a_part(self) -> Iterator[None]:
        """The handler calls another guarded function. It may have acted before, so what that one says of
        itself is no proof about the whole; and what is answered while that one runs proves nothing at all."""
        self._close_window()
        with self._lock:
            self._parts += 1
        try:
            yield
        finally:
            with self._lock:
                self._parts -= 1

    @property
    def is_unsure(self) -> bool:
        """Whether nothing that is said in the end frees the key."""
        return self.unsure or self.wrapped or self._parts > 0 or bool(self.open_calls)

    def may_act(self) -> None:
        """The handler asks for what it needs to act: a key for a provider, a place for the provider's id."""
        if not self._inside:
            self._close_window()

    def acts(self) -> None:
        """It acts, also where it says that nothing has happened yet."""
        self._close_window()

    def _close_window(self) -> None:
        self.window_open = False
        self.proof = None

    def is_proof(self) -> bool:
        """Whether what the handler raised left it straight from ``before_effect()``."""
        return self._straight and self.error is not None and self.error is self.proof

    def returned(self, word: int | None = None) -> bool:
        """True: nobody waits for the answer any more, so whoever called the handler finishes."""
        with self._lock:
            self.place, self.word = Place.RETURNED, word
            return self._abandoned

    def raised(self, error: BaseException) -> bool:
        """True as for ``returned``."""
        with self._lock:
            self.place, self.error = Place.RAISED, error
            self._straight = _left_straight(error)
            return self._abandoned

    def abandon(self) -> bool:
        """The edge waits no longer. True: the handler still runs, and its caller will finish; or it has not
        begun, and will not."""
        with self._lock:
            self._abandoned = self.place in (Place.NOT_BEGUN, Place.RUNNING)
            return self._abandoned


def _left_straight(error: BaseException) -> bool:
    """Whether nobody on the way caught the error, went on, and raised it again: then a frame stands twice."""
    seen, trace = set[int](), error.__traceback__
    while trace is not None:
        if id(trace.tb_frame) in seen:
            return False
        seen.add(id(trace.tb_frame))
        trace = trace.tb_next
    return True


def _here() -> object:
    """The task or thread that runs now."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident() if task is None else task

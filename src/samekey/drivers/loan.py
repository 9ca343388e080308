"""A connection that is lent to a handler: used by one at a time, and by nobody after the end.

A handler may leave something behind that still holds its connection: a thread, a task, the rest of a gather.
Whoever ends the transaction ends the loan first. From then on every use is refused, so nothing is written
outside of the transaction, or into the next caller's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import OperationOver, StoreBusy, TransactionGone
from .alarm import ALARM, Appointment
from .attendant import start

INTERRUPTED = (
    "A statement of the handler's was interrupted (a time-out around it, a task group that failed). It may "
    "be carried out all the same: nobody can call it back. So nothing more is sent, and everything is rolled "
    "back. Let the time-out leave the handler: a retry with the same key runs again."
)
_TRY_AGAIN = 1.0
"""Seconds after which a thread is tried to be started again."""


class Loan:
    """Who may use a connection, and until when."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.RLock()
        self._ending = threading.Lock()
        self._depth = 0
        self._over = False
        self._gone = False
        self._last_act: Callable[[], object] | None = None
        self._longest: Appointment | None = None
        self.sent = 0
        """How many statements were sent on it, whoever sent them."""

    def expire_after(self, seconds: float, end: Callable[[], object]) -> None:
        """Calls ``end``, in a thread of its own, if the loan is not over by then: its handler hangs."""

        def expire() -> None:
            if self._over:
                return
            try:
                start(threading.Thread(target=end, name="samekey-expired", daemon=True))
            except StoreBusy:
                self._longest = ALARM.after(_TRY_AGAIN, expire)

        self._longest = ALARM.after(seconds, expire)

    @property
    def over(self) -> bool:
        return self._over

    @property
    def gone(self) -> bool:
        """The transaction has ended without us. The loan's own end is still to come."""
        return self._gone

    def lose(self) -> None:
        """Called in the middle of the use that found it out: no other begins, however deep."""
        self._gone = True

    @contextmanager
    def use(self) -> Iterator[None]:
        """One statement, which the end does not interrupt. ``OperationOver`` after it, and
        ``TransactionGone``, which is one, once its transaction has ended without us."""
        with self._one_at_a_time:
            if self._over and not self._depth:
                raise OperationOver
            if self._gone:
                raise TransactionGone
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._act()

    def end(self, patience: float, sever: Callable[[], object], last_act: Callable[[], object]) -> bool:
        """Nobody begins a use from here on. Whether the connection is free of them. ``OperationOver``: it had
        been ended before, and whoever did so has the connection.

        A statement that is still running is waited for, for ``patience`` seconds; then ``sever`` makes it
        fail, and ``last_act`` gets rid of the connection: as soon as its user comes back, and not before. (A
        function of the user's own may hang inside of it.)
        """
        with self._ending:
            if self._over:
                raise OperationOver
            self._over = True
        if self._longest is not None:
            self._longest.call_off()
        if self._is_free(patience):
            return True
        self._last_act = last_act
        sever()
        if self._is_free(patience):
            self._act()  # unless its user has
        return False

    def _act(self) -> None:
        with self._ending:
            last_act, self._last_act = self._last_act, None
        if last_act is not None:
            last_act()

    def _is_free(self, patience: float) -> bool:
        if not self._one_at_a_time.acquire(timeout=patience):
            return False
        self._one_at_a_time.release()
        return True

"""The end of a worker's process, which nothing that runs in it can hold up.

SIGTERM and SIGINT ask for the stop. An async job that blocks the event loop keeps the loop from hearing it,
and C code that keeps the interpreter's lock keeps every thread from it; so the signal is also written to a
pipe, by the interpreter's own handler, which needs neither. At the other end is the guardian, a small process
that does nothing but wait: who has not ended in time after a signal is killed.

A child that a job forks has all of that too, and must not: a signal to the child is none to the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

logger = logging.getLogger("samekey")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

GUARDIAN = """
import os, select, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
worker, patience, until = int(sys.argv[1]), float(sys.argv[2]), None
while os.getppid() == worker:
    left = 5 if until is None else until - time.monotonic()
    if left <= 0:
        sys.stderr.write(
            "The worker had not ended %g s after it was told to, and was killed. Something blocks it that "
            "cannot be stopped from inside; its jobs come back when their leases run out.\\n" % patience
        )
        sys.stderr.flush()
        os.kill(worker, signal.SIGKILL)
        break
    if select.select([0], [], [], min(left, 5))[0]:
        heard = os.read(0, 64)
        if not heard:
            break
        if until is None and {signal.SIGTERM, signal.SIGINT} & set(heard):
            until = time.monotonic() + patience
"""
"""It ends with the worker: the pipe is closed then, or its parent is another."""


class Signals:
    """Hears SIGTERM and SIGINT until it is closed. Only in the main thread of a process of its own.

    ``stop`` is called in the loop, ``asked`` at once, in the middle of whatever blocks it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        stop: Callable[[], None],
        asked: Callable[[], None],
        patience: float,
    ) -> None:
        self._loop = loop
        self._stop = stop
        self._asked = asked
        self._former: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._heard) for number in SIGNALS
        }
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        self._woken = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        self._guardian = _guardian(reading, patience)
        os.close(reading)
        _open.add(self)

    def leave_to_parent(self) -> None:
        """In a child: signals are its own and end it, and the pipe is the worker's."""
        signal.set_wakeup_fd(-1)
        os.close(self._pipe)
        for number, former in self._former.items():
            # Not the former handler itself: it may be one of the worker's loop, which does not run here.
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if former is signal.SIG_IGN else usual)

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self._asked()
        try:
            self._loop.call_soon_threadsafe(self._stop)
        except RuntimeError:
            pass  # the loop is closed

    def close(self) -> None:
        """The former handlers are back, and the guardian ends."""
        _open.discard(self)
        signal.set_wakeup_fd(self._woken)
        for number, former in self._former.items():
            signal.signal(number, former)
        os.close(self._pipe)
        if self._guardian is not None:
            try:
                self._guardian.wait(5)
            except subprocess.TimeoutExpired:
                self._guardian.kill()
                self._guardian.wait()


_open: set[Signals] = set()
_mask = threading.local()


def _before_fork() -> None:
    """A child hears nothing until it has handlers of its own: the first signal may come at once."""
    if _open:
        _mask.former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    former = _mask.__dict__.pop("former", None)
    if former is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _in_child() -> None:
    while _open:
        _open.pop().leave_to_parent()
    _after_fork()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _guardian(pipe: int, patience: float) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(  # noqa: S603 - a script of our own, in our own interpreter
            [sys.executable, "-I", "-S", "-c", GUARDIAN, str(os.getpid()), str(patience)],
            stdin=pipe,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        logger.warning(
            "There is no guardian: a job that blocks this process can keep it from ending: %s", error
        )
        return None

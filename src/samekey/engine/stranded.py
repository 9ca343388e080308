"""Flows whose event loop has stopped, and will perhaps never run again: a thread carries them on.

``asyncio.run`` cancels what is left of its loop, and waits for it. Whoever makes a loop, runs one call in it
and closes it, or keeps it for the next call, does not: then the engine's own tasks stand still in the middle
of a statement, with a key, a connection or an outcome in their hands that nobody else knows of. A bound must
not need the loop of what it bounds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any, Final, assert_never

from ..drivers.alarm import ALARM
from ..drivers.attendant import start
from ..drivers.caller import NotSent
from ..drivers.fork import anew_after_fork
from ..drivers.protocol import Driver
from ..drivers.run import run
from ..errors import CommitUncertain, ConnectionLost, StoreBusy
from .breaker import Breaker
from .flow import Commit, Consult, Course, Flow, Open, Pause, Ponder, Rollback, RunIn, RunProgram, Step, T

logger = logging.getLogger("samekey")

BEAT: Final = 1.0
"""Seconds between two looks. A loop that stands still at two of them is taken for stopped; if it goes on all
the same, it finds what became of its flows."""

_STOPPED: Final = "The event loop of this operation has stopped, and with it the connection."


class Stranded:
    """The flows that event loops carry, and the thread that looks after them."""

    def __init__(self, driver: Driver, breaker: Breaker) -> None:
        self._driver = driver
        self._breaker = breaker
        self.start_anew()
        anew_after_fork(self)

    def start_anew(self) -> None:
        self._lock = threading.Lock()
        self._afloat: dict[Course[Any], int] = {}
        """With the number of looks at which the loop stood still."""
        self._looking = False

    def add(self, course: Course[Any]) -> None:
        """Until it is forgotten."""
        with self._lock:
            self._afloat[course] = 0
            looking, self._looking = self._looking, True
        if not looking:
            self._look_later()

    def forget(self, course: Course[Any]) -> None:
        with self._lock:
            self._afloat.pop(course, None)

    def _look_later(self) -> None:
        try:
            ALARM.after(BEAT, self._look)
        except StoreBusy as error:
            self._looking = False  # the next flow tries it again
            logger.warning("Nobody looks after stopped event loops just now: %s", error)

    def _look(self) -> None:
        with self._lock:
            stranded = [course for course in self._afloat if self._is_stranded(course)]
            self._looking = len(self._afloat) > 0
            looking = self._looking
        if stranded:
            try:
                start(
                    threading.Thread(
                        target=self._carry_on, args=(stranded,), name="samekey-stranded", daemon=True
                    )
                )
            except StoreBusy:
                pass  # at the next look
        if looking:
            self._look_later()

    def _is_stranded(self, course: Course[Any]) -> bool:
        if course.loop.is_closed():
            return True
        self._afloat[course] = 0 if course.loop.is_running() else self._afloat[course] + 1
        # What is wanted still waits for its loop: it may come back, and run the handler.
        wanted = course.caller is not None and not course.caller.gone
        return self._afloat[course] > 1 and not wanted

    def _carry_on(self, stranded: list[Course[Any]]) -> None:
        for course in stranded:
            try:
                taken = course.take()
                if taken is not None:
                    try:
                        course.ended = self._to_its_end(course)
                    except BaseException as error:
                        taken.set_exception(error)
                    else:
                        taken.set_result(course.ended)
                if course.let_go is not None and course.ended is not None:
                    course.let_go(course.ended)
            except BaseException:
                logger.exception("What a stopped event loop had in its hands could not be seen to")
            finally:
                self.forget(course)

    def _to_its_end(self, course: Course[T]) -> T:
        flow, step = course.flow, course.step
        try:
            if course.caller is not None:
                # Whoever wanted it is gone; what was under way may have landed.
                step = flow.throw(NotSent() if step is None else asyncio.CancelledError())
            elif step is None:
                step = next(flow)
            return self._drive(flow, step)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _drive(self, flow: Flow[T], step: Step) -> T:
        while True:
            try:
                result = self._step(step)
            except BaseException as error:  # the flow decides what it means
                step = flow.throw(error)
            else:
                step = flow.send(result)

    def _step(self, step: Step) -> Any:
        """What was under way is done again where that is safe, as after a lost connection. A transaction is
        rolled back: its connection was the loop's."""
        match step:
            case RunProgram(factory):
                with self._breaker:
                    return run(self._driver, factory)
            case Open():
                raise NotSent
            case RunIn(session, program):
                program.close()
                session.give_up()
                raise ConnectionLost(_STOPPED)
            case Commit(session):
                session.give_up()
                raise CommitUncertain(_STOPPED)
            case Rollback(session):
                return session.give_up()
            case Pause(seconds):
                return time.sleep(seconds)
            case Consult(lookup, record, desk):
                return desk.ask(lookup, record)
            case Ponder(work, _):
                return work()
            case _:
                assert_never(step)

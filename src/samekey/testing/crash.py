"""The crash enumerator: it stops a scenario at every point where a crash can matter, one after the other.

No list of points is kept by hand. The drivers are wrapped, so every statement, BEGIN, COMMIT and ROLLBACK is
two points, before and after; "after commit" is the commit whose acknowledgement never came. A scenario may
name more of them, around an effect of its own, with ``points.reach("after the effect")``.

    def scenario(points: Points) -> None:
        with closing(Idempotency(url)) as idempotency:
            points.watch(idempotency)                 # from here on its statements are points
            serve_one_request(idempotency, key=points.label)

    for crash in enumerate_crashes(scenario):
        # The process is gone. Restart: a new engine, the same request again, and whatever must hold.
        assert effects(crash.label) <= 1, crash

Each run gets a fresh ``label`` to make its keys of.

- ``enumerate_crashes`` crashes inside this process: what still runs gets ``Crash`` at its next step, and open
  transactions are lost, at the latest when the scenario closes the engine, which it must.
- ``enumerate_kills`` runs the scenario in processes of their own and ends them with SIGKILL.
- ``enumerate_cuts`` only cuts the connection: the process lives, finds ``ConnectionLost``, and must still do
  the right thing.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import secrets
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from ..errors import ConnectionLost
from ..idempotency import Idempotency
from .crash_drivers import AsyncWatchedDriver, WatchedDriver

__all__ = [
    "AsyncWatchedDriver",
    "Crash",
    "Crashed",
    "NotReproducible",
    "Point",
    "Points",
    "Scenario",
    "WatchedDriver",
    "enumerate_crashes",
    "enumerate_cuts",
    "enumerate_kills",
]


class Crash(BaseException):
    """The process dies here. Not an Exception: no handler of errors gets to see a dead process."""


class NotReproducible(AssertionError):
    """A scenario took another way than in its first run, so its points cannot be told one by one."""


@dataclass(frozen=True, slots=True)
class Point:
    """One place to crash at. Numbers begin with 1."""

    number: int
    name: str
    io: bool = True
    """Whether a driver was at work, so that a connection can be cut here; else the scenario named it."""

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


@dataclass(frozen=True, slots=True)
class Crashed:
    """A run that was stopped: where, and the label that its keys were made of."""

    point: Point
    label: str

    def __str__(self) -> str:
        return str(self.point)


Strike = Callable[[Point], NoReturn]


class Points:
    """Counts the points of one run, and strikes at one of them."""

    def __init__(self, label: str, strike_at: int | None = None, strike: Strike | None = None) -> None:
        self.label = label
        """New for every run: make the run's keys of it."""
        self.passed: list[Point] = []
        self.struck: Point | None = None
        self.dead = False
        """After a crash, nothing of this run can reach the store any more."""
        self._strike_at = strike_at
        self._strike = strike or self._crash
        self._lock = threading.Lock()

    def watch(self, idempotency: Idempotency) -> None:
        """From here on, everything that is asked of its drivers is a point.

        Its background threads keep the driver that they have: what they do is not part of the scenario. But
        a process that has died gives them nothing more to do.
        """
        drivers = idempotency.engine.drivers
        idempotency.engine.drivers = dataclasses.replace(
            drivers, sync=WatchedDriver(drivers.sync, self), aio=AsyncWatchedDriver(drivers.aio, self)
        )
        keeper = idempotency.engine.keeper
        for name in ("record_later", "give_back_later"):
            setattr(keeper, name, self._unless_dead(getattr(keeper, name)))
        stranded: Any = idempotency.engine._stranded
        stranded._carry_on = self._unless_dead(stranded._carry_on)

    def _unless_dead(self, act: Callable[..., None]) -> Callable[..., None]:
        def act_if_alive(*args: Any) -> None:
            if not self.dead:
                act(*args)

        return act_if_alive

    def reach(self, name: str, *, io: bool = False) -> None:
        """The run is at this point now. ``io`` is the drivers' own."""
        if self.dead:
            raise Crash(f"already dead at {name}")
        with self._lock:
            point = Point(len(self.passed) + 1, name, io)
            self.passed.append(point)
        if point.number == self._strike_at:
            self.struck = point
            self._strike(point)

    def _crash(self, point: Point) -> NoReturn:
        self.dead = True
        raise Crash(str(point))


# ------------------------------------------------------------------ inside this process

Scenario = Callable[[Points], object]
"""Drives a store or an engine once, with keys made of ``points.label``. Async code: ``asyncio.run`` in it."""


def enumerate_crashes(scenario: Scenario) -> Iterator[Crashed]:
    """Runs the scenario once to count its points, then crashes it at each; yields after every crash."""
    yield from _enumerate(scenario, None, lambda point: True)


def enumerate_cuts(scenario: Scenario) -> Iterator[Crashed]:
    """The same with a connection that is cut at each point, while the process lives on.

    The scenario runs to its end or raises a ``SamekeyError`` of its own; it is not stopped.
    """

    def cut(point: Point) -> NoReturn:
        raise ConnectionLost(f"The connection was cut {point.name}.")

    yield from _enumerate(scenario, cut, lambda point: point.io)


def _enumerate(
    scenario: Scenario, strike: Strike | None, chosen: Callable[[Point], bool]
) -> Iterator[Crashed]:
    whole = Points(_label())
    scenario(whole)
    for expected in filter(chosen, whole.passed):
        points = Points(_label(), expected.number, strike)
        try:
            scenario(points)
        except Crash:
            pass
        yield Crashed(_struck(expected, points.struck), points.label)


def _struck(expected: Point, struck: Point | None) -> Point:
    if struck != expected:
        raise NotReproducible(f"Point {expected} of the first run was {struck} in a later one.")
    return expected


def _label() -> str:
    return secrets.token_hex(8)


# ------------------------------------------------------------------ in processes of their own


def enumerate_kills(scenario: Callable[..., object], *args: Any) -> Iterator[Crashed]:
    """``scenario(points, *args)`` in a process of its own for each point, ended there with SIGKILL.

    The scenario and its arguments must be picklable. One interpreter is started, which imports everything
    and then forks for every run, so a run costs milliseconds.
    """
    spawned = multiprocessing.get_context("spawn")  # fork would copy the threads' locks, held
    ours, theirs = spawned.Pipe()
    server = spawned.Process(target=_serve, args=(theirs, scenario, args), daemon=True)
    server.start()
    theirs.close()
    try:
        for expected in _order(ours, _label(), None).passed:
            label = _label()
            report = _order(ours, label, expected.number)
            if report.status != -signal.SIGKILL:
                raise NotReproducible(f"The process was not killed at {expected}: {report}")
            yield Crashed(_struck(expected, report.struck), label)
    finally:
        ours.close()
        server.kill()
        server.join()


@dataclass(frozen=True, slots=True)
class _Report:
    status: int
    passed: list[Point]
    struck: Point | None


def _order(server: Connection, label: str, strike_at: int | None) -> _Report:
    server.send((label, strike_at))
    report: _Report = server.recv()
    if strike_at is None and report.status != 0:
        raise NotReproducible(f"The scenario failed without any crash: {report}")
    return report


def _serve(orders: Connection, scenario: Callable[..., object], args: tuple[Any, ...]) -> None:
    """In the started interpreter: one forked child for each order."""
    warnings.simplefilter("ignore")  # forking beside the thread that watches our parent is meant
    while True:
        try:
            label, strike_at = orders.recv()
        except EOFError:
            return
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run_child(writer, label, strike_at, scenario, args)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            said = stream.read()
        _, status = os.waitpid(child, 0)
        passed, struck = pickle.loads(said) if said else ([], None)  # noqa: S301 - written by our own child
        orders.send(_Report(os.waitstatus_to_exitcode(status), passed, struck))


def _run_child(
    report: int, label: str, strike_at: int | None, scenario: Callable[..., object], args: tuple[Any, ...]
) -> NoReturn:
    def kill(point: Point) -> NoReturn:
        os.write(report, pickle.dumps((points.passed, point)))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    points = Points(label, strike_at, kill)
    status = 1
    try:
        scenario(points, *args)
        os.write(report, pickle.dumps((points.passed, None)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)

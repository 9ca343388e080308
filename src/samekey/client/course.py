"""The course of one operation: what to do next, after this answer, error or pause. Pure.

A generator holds all of the logic; it sends nothing, waits for nothing and reads no clock. Whoever drives it
(``carry.py``) does what it yields, and tells it what came of that, and when.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, assert_never

from ..core.backoff import Backoff
from ..errors import ConfigurationError
from .dialect import Dialect
from .errors import KeyExpired, RedirectRefused, Unsettled
from .reading import Meaning, Reading, read, read_status
from .wire import Answer, Request, origin_of

SAFE_PART: Final = 0.9
"""Of a key's life, the part in which it is sent: clocks differ, and a request takes its time."""
CLOCK_MAY_LAG: Final = 300.0
"""Seconds by which our clock may have been set back since an operation began, before nobody can tell its
age; of a short life no more than the part in which a key is not sent."""
MOST_HOPS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """For how long, and how, an operation is tried within one call."""

    deadline: timedelta = timedelta(seconds=60)
    """For all attempts and pauses together. What has no answer by then is kept."""
    attempts: int | None = None
    """How often it is sent at most, within the deadline."""
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first=timedelta(seconds=0.5), longest=timedelta(seconds=20))
    )
    retention: timedelta = timedelta(hours=24)
    """For so long the server knows a key, unless its answers say otherwise."""
    follow: bool = True
    """Whether a 202 is followed to the final answer. If not, it is the answer."""

    def __post_init__(self) -> None:
        if min(self.deadline, self.retention) <= timedelta(0) or (self.attempts or 1) < 1:
            raise ConfigurationError("deadline, retention and attempts of Patience must be more than none.")


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happened, and a random number that came with it."""

    monotonic: float
    """Seconds by a clock that nobody sets: deadlines and pauses are by this."""
    wall: float
    """Seconds since 1970, which is all that a process after us can compare."""
    chance: float = 0.5
    """In [0, 1)."""


# --- what to do


@dataclass(frozen=True, slots=True)
class Send:
    """Send this and read the whole answer, within so many seconds. ``keyed``: it carries the key."""

    request: Request
    seconds: float
    keyed: bool = True


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Note:
    """Save until when the key may be sent again, by our clock."""

    expires_at: float


Step = Send | Pause | Note

# --- what came of it


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer, whole."""

    answer: Answer
    at: Moment


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer, or not all of it."""

    error: Exception
    at: Moment
    left: bool = True
    """Some of the request may have left this machine."""
    hopeless: bool = False
    """It cannot be sent at all, now or later."""


@dataclass(frozen=True, slots=True)
class Went:
    """A pause is over, or a note is saved."""

    at: Moment


Event = Heard | Failed | Went


@dataclass(frozen=True, slots=True)
class Done:
    """The end: the answer to give to the caller."""

    answer: Answer
    attempts: int
    replayed: bool = False
    settled: bool = True
    """False: this answer says nothing about earlier attempts, whose outcome is not known."""
    happened: bool = True
    """False: it is certain that nothing was carried out."""
    proven: bool = True
    """False: an answer that somebody else may have given, who knows of no attempt before it."""
    expires_at: float | None = None
    """Until when the key may be sent again, where the server has said so."""


class NeverSent(Exception):
    """Nothing was carried out, by this attempt or an earlier one: there is nothing to keep."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Course:
    """One operation's way to its answer. ``steps()`` is driven once."""

    def __init__(
        self,
        request: Request,
        dialect: Dialect,
        patience: Patience,
        began: Moment,
        *,
        begun_at: float,
        expires_at: float | None = None,
        tried_before: bool = False,
        done_before: bool = False,
    ) -> None:
        """``begun_at``: when the operation was begun, perhaps long ago and by another process; then
        ``tried_before`` says that it may have been sent already, and ``done_before`` that it has had its
        answer, which it is to get again."""
        self._request = request
        self._dialect = dialect
        self._patience = patience
        self._now = began
        self._deadline = began.monotonic + patience.deadline.total_seconds()
        self._uncertain = tried_before
        self._elsewhen = tried_before
        """It may have been sent before this course, and nobody knows where to."""
        self._lost_at: set[str] = set()
        """URLs at which an attempt of this course may have been carried out."""
        self._done_before = done_before
        self._attempts = 0
        self._tries = 0
        """Attempts, and questions to the status resource: pauses grow with both."""
        self._unknown = False
        self._last: Heard | Failed | None = None
        retention = patience.retention.total_seconds() * SAFE_PART
        until = begun_at + retention if expires_at is None else expires_at
        spare = max(until - begun_at, 0.0) * (1 - SAFE_PART)
        self._set_back = began.wall < begun_at - min(CLOCK_MAY_LAG, spare)
        self._expires_at = expires_at
        self._known_at = began
        self._known_for = until - began.wall

    def steps(self) -> Generator[Step, Event, Done]:
        """Gives the answer, or raises: ``Unsettled``, ``KeyExpired``, ``RedirectRefused``, ``NeverSent``."""
        target, hops = self._request, 0
        while True:
            event = yield from self._send(target)
            if isinstance(event, Failed):
                if event.hopeless:
                    self._give_up(None)
                yield from self._pause(None)
                continue
            reading = read(event.answer, target, self._dialect, event.at.wall)
            yield from self._note(reading)
            match reading.meaning:
                case Meaning.FINAL:
                    return self._final(event.answer, reading.replayed)
                case Meaning.BARE:
                    return self._bare(event.answer)
                case Meaning.BROKEN:
                    return replace(self._final(event.answer, reading.replayed), settled=False)
                case Meaning.CONFLICT:
                    if self._is_settled():
                        return self._bare(event.answer)
                case Meaning.REFUSED:
                    settled = not self._uncertain
                    return replace(self._bare(event.answer), settled=settled, happened=not settled)
                case Meaning.ELSEWHERE if self._may_be_done_at(target, reading):
                    return self._bare(event.answer)
                case Meaning.ELSEWHERE:
                    target, hops = self._elsewhere(target, reading, hops), hops + 1
                    continue
                case Meaning.ACCEPTED:
                    self._uncertain = True
                    self._lost_at.add(target.url)
                    if not self._patience.follow:
                        return self._final(event.answer)
                    found = yield from self._follow(target, reading)
                    if found is not None:
                        return self._final(found)
                    if self._is_used_up():
                        self._give_up(None)
                    continue
                case Meaning.IN_PROGRESS | Meaning.UNCLEAR | Meaning.UNKNOWN:
                    self._uncertain = True
                    self._lost_at.add(target.url)
                    self._unknown = reading.meaning is Meaning.UNKNOWN
                case Meaning.LATER:
                    pass
                case _:
                    assert_never(reading.meaning)
            given_up = yield from self._pause(reading)
            if given_up is not None:
                return given_up

    def _final(self, answer: Answer, replayed: bool = False) -> Done:
        return Done(answer, self._attempts, replayed, expires_at=self._expires_at)

    def _bare(self, answer: Answer) -> Done:
        return replace(self._final(answer), settled=self._is_settled(), proven=False)

    def _is_settled(self) -> bool:
        """Whether no attempt is left of which this answer would have to tell."""
        return not self._uncertain or self._done_before

    def _send(self, target: Request) -> Generator[Step, Event, Heard | Failed]:
        """One attempt, if the server still knows the key."""
        self._check_age()
        event = yield Send(target, max(self._left(), 0.001))
        assert not isinstance(event, Went)
        self._now, self._last = event.at, event
        self._attempts, self._tries = self._attempts + 1, self._tries + 1
        if isinstance(event, Failed) and event.left:
            self._uncertain = True
            self._lost_at.add(target.url)
        return event

    def _follow(self, target: Request, accepted: Reading) -> Generator[Step, Event, Answer | None]:
        """The final answer from the status resource; None if the request has to tell by itself."""
        location, pause = accepted.location, accepted
        if location is not None and origin_of(location) != origin_of(target.url):
            location = None  # whoever that is, our credentials are not for them
        while True:
            # A question to the status resource is no attempt: only the deadline ends them.
            yield from self._pause(pause, asks=location is not None)
            if location is None:
                return None
            asked = Request("GET", location, _without_body(target.headers))
            event = yield Send(asked, max(self._left(), 0.001), keyed=False)
            assert not isinstance(event, Went)
            self._now, self._tries = event.at, self._tries + 1
            if isinstance(event, Failed):
                pause = Reading(Meaning.UNCLEAR)
                continue
            status = read_status(event.answer, asked, event.at.wall)
            if status.final is not None:
                return status.final
            if status.location is not None:
                location, pause = status.location, Reading(Meaning.ACCEPTED, retry_after=0.0)
            elif not status.wait:
                return None
            else:
                self._unknown = status.unknown
                pause = Reading(Meaning.ACCEPTED, retry_after=status.retry_after)

    def _may_be_done_at(self, target: Request, reading: Reading) -> bool:
        """Whether an attempt may have been carried out where we are sent away from: another route may know
        its own keys only, and carry it out once more. A slash at the end makes no other route."""
        assert reading.location is not None
        if target.url.rstrip("/") == reading.location.rstrip("/"):
            return False
        return target.url in self._lost_at or (self._elsewhen and target is self._request)

    def _elsewhere(self, target: Request, reading: Reading, hops: int) -> Request:
        assert reading.location is not None
        if origin_of(reading.location) != origin_of(target.url) or hops >= MOST_HOPS:
            where = "{}://{}".format(*origin_of(reading.location))
            raise RedirectRefused(
                f"The server redirects to {where}, and a request with a key is not sent on to another "
                "server by itself: that one does not know the key. Send the operation there if you trust it."
                if hops < MOST_HOPS
                else f"The server redirects again and again, at last to {where}."
            )
        return replace(target, url=reading.location)

    def _is_used_up(self) -> bool:
        """Whether it was sent as often as it may be."""
        return self._patience.attempts is not None and self._attempts >= self._patience.attempts

    def _pause(self, reading: Reading | None, *, asks: bool = False) -> Generator[Step, Event, Done | None]:
        """Waits for the next attempt, or ends here because the time is over."""
        drawn = self._patience.backoff.pause_ms(self._tries, self._now.chance) / 1000
        asked_for = None if reading is None else reading.retry_after
        if asked_for is not None and asked_for > 0:
            # As long as we were asked to, and a little more, so that not all come back at once.
            first = self._patience.backoff.first.total_seconds()
            drawn = asked_for + min(first, asked_for) * self._now.chance
        if drawn >= self._left() or (self._is_used_up() and not asks):
            return self._give_up(asked_for)
        event = yield Pause(drawn)
        assert isinstance(event, Went)
        self._now = event.at
        return None

    def _give_up(self, asked_for: float | None) -> Done:
        last = self._last
        answer = last.answer if isinstance(last, Heard) else None
        if not self._uncertain:
            if isinstance(last, Failed):
                raise NeverSent(last.error)
            assert answer is not None
            return Done(answer, self._attempts, happened=False, proven=False)
        error = last.error if isinstance(last, Failed) else None
        because = f"{type(error).__name__}: {error}" if error else f"{answer.status}" if answer else "nothing"
        sentence = (
            "The server does not know whether the operation was carried out, and is finding out"
            if self._unknown
            else f"No final answer came within {self._patience.deadline.total_seconds():g} s"
        )
        later = "" if asked_for is None else f"; it asks to come back in {asked_for:g} s"
        raise Unsettled(
            f"{sentence} (attempts: {self._attempts}, the last: {because}{later}).",
            attempts=self._attempts,
            answer=answer,
            unknown=self._unknown,
        ) from error

    def _note(self, reading: Reading) -> Generator[Step, Event, None]:
        """What the server says about the life of the key counts from now on, and the least that it says.
        With a final answer it is saved together with the end."""
        if reading.lifetime is None or reading.meaning is Meaning.REFUSED:
            return
        expires_at = self._now.wall + reading.lifetime * SAFE_PART
        if self._expires_at is not None and self._expires_at <= expires_at:
            return
        self._expires_at = expires_at
        self._known_at, self._known_for = self._now, reading.lifetime * SAFE_PART
        if reading.meaning is Meaning.FINAL:
            return
        event = yield Note(expires_at)
        assert isinstance(event, Went)
        self._now = event.at

    def _check_age(self) -> None:
        """Raises if the server may have forgotten the key. Only what may have been sent can be too old."""
        if not self._uncertain:
            return
        since = self._known_at
        # By both clocks: one that is set, by either, cannot make a key younger.
        aged = max(self._now.monotonic - since.monotonic, self._now.wall - since.wall)
        if self._set_back or aged >= self._known_for:
            why = "this machine's clock was set back since" if self._set_back else "that was too long ago"
            raise KeyExpired(
                f"The operation was begun before, but {why}: the server may not know its key any more, and "
                "could carry it out a second time. Nothing was sent. Look up at the server what became of "
                "it, then discard it."
            )

    def _left(self) -> float:
        return self._deadline - self._now.monotonic


def _without_body(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    about_it = ("content-length", "content-type", "content-encoding", "transfer-encoding", "expect")
    return tuple((name, value) for name, value in headers if name.lower() not in about_it)

"""Carrying out an operation: it is saved, its course is driven, and its end is saved.

One generator says all of it in order; the shells of the HTTP libraries drive it, sync or async, and know
nothing but how to send, how to wait, and where to block.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from .course import Course, Done, Event, Failed, Heard, Moment, NeverSent, Note, Patience, Pause, Send, Went
from .dialect import IETF, Dialect
from .entry import Entry, digest_of
from .errors import BodyRefused, OperationGone
from .journal import Journal, MemoryJournal
from .scope import DEFAULTS, SAID, Listed, Named, Said, Sending, current, nothing_said
from .wire import Answer, Pairs, Request

logger = logging.getLogger("samekey")

Thrown = Callable[[Exception, Moment], Failed | None]
"""What an exception of a library's means; None: it is not about the wire, and goes to the caller."""


ENTRY: Final = "samekey.entry"
"""Where a request carries its operation."""


class Way(Protocol):
    """What a shell asks about a request: whether it is ours, and what to do with it."""

    @property
    def in_threads(self) -> bool: ...

    def check_size(self, body: bytes | bytearray) -> None:
        """Raises if it is too large to be kept: ``BodyRefused``, or what says so to an operation."""

    def takes(self, request: Request, carrier: MutableMapping[str, Any]) -> bool:
        """Whether it is sent in this way at all. A body that is streamed is not there yet."""

    def acts(self, request: Request, carrier: MutableMapping[str, Any]) -> Generator[Act, Any, Finished]:
        """What to do, in order. ``carrier`` stays with the request object."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """How keys are made, kept and sent. One for each server that honours them."""

    dialect: Dialect = IETF
    patience: Patience = field(default_factory=Patience)
    journal: Journal = field(default_factory=MemoryJournal)
    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    max_body: int = 10 * 1024 * 1024
    """Bytes of a request that are saved. A larger one is refused: it could not be sent again."""
    account: str = ""
    """Whose operations these are, where clients of several accounts share a journal: names are apart, and
    ``pending()`` lists its own."""

    @property
    def in_threads(self) -> bool:
        return self.journal.in_threads

    def check_size(self, body: bytes | bytearray) -> None:
        if len(body) > self.max_body:
            raise BodyRefused(
                f"The body has {len(body)} bytes or more, and {self.max_body} are kept at most, so that it "
                "can be sent again. Nothing was sent. Raise max_body, or upload it first and refer to it."
            )

    def takes(self, request: Request, carrier: MutableMapping[str, Any]) -> bool:
        """What is sent on behalf of another request, such as an auth flow's for a token, passes untouched."""
        if request.method not in self.methods:
            return False
        said = current()
        if ENTRY in carrier or SAID in carrier or not isinstance(said, Sending):
            return True
        return _again(said, request) is not None or said.is_for(request.url)

    def acts(self, request: Request, carrier: MutableMapping[str, Any]) -> Generator[Act, Any, Finished]:
        """One request object is one operation: whoever adds credentials and sends it once more (an auth flow
        after a 401) does not begin another. So it carries its operation along."""
        going: Underway | None = carrier.get(ENTRY)
        said: Said = carrier[SAID] if SAID in carrier else current()
        meant = carrier
        if isinstance(said, Sending):
            # A copy of the request that was meant: what was said of that one, and is known of it, is its own.
            meant, going = said.carrier, going or _again(said, request)
            said = meant.get(SAID)
        if isinstance(said, Named):
            said.taken = True
            if SAID not in meant:
                said.check_first(request)
        if going is None:
            assert not isinstance(said, Sending)
            going = begin(self, request, said, meant.get(DEFAULTS, ()))
        going.entry.check_same(request)
        carrier[ENTRY] = meant[ENTRY] = going
        return carriage(self, request, going)


@dataclass(slots=True)
class Underway:
    """The operation that a request object is, for as long as there is that object."""

    entry: Entry
    own_key: bool = False
    """The caller has set its key."""
    listed: bool = False
    """It comes out of ``pending()``."""
    tried: bool = False
    """It may have been sent, whatever a journal says that others can change."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of an answer beyond what it says."""

    key: str
    replayed: bool
    """The server says that it had answered this before."""
    attempts: int
    settled: bool
    """False: whether an earlier attempt was carried out is not known; the operation is kept."""
    happened: bool = True
    """False: it is certain that nothing was carried out."""


@dataclass(frozen=True, slots=True)
class Call:
    """Block on this, and say what it gave."""

    run: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this with these headers, and say what came of it."""

    request: Request
    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a carriage."""

    answer: Answer
    told: Told
    proven: bool = True
    """False: an answer that somebody else may have given, who knows of no attempt before it."""
    expires_at: float | None = None
    """Until when the key may be sent again, where the server has said so."""


Act = Call | Ask | Pause


def moment() -> Moment:
    """Now, by both clocks."""
    return Moment(time.monotonic(), time.time(), random.random())  # noqa: S311


def begin(keyed: Keyed, request: Request, said: Named | Listed | None, defaults: Pairs = ()) -> Underway:
    """The operation that this request is. Nothing is saved yet."""
    if isinstance(said, Listed):
        return Underway(said.entry, listed=True, tried=True)
    key = keyed.dialect.own_key(request)
    entry = Entry.of(request, None if said is None else said.name, key, time.time(), defaults)
    owned = replace(entry, account=keyed.account, spelling=keyed.dialect.spelling)
    return Underway(owned, own_key=key is not None)


def _again(said: Sending, request: Request) -> Underway | None:
    """The operation that is being sent, if this is its request once more: a copy with credentials."""
    going: Underway | None = said.carrier.get(ENTRY)
    return going if going is not None and going.entry.digest == digest_of(request) else None


def carriage(keyed: Keyed, request: Request, going: Underway) -> Generator[Act, Any, Finished]:
    """Yields what to do, and is sent what came of it. If nothing was sent, the library's error is raised."""
    acts = kept(
        keyed,
        request,
        going.entry,
        tried_before=going.tried,
        listed=going.listed,
        own_key=going.own_key,
    )
    going.tried = True  # until there is proof of the contrary, which is given for what was never tried only
    try:
        finished = yield from acts
    except NeverSent as never:
        going.tried = False
        raise never.error from None
    going.tried = finished.told.happened
    going.entry = replace(going.entry, key=finished.told.key).noted(finished.expires_at)
    return finished


def kept(
    keyed: Keyed,
    request: Request,
    entry: Entry,
    *,
    tried_before: bool = False,
    listed: bool = False,
    own_key: bool = False,
) -> Generator[Act, Any, Finished]:
    """The same, with ``NeverSent`` where nothing was sent. ``tried_before``: it may have been sent already,
    also if the journal does not know it. ``listed``: the journal must know it. ``own_key``: it is sent under
    this key or not at all."""
    journal = keyed.journal
    keyed.check_size(request.body)
    keyed.dialect.put(request, entry.key)  # what can carry no key is refused before anything is saved
    begun = entry
    try:
        found = yield Call(lambda: journal.join(begun) if listed else journal.begin(begun))
    except Exception:
        # It may have been saved all the same, and whoever is told that nothing was sent sends it anew.
        yield Call(lambda: _afterwards(lambda: None if listed else journal.drop(begun)))
        raise
    if listed and found is None:
        raise OperationGone(
            "The operation was finished or discarded by somebody else since pending() listed it. Nothing was "
            "sent. There is nothing left to do here; begun again under its name, it is a new operation."
        )
    if found is not None:
        found.check_same(request)
        if own_key:
            found.check_key(entry.key)
        entry = found
    course = Course(
        request,
        keyed.dialect,
        keyed.patience,
        moment(),
        begun_at=entry.begun_at,
        expires_at=entry.expires_at,
        tried_before=tried_before or found is not None,
        done_before=entry.finished_at is not None and not entry.refused,
    )
    try:
        done = yield from _drive(course, keyed, entry)
    except NeverSent:
        yield Call(lambda: _afterwards(lambda: journal.drop(entry)))
        raise
    if not done.happened:
        yield Call(lambda: _afterwards(lambda: journal.drop(entry)))
    elif done.settled:
        refused = not (done.replayed or done.answer.status < 300 or done.answer.status == 303)
        ended = replace(entry, refused=refused)
        yield Call(lambda: _afterwards(lambda: journal.finish(ended, time.time(), done.expires_at)))
    told = Told(entry.key, done.replayed, done.attempts, done.settled, done.happened)
    return Finished(done.answer, told, done.proven, done.expires_at)


def _drive(course: Course, keyed: Keyed, entry: Entry) -> Generator[Act, Any, Done]:
    steps = course.steps()
    step = next(steps)
    while True:
        event: Event
        match step:
            case Send(request, seconds, with_key):
                dialect = keyed.dialect
                sent = dialect.put(request, entry.key) if with_key else dialect.take(request)
                event = yield Ask(sent, seconds)
            case Pause():
                yield step
                event = Went(moment())
            case Note(expires_at):
                yield Call(partial(_afterwards, partial(keyed.journal.note, entry, expires_at)))
                event = Went(moment())
        try:
            step = steps.send(event)
        except StopIteration as end:
            done: Done = end.value
            return done


def _afterwards(act: Callable[[], None]) -> None:
    """Something has been sent: a journal that fails now must not cost the answer. It stays pending."""
    try:
        act()
    except Exception as error:  # a journal may be anybody's
        logger.error("An operation stays pending in its journal although it has an answer: %s", error)


class _Drive:
    """A carriage on its way: what to do next, and what came of it."""

    def __init__(self, acts: Generator[Act, Any, Finished], thrown: Thrown) -> None:
        self._acts = acts
        self._thrown = thrown
        self._result: Any = None
        self._error: Exception | None = None
        self.finished: Finished | None = None

    def next(self) -> Act | None:
        """None: it has ended."""
        result, error = self._result, self._error
        self._result = self._error = None
        try:
            return self._acts.send(result) if error is None else self._acts.throw(error)
        except StopIteration as end:
            self.finished = end.value
            return None

    def gave(self, result: Any) -> None:
        self._result = result

    def heard(self, answer: Answer) -> None:
        self._result = Heard(answer, moment())

    def caught(self, act: Act, error: Exception) -> None:
        """What is about the wire is an event like any other; anything else goes to the caller."""
        self._result = self._thrown(error, moment()) if isinstance(act, Ask) else None
        self._error = error if self._result is None else None


def run(
    acts: Generator[Act, Any, Finished], send: Callable[[Request, float], Answer], thrown: Thrown
) -> Finished:
    """Drives a carriage in sync code."""
    drive = _Drive(acts, thrown)
    while (act := drive.next()) is not None:
        try:
            match act:
                case Call(call):
                    drive.gave(call())
                case Pause(seconds):
                    time.sleep(seconds)
                case Ask(request, seconds):
                    with nothing_said():
                        drive.heard(send(request, seconds))
        except Exception as error:
            drive.caught(act, error)
    assert drive.finished is not None
    return drive.finished


async def run_async(
    acts: Generator[Act, Any, Finished],
    send: Callable[[Request, float], Awaitable[Answer]],
    thrown: Thrown,
    *,
    pause: Callable[[float], Awaitable[object]],
    block: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> Finished:
    """Drives a carriage in async code. Cancelled, it leaves the operation as it is: pending."""
    drive = _Drive(acts, thrown)
    while (act := drive.next()) is not None:
        try:
            match act:
                case Call(call):
                    drive.gave(await block(call))
                case Pause(seconds):
                    await pause(seconds)
                case Ask(request, seconds):
                    with nothing_said():
                        drive.heard(await send(request, seconds))
        except Exception as error:
            drive.caught(act, error)
    assert drive.finished is not None
    return drive.finished

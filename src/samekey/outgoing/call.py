"""One call to a provider from inside an operation: the key of its step, and what its end means.

The course is the client's own (``samekey.client.course``). Here it is told whose call it is, and its end is
said in the engine's words: an answer, ``NotExecuted`` with proof, or ``OutcomeUnknown``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Generator, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal, assert_never
from urllib.parse import urlsplit

from ..client.carry import Act, Ask, Finished, Keyed, Told, kept
from ..client.course import SAFE_PART, Failed, Heard, NeverSent, Patience
from ..client.entry import Entry
from ..client.errors import BodyRefused, KeyExpired, OperationChanged, RedirectRefused, Unsettled
from ..client.reading import DEFINITE_5XX, code_of, is_about_the_key
from ..client.wire import Answer, Request
from ..core.pointer import find, parse_pointer
from ..engine.events import Events
from ..engine.jobs import JobContext
from ..engine.operation import Operation
from ..engine.phased.definition import Effect
from ..engine.sending import Sender, sender
from ..errors import ConfigurationError, NotExecuted, OutcomeUnknown
from .calls import Calls, calls_of
from .profiles import UNPUBLISHED, Profile

logger = logging.getLogger("samekey")

_CHANGES: Final = frozenset({"POST", "PATCH"})
"""Methods that change something each time. PUT and DELETE sent twice do what one of them does."""
_IN_TRANSACTION: Final = frozenset({"atomic", "deferred"})
_NOT_LOOKED_AT: Final = frozenset({425, 429})

_OWN_KEY: Final = (
    "Have the SDK send current_operation().downstream_key(), or the key of the job or effect, and switch off "
    "its own retries; or say own_keys='trust', if it is the same at every attempt."
)

_step: ContextVar[str] = ContextVar("samekey_step", default="")


class ProviderUnclear(OutcomeUnknown):
    """Nobody can tell whether the provider has done it: no answer, half of one, or a gateway's."""

    def __init__(self, sentence: str, answer: Answer | None = None) -> None:
        super().__init__(sentence)
        self.answer = answer
        """The last answer, if there was one."""


class CallRefused(NotExecuted, ConfigurationError):
    """A call that cannot be made as it stands: the sentence says why. Nothing of it was sent."""


class KeylessCall(CallRefused):
    """A call that changes something was refused because no key would have gone with it. Nothing was sent."""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Names the calls inside, in a leased handler that makes several: each step has a key of its own."""
    outer = _step.get()
    token = _step.set(f"{outer}/{name}" if outer else name)
    try:
        yield
    finally:
        _step.reset(token)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """How calls go out to one provider."""

    profile: Profile
    provider_id: str | Callable[[Answer], str | None] | None = None
    """Where an answer has the provider's own id: a JSON Pointer, or a function. None: as in the profile."""
    keys: Literal["add", "check"] = "add"
    """``check``: your own code sets the key. Where it forgot, that is reported, and the key is added."""
    own_keys: Literal["report", "trust"] = "report"
    """A key that your code or an SDK has set, and that is none of the operation's: an SDK makes a new one for
    each attempt. ``trust``: yours are the same at every attempt."""
    strict: bool = False
    """Refuses what would be reported."""
    events: Events | None = None
    """``idempotency.events``: they hear ``outgoing.keyless``, which is counted in the metrics."""
    patience: Patience = field(default_factory=lambda: Patience(deadline=timedelta(seconds=30), attempts=1))
    """One attempt by default; more of them go out under the same key, within the deadline."""
    max_body: int = 10 * 1024 * 1024

    def __post_init__(self) -> None:
        if isinstance(self.provider_id, str):
            parse_pointer(self.provider_id)  # what is none is said now, not after the first payment

    @property
    def in_threads(self) -> bool:
        return False  # what is kept is kept in memory, for as long as the operation runs

    def check_size(self, body: bytes | bytearray) -> None:
        who = sender()
        assert who is not None  # it takes nothing else
        try:
            Keyed(max_body=self.max_body).check_size(body)
        except BodyRefused as error:
            raise self._refused(error, who) from error

    def takes(self, request: Request, _carrier: MutableMapping[str, Any]) -> bool:
        """Only what changes something, and is sent from inside an operation."""
        if request.method not in _CHANGES | self.profile.methods:
            return False
        if self._fetches_a_token(request):
            return sender() is not None
        if sender() is None:
            if self.profile.dialect.own_key(request) is None:
                self._report(
                    "no_operation",
                    "outside any operation that can be seen: perhaps in a thread that was started without "
                    "its context (contextvars.copy_context())",
                    request,
                )
            return False
        return True

    def _fetches_a_token(self, request: Request) -> bool:
        """Whether it is an auth flow's (RFC 6749): it changes nothing, and is not the operation's call."""
        path = urlsplit(request.url).path
        form = (request.header("content-type") or "").startswith("application/x-www-form-urlencoded")
        return path in self.profile.untouched or (form and b"grant_type=" in request.body)

    def acts(self, request: Request, _carrier: MutableMapping[str, Any]) -> Generator[Act, Any, Finished]:
        who = sender()
        assert who is not None  # it takes nothing else
        calls = calls_of(who)
        if self._fetches_a_token(request):
            return (yield from self._token(calls, request))
        try:
            finished = yield from self._call(who, calls, request)
        except KeylessCall as refused:
            refused.sdks = self.profile.sdks
            _is_no_word_of_others(refused, who)
            raise
        except (BodyRefused, ConfigurationError) as error:
            raise self._refused(error, who) from error
        return finished

    def _token(self, calls: Calls, request: Request) -> Generator[Act, Any, Finished]:
        """Goes out as it is. The call waits for it: while there is none to be had, nothing is sent."""
        event = yield Ask(request, self.patience.deadline.total_seconds())
        if isinstance(event, Heard) and event.answer.status < 500 and event.answer.status != 429:
            return Finished(event.answer, Told("", False, 1, True, False))
        why = event.error if isinstance(event, Failed) else f"it answers {event.answer.status}"
        sentence = f"{self.profile.name} gives no token ({why}), so the call was not sent."
        if calls.may_have_arrived:
            raise ProviderUnclear(f"{sentence} An attempt before this one may have been carried out.")
        raise calls.not_executed(sentence, self.profile.sdks) from getattr(event, "error", None)

    def _refused(self, error: Exception, who: Sender) -> CallRefused:
        logger.error("A call to %s was refused. %s", self.profile.name, error)
        refused = CallRefused(str(error))
        refused.sdks = self.profile.sdks
        _is_no_word_of_others(refused, who)
        return refused

    def _call(self, who: Sender, calls: Calls, request: Request) -> Generator[Act, Any, Finished]:
        name, dialect = _step.get(), self.profile.dialect
        own = dialect.own_key(request) or None  # an empty one is none
        key = self._key(who, name, request, own)
        self._check_window(who)
        # A 202 is the provider's answer: what comes of it is the handler's to follow.
        patience = replace(self.patience, follow=False)
        if request.method not in self.profile.methods:
            patience = replace(patience, attempts=1)  # its key protects nothing
            how = f"by {request.method}, for which {self.profile.name} takes no key"
            self._report("method", how, request)
        if isinstance(who, Effect) and who.timeout > 0:
            patience = replace(patience, deadline=min(patience.deadline, timedelta(seconds=who.timeout)))
        if own is not None:  # it is left as it is, whatever its length
            dialect = replace(dialect, longest=max(dialect.longest, len(own)))
        keyed = Keyed(dialect=dialect, patience=patience, journal=calls, max_body=self.max_body)
        # A call is known by its key, whoever has set it: one key, one call.
        entry = Entry.of(request, key, key, time.time())
        new, first = False, not (who.tried_before or calls.knows(key))
        if isinstance(who, Operation):
            who.acts()
            new = who.call_goes_out(key)
        try:
            finished = yield from self._said(kept(keyed, request, entry), name, calls)
        except (NotExecuted, ConfigurationError, BodyRefused):  # nothing of this one was sent
            if new:
                self._ended(who, key)
            raise
        if first and finished.told.attempts == 1 and (own is None or self._is_ours(who, own)):
            self._check_replayed(who, finished)
        noted = self._note_id(who, name if own is None else self._step_of(who, own), finished.answer)
        if noted or finished.answer.status >= 300:
            self._ended(who, key)
        return finished

    def _ended(self, who: Sender, key: str) -> None:
        """A call whose end is known: by its answer, by the provider's id, or by proof that it was not made.
        Until then nothing that its handler says frees the key."""
        if isinstance(who, Operation):
            who.call_ended(key)

    def _key(self, who: Sender, name: str, request: Request, own: str | None) -> str:
        if isinstance(who, Operation):
            if who.mode in _IN_TRANSACTION:
                self._report("transaction", f"inside the transaction of {who.mode} work", request)
            if who.mode == "phased":
                self._report("outside_effect", "outside the effects of phased work: use op.effect", request)
        elif name:
            raise ConfigurationError(
                f"The step {name!r} is named inside an effect or a job, which makes one call and has its own "
                "key. Nothing was sent. Give each call an effect or a job of its own."
            )
        if own is not None:
            self._check_own(who, request, own)
            return own
        if self.keys == "check":
            self._report("forgotten", f"without {self._where()}", request)
        match who:
            case Operation():
                who.source = self.profile.name
                return who.downstream_key(name)
            case Effect():
                who.source = who.source or self.profile.name
                return who.key
            case JobContext():
                return who.key
            case _:
                assert_never(who)

    def _check_own(self, who: Sender, request: Request, own: str) -> None:
        """A key that is not the operation's may be another one at each attempt, as SDKs make them."""
        if self.own_keys == "trust" or self._is_ours(who, own):
            return
        self._report("foreign_key", f"under a key that is not its operation's ({_OWN_KEY})", request)
        if who.tried_before:
            raise ProviderUnclear(
                f"An earlier attempt may have reached {self.profile.name} under another key than this one's, "
                f"which is not the operation's own: a call now could be a second one. {_OWN_KEY}"
            )

    def _is_ours(self, who: Sender, own: str) -> bool:
        """Whether a key that the handler has set is the operation's own."""
        keys = [one.downstream_key for one in who.sent().steps] if isinstance(who, Operation) else [who.key]
        return any(own in (key, self.profile.sent_key(key)) for key in keys if key is not None)

    def _check_replayed(self, who: Sender, finished: Finished) -> None:
        """What was answered before this operation has sent it: a gateway may have sent it twice. Or its key
        is used anew after its retention, and the provider, whose own is longer, gives what it made then."""
        if not (finished.told.replayed and finished.answer.status < 300):
            return
        sentence = (
            f"{self.profile.name} says that it has answered this before, and this operation had not sent it. "
            "It may be what was made for another one, when the key was used before; then nothing was done "
            "now. Keep keys for at least as long as the provider does (ttl)."
        )
        if isinstance(who, Operation) and who.life > 1:
            raise ProviderUnclear(sentence, finished.answer)
        logger.error("%s", sentence)

    def _check_window(self, who: Sender) -> None:
        """The provider must still know the key, if it may have had it before."""
        window = self.profile.window
        longest = (UNPUBLISHED if window is None else window).total_seconds()
        told = who.window if isinstance(who, Effect) and window is not None else None
        if told is not None and told > longest:
            raise ConfigurationError(
                f"The effect's provider_window is {told:g} s, but {self.profile.name} knows a key for "
                f"{longest:g} s. Nothing was sent. Give op.effect a provider_window that is no longer."
            )
        if not isinstance(who, Effect) and who.tried_before and who.age >= longest * SAFE_PART:
            raise ProviderUnclear(
                f"An earlier attempt at this call may have reached {self.profile.name}, which does not know "
                f"its key any more after {longest:g} s: a call now could be a second one. Nothing was sent."
            )

    def _step_of(self, who: Sender, own: str) -> str | None:
        """The step whose key the handler has asked for, perhaps for one of several calls under way."""
        steps = who.sent().steps if isinstance(who, Operation) else ()
        keys = ((one.step, one.downstream_key) for one in steps if one.downstream_key is not None)
        return next((step for step, key in keys if own in (key, self.profile.sent_key(key))), None)

    def _said(
        self, acts: Generator[Act, Any, Finished], name: str, calls: Calls
    ) -> Generator[Act, Any, Finished]:
        """The end of a call in the engine's words."""
        provider = self.profile.name
        try:
            finished = yield from acts
        except NeverSent as never:
            sentence = f"{provider} could not be reached, and nothing was sent."
            raise calls.not_executed(sentence, self.profile.sdks) from never.error
        except Unsettled as unsettled:
            raise ProviderUnclear(f"{provider}: {unsettled.why}", unsettled.answer) from unsettled
        except (KeyExpired, RedirectRefused) as unsettled:
            raise ProviderUnclear(f"{provider}: {unsettled}") from unsettled
        except OperationChanged:
            called = f"in the step {name!r}" if name else "under one key"
            raise ConfigurationError(
                f"This operation makes two different calls to {provider} {called}; the second was not sent. "
                'Name each: with step("authorise"): …; in phased work and jobs, give each an effect or a job.'
            ) from None
        answer, told = finished.answer, finished.told
        if not told.happened and answer.status in _NOT_LOOKED_AT:
            sentence = f"{provider} has not looked at the call: {answer.status}."
            raise calls.not_executed(sentence, self.profile.sdks)
        doubt = self._doubt(finished, calls)
        if doubt is not None:
            raise ProviderUnclear(f"{provider}: {doubt}", answer)
        return finished

    def _doubt(self, finished: Finished, calls: Calls) -> str | None:
        """Why an answer, although the provider will give no other, does not say what became of the call."""
        answer, told = finished.answer, finished.told
        if code_of(answer) == "result_unavailable":
            return "it was done, and its answer cannot be given again. Look it up by its key."
        if answer.status >= 500 and answer.status not in DEFINITE_5XX:
            return f"it failed ({answer.status}), perhaps after it had done the work."
        if not told.settled or (calls.tried_before and not finished.proven):
            return (
                f"an attempt before this one may have been carried out, and {answer.status} says nothing "
                "of it."
            )
        if not told.replayed and is_about_the_key(answer, self.profile.dialect):
            return (
                f"it complains of the key ({answer.status}), which may have been used before, with another "
                "request. What became of that one is not known. A call must be the very same at each attempt."
            )
        return None

    def _note_id(self, who: Sender, name: str | None, answer: Answer) -> bool:
        """Before the handler goes on: if it fails now, what the provider made can be found by this."""
        if not 200 <= answer.status < 300:
            return False
        place = self.provider_id or self.profile.provider_id
        if place is None:
            return False
        try:
            found = place(answer) if callable(place) else _at(place, answer.body)
            if found is None:
                logger.warning("The answer of %s has no id where it was looked for.", self.profile.name)
            elif isinstance(who, Operation) and name is not None:
                who.note_provider_id(found, name)
            else:
                who.provider_id = found
            return found is not None
        except Exception as error:  # it has happened: what is wrong with its id must not hide that
            logger.error("The id that %s gave could not be noted: %s", self.profile.name, error)
            return False

    def _where(self) -> str:
        dialect = self.profile.dialect
        return dialect.header if dialect.member is None else f"the member {dialect.member!r}"

    def _report(self, reason: str, how: str, request: Request) -> None:
        """The query and the body are not told: they may hold anything."""
        sentence = f"A call to {self.profile.name} ({request.method}) that changes something was made {how}."
        if self.events is not None:
            self.events.emit("outgoing.keyless", reason=reason)
        if self.strict:
            raise KeylessCall(f"{sentence} Nothing was sent, because strict=True.")
        logger.error("%s A retry of it may do it twice.", sentence)


def _is_no_word_of_others(refused: CallRefused, who: Sender) -> None:
    """That this call was not sent says nothing of those that were; nor of one by other means, for which the
    handler has asked for a key."""
    calls = calls_of(who)
    asked = isinstance(who, Operation) and any(one.step != _step.get() for one in who.sent().steps)
    calls.is_no_word_of_others(refused, certainly=asked)


def _at(place: str, body: bytes) -> str | None:
    """What a JSON Pointer points to, as text."""
    try:
        found = find(json.loads(body), parse_pointer(place))
    except (ValueError, RecursionError):
        return None
    return str(found[0]) if found is not None and isinstance(found[0], str | int) else None

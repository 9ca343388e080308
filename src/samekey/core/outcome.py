"""The judgement: what became of an operation, read once, at its handler's own boundary.

Only proof frees a key. What a framework, a middleware or an error page does after the handler has ended
changes what the client sees, never what is recorded.

| at the handler's boundary                                             | leased             |
|-----------------------------------------------------------------------|--------------------|
| returned 2xx, 3xx or a definite 4xx                                   | remembered         |
| returned 307, 308, 401, 403, 408, 413, 415, 425 or 429                | released           |
| returned 5xx other than 502 and 504                                   | `failed_retryable` |
| returned 502 or 504                                                   | `unknown`          |
| returned, and its answer failed afterwards                            | `unknown`          |
| raised `NotExecuted`, or anything inside `before_effect()`            | `failed_retryable` |
| raised an SDK's error, made of our transport's `NotExecuted`          | `failed_retryable` |
| raised the framework's own HTTP exception below 500                   | as if returned     |
| raised anything else                                                  | `unknown`          |
| raised anything else, with `on_error="retry"`                         | by its kind        |
| any of these that would free the key, after a provider's id was noted | `unknown`          |
| any of these that would free the key, with a 2xx or 3xx page over it  | `unknown`          |
| any of these that would free the key, after a part that would not     | `unknown`          |
| was never reached: the claim is given back                            | released           |
| died, or its lease ended                                              | `unknown`          |

Atomic work reads the same table, except that whatever is not remembered is rolled back, so there is nothing
to be unknown. The user's own ``classify`` comes before all of it, except for an answer that is not the
handler's own after it has returned, and after a provider's id was noted: no rule may free that key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from ..errors import EscapedTransaction, NotExecuted, OutcomeUnknown
from .arrival import may_have_happened
from .policy import NEVER_REMEMBERED, ROUTER_REFUSALS
from .settings import Remember


class Outcome(StrEnum):
    """The four things that can become of an operation that ran."""

    REMEMBER = "remember"
    """Store the answer; every retry gets it."""
    RELEASE = "release"
    """Forget the key; the answer says nothing about the operation."""
    FAIL = "fail"
    """Nothing happened; one retry may run."""
    UNKNOWN = "unknown"
    """It may have happened; no retry may run."""


OnError = Literal["unknown", "retry"]
Classifier = Callable[[int | None, BaseException | None], Outcome | None]
"""A user's own rule, given the status of the answer and the raised error, either of which may be None.

It returns an outcome, or None for the default rule.
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a handler's run ended, as its own boundary saw it, and the status of the answer."""

    status: int | None
    """Of the answer that the application made; None where it made none, or it broke off."""
    error: BaseException | None = None
    """What the handler raised."""
    own: bool = True
    """It returned, and this status is the handler's own word, not one of a framework or middleware."""
    refusal: int | None = None
    """It raised the framework's own HTTP exception, of this status."""
    before_effect: bool = False
    """It raised inside ``before_effect()``: by its own word nothing had happened."""
    acted: bool = False
    """The provider's own id was noted: something happened, whatever is said afterwards."""
    foreign: bool = False
    """What it raised is not its own word: another operation's, or about one of several calls."""
    never_called: bool = False
    """What it raised is an SDK's error, made of proof that the call to the provider was not carried out."""
    at_edge: bool = False
    """Only the edge of an application is seen: a router may have answered, and no handler."""
    unsure: bool = False
    """A guarded function that it called ended in a way that by that one's own rules frees no key."""
    said: int | None = None
    """The status that it returned, where that is known; ``status`` is that of the page made of it."""

    @property
    def answer_failed(self) -> bool:
        """The handler returned, and no answer of its own making will reach the client."""
        return self.error is None and not self.own and (self.status is None or self.status >= 500)

    @property
    def shown(self) -> int | None:
        """The status of a page that the application has made in the place of what was raised."""
        return None if self.status == self.refusal else self.status

    @property
    def shows_success(self) -> bool:
        """By a redirect too."""
        return self.shown is not None and 200 <= self.shown < 400


def judge(
    ending: Ending, *, remember: Remember, on_error: OnError, classify: Classifier | None = None
) -> Outcome:
    """What became of the operation. Called once for each run of a handler."""
    if ending.unsure:
        said = judge(replace(ending, unsure=False), remember=remember, on_error=on_error, classify=classify)
        return Outcome.REMEMBER if said is Outcome.REMEMBER else Outcome.UNKNOWN
    if ending.acted:
        said = judge(replace(ending, acted=False), remember=remember, on_error=on_error, classify=classify)
        return Outcome.REMEMBER if said is Outcome.REMEMBER else Outcome.UNKNOWN
    if classify is not None and (ending.own or ending.error is not None):
        chosen = classify(ending.status, ending.error)
        if chosen is not None:
            return Outcome(chosen)
    if ending.error is not None:
        outcome = _raised(ending, ending.error, remember, on_error)
        frees = outcome in (Outcome.RELEASE, Outcome.FAIL)
        return _shown_instead(ending, outcome, remember) if frees else outcome
    status = ending.status
    if status is None:
        return Outcome.UNKNOWN
    if ending.at_edge and status in ROUTER_REFUSALS:
        return Outcome.RELEASE
    if ending.own:
        return of_status(status, remember)
    if status in NOT_NOW or (status >= 500 and remember != "everything"):
        return Outcome.UNKNOWN
    # Not the handler's own status: it may be kept, but it proves nothing that could free the key. A page of
    # success over a failure that the handler has returned is not kept either: no retry would ever run.
    failed = ending.said is not None and of_status(ending.said, remember) is not Outcome.REMEMBER
    return Outcome.UNKNOWN if failed and status < 400 else Outcome.REMEMBER


def _shown_instead(ending: Ending, outcome: Outcome, remember: Remember) -> Outcome:
    """A run that frees the key, and a page that somebody has made of it: perhaps by another way to the same
    effect. What shows a success of that, or that it is not known, outweighs what was raised; what it refused
    for good is the answer. ``NotExecuted`` is whatever page a user likes for it, if it is no success."""
    if ending.shows_success:
        return Outcome.UNKNOWN
    if ending.shown is None or ending.refusal is None:
        return outcome
    by_page = of_status(ending.shown, remember)
    # A refusal is hidden behind a 404 without anything being done.
    counts = by_page is Outcome.UNKNOWN or (by_page is Outcome.REMEMBER and ending.shown != 404)
    return by_page if counts else outcome


NOT_NOW: Final = frozenset({408, 425, 429})
"""What tells a client to come back: to repeat that for as long as a key lives would be a lie."""


def _raised(ending: Ending, error: BaseException, remember: Remember, on_error: OnError) -> Outcome:
    shown = ending.status is not None and ending.status < 500
    if ending.refusal is not None and ending.refusal < 500:
        outcome = of_status(ending.refusal, remember)
        if outcome is not Outcome.REMEMBER and ending.refusal in _OF_THE_BODY:
            outcome = Outcome.REMEMBER
        unproven = outcome is not Outcome.REMEMBER and not ending.never_called
        if unproven and may_have_happened(error, own=True):
            return Outcome.UNKNOWN  # made of a time-out, which says more than the status
        # What is remembered is the page; without one there is nothing to remember.
        return Outcome.UNKNOWN if outcome is Outcome.REMEMBER and not shown else outcome
    said = isinstance(error, NotExecuted) and not ending.foreign
    if said or ending.before_effect or ending.never_called:
        return Outcome.FAIL
    said_unknown = isinstance(error, OutcomeUnknown | EscapedTransaction) or not isinstance(error, Exception)
    if said_unknown:
        return Outcome.UNKNOWN
    if remember == "everything":
        return Outcome.REMEMBER
    if on_error == "unknown":
        return Outcome.UNKNOWN
    if may_have_happened(error, own=ending.refusal is not None):
        return Outcome.UNKNOWN  # a refusal that was made of a time-out says less than the time-out
    return Outcome.FAIL if ending.refusal is None else of_status(ending.refusal, remember)


_OF_THE_BODY: Final = frozenset({413, 415})
"""What a framework raises when a handler reads a body that it does not like, perhaps after the effect."""


def of_status(status: int, remember: Remember) -> Outcome:
    """By a status that is the handler's own word."""
    if status in (307, 308):
        return Outcome.RELEASE  # "send it elsewhere": nothing was done here
    if remember == "everything":
        return Outcome.RELEASE if status in (401, 429) else Outcome.REMEMBER
    if status >= 500:
        return Outcome.UNKNOWN if status in (502, 504) else Outcome.FAIL
    if status >= 400 and (remember == "successes" or status in NEVER_REMEMBERED):
        return Outcome.RELEASE
    return Outcome.REMEMBER


def of_error(error: BaseException) -> Outcome:
    """The optimistic reading, ``on_error="retry"``: an error means that nothing happened, unless it is one
    after which the provider may have acted, itself or by whatever it was raised from."""
    if isinstance(error, NotExecuted):
        return Outcome.FAIL  # its own word, whatever it was raised from
    return Outcome.UNKNOWN if may_have_happened(error) else Outcome.FAIL

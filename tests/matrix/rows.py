"""The rows of the outcome matrix: how a handler can end, and what that proves.

Plain data. ``test_matrix.py`` drives every row through frameworks, modes and surroundings and counts effects;
the documentation prints the rows as the table that users read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from samekey import NotExecuted, OutcomeUnknown
from samekey.core.outcome import Ending, OnError, Outcome, judge


class SdkError(Exception):
    """What the SDK of a provider raises: nearly all of them carry the status of *their* answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the provider answered {status}")
        self.status_code = status


@dataclass(frozen=True, slots=True)
class Returns:
    """The handler returns a response of this status."""

    status: int


@dataclass(frozen=True, slots=True)
class ReturnsNonsense:
    """The handler returns what its framework cannot make an answer of."""

    value: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Raises:
    """The handler raises, after its effect."""

    make: Callable[[], BaseException]
    foreign: bool = False
    """It is the word of another operation, which the handler has called."""


@dataclass(frozen=True, slots=True)
class Refuses:
    """The handler raises the framework's own HTTP exception."""

    status: int
    made_of: type[Exception] | None = None
    """Raised from this error."""


@dataclass(frozen=True, slots=True)
class Notes:
    """The handler notes the provider's id, and then says that nothing happened."""

    then: Returns | Raises | Refuses


@dataclass(frozen=True, slots=True)
class FailsBefore:
    """The handler has a bug inside ``before_effect()``: it never comes to its effect."""


@dataclass(frozen=True, slots=True)
class Breaks:
    """The handler returns a stream that breaks after its first piece."""


@dataclass(frozen=True, slots=True)
class Stays:
    """The handler makes its effect and still runs when somebody gives up on it."""


Act = Returns | ReturnsNonsense | Raises | Refuses | Notes | FailsBefore | Breaks | Stays


def _said_elsewhere() -> BaseException:
    error = NotExecuted()
    error.is_word_of("another operation", 0, 1 << 62)  # heard after whatever has begun
    return error


@dataclass(frozen=True, slots=True)
class Row:
    """One way to end."""

    name: str
    act: Act
    shown: bool = True
    """Printed in the documentation."""

    def outcome(self, on_error: OnError) -> Outcome | None:
        """What the table says of it by itself, with nothing around; None while the handler still runs."""
        ending = _ending(self.act)
        return None if ending is None else judge(ending, remember="definite", on_error=on_error)

    def frees(self, on_error: OnError) -> bool:
        """Whether it proves, or was declared to mean, that a retry may run."""
        return self.outcome(on_error) in (Outcome.FAIL, Outcome.RELEASE)


def _ending(act: Act) -> Ending | None:
    match act:
        case Returns(status):
            return Ending(status)
        case ReturnsNonsense() | Breaks():
            return Ending(None, own=False)
        case Raises(make, foreign):
            return Ending(None, make(), foreign=foreign)
        case Refuses(status, made_of):
            error = ValueError()
            error.__cause__ = None if made_of is None else made_of()
            return Ending(status, error, refusal=status)
        case Notes(then):
            ending = _ending(then)
            assert ending is not None
            # That nothing happened after all is the handler's to say.
            return replace(ending, acted=not isinstance(ending.error, NotExecuted))
        case FailsBefore():
            return Ending(None, KeyError(), before_effect=True)
        case Stays():
            return None


ROWS: tuple[Row, ...] = (
    Row("returned 201", Returns(201)),
    Row("returned 303", Returns(303), shown=False),
    Row("returned 307 or 308", Returns(307)),
    Row("returned 409, or another definite 4xx", Returns(409)),
    Row("returned 429 (or 401, 403, 408, 413, 415, 425)", Returns(429)),
    Row("returned 500 or 503", Returns(503)),
    Row("returned 502 or 504", Returns(502)),
    Row("returned what cannot be serialised", ReturnsNonsense(object)),
    Row("forgot its `return`", ReturnsNonsense(lambda: None), shown=False),
    Row("returned a stream that broke off", Breaks()),
    Row("raised the framework's HTTP exception 409", Refuses(409)),
    Row("raised the framework's HTTP exception 429", Refuses(429)),
    Row("raised the framework's HTTP exception 500 or 503", Refuses(503)),
    Row("raised the framework's HTTP exception 502 or 504", Refuses(502), shown=False),
    Row("raised an HTTP exception 429 or 503 from a time-out", Refuses(429, TimeoutError)),
    Row("raised an HTTP exception 503 from a time-out", Refuses(503, TimeoutError), shown=False),
    Row("raised `NotExecuted`", Raises(NotExecuted)),
    Row("let `NotExecuted` of another operation through (`once()`)", Raises(_said_elsewhere, foreign=True)),
    Row("noted the provider's id, then returned 503 or 429", Notes(Returns(503))),
    Row("noted the provider's id, then returned 429", Notes(Returns(429)), shown=False),
    Row("noted the provider's id, then raised the exception 429", Notes(Refuses(429)), shown=False),
    Row("noted the provider's id, then raised `NotExecuted`", Notes(Raises(NotExecuted))),
    Row("raised anything inside `before_effect()`", FailsBefore()),
    Row("raised `OutcomeUnknown`", Raises(OutcomeUnknown)),
    Row("raised a time-out, or its connection broke", Raises(TimeoutError)),
    Row("could not connect to the provider", Raises(ConnectionRefusedError)),
    *(
        Row(
            f"raised an SDK's error with status {status}",
            Raises(partial(SdkError, status)),
            shown=False,
        )
        for status in (200, 400, 401, 403, 404, 408, 429, 503, 504)
    ),
    Row("raised an SDK's error that carries 4xx or 503", Raises(lambda: SdkError(429))),
    Row("raised an SDK's error that carries 500, 502, 504 or no status", Raises(lambda: SdkError(500))),
    Row("raised any other error", Raises(KeyError)),
    Row("was cancelled", Raises(asyncio.CancelledError)),
    Row("still runs while somebody gave up on it", Stays()),
)

Around = Literal[
    "nothing",
    "handler to 400",
    "handler to 429",
    "handler to 503",
    "middleware raises",
    "inner deadline",
    "outer deadline",
    "client gone",
    "called twice",
    "inner request",
]
AROUND: tuple[Around, ...] = (
    "nothing",
    "handler to 400",
    "handler to 429",
    "handler to 503",
    "middleware raises",
    "inner deadline",
    "outer deadline",
    "client gone",
    "called twice",
    "inner request",
)
"""What stands around the handler: an exception handler of the application, a middleware inside ours that
fails on the way out, a deadline inside and outside of ours, a client that leaves, a middleware that calls the
application twice at once, and one that first makes a request of its own to another handler."""

WORDS: dict[Outcome | None, str] = {
    Outcome.REMEMBER: "remembered",
    Outcome.RELEASE: "released",
    Outcome.FAIL: "`failed_retryable`",
    Outcome.UNKNOWN: "`unknown`",
    None: "judged when it ends",
}


def table() -> str:
    """The matrix as users read it."""
    lines = [
        '| the handler … | leased | leased, `on_error="retry"` | atomic |',
        "|---|---|---|---|",
    ]
    for row in ROWS:
        if row.shown:
            plain, optimistic = row.outcome("unknown"), row.outcome("retry")
            lines.append(f"| {row.name} | {WORDS[plain]} | {WORDS[optimistic]} | {_atomic(row, plain)} |")
    lines.append("| died, or its lease ended | `unknown` | `unknown` | rolled back |")
    return "\n".join(lines)


def _atomic(row: Row, outcome: Outcome | None) -> str:
    if outcome is Outcome.REMEMBER:
        committed = isinstance(row.act, Returns) and row.act.status < 400
        return "committed, remembered" if committed else "rolled back, remembered"
    return "rolled back" if outcome is not None else "rolled back when it ends"

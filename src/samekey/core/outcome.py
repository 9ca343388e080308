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
| raised the framework's own HTTP exception below 500                   | as if returned     |
| raised anything else                                                  | `unknown`          |
| raised anything else, with `on_error="retry"`                         | by its kind        |
| any of these that would free the key, after a provider's id was noted | `unknown`          |
| was never reached: the claim is given back                            | released           |
| died, or its lease ended                                              | `unknown`          |

Atomic work reads the same table, except that whatever is not remembered is rolled back, so there is nothing
to be unknown. The user's own ``classify`` comes before all of it, except for an answer that is not the
handler's own after it has returned, and after a provider's id was noted: no rule may free that key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from ..errors import EscapedTransaction, NotExecuted, OutcomeUnknown
from .policy import NEVER_REMEMBERED
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

    @property
    def answer_failed(self) -> bool:
        """The handler returned, and no answer of its own making will reach the client."""
        return self.error is None and not self.own and (self.status is None or self.status >= 500)


def judge(
    ending: Ending, *, remember: Remember, on_error: OnError, classify: Classifier | None = None
) -> Outcome:
    """What became of the operation. Called once for each run of a handler."""
    if ending.acted:
        said = judge(replace(ending, acted=False), remember=remember, on_error=on_error, classify=classify)
        return Outcome.REMEMBER if said is Outcome.REMEMBER else Outcome.UNKNOWN
    if classify is not None and (ending.own or ending.error is not None):
        chosen = classify(ending.status, ending.error)
        if chosen is not None:
            return Outcome(chosen)
    if ending.error is not None:
        return _raised(ending, ending.error, remember, on_error)
    status = ending.status
    if status is None:
        return Outcome.UNKNOWN
    if ending.own:
        return of_status(status, remember)
    if status in _TRY_AGAIN or (status >= 500 and remember != "everything"):
        return Outcome.UNKNOWN
    # Not the handler's own status: it may be kept, but it proves nothing that could free the key.
    return Outcome.REMEMBER


_TRY_AGAIN: Final = frozenset({408, 425, 429})
"""What tells a client to come back: to repeat that for as long as a key lives would be a lie."""


def _raised(ending: Ending, error: BaseException, remember: Remember, on_error: OnError) -> Outcome:
    shown = ending.status is not None and ending.status < 500
    if ending.refusal is not None and ending.refusal < 500:
        outcome = of_status(ending.refusal, remember)
        if outcome is not Outcome.REMEMBER and ending.refusal in _OF_THE_BODY:
            outcome = Outcome.REMEMBER
        if outcome is not Outcome.REMEMBER and _read(error, set()) is Outcome.UNKNOWN:
            return Outcome.UNKNOWN  # made of a time-out, which says more than the status
        # What is remembered is the page; without one there is nothing to remember.
        return Outcome.UNKNOWN if outcome is Outcome.REMEMBER and not shown else outcome
    if (isinstance(error, NotExecuted) and not ending.foreign) or ending.before_effect:
        return Outcome.FAIL
    said_unknown = isinstance(error, OutcomeUnknown | EscapedTransaction) or not isinstance(error, Exception)
    if said_unknown:
        return Outcome.UNKNOWN
    if remember == "everything":
        return Outcome.REMEMBER
    if on_error == "unknown":
        return Outcome.UNKNOWN
    read = of_error(error)
    if read is Outcome.UNKNOWN or ending.refusal is None:
        return read  # a refusal that was made of a time-out says less than the time-out
    return of_status(ending.refusal, remember)


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
    return _read(error, set()) or Outcome.FAIL


def _read(error: BaseException, seen: set[int]) -> Outcome | None:
    """What an error, its causes or the members of a group say; None if nothing."""
    chain = list(_chain(error, seen))
    for place, cause in enumerate(chain):
        if isinstance(cause, NotExecuted):
            return Outcome.FAIL
        # Not an Exception: cancelled, or the process is being torn down.
        if isinstance(cause, OutcomeUnknown | EscapedTransaction) or not isinstance(cause, Exception):
            return Outcome.UNKNOWN
        if isinstance(cause, ExceptionGroup):
            members = {_read(member, seen) for member in cause.exceptions}
            if Outcome.UNKNOWN in members:
                return Outcome.UNKNOWN
            if members == {Outcome.FAIL}:
                return Outcome.FAIL
        elif _names(cause) & _NEVER_SENT:
            # Of this call. A handler that tried again after a time-out has made another one before it.
            before = (one for one in chain[place + 1 :] if _library(one) == _library(cause))
            return Outcome.UNKNOWN if any(map(_may_have_arrived, before)) else Outcome.FAIL
        elif _may_have_arrived(cause):
            return Outcome.UNKNOWN
    return None


def _chain(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """The error, then what caused it. A wrapped time-out is still a time-out."""
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _may_have_arrived(error: BaseException) -> bool:
    names = _names(error)
    return not names & _NEVER_SENT and bool(names & _MAY_HAVE_ARRIVED)


def _names(error: BaseException) -> set[str]:
    return {f"{_home(kind)}.{kind.__qualname__}" for kind in type(error).__mro__}


def _library(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _home(kind: type) -> str:
    """The public module of a class: libraries define errors in private modules such as httpx._x."""
    parts = kind.__module__.split(".")
    return ".".join(part for part in parts if not part.startswith("_")) or parts[0]


_NEVER_SENT: Final = frozenset(
    {
        "builtins.ConnectionRefusedError",
        "socket.gaierror",
        "ssl.SSLCertVerificationError",
        "httpx.ConnectError",
        "httpx.ConnectTimeout",
        "httpx.PoolTimeout",
        "httpx.UnsupportedProtocol",
        "httpx2.ConnectError",
        "httpx2.ConnectTimeout",
        "httpx2.PoolTimeout",
        "httpx2.UnsupportedProtocol",
        "httpcore.ConnectError",
        "httpcore.ConnectTimeout",
        "httpcore.PoolTimeout",
        "httpcore.UnsupportedProtocol",
        "httpcore2.ConnectError",
        "httpcore2.ConnectTimeout",
        "httpcore2.PoolTimeout",
        "httpcore2.UnsupportedProtocol",
        "requests.exceptions.ConnectTimeout",
        "urllib3.exceptions.NewConnectionError",
        "urllib3.exceptions.ConnectTimeoutError",
        "aiohttp.client_exceptions.ClientConnectorError",
        "aiohttp.client_exceptions.ConnectionTimeoutError",
    }
)
"""Errors that prove that no request left this machine."""

_MAY_HAVE_ARRIVED: Final = frozenset(
    {
        "builtins.TimeoutError",
        "builtins.ConnectionError",
        "ssl.SSLError",
        "http.client.IncompleteRead",
        "http.client.BadStatusLine",
        "http.client.LineTooLong",
        "http.client.UnknownProtocol",
        "http.client.UnknownTransferEncoding",
        "subprocess.TimeoutExpired",
        "multiprocessing.context.TimeoutError",
        "concurrent.futures.CancelledError",
        "asyncio.exceptions.IncompleteReadError",
        "httpx.RequestError",
        "httpx2.RequestError",
        "httpcore.NetworkError",
        "httpcore.TimeoutException",
        "httpcore.ProtocolError",
        "httpcore.ProxyError",
        "httpcore2.NetworkError",
        "httpcore2.TimeoutException",
        "httpcore2.ProtocolError",
        "httpcore2.ProxyError",
        "requests.exceptions.Timeout",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.ChunkedEncodingError",
        "requests.exceptions.ContentDecodingError",
        "requests.exceptions.TooManyRedirects",
        "urllib3.exceptions.TimeoutError",
        "urllib3.exceptions.ProtocolError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "grpc.RpcError",
        "botocore.exceptions.HTTPClientError",
    }
)
"""Errors after which the provider may or may not have acted. Named, so that nothing is imported."""

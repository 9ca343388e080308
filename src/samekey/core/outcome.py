"""What becomes of an operation, judged by what its handler returned or raised.

| the handler …                                                        | leased             |
|----------------------------------------------------------------------|--------------------|
| returned 2xx, 3xx or a definite 4xx                                  | remembered         |
| returned 401, 403, 408, 413, 415, 425, 429, or the router refused    | released           |
| returned 5xx other than 502 and 504                                  | `failed_retryable` |
| returned 502 or 504                                                  | `unknown`          |
| raised `NotExecuted`, or could not even connect                      | `failed_retryable` |
| raised `OutcomeUnknown`, timed out, was cut off, was cancelled       | `unknown`          |
| raised anything else                                                 | by `on_error`      |
| died, or its lease ended                                             | `unknown`          |

Atomic work reads the same table, except that whatever is not remembered is rolled back, so there is
nothing to be unknown. The user's own ``classify`` comes before all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, Literal

from ..errors import EscapedTransaction, NotExecuted, OutcomeUnknown
from .policy import NEVER_REMEMBERED, ROUTER_REFUSALS, Remember


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


OnError = Literal["retry", "unknown"]
Classifier = Callable[[int | BaseException], Outcome | None]
"""A user's own rule: given a status or the raised error, an outcome, or None for the default rule."""

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


def of_status(status: int, remember: Remember, *, routed: bool = True) -> Outcome:
    """By the returned status. ``routed`` is False where no handler saw the request."""
    if not routed and status in ROUTER_REFUSALS:
        return Outcome.RELEASE
    if remember == "everything":
        return Outcome.RELEASE if status in (401, 429) else Outcome.REMEMBER
    if status >= 500:
        return Outcome.UNKNOWN if status in (502, 504) else Outcome.FAIL
    if status >= 400 and (remember == "successes" or status in NEVER_REMEMBERED):
        return Outcome.RELEASE
    return Outcome.REMEMBER


def of_error(error: BaseException, on_error: OnError) -> Outcome:
    """By the raised error, or by whichever error it was raised from. The first that says anything counts:
    ``NotExecuted`` raised from a time-out is the user's own word about that time-out."""
    judged = _judge(error, set())
    if judged is not None:
        return judged
    return Outcome.UNKNOWN if on_error == "unknown" else Outcome.FAIL


def _judge(error: BaseException, seen: set[int]) -> Outcome | None:
    """What an error, its causes or the members of a group prove; None if nothing."""
    chain = list(_chain(error, seen))
    for place, cause in enumerate(chain):
        if isinstance(cause, NotExecuted):
            return Outcome.FAIL
        # Not an Exception: cancelled, or the process is being torn down.
        if isinstance(cause, OutcomeUnknown | EscapedTransaction) or not isinstance(cause, Exception):
            return Outcome.UNKNOWN
        if isinstance(cause, ExceptionGroup):
            members = {_judge(member, seen) for member in cause.exceptions}
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

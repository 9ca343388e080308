"""Arrival: whether a request may have reached a provider, read off the error that its sending raised.

Libraries are known by name, so that none is imported. What is not known to be harmless is not: an error that
came from a call to somebody else proves nothing, unless it says that there was no call, or it carries the
other one's refusal; and that only where the call was one request. Libraries repeat a request and follow
redirects by themselves, and their error is about the last one.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Final

from ..errors import EscapedTransaction, NotExecuted, OutcomeUnknown, SamekeyError
from .known_errors import MAY_HAVE_ARRIVED, NEVER_SENT


def may_have_happened(error: BaseException, *, own: bool = False) -> bool:
    """Whether the error, anything that it was raised from or a member of a group is one after which the
    provider may have acted. A proof about one call does not outweigh it: it may be about another one.

    ``own``: the status that the error itself carries is the handler's own answer, and no provider's.
    """
    return _may_have_happened(error, set(), error if own else None)


def _may_have_happened(error: BaseException, seen: set[int], answer: BaseException | None) -> bool:
    in_transport = False
    for cause in _chain(error, seen):
        if cause is answer:
            continue
        if in_transport and _is_inside_a_transport(cause):
            continue  # how the connection could not be made
        # Not an Exception: cancelled, or the process is being torn down.
        if isinstance(cause, OutcomeUnknown | EscapedTransaction) or not isinstance(cause, Exception):
            return True
        if isinstance(cause, ExceptionGroup):
            if any(_may_have_happened(member, seen, answer) for member in cause.exceptions):
                return True
        elif _was_never_sent(cause):
            in_transport = True
        elif _may_have_arrived(cause):
            return True
    return False


def _is_inside_a_transport(error: BaseException) -> bool:
    """Whether a client library caught it itself, on its way to say that nothing was sent: one that the
    handler has caught before is about another call."""
    plain = type(error).__module__ in ("builtins", "ssl", "socket", "asyncio.exceptions")
    return plain and _first(error.__traceback__) in _TRANSPORTS


def _chain(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """The error, then whatever it was raised from or while that was handled: a wrapped time-out is still a
    time-out. Only ``from None`` says that it does not matter, and not where a client library says so."""
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        of_library = type(cause).__module__.partition(".")[0] in _TRANSPORTS
        if cause.__cause__ is not None or not cause.__suppress_context__ or of_library:
            waiting += (cause.__context__, cause.__cause__)


def proof_in(error: BaseException) -> NotExecuted | None:
    """What our own transport said of a call, where the provider's SDK has made its own error of it: nothing
    was done. Only of SDKs that the call's profile names: what anybody else makes of it, an application for
    one, may have been made after something else was done, a second way to the same effect."""
    seen, makers = set[int](), set[str]()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, NotExecuted):
            return found if makers <= found.sdks else None
        seen.add(id(found))
        makers.add(type(found).__module__.partition(".")[0])
        # Our own errors speak for themselves, and a group speaks of several things.
        speaks = isinstance(found, SamekeyError | BaseExceptionGroup) or not isinstance(found, Exception)
        found = None if speaks else _made_of(found)
    return None


def _made_of(error: BaseException) -> BaseException | None:
    """What an error was made of, and of nothing else: its own package raised it where it had caught the
    other."""
    cause, context = error.__cause__, error.__context__
    found = context if cause is None and not error.__suppress_context__ else cause
    if found is None or (cause is not None and context not in (None, cause)):
        return None
    own = type(error).__module__.partition(".")[0]
    return found if _first(found.__traceback__) == _last(error.__traceback__) == own else None


def _first(trace: TracebackType | None) -> str | None:
    """The package whose code has caught an error."""
    return None if trace is None else _package(trace)


def _last(trace: TracebackType | None) -> str | None:
    """The package whose code has raised it."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else _package(trace)


def _frames(error: BaseException) -> Iterator[FrameType]:
    """From where it was caught to where it was raised."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _package(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def left_this_machine(error: BaseException) -> bool | None:
    """Whether some of a request may have left, by the error that its sending raised: False is proof that
    nothing has; None: the error is not about the wire."""
    found: bool | None = None
    for cause in _chain(error, set()):
        names = _names(cause)
        if names & NEVER_SENT:
            if not _was_never_sent(cause):
                return True
            found = False  # and what it was raised from is how the connection could not be made
        elif found is not False and names & MAY_HAVE_ARRIVED:
            return True
        elif found is None and isinstance(cause, OSError):
            found = True  # unless what it was raised from says more
    return found


def _was_never_sent(error: BaseException) -> bool:
    known = _names(error) & NEVER_SENT and not _is_of_another_process(error)
    return bool(known) and not _is_of_a_later_request(error)


def _is_of_another_process(error: BaseException) -> bool:
    """It came out of a pool of processes: what its frames knew was left there."""
    return type(error.__cause__).__name__ in ("_RemoteTraceback", "RemoteTraceback")


def _is_of_a_later_request(error: BaseException) -> bool:
    """Whether the call had sent something before: the error is about a redirect that was followed, or about
    one more attempt. The libraries do not put it into the error, but their frames know it."""
    for frame in _frames(error):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _TRANSPORTS:
            continue
        if frame.f_code.co_name in ("resolve_redirects", "http_error_302"):  # requests, urllib
            return True
        names = frame.f_locals
        if not _have_refused(names.get("history")) or not _were_in_vain(names.get("retries")):
            return True
    return False


def _have_refused(answers: object) -> bool:
    """Whether all earlier answers of a call, if there are any, say that nothing was done."""
    if not isinstance(answers, list | tuple):
        return True
    statuses = (next((one for one in _given_by(answer) if one is not None), None) for answer in answers)
    return all(status is not None and _refuses(status) for status in statuses)


def _were_in_vain(retries: object) -> bool:
    """The same for the earlier attempts that urllib3 has noted: refused, or never sent."""
    noted = getattr(retries, "history", None)
    for attempt in noted if isinstance(noted, Iterable) else ():
        error, status = getattr(attempt, "error", None), getattr(attempt, "status", None)
        sent = not isinstance(error, BaseException) or not _names(error) & NEVER_SENT
        if sent and not (type(status) is int and _refuses(status)):
            return False
    return True


def _may_have_arrived(error: BaseException) -> bool:
    """Unless it proves that nothing was sent, or the provider has refused: whatever a library raises that
    talks to others, and whatever is called after a time-out, a connection or a retry, whoever made it."""
    if _was_never_sent(error) or isinstance(error, SamekeyError):
        return False  # ours are about the store
    status = _status(error)
    if status is not None:
        return not (_refuses(status) and _is_of_the_only_request(error))
    if isinstance(error, OSError):
        return not (isinstance(error, _OF_FILES) or error.errno in _OF_THIS_MACHINE)
    if "subprocess.CalledProcessError" in _names(error):
        return bool(getattr(error, "returncode", -1) < 0)  # it was killed, at whatever it was
    if _NAMES_OF_BROKEN & {kind.__name__ for kind in type(error).__mro__}:
        return _may_have_been_committed(error)
    kinds = [kind for kind in type(error).__mro__ if kind.__module__ != "builtins"]
    return (
        any(kind.__module__.partition(".")[0] in _TALKERS for kind in kinds)
        or any(_NATURE.search(kind.__name__) for kind in kinds)
        or bool(_names(error) & MAY_HAVE_ARRIVED)
        or _is_of_a_later_request(error)  # a plain error, about an address that a redirect has named
    )


def _may_have_been_committed(error: BaseException) -> bool:
    """Of an error of a database's driver, by the names that all of them share (PEP 249): unless the database
    itself has refused, or the connection was never made. A file's database refuses or has done it."""
    package = type(error).__module__.partition(".")[0]
    if package in _WRAPPERS_OF_DRIVERS and error.__cause__ is not None:
        return False  # the driver's own error, which it was made of, says more
    if package == "sqlite3":
        return False
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str):
        return state.startswith(_BROKEN_STATES)
    number = error.args[0] if error.args else None
    if type(number) is int and 1000 <= number < 3000:  # MySQL; from 2000 on its client library speaks
        return (number >= 2000 and number not in _NO_CONNECTION) or number in _MYSQL_IS_GOING
    frames = _frames(error)
    return not any(
        frame.f_code.co_name == "connect"
        and str(frame.f_globals.get("__name__", "")).partition(".")[0] == package
        for frame in frames
    )


def _status(error: BaseException) -> int | None:
    """Of the answer that the error was made of, where it carries one: each library has its own place."""
    for held in _kept_by(error):
        if type(held) is int and 100 <= held <= 599:
            return held
    return None


def _kept_by(error: BaseException) -> Iterator[object]:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        said = response.get("ResponseMetadata")
        yield said.get("HTTPStatusCode") if isinstance(said, Mapping) else None
    yield from _given_by(response)
    for name in ("status_code", "http_status", "status", "code"):
        yield getattr(error, name, None)


def _given_by(response: object) -> Iterator[int | None]:
    for name in ("status_code", "status"):
        status = getattr(response, name, None)
        yield status if type(status) is int and 100 <= status <= 599 else None


def _is_of_the_only_request(error: BaseException) -> bool:
    """Whether the call had sent nothing else before the request that got this answer, or nothing that was
    done: of redirects and repeated attempts the first may have been carried out, and its answer lost."""
    if _is_of_a_later_request(error) or _is_of_another_process(error):
        return False
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        said = response.get("ResponseMetadata")
        return not (isinstance(said, Mapping) and said.get("RetryAttempts"))
    headers = getattr(getattr(response, "request", None), "headers", None)
    repeated = headers.get(_REPEATED) if isinstance(headers, Mapping) else None
    return (
        repeated in (None, "0")
        and _have_refused(getattr(response, "history", None))
        and _have_refused(getattr(error, "history", None))  # aiohttp
        and _were_in_vain(getattr(getattr(response, "raw", None), "retries", None))
    )


def _refuses(status: int) -> bool:
    """Whether a provider that gives this answer has done nothing. What a gateway or a time limit says, an
    error inside and a success that could not be read do not say that."""
    return status in (307, 308, 501, 503) or (400 <= status < 500 and status not in (408, 499))


def _names(error: BaseException) -> set[str]:
    return {f"{_home(kind)}.{kind.__qualname__}" for kind in type(error).__mro__}


def _home(kind: type) -> str:
    """The public module of a class: libraries define errors in private modules such as httpx._x."""
    parts = kind.__module__.split(".")
    return ".".join(part for part in parts if not part.startswith("_")) or parts[0]


_TRANSPORTS: Final = frozenset(
    {"httpx", "httpx2", "httpcore", "httpcore2", "anyio", "asyncio", "requests", "urllib3", "aiohttp"}
    | {"aiohappyeyeballs", "async_timeout", "socket", "ssl", "http", "urllib", "trio"}
)
"""Packages whose own code catches errors while it connects."""

_REPEATED: Final = "x-stainless-retry-count"
"""What the SDKs that are generated with one well-known tool send along when they repeat a request."""

_TALKERS: Final = _TRANSPORTS - {"anyio", "asyncio", "trio"} | {
    *("botocore", "boto3", "aiobotocore", "grpc", "smtplib", "aiosmtplib", "ftplib", "imaplib", "poplib"),
    *(
        "xmlrpc",
        "paramiko",
        "websockets",
        "tenacity",
        "retrying",
        "stamina",
        "stripe",
        "zeep",
        "pika",
        "cimpl",
    ),
    *("aio_pika", "aiormq", "kombu", "kafka", "cimpl", "aiokafka", "nats", "azure", "google", "twilio"),
}
"""Packages that talk to others: what they raise is about a call, unless it says that there was none."""

_NAMES_OF_BROKEN: Final = frozenset({"OperationalError", "InterfaceError"})
_WRAPPERS_OF_DRIVERS: Final = frozenset({"sqlalchemy", "django"})
_BROKEN_STATES: Final = ("08", "57P", "40003")
"""SQLSTATEs of a connection that broke, of a server that is going, and of an end that nobody knows."""
_NO_CONNECTION: Final = frozenset({2002, 2003, 2005})
_MYSQL_IS_GOING: Final = frozenset({1053, 1927})

_NATURE: Final = re.compile(
    r"Time(d)?-?[Oo]ut|TimeLimit|Connect|Network|Transport|Retr(y|ies)|Gateway|JSONDecode"
)
"""What an error is called that says nothing about what was done: a time limit (Celery, rq), a connection that
broke, retries that are used up, a reply that could not be read."""

_OF_FILES: Final = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_OF_THIS_MACHINE: Final = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""What the operating system says of files. Everything else that it says may be about the wire."""

"""What becomes of an operation (X2, X7): the table of ``outcome.py`` row by row, and every named error."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import http.client
import importlib
import multiprocessing
import socket
import ssl
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import httpcore2
import httpx2
import pytest

from samekey.core import arrival as module
from samekey.core.known_errors import MAY_HAVE_ARRIVED, NEVER_SENT
from samekey.core.outcome import Ending, OnError, Outcome, judge, of_error, of_status
from samekey.core.settings import Remember
from samekey.errors import EscapedTransaction, NotExecuted, OutcomeUnknown, StoreUnavailable

REMEMBER, RELEASE, FAIL, UNKNOWN = Outcome.REMEMBER, Outcome.RELEASE, Outcome.FAIL, Outcome.UNKNOWN
STATUSES = range(200, 600)
SETTINGS: list[Remember] = ["successes", "definite", "everything"]

# --- by status -----------------------------------------------------------------------------------


def by_the_book(status: int, remember: Remember) -> Outcome:
    """X7 and X2, read aloud."""
    if status in {307, 308}:
        return RELEASE  # to be sent elsewhere: nothing was done here
    if remember == "everything":
        # Table P, stripe: everything once execution began, except 401 and 429.
        return RELEASE if status in {401, 429} else REMEMBER
    if 200 <= status <= 399:
        return REMEMBER
    if status in {502, 504}:
        return UNKNOWN  # somebody behind us may have done it
    if 500 <= status <= 599:
        return FAIL
    indefinite = {401, 403, 408, 413, 415, 425, 429}
    return RELEASE if remember == "successes" or status in indefinite else REMEMBER


@pytest.mark.parametrize("remember", SETTINGS)
def test_x7_every_status(remember: Remember) -> None:
    for status in STATUSES:
        found = judge(Ending(status), remember=remember, on_error="unknown")
        assert found is by_the_book(status, remember), status


@pytest.mark.parametrize(
    ("status", "successes", "definite", "everything"),
    [
        (200, REMEMBER, REMEMBER, REMEMBER),
        (202, REMEMBER, REMEMBER, REMEMBER),
        (303, REMEMBER, REMEMBER, REMEMBER),
        (400, RELEASE, REMEMBER, REMEMBER),
        (401, RELEASE, RELEASE, RELEASE),
        (402, RELEASE, REMEMBER, REMEMBER),
        (403, RELEASE, RELEASE, REMEMBER),
        (404, RELEASE, REMEMBER, REMEMBER),
        (409, RELEASE, REMEMBER, REMEMBER),
        (422, RELEASE, REMEMBER, REMEMBER),
        (429, RELEASE, RELEASE, RELEASE),
        (500, FAIL, FAIL, REMEMBER),
        (502, UNKNOWN, UNKNOWN, REMEMBER),
        (503, FAIL, FAIL, REMEMBER),
        (504, UNKNOWN, UNKNOWN, REMEMBER),
    ],
)
def test_x7_the_rows_that_people_ask_about(
    status: int, successes: Outcome, definite: Outcome, everything: Outcome
) -> None:
    found = [of_status(status, remember) for remember in SETTINGS]
    assert found == [successes, definite, everything]


def test_a_handlers_own_404_is_an_answer() -> None:
    assert of_status(404, "definite") is REMEMBER


@pytest.mark.parametrize("on_error", ["retry", "unknown"])
@pytest.mark.parametrize("remember", SETTINGS)
def test_nothing_frees_a_key_after_the_providers_id_was_noted(remember: Remember, on_error: OnError) -> None:
    def free(status: int | None, error: BaseException | None) -> Outcome:
        return RELEASE

    endings = [Ending(status, acted=True) for status in STATUSES]
    endings += [Ending(status, Mine(), refusal=status, acted=True) for status in (401, 404, 429, 500, 503)]
    endings += [Ending(None, error, acted=True) for error in NOTHING_HAPPENED]
    endings.append(Ending(None, Mine(), before_effect=True, acted=True))
    for ending in endings:
        for classify in (None, free):
            found = judge(ending, remember=remember, on_error=on_error, classify=classify)
            assert found in (UNKNOWN, REMEMBER), ending


def test_a_word_of_another_operation_frees_nothing() -> None:
    assert (
        judge(Ending(None, NotExecuted(), foreign=True), remember="definite", on_error="unknown") is UNKNOWN
    )


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_a_refusal_that_was_made_of_a_time_out_says_less_than_the_time_out(status: int) -> None:
    refusal = Mine()
    refusal.__cause__ = TimeoutError()
    for on_error in ("retry", "unknown"):
        found = judge(Ending(status, refusal, refusal=status), remember="definite", on_error=on_error)
        assert found in (UNKNOWN, REMEMBER), on_error


# --- by error ------------------------------------------------------------------------------------


class Mine(Exception):
    """A user's own error."""


class MyTimeout(TimeoutError):
    """A user's own kind of time-out."""


class MyRefusal(NotExecuted):
    """A user's own kind of proof."""


REQUEST = httpx2.Request("POST", "https://provider.invalid/charges")

NOTHING_HAPPENED: list[BaseException] = [
    NotExecuted(),
    MyRefusal(),
    ConnectionRefusedError(),
    socket.gaierror(),
    ssl.SSLCertVerificationError(),
    httpx2.ConnectError("x", request=REQUEST),
    httpx2.ConnectTimeout("x", request=REQUEST),
    httpx2.PoolTimeout("x", request=REQUEST),
    httpx2.UnsupportedProtocol("x", request=REQUEST),
    httpcore2.ConnectError(),
    httpcore2.ConnectTimeout(),
    httpcore2.PoolTimeout(),
    httpcore2.UnsupportedProtocol(),
]
NOBODY_CAN_TELL: list[BaseException] = [
    OutcomeUnknown(),
    EscapedTransaction(),
    TimeoutError(),
    asyncio.TimeoutError(),  # noqa: UP041 - whatever it is an alias of
    concurrent.futures.TimeoutError(),
    multiprocessing.TimeoutError(),
    subprocess.TimeoutExpired("pay", 1),
    MyTimeout(),
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(1),
    GeneratorExit(),
    ConnectionError(),
    ConnectionResetError(),
    ConnectionAbortedError(),
    BrokenPipeError(),
    ssl.SSLError(),
    ssl.SSLEOFError(),
    asyncio.IncompleteReadError(b"", 1),
    http.client.IncompleteRead(b""),
    http.client.BadStatusLine("x"),
    http.client.RemoteDisconnected(""),
    http.client.LineTooLong("header"),
    httpx2.ReadTimeout("x", request=REQUEST),
    httpx2.WriteTimeout("x", request=REQUEST),
    httpx2.ReadError("x", request=REQUEST),
    httpx2.WriteError("x", request=REQUEST),
    httpx2.CloseError("x", request=REQUEST),
    httpx2.RemoteProtocolError("x", request=REQUEST),
    httpx2.ProxyError("x", request=REQUEST),
    httpx2.DecodingError("x", request=REQUEST),
    httpx2.TooManyRedirects("x", request=REQUEST),
    httpcore2.ReadTimeout(),
    httpcore2.ReadError(),
    httpcore2.RemoteProtocolError(),
]
SAYS_NOTHING: list[BaseException] = [
    ValueError(),
    KeyError(),
    RuntimeError(),
    Mine(),
    StoreUnavailable(),
    httpx2.InvalidURL("x"),
]


def name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__name__}"


def pessimistic(error: BaseException, **more: Any) -> Outcome:
    return judge(Ending(None, error, **more), remember="definite", on_error="unknown")


@pytest.mark.parametrize("error", NOTHING_HAPPENED, ids=name)
def test_x2_the_optimistic_reading_knows_what_was_never_sent(error: BaseException) -> None:
    assert of_error(error) is FAIL


@pytest.mark.parametrize("error", NOBODY_CAN_TELL, ids=name)
def test_x2_and_what_may_have_reached_the_provider(error: BaseException) -> None:
    assert of_error(error) is UNKNOWN


@pytest.mark.parametrize("error", [*NOTHING_HAPPENED, *NOBODY_CAN_TELL, *SAYS_NOTHING], ids=name)
def test_x2_by_default_only_the_users_own_word_is_proof(error: BaseException) -> None:
    proof = isinstance(error, NotExecuted)
    assert pessimistic(error) is (FAIL if proof else UNKNOWN)


def test_x2_what_was_raised_on_the_way_to_another_error_is_no_proof() -> None:
    """The handler caught it, went on, and failed later."""
    for explicitly in (True, False):
        assert pessimistic(wrapped(KeyError(), NotExecuted(), explicitly=explicitly)) is UNKNOWN
    assert pessimistic(ExceptionGroup("x", [NotExecuted()])) is UNKNOWN


def test_x2_before_effect_is_the_handlers_own_word() -> None:
    assert pessimistic(KeyError(), before_effect=True) is FAIL
    assert pessimistic(asyncio.CancelledError(), before_effect=True) is FAIL


def test_x2_other_errors_are_read_optimistically_only_if_asked_for() -> None:
    error = Mine()
    assert of_error(error) is FAIL
    assert pessimistic(error) is UNKNOWN
    assert judge(Ending(500, error), remember="definite", on_error="retry") is FAIL


@pytest.mark.parametrize("status", [None, 200, 400, 408, 429, 500, 503])
@pytest.mark.parametrize("on_error", ["retry", "unknown"])
def test_x2_a_page_that_the_application_made_of_an_error_proves_nothing(
    status: int | None, on_error: OnError
) -> None:
    for error in (TimeoutError(), OutcomeUnknown(), asyncio.CancelledError()):
        assert judge(Ending(status, error), remember="definite", on_error=on_error) is UNKNOWN


@pytest.mark.parametrize("on_error", ["retry", "unknown"])
@pytest.mark.parametrize("remember", ["successes", "definite"])
def test_x2_an_answer_that_failed_after_its_handler_returned(remember: Remember, on_error: OnError) -> None:
    def classify(status: int | None, error: BaseException | None) -> Outcome:
        return FAIL

    for status in (None, 500, 502, 503):
        ending = Ending(status, own=False)
        assert judge(ending, remember=remember, on_error=on_error, classify=classify) is UNKNOWN
    for status in (200, 401, 404):
        assert judge(Ending(status, own=False), remember=remember, on_error=on_error) is REMEMBER
    for status in (408, 425, 429):  # "try again", for as long as the key lives, would be a lie
        assert judge(Ending(status, own=False), remember=remember, on_error=on_error) is UNKNOWN


@pytest.mark.parametrize(
    ("refusal", "page", "wanted"),
    [
        (409, 409, REMEMBER),
        (409, 400, REMEMBER),
        (409, 500, UNKNOWN),
        (409, None, UNKNOWN),
        (401, 401, RELEASE),
        (429, None, RELEASE),
        (307, 307, RELEASE),
        (500, 500, UNKNOWN),
        (503, 503, UNKNOWN),
        (502, 502, UNKNOWN),
    ],
)
def test_x2_the_frameworks_own_http_exception(refusal: int, page: int | None, wanted: Outcome) -> None:
    ending = Ending(page, Mine(), refusal=refusal)
    assert judge(ending, remember="definite", on_error="unknown") is wanted
    if refusal == 503:
        assert judge(ending, remember="definite", on_error="retry") is FAIL


def test_x2_a_classifier_sees_the_error_and_the_status() -> None:
    seen: list[object] = []

    def classify(status: int | None, error: BaseException | None) -> None:
        seen.append((status, type(error)))

    judge(Ending(429, Mine()), remember="definite", on_error="unknown", classify=classify)
    judge(Ending(201), remember="definite", on_error="unknown", classify=classify)
    assert seen == [(429, Mine), (201, type(None))]


# --- chains: what it was raised from -------------------------------------------------------------


def raised(make: Callable[[], None]) -> BaseException:
    try:
        make()
    except BaseException as error:  # a test of every kind
        return error
    raise AssertionError("nothing was raised")


def throw(error: BaseException) -> NoReturn:
    raise error


def wrapped(outer: BaseException, inner: BaseException, *, explicitly: bool) -> BaseException:
    def make() -> None:
        try:
            throw(inner)
        except BaseException as error:
            if explicitly:
                raise outer from error
            raise outer  # noqa: B904

    return raised(make)


@pytest.mark.parametrize("explicitly", [True, False])
@pytest.mark.parametrize("make", [lambda: httpx2.ReadTimeout("x"), TimeoutError, ConnectionResetError])
def test_a_wrapped_time_out_is_still_a_time_out(make: Callable[[], Exception], explicitly: bool) -> None:
    assert of_error(wrapped(Mine(), make(), explicitly=explicitly)) is UNKNOWN


def test_a_wrapped_refusal_of_the_connection_is_still_proof() -> None:
    error = wrapped(Mine(), httpx2.ConnectError("x"), explicitly=True)
    assert of_error(error) is FAIL


def test_what_was_wrapped_twice_is_found() -> None:
    inner = wrapped(ValueError(), TimeoutError(), explicitly=True)
    assert of_error(wrapped(Mine(), inner, explicitly=False)) is UNKNOWN


@pytest.mark.parametrize("explicitly", [True, False])
@pytest.mark.parametrize("inner", NOBODY_CAN_TELL, ids=name)
def test_not_executed_is_the_users_word_whatever_it_was_raised_from(
    inner: BaseException, explicitly: bool
) -> None:
    assert of_error(wrapped(NotExecuted(), inner, explicitly=explicitly)) is FAIL


@pytest.mark.parametrize("inner", NOTHING_HAPPENED, ids=name)
def test_outcome_unknown_is_the_users_word_as_well(inner: BaseException) -> None:
    assert of_error(wrapped(OutcomeUnknown(), inner, explicitly=True)) is UNKNOWN


def test_from_none_says_that_the_context_does_not_matter() -> None:
    def make() -> None:
        try:
            throw(TimeoutError())
        except TimeoutError:
            raise Mine from None

    assert of_error(raised(make)) is FAIL


def test_a_second_call_that_could_not_connect_does_not_excuse_the_first() -> None:
    """The handler tried again after a time-out. That the second call was never sent proves nothing."""
    first = httpx2.ReadTimeout("x", request=REQUEST)
    assert of_error(wrapped(httpx2.ConnectError("x"), first, explicitly=False)) is UNKNOWN
    assert of_error(wrapped(ConnectionRefusedError(), ConnectionResetError(), explicitly=False)) is (UNKNOWN)


def test_a_connect_time_out_is_made_of_lower_time_outs_and_still_proof() -> None:
    inside: dict[str, Any] = {"__name__": "httpcore2._backends.sync", "found": None}
    exec("try:\n    raise TimeoutError\nexcept TimeoutError as error:\n    found = error", inside)
    lower = httpcore2.ConnectTimeout()
    lower.__cause__ = inside["found"]
    assert of_error(wrapped(httpx2.ConnectTimeout("x"), lower, explicitly=True)) is FAIL


@pytest.mark.timeout(60)
def test_a_real_connection_that_is_refused_is_proof() -> None:
    with socket.socket() as held:  # bound and not listening: nobody else can take the port
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/"
        error = raised(lambda: _post(url))
    assert isinstance(error, httpx2.ConnectError)
    assert of_error(error) is FAIL


@pytest.mark.timeout(60)
def test_a_real_connection_that_is_refused_proves_nothing_about_a_call_before_it() -> None:
    """Whatever the library has cut off with ``from None``."""

    def make() -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            try:
                throw(TimeoutError())
            except TimeoutError:
                _post(f"http://127.0.0.1:{held.getsockname()[1]}/")

    assert of_error(raised(make)) is UNKNOWN


@pytest.mark.timeout(60)
def test_a_real_answer_that_never_comes_is_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        error = raised(lambda: _post(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=0.2))
    assert isinstance(error, httpx2.ReadTimeout)
    assert of_error(error) is UNKNOWN


def _post(url: str, timeout: float = 5) -> None:
    with httpx2.Client(trust_env=False, timeout=timeout) as client:
        client.post(url, content=b"x")


# --- groups and loops ----------------------------------------------------------------------------


def test_a_group_is_unknown_if_any_of_its_members_is() -> None:
    assert of_error(ExceptionGroup("x", [NotExecuted(), TimeoutError()])) is UNKNOWN
    nested = ExceptionGroup("x", [ValueError(), ExceptionGroup("y", [httpx2.ReadTimeout("x")])])
    assert of_error(nested) is UNKNOWN
    assert of_error(BaseExceptionGroup("x", [KeyboardInterrupt()])) is UNKNOWN


def test_a_group_is_proof_only_if_all_of_its_members_are() -> None:
    assert of_error(ExceptionGroup("x", [NotExecuted(), ConnectionRefusedError()])) is FAIL
    assert of_error(ExceptionGroup("x", [NotExecuted(), ValueError()])) is FAIL
    assert of_error(ExceptionGroup("x", [ValueError()])) is FAIL


def test_a_task_groups_time_out_is_a_time_out() -> None:
    async def time_out() -> None:
        raise TimeoutError

    async def handler() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(time_out())

    assert of_error(raised(lambda: asyncio.run(handler()))) is UNKNOWN


def test_errors_that_go_in_circles_end() -> None:
    one, two = Mine(), ValueError()
    one.__cause__, two.__cause__ = two, one
    assert of_error(one) is FAIL
    group = ExceptionGroup("x", [one])
    two.__cause__ = group
    assert of_error(group) is FAIL


def test_asyncio_wait_for_and_cancel() -> None:
    async def timed_out() -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)

    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    for handler in (timed_out, cancelled):
        assert of_error(raised(lambda handler=handler: asyncio.run(handler()))) is UNKNOWN  # type: ignore[misc]


# --- the names -----------------------------------------------------------------------------------

NAMED = sorted(NEVER_SENT | MAY_HAVE_ARRIVED)
CHECKED = {"builtins", "socket", "ssl", "http", "subprocess", "multiprocessing", "concurrent", "asyncio"}
CHECKED |= {"httpx2", "httpcore2"}


@pytest.mark.parametrize("path", [path for path in NAMED if path.partition(".")[0] in CHECKED])
def test_every_named_class_exists_under_that_name(path: str) -> None:
    home, _, kind = path.rpartition(".")
    found: Any = getattr(importlib.import_module(home), kind)
    assert issubclass(found, Exception)
    assert path in module._names(found.__new__(found))


@pytest.mark.parametrize("path", [path for path in NAMED if path.partition(".")[0] not in CHECKED])
def test_classes_that_are_not_installed_here_are_found_by_their_public_name(path: str) -> None:
    """Such as httpx._exceptions.ReadTimeout: a private module below a public package."""
    home, _, kind = path.rpartition(".")
    for private in (home, f"{home}._errors", f"{home}._core._errors"):
        made = type(kind, (Exception,), {"__module__": private})
        child = type("Child", (made,), {"__module__": "app"})
        wanted = FAIL if path in NEVER_SENT else UNKNOWN
        assert of_error(made()) is wanted
        assert of_error(child()) is wanted


def test_httpx_and_its_successor_are_treated_alike() -> None:
    for names in (NEVER_SENT, MAY_HAVE_ARRIVED):
        for old, new in (("httpx.", "httpx2."), ("httpcore.", "httpcore2.")):
            assert {n.removeprefix(old) for n in names if n.startswith(old)} == {
                n.removeprefix(new) for n in names if n.startswith(new)
            }


def every_transport_error() -> list[type[httpx2.TransportError]]:
    found = [kind for kind in vars(httpx2).values() if isinstance(kind, type)]
    return sorted(
        (kind for kind in found if issubclass(kind, httpx2.TransportError)), key=lambda kind: kind.__name__
    )


@pytest.mark.parametrize("kind", every_transport_error())
def test_no_transport_error_of_httpx2_is_left_to_chance(kind: type[httpx2.TransportError]) -> None:
    sent_nothing = {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"}
    error = kind.__new__(kind)
    assert of_error(error) is (FAIL if kind.__name__ in sent_nothing else UNKNOWN)


@pytest.mark.parametrize(
    "path",
    [
        "app.errors.ReadTimeout",
        "billiard.exceptions.SoftTimeLimitExceeded",
        "rq.timeouts.JobTimeoutException",
        "stripe.APIConnectionError",
        "tenacity.RetryError",
        "redis.exceptions.ConnectionError",
    ],
)
def test_what_is_called_after_a_time_limit_a_connection_or_a_retry_is_one(path: str) -> None:
    home, _, kind = path.rpartition(".")
    assert of_error(type(kind, (Exception,), {"__module__": home})()) is UNKNOWN


class OfAProvider(Exception):
    """Carries the status of the provider's answer where each library has it."""

    def __init__(self, place: str, status: int) -> None:
        super().__init__("the provider said so")
        if place == "ResponseMetadata":
            self.response: Any = {"ResponseMetadata": {"HTTPStatusCode": status}}
        elif place.startswith("response."):
            self.response = SimpleNamespace(**{place.removeprefix("response."): status})
        else:
            setattr(self, place, status)


@pytest.mark.parametrize(
    "place",
    [
        *("response.status_code", "response.status", "status_code", "http_status", "status", "code"),
        "ResponseMetadata",
    ],
)
def test_a_refusal_frees_and_what_a_gateway_says_does_not(place: str) -> None:
    for status in (400, 401, 402, 403, 404, 409, 422, 425, 429, 501, 503, 307):
        assert of_error(OfAProvider(place, status)) is FAIL, status
    for status in (200, 201, 303, 408, 499, 500, 502, 504, 520, 524):
        assert of_error(OfAProvider(place, status)) is UNKNOWN, status


def test_a_status_of_the_handlers_own_is_no_providers() -> None:
    ending = Ending(500, OfAProvider("status_code", 500), refusal=500)
    assert judge(ending, remember="definite", on_error="retry") is FAIL
    from_one = wrapped(OfAProvider("status_code", 503), OfAProvider("status_code", 504), explicitly=True)
    assert judge(Ending(503, from_one, refusal=503), remember="definite", on_error="retry") is UNKNOWN


def test_what_the_system_says_of_files_frees_and_what_may_be_of_the_wire_does_not() -> None:
    for number in (errno.ENOENT, errno.EEXIST, errno.EACCES, errno.ENOSPC, errno.EMFILE):
        assert of_error(OSError(number, "x")) is FAIL
    for number in (errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EIO):
        assert of_error(OSError(number, "x")) is UNKNOWN
    assert of_error(OSError("Multiple exceptions: …")) is UNKNOWN

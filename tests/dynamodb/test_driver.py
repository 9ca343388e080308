"""The drivers: lost answers, throttling, silence, forks, event loops, and the clock. Sync and async."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import warnings
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import TypeVar

import pytest

from lab.processes import wait_until
from lab.servers.dynamodb import NamedServer
from samekey import ietf
from samekey.core.decide import Execute, Outstanding
from samekey.core.program import Program
from samekey.drivers.dynamodb.clock import Clock
from samekey.drivers.run import run, run_async
from samekey.drivers.url import drivers_for
from samekey.errors import (
    ConfigurationError,
    ConnectionLost,
    SamekeyError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from samekey.stores.dynamodb.statements import DynamoStatements
from samekey.stores.keys import Keys
from samekey.testing.conformance import new_claim, retry_of
from tests.chosen import whole
from tests.dynamodb.sour import Date, Hang, Lose, Refuse, Sour, sour

pytestmark = whole


T = TypeVar("T")
Factory = Callable[[], Program[T]]
KEYS, POLICY = Keys(DynamoStatements()), ietf()
STYLES = ("sync", "async")
MANY = [Refuse("ThrottlingException", "Rate exceeded")] * 50


@pytest.fixture
def server(dynamodb_server: NamedServer) -> Iterator[Sour]:
    with sour(dynamodb_server.endpoint) as spoiler:
        yield spoiler


def ask(url: str, style: str, *factories: Factory[T], timeout: float = 30.0) -> list[T]:
    """Runs programs one after the other on fresh drivers."""
    drivers = drivers_for(url, timeout=timeout)

    async def all_of_them() -> list[T]:
        try:
            return [await run_async(drivers.aio, factory) for factory in factories]
        finally:
            await drivers.aio.close()

    if style == "async":
        return asyncio.run(all_of_them())
    try:
        return [run(drivers.sync, factory) for factory in factories]
    finally:
        drivers.sync.close()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("lost", [Lose(), Lose(500)])
def test_a_claim_whose_answer_was_lost_is_recognised(
    dynamodb_session_url: str, server: Sour, lost: Lose, style: str
) -> None:
    claim, url = new_claim(), server.url(dynamodb_session_url)
    server.spoils.extend([Date(formatdate(usegmt=True)), lost])  # the first request asks for the time
    [decision] = ask(url, style, lambda: KEYS.claim(claim, POLICY))
    assert isinstance(decision, Execute) and decision.record.attempts == 1
    assert server.asked == ["GetItem", "PutItem", "PutItem"]


@pytest.mark.parametrize("style", STYLES)
def test_what_is_throttled_is_asked_again_a_few_times(
    dynamodb_session_url: str, server: Sour, style: str
) -> None:
    claim, url = new_claim(), server.url(dynamodb_session_url)
    server.spoils.extend([Date(formatdate(usegmt=True)), *MANY[:3]])
    [decision] = ask(url, style, lambda: KEYS.claim(claim, POLICY))
    assert isinstance(decision, Execute)
    assert server.asked == ["GetItem"] + ["PutItem"] * 4
    server.spoils.extend(MANY)
    with pytest.raises(StoreBusy, match="throttles the table"):
        ask(url, style, lambda: KEYS.claim(retry_of(claim), POLICY, now=1))
    assert len(MANY) - len(server.spoils) == 4, "the runner does not ask again what is only busy"


@pytest.mark.parametrize("style", STYLES)
def test_a_server_that_says_nothing_is_waited_for_in_bounds(
    dynamodb_session_url: str, server: Sour, style: str
) -> None:
    server.always = Hang()
    with pytest.raises(StoreUnavailable, match="did not answer in time") as raised:
        ask(server.url(dynamodb_session_url), style, lambda: KEYS.read("scope", "key"), timeout=1.5)
    assert not isinstance(raised.value, ConnectionLost)
    wait_until(lambda: server.asked == ["GetItem"])


@pytest.mark.parametrize("style", STYLES)
def test_a_server_that_is_not_there_is_an_error_at_once(dynamodb_server: NamedServer, style: str) -> None:
    with sour(dynamodb_server.endpoint) as gone:
        url = gone.url(dynamodb_server.url())
    with pytest.raises(StoreUnavailable, match="Is the region or the endpoint in the URL right"):
        ask(url, style, lambda: KEYS.read("scope", "key"))


REFUSALS: dict[str, tuple[Refuse, type[SamekeyError], str]] = {
    "permission": (
        Refuse("AccessDeniedException", "User: arn:aws:iam::1:user/x is not authorized"),
        ConfigurationError,
        "may not use dynamodb:GetItem on the table",
    ),
    "credentials": (
        Refuse("UnrecognizedClientException", "The security token included in the request is invalid."),
        ConfigurationError,
        "does not accept these credentials",
    ),
    "clock": (
        Refuse("InvalidSignatureException", "Signature expired: 20260101T000000Z is now earlier than"),
        ConfigurationError,
        "refuses this node's clock",
    ),
    "missing": (Refuse("ResourceNotFoundException"), ConfigurationError, "Run: samekey migrate"),
    "foreign": (
        Refuse("ValidationException", "The provided key element does not match the schema"),
        ConfigurationError,
        "other keys than samekey's",
    ),
    "anything else": (Refuse("ValidationException", "No."), StoreError, r"refused GetItem .* No\."),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_refusal_says_what_to_do(dynamodb_session_url: str, server: Sour, why: str) -> None:
    refusal, kind, sentence = REFUSALS[why]
    server.always = refusal
    with pytest.raises(kind, match=sentence) as raised:
        ask(server.url(dynamodb_session_url), "sync", lambda: KEYS.read("scope", "key"))
    assert "arn:" not in str(raised.value), "who is asking is nobody else's business"


def test_after_a_fork_the_connections_are_the_childs_own(dynamodb_session_url: str) -> None:
    drivers = drivers_for(dynamodb_session_url)
    claim = new_claim()
    run(drivers.sync, lambda: KEYS.claim(claim, POLICY))
    parents = drivers.sync._client()  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads of the test runner is meant
        child = os.fork()
    if child == 0:
        found = run(drivers.sync, lambda: KEYS.read(claim.scope, claim.key))
        other = drivers.sync._client() is not parents  # type: ignore[attr-defined]
        os._exit(0 if found is not None and other else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert drivers.sync._client() is parents  # type: ignore[attr-defined]
    assert run(drivers.sync, lambda: KEYS.read(claim.scope, claim.key)) is not None
    drivers.sync.close()


def test_each_event_loop_has_a_client_of_its_own(dynamodb_session_url: str) -> None:
    drivers = drivers_for(dynamodb_session_url)
    claim = new_claim()

    async def once() -> object:
        try:
            first = asyncio.gather(*(run_async(drivers.aio, lambda: KEYS.read("a", "b")) for _ in range(3)))
            await first
            return await run_async(drivers.aio, lambda: KEYS.claim(claim, POLICY))
        finally:
            await drivers.aio.close()

    assert isinstance(asyncio.run(once()), Execute)
    assert isinstance(asyncio.run(once()), Execute), "the same attempt, recognised"


def test_a_loop_that_ends_without_a_word_leaves_nothing_open(dynamodb_session_url: str) -> None:
    drivers = drivers_for(dynamodb_session_url)
    for _ in range(2):
        asyncio.run(run_async(drivers.aio, lambda: KEYS.read("a", "b")))
    gc.collect()  # what was not closed would say so now, and fail the test


def test_there_are_no_transactions(dynamodb_session_url: str) -> None:
    drivers = drivers_for(dynamodb_session_url)
    for style in (drivers.sync.open, lambda: asyncio.run(drivers.aio.open())):
        with pytest.raises(ConfigurationError, match="no transaction"):
            style()


# ------------------------------------------------------------------ the clock


class Time:
    """A node's own clock, which may be wrong, and what has really passed."""

    def __init__(self, wrong: float = 0.0) -> None:
        self.passed, self.wrong = 5_000.25, wrong
        self.clock = Clock(lambda: 1_800_000_000 + self.passed + self.wrong, lambda: self.passed)

    @property
    def true(self) -> float:
        return 1_800_000_000 + self.passed

    def answered(self, *, way_there: float = 0.01, way_back: float = 0.01) -> None:
        """One request, which the server dates when it gets it."""
        sent = self.passed
        self.passed += way_there
        date = formatdate(self.true, usegmt=True)
        self.passed += way_back
        self.clock.prove(date, sent, self.passed)

    @property
    def error(self) -> float:
        return self.clock.now() / 1000 - self.true


def test_a_clock_that_is_right_is_never_moved(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    for step in range(50):
        time.passed += step * 0.137
        time.answered()
        assert abs(time.error) < 0.002
    assert not caplog.text


@pytest.mark.parametrize("wrong", [-86_400, -10, 10, 86_400])
def test_a_clock_that_is_wrong_goes_by_the_answers(wrong: int, caplog: pytest.LogCaptureFixture) -> None:
    time = Time(wrong)
    time.answered()
    assert abs(time.error) <= 1.03, "a second, and the time of a request"
    assert caplog.text.count("clock is wrong by") == 1
    for step in range(50):
        time.passed += step * 0.137
        time.answered()
    assert abs(time.error) <= 0.25, "many answers narrow it down"
    assert caplog.text.count("clock is wrong by") == 1, "said once"


def test_a_clock_that_is_put_right_under_us_changes_nothing() -> None:
    time = Time()
    time.answered()
    time.wrong = 3_600
    assert abs(time.error) < 0.002


def test_a_slow_answer_moves_nothing_that_it_does_not_disprove() -> None:
    time = Time()
    time.answered(way_there=30, way_back=30)
    assert abs(time.error) < 0.002


def test_an_endpoint_without_dates_is_told(caplog: pytest.LogCaptureFixture) -> None:
    time = Time(wrong=7)
    for date in (None, "yesterday"):
        time.clock.prove(date, time.passed, time.passed)
    assert time.clock.proven and abs(time.error - 7) < 0.002
    assert caplog.text.count("does not date its answers") == 1


@pytest.mark.parametrize("style", STYLES)
def test_nodes_with_wrong_clocks_agree(dynamodb_session_url: str, server: Sour, style: str) -> None:
    """As seen from a node whose own clock is a day behind: it must not think that a lease has a day to go."""
    claim, tomorrow = new_claim(), formatdate(time.time() + 86_400, usegmt=True)
    server.always = Date(tomorrow)
    url = server.url(dynamodb_session_url)
    [first] = ask(url, style, lambda: KEYS.claim(claim, POLICY))
    assert isinstance(first, Execute)
    assert abs(first.record.created_at / 1000 - time.time() - 86_400) < 3600
    [second] = ask(url, style, lambda: KEYS.claim(retry_of(claim), POLICY))
    assert isinstance(second, Outstanding)

"""Crashes at every point of leased work on Redis: in this process, by SIGKILL, and by a cut connection."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from lab.processes import wait_until
from samekey import ietf
from samekey.core.program import Program
from samekey.core.record import Answer, Lease
from samekey.core.states import Mode
from samekey.drivers.redis.driver import RedisDriver
from samekey.drivers.redis.url import read_url
from samekey.drivers.run import run
from samekey.stores.keys import Keys
from samekey.stores.redis.scripts import RedisStatements
from samekey.testing.conformance import new_claim
from samekey.testing.crash import (
    Crashed,
    Points,
    WatchedDriver,
    enumerate_crashes,
    enumerate_cuts,
    enumerate_kills,
)
from tests.chosen import whole
from tests.redis.crash_scenarios import SCOPE, effects, end_lease, guarded_request, state_of
from tests.stores.crash_scenarios import PAID

pytestmark = whole


STYLES = ("sync", "async")


def code_of(answer: Answer) -> str | None:
    return json.loads(answer.body).get("code") if answer.status >= 400 else None


def retry(url: str, mode: Mode, label: str) -> Answer:
    """The client sends its request again, to a process that has just been started."""
    answer = guarded_request(Points(label), url, mode, "sync")
    assert answer is not None
    return answer


def settled(url: str, mode: Mode, label: str) -> Answer:
    """What a patient client gets in the end: it retries, and the dead holder's lease ends."""

    def answer() -> Answer | None:
        got = retry(url, mode, label)
        if code_of(got) != "in_progress":
            return got
        end_lease(url, label)
        return None

    found = wait_until(answer)
    assert found is not None
    return found


def check_leased(url: str, crash: Crashed) -> None:
    already, recorded = effects(url, crash.label), state_of(url, crash.label)
    answer = settled(url, Mode.LEASED, crash.label)
    for _ in range(2):
        if recorded == "in_progress":
            # The claim stood and its outcome did not: nobody may guess.
            assert code_of(answer) == "outcome_unknown", crash
            assert effects(url, crash.label) == already <= 1, crash
            assert state_of(url, crash.label) == "unknown", crash
        else:
            assert recorded in (None, "completed"), crash
            assert (answer.status, answer.body) == (201, b"paid"), crash
            assert effects(url, crash.label) == 1, crash
        answer = retry(url, Mode.LEASED, crash.label)


def check_repeatable(url: str, crash: Crashed) -> None:
    before = effects(url, crash.label)
    answer = settled(url, Mode.REPEATABLE, crash.label)
    assert (answer.status, answer.body) == (201, b"paid"), crash
    assert 1 <= effects(url, crash.label) <= before + 1, crash


CHECKS: dict[Mode, Callable[[str, Crashed], None]] = {
    Mode.LEASED: check_leased,
    Mode.REPEATABLE: check_repeatable,
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("mode", CHECKS)
def test_a_request_survives_a_crash_at_every_point(redis_url: str, mode: Mode, style: str) -> None:
    seen = []
    for crash in enumerate_crashes(partial(guarded_request, url=redis_url, mode=mode, style=style)):
        CHECKS[mode](redis_url, crash)
        seen.append(crash.point.name)
    assert {"before the effect", "after the effect", "before the answer is sent"} < set(seen)
    assert seen.index("after reserve") < seen.index("before the effect") < seen.index("before complete")


def test_a_request_survives_a_crash_at_every_point_on_a_cluster(redis_cluster_url: str) -> None:
    scenario = partial(guarded_request, url=redis_cluster_url, mode=Mode.LEASED, style="async")
    for crash in enumerate_crashes(scenario):
        check_leased(redis_cluster_url, crash)


@pytest.mark.parametrize("style", STYLES)
def test_a_request_survives_sigkill_at_every_point(redis_url: str, style: str) -> None:
    crashes = 0
    for crash in enumerate_kills(guarded_request, redis_url, Mode.LEASED, style):
        check_leased(redis_url, crash)
        crashes += 1
    assert crashes >= 10


@pytest.mark.parametrize("style", STYLES)
def test_a_request_survives_a_cut_connection_at_every_point(redis_url: str, style: str) -> None:
    answers: list[Answer | None] = []

    def scenario(points: Points) -> None:
        answers.append(guarded_request(points, redis_url, Mode.LEASED, style))

    for cut in enumerate_cuts(scenario):
        first = answers[-1]
        assert first is not None, cut
        assert first.status == 201, f"{cut}: every program of leased work can be asked again"
        answer = settled(redis_url, Mode.LEASED, cut.label)
        assert (answer.status, answer.body) == (201, b"paid"), cut
        assert effects(redis_url, cut.label) == 1, cut


Outcomes = Callable[[Keys, Lease], Program[object]]
OUTCOMES: dict[str, tuple[Outcomes, str | None]] = {
    "complete": (lambda keys, lease: keys.complete(lease, PAID), "completed"),
    "fail": (lambda keys, lease: keys.fail(lease, "declined"), "failed_retryable"),
    "lose": (lambda keys, lease: keys.lose(lease, "timeout"), "unknown"),
    "release": (lambda keys, lease: keys.release(lease), None),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_program_happens_wholly_or_not_at_all(redis_url: str, outcome: str) -> None:
    driver = RedisDriver(read_url(redis_url))
    keys, policy = Keys(RedisStatements()), ietf()
    act, final = OUTCOMES[outcome]

    def scenario(points: Points) -> None:
        claim = new_claim(scope=SCOPE, key=points.label)
        lease = Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms)
        watched = WatchedDriver(driver, points)
        run(watched, lambda: keys.claim(claim, policy))
        run(watched, lambda: act(keys, lease))

    states = {crash.point.name: state_of(redis_url, crash.label) for crash in enumerate_crashes(scenario)}
    driver.close()
    assert states == {
        "before reserve": None,
        "after reserve": "in_progress",
        f"before {outcome}": "in_progress",
        f"after {outcome}": final,
    }

"""Crashes at every point of leased work: inside this process, by SIGKILL, and by a cut connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lab.processes import wait_until
from samekey import ietf
from samekey.core.program import Program
from samekey.core.record import Answer, Lease
from samekey.core.states import Mode
from samekey.drivers.run import run
from samekey.stores.keys import Keys
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
from tests.dynamodb.crash_scenarios import SCOPE, effects, end_lease, guarded_request, state_of
from tests.dynamodb.subjects import SyncDynamoSubject
from tests.stores.crash_scenarios import PAID

pytestmark = whole


@dataclass(frozen=True)
class World:
    """A table, and where effects are written down."""

    url: str
    subject: SyncDynamoSubject
    directory: Path

    def effects(self, label: str) -> int:
        return effects(self.directory, label)

    def state(self, label: str) -> str | None:
        return state_of(self.subject, label)

    def retry(self, mode: Mode, label: str) -> Answer:
        """The client sends its request again, to a process that has just been started."""
        answer = guarded_request(Points(label), self.url, self.directory, mode, "sync")
        assert answer is not None
        return answer

    def settled(self, mode: Mode, label: str) -> Answer:
        """What a patient client gets in the end: it retries, and the dead holder's lease ends."""

        def answer() -> Answer | None:
            got = self.retry(mode, label)
            if code_of(got) != "in_progress":
                return got
            end_lease(self.subject, label)
            return None

        found = wait_until(answer)
        assert found is not None
        return found


@pytest.fixture
def world(dynamodb_session_url: str, tmp_path: Path) -> Iterator[World]:
    subject = SyncDynamoSubject(dynamodb_session_url)
    yield World(dynamodb_session_url, subject, tmp_path)
    subject.close()


def code_of(answer: Answer) -> str | None:
    return json.loads(answer.body).get("code") if answer.status >= 400 else None


def check_leased(world: World, crash: Crashed) -> None:
    already, recorded = world.effects(crash.label), world.state(crash.label)
    answer = world.settled(Mode.LEASED, crash.label)
    for _ in range(2):
        if recorded == "in_progress":
            # The claim stood and its outcome did not: nobody may guess.
            assert code_of(answer) == "outcome_unknown", crash
            assert world.effects(crash.label) == already <= 1, crash
            assert world.state(crash.label) == "unknown", crash
        else:
            assert recorded in (None, "completed"), crash
            assert (answer.status, answer.body) == (201, b"paid"), crash
            assert world.effects(crash.label) == 1, crash
        answer = world.retry(Mode.LEASED, crash.label)


def check_repeatable(world: World, crash: Crashed) -> None:
    before = world.effects(crash.label)
    answer = world.settled(Mode.REPEATABLE, crash.label)
    assert (answer.status, answer.body) == (201, b"paid"), crash
    assert 1 <= world.effects(crash.label) <= before + 1, crash


@pytest.mark.parametrize(
    ("mode", "style", "check"),
    [
        (Mode.LEASED, "sync", check_leased),
        (Mode.LEASED, "async", check_leased),
        (Mode.REPEATABLE, "sync", check_repeatable),
    ],
)
def test_a_request_survives_a_crash_at_every_point(
    world: World, mode: Mode, style: str, check: Callable[[World, Crashed], None]
) -> None:
    scenario = partial(guarded_request, url=world.url, directory=world.directory, mode=mode, style=style)
    seen = []
    for crash in enumerate_crashes(scenario):
        check(world, crash)
        seen.append(crash.point.name)
    assert {"before the effect", "after the effect", "before the answer is sent"} < set(seen)
    assert seen.index("after reserve") < seen.index("before the effect") < seen.index("before complete")


def test_a_request_survives_sigkill_at_every_point(world: World) -> None:
    crashes = 0
    for crash in enumerate_kills(guarded_request, world.url, world.directory, Mode.LEASED, "async"):
        check_leased(world, crash)
        crashes += 1
    assert crashes >= 9


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_request_survives_a_cut_connection_at_every_point(world: World, style: str) -> None:
    answers: list[Answer | None] = []

    def scenario(points: Points) -> None:
        answers.append(guarded_request(points, world.url, world.directory, Mode.LEASED, style))

    for cut in enumerate_cuts(scenario):
        first = answers[-1]
        assert first is not None, cut
        assert first.status == 201, f"{cut}: every program of leased work can be asked again"
        answer = world.settled(Mode.LEASED, cut.label)
        assert (answer.status, answer.body) == (201, b"paid"), cut
        assert world.effects(cut.label) == 1, cut


Outcomes = Callable[[Keys, Lease], Program[object]]
OUTCOMES: dict[str, tuple[Outcomes, str | None]] = {
    "complete": (lambda keys, lease: keys.complete(lease, PAID), "completed"),
    "fail": (lambda keys, lease: keys.fail(lease, "declined"), "failed_retryable"),
    "lose": (lambda keys, lease: keys.lose(lease, "timeout"), "unknown"),
    "release": (lambda keys, lease: keys.release(lease), None),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_program_happens_wholly_or_not_at_all(world: World, outcome: str) -> None:
    keys, policy = world.subject.keys, ietf()
    act, final = OUTCOMES[outcome]

    def scenario(points: Points) -> None:
        claim = new_claim(scope=SCOPE, key=points.label)
        lease = Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms)
        watched = WatchedDriver(world.subject.drivers.sync, points)
        run(watched, lambda: keys.claim(claim, policy))
        run(watched, lambda: act(keys, lease))

    states = {crash.point.name: world.state(crash.label) for crash in enumerate_crashes(scenario)}
    assert states == {
        "before reserve": None,
        "after reserve": "in_progress",
        f"before {outcome}": "in_progress",
        f"after {outcome}": final,
    }

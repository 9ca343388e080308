"""PostgreSQL crashes, vanishes, or loses a COMMIT or its acknowledgement, in the middle of a request.

Nothing runs twice, nothing acknowledged is lost, nothing is assumed, and the service recovers by itself. By
asyncpg (the ASGI service) and by psycopg (the WSGI service).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import get_args

import pytest

from lab.processes import wait_until
from lab.proxy import Action, cut_after, cut_and_delay, cut_before
from lab.servers.postgres import PostgresServer
from tests.chosen import whole
from tests.fire.apps import Mode, World
from tests.fire.clients import Got, HttpClient
from tests.fire.front import TIMEOUT, Front, front
from tests.fire.servers import retry_while

pytestmark = whole


modes = pytest.mark.parametrize("mode", get_args(Mode))


@pytest.fixture(
    scope="module", params=get_args(World), ids={"asgi": "asyncpg", "wsgi": "psycopg"}.__getitem__
)
def front_line(
    request: pytest.FixtureRequest,
    crashing_postgres: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Front]:
    with front(crashing_postgres, request.param, tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.fixture
def scene(front_line: Front) -> Iterator[Front]:
    """All is well before a test, whatever the one before has left behind."""
    front_line.persist("/leased", f"well-{secrets.token_hex(8)}")
    yield front_line
    front_line.proxy.clear()
    front_line.proxy.flow()
    front_line.come_back()


def assert_come_again(got: Got) -> None:
    """The only thing that may be said where the truth is not known: nothing is claimed to be done."""
    assert (got.status, got.code) == (503, "store_unavailable")
    assert "retry-after" in got.headers


# ------------------------------------------------------------------ restarts


def test_a_crash_in_the_middle_of_atomic_work(scene: Front) -> None:
    acknowledged = scene.client.send("/atomic", "before-crash")
    request = scene.hold("/atomic", "crash")
    scene.postgres.restart("immediate")
    scene.let_go("crash")
    assert_come_again(request.result())
    assert scene.evidence.effects("crash") == 0
    got = scene.persist("/atomic", "crash")
    assert got.is_new
    assert (scene.evidence.runs("crash"), scene.evidence.effects("crash")) == (2, 1)
    assert scene.client.send("/atomic", "before-crash").repeats(acknowledged)


def test_a_crash_in_the_middle_of_leased_work(scene: Front) -> None:
    acknowledged = scene.client.send("/leased", "before-leased-crash")
    request = scene.hold("/leased", "leased-crash")
    scene.postgres.restart("immediate")
    scene.let_go("leased-crash")
    got = request.result()
    assert got.is_new, "the handler has done its work, whatever became of the database"
    replay = scene.persist("/leased", "leased-crash")
    assert replay.replayed and replay.body == got.body
    assert (scene.evidence.runs("leased-crash"), scene.evidence.effects("leased-crash")) == (1, 1)
    assert scene.client.send("/leased", "before-leased-crash").repeats(acknowledged)


@modes
def test_a_crash_between_requests_is_not_noticed(scene: Front, mode: Mode) -> None:
    """Every pooled connection is dead; the request finds fresh ones."""
    key = f"idle-{mode}"
    assert scene.client.send(f"/{mode}", f"{key}-first").is_new
    scene.postgres.restart("immediate")
    assert scene.client.send(f"/{mode}", key).is_new
    assert (scene.evidence.runs(key), scene.evidence.effects(key)) == (1, 1)


@modes
def test_an_outage_runs_nothing_and_ends_by_itself(scene: Front, mode: Mode) -> None:
    keys = [f"outage-{mode}-{number}" for number in range(7)]
    scene.go_down()
    for key in keys:
        assert_come_again(scene.client.send(f"/{mode}", key))
    # The last of them did not even try: the circuit breaker had opened.
    wait_until(lambda: "left alone" in scene.server.output())
    scene.come_back()
    for key in keys:
        assert scene.evidence.runs(key) == 0
        assert scene.persist(f"/{mode}", key).is_new
        assert (scene.evidence.runs(key), scene.evidence.effects(key)) == (1, 1)


def test_a_database_that_does_not_answer(scene: Front) -> None:
    """Neither an error nor an answer: a black hole. Nobody is left waiting, and nothing runs."""
    paths = {"stalled-atomic": "/atomic", "stalled-leased": "/brief"}
    for key, path in paths.items():
        assert scene.client.send(path, f"{key}-first").is_new
    scene.proxy.stall()
    try:
        with HttpClient(scene.server.port, timeout=8 * TIMEOUT) as impatient:
            requests = [impatient.start(path, key) for key, path in paths.items()]
            for request in requests:
                assert_come_again(request.result())
        assert [scene.evidence.runs(key) for key in paths] == [0, 0]
    finally:
        scene.proxy.flow()
    for key, path in paths.items():
        # A claim may have come through in the end, so that nobody holds it; then it must run out.
        got = scene.persist(path, key)
        assert got.is_new or got.code == "outcome_unknown"
        assert scene.evidence.runs(key) == scene.evidence.effects(key) == int(got.is_new)


# ------------------------------------------------------------------ COMMIT


def test_cut_before_commit(scene: Front) -> None:
    rule = scene.proxy.on_commit(cut_before)
    assert_come_again(scene.client.send("/atomic", "commit-lost"))
    assert rule.count == 1
    assert scene.evidence.effects("commit-lost") == 0
    assert scene.persist("/atomic", "commit-lost").is_new
    assert scene.evidence.effects("commit-lost") == 1


def test_cut_between_commit_and_its_acknowledgement(scene: Front) -> None:
    rule = scene.proxy.on_commit(cut_after)
    got = scene.client.send("/atomic", "acknowledgement-lost")
    assert rule.count == 1
    assert got.is_new, "the evidence says that it was committed"
    assert scene.client.send("/atomic", "acknowledgement-lost").repeats(got)
    assert scene.evidence.runs("acknowledgement-lost") == 1
    assert scene.evidence.effects("acknowledgement-lost") == 1


def test_a_commit_that_lands_late_is_waited_for(scene: Front) -> None:
    """Not to be seen at first, then there: absence is no proof of a rollback."""
    rule = scene.proxy.on_commit(cut_and_delay())
    request = scene.client.start("/atomic", "late")
    assert rule.fired.wait(30)
    # While nobody knows, a retry is refused and not run.
    retry = scene.other.send("/atomic", "late")
    assert (retry.status, retry.code) == (409, "in_progress")
    assert scene.evidence.effects("late") == 0
    rule.release()
    got = request.result()
    assert got.is_new
    assert scene.other.send("/atomic", "late").repeats(got)
    assert (scene.evidence.runs("late"), scene.evidence.effects("late")) == (1, 1)


def test_a_commit_that_lands_too_late_is_not_assumed(scene: Front) -> None:
    rule = scene.proxy.on_commit(cut_and_delay())
    first = scene.client.send("/atomic", "too-late")
    assert_come_again(first)
    assert b"nothing was done" not in first.body, "that is not known, so it must not be said"
    assert scene.client.send("/atomic", "too-late").code == "in_progress"
    rule.release()
    assert rule.done.wait(30)
    got = scene.persist("/atomic", "too-late")
    assert got.status == 201 and got.replayed, "the first run's commit is the one that counts"
    assert (scene.evidence.runs("too-late"), scene.evidence.effects("too-late")) == (1, 1)


# ------------------------------------------------------------------ every other statement

ANYTHING = r"[\s\S]*"
STATEMENTS = {
    "atomic": {
        "the look": rf"select {ANYTHING} as one\s+left join {ANYTHING}",
        "the lock": rf"begin isolation level read committed;{ANYTHING}",
        "the handler's write": rf"insert into effects {ANYTHING}",
        "the record": rf"with proof as {ANYTHING}",
    },
    "leased": {
        "the claim": rf"with found as {ANYTHING}",
        "the completion": rf"update {ANYTHING} answer_version = {ANYTHING}",
    },
}
BEFORE_THE_HANDLER = {"the look", "the lock", "the claim"}
CUTS: dict[str, Action] = {
    "never arrives": cut_before,
    "is not acknowledged": cut_after,
    "arrives late": cut_and_delay(),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("mode", "statement"), [(mode, statement) for mode, named in STATEMENTS.items() for statement in named]
)
def test_a_connection_cut_at_every_statement(scene: Front, mode: Mode, statement: str, cut: str) -> None:
    """Whatever is lost on the way, the client's retries end in one answer for one effect."""
    key, path = f"{statement} {cut}".replace(" ", "-").replace("'", ""), f"/{mode}"
    rule = scene.proxy.on_statement(STATEMENTS[mode][statement], CUTS[cut])
    first = scene.client.send(path, key)
    assert rule.count == 1
    if mode == "leased":
        assert first.is_new, "a statement of our own is safe to repeat, and was repeated"
    else:
        assert first.is_new or first.status >= 500
    rule.release()
    assert rule.done.wait(30)
    got = first if first.is_new else scene.persist(path, key)
    assert got.is_new
    assert scene.client.send(path, key).repeats(got)
    assert scene.evidence.effects(key) == 1
    assert scene.evidence.runs(key) == (1 if first.is_new or statement in BEFORE_THE_HANDLER else 2)


# ------------------------------------------------------------------ recording


def test_a_success_that_cannot_be_recorded_at_once_is_recorded_later(scene: Front) -> None:
    request = scene.hold("/leased", "recorded-later")
    scene.go_down()
    scene.let_go("recorded-later")
    got = request.result()
    assert got.is_new, "the client gets the true answer"
    retry = scene.other.send("/leased", "recorded-later")
    assert (retry.status, retry.code) == (409, "in_progress")
    scene.come_back()
    wait_until(lambda: scene.evidence.state("recorded-later") == "completed")
    replay = scene.persist("/leased", "recorded-later")
    assert replay.replayed and replay.body == got.body
    assert scene.evidence.runs("recorded-later") == 1


def test_a_success_that_cannot_be_recorded_within_its_lease_is_unknown_until_it_can(scene: Front) -> None:
    request = scene.hold("/brief", "recorded-late")
    scene.go_down()
    scene.let_go("recorded-late")
    got = request.result()
    assert got.is_new, "the client gets the true answer"
    retry = retry_while(scene.other, "/brief", "recorded-late", "in_progress")
    assert (retry.status, retry.code) == (409, "outcome_unknown")
    scene.come_back()
    wait_until(lambda: scene.evidence.state("recorded-late") == "completed")
    replay = scene.persist("/brief", "recorded-late")
    assert replay.replayed and replay.body == got.body
    assert scene.evidence.runs("recorded-late") == 1

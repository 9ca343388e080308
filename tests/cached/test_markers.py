"""``cache_in_progress``: a storm of duplicates is kept off the database, for some seconds and no longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.servers.redis import RedisServer
from samekey.core.claim import Claim
from samekey.core.decide import Execute, Mismatch, Outstanding, Replay, Uncertain
from samekey.core.record import Lease
from samekey.drivers.wrappers.copies import MARKER_LIFE
from samekey.testing.conformance_subject import different_request, executed, lease_of, new_claim, retry_of
from tests.cached.world import ANSWER, POLICY, World
from tests.chosen import whole

pytestmark = whole


@pytest.fixture
def world(shared_postgres: str, cache_url: str) -> Iterator[World]:
    with World(shared_postgres, cache_url, in_progress=True) as made:
        yield made


def begun(world: World, **options: int) -> tuple[Claim, Lease]:
    """An operation that is running."""
    claim = new_claim(**options)  # type: ignore[arg-type]
    lease = lease_of(executed(world.claim(claim)), claim)
    world.database.take()
    return claim, lease


def test_a_duplicate_hears_that_it_is_in_progress_without_the_database(world: World) -> None:
    claim, _ = begun(world)
    with_marker = world.replay(claim)
    world.redis.flushdb()
    from_the_database, cost = world.replay(claim)
    assert cost == ["reserve"]
    assert with_marker == (from_the_database, [])
    assert isinstance(from_the_database, Outstanding)


def test_only_the_winner_plants_it(world: World) -> None:
    claim, _ = begun(world)
    world.redis.flushdb()
    world.replay(claim)
    assert world.cached() == {}, "a reader cannot know how long it is true"


def test_another_request_is_still_told_apart(world: World) -> None:
    claim, _ = begun(world)
    assert isinstance(world.claim(different_request(claim)), Mismatch)
    assert world.database.take() == []


@pytest.mark.parametrize("lease_ms", [800, 60_000])
def test_it_lives_some_seconds_and_no_longer_than_the_lease(world: World, lease_ms: int) -> None:
    begun(world, lease_ms=lease_ms)
    for name in world.cached():
        left = world.redis.pttl(name)
        assert isinstance(left, int)
        assert left <= min(MARKER_LIFE, lease_ms)


def test_it_goes_before_the_outcome_is_recorded(world: World) -> None:
    claim, lease = begun(world)
    assert world.cached()
    world.database.after = lambda statement: _assert_nothing_cached(world)
    world.run(lambda: world.keys.complete(lease, ANSWER))
    for expected in (["reserve"], []):
        decision, cost = world.replay(claim)
        assert isinstance(decision, Replay)
        assert cost == expected


def _assert_nothing_cached(world: World) -> None:
    assert world.cached() == {}


def test_after_a_failure_the_retry_runs_at_once(world: World) -> None:
    claim, lease = begun(world)
    world.run(lambda: world.keys.fail(lease, "nothing happened"))
    assert isinstance(world.replay(claim)[0], Execute)


def test_after_a_release_the_key_is_free_at_once(world: World) -> None:
    claim, lease = begun(world)
    world.run(lambda: world.keys.release(lease))
    assert isinstance(world.replay(claim)[0], Execute)


def test_an_unknown_outcome_is_told_at_once(world: World) -> None:
    claim, lease = begun(world)
    world.run(lambda: world.keys.lose(lease, "who knows"))
    assert isinstance(world.replay(claim)[0], Uncertain)


def test_a_look_never_trusts_it(world: World) -> None:
    """Who asks what became of its own work must hear the truth, even if the marker could not be removed."""
    claim, lease = begun(world)
    [(name, marker)] = world.cached().items()
    world.run(lambda: world.keys.complete(lease, ANSWER))
    world.redis.set(name, marker)
    assert isinstance(world.run(lambda: world.keys.look(retry_of(claim), POLICY)), Replay)


def test_a_node_without_the_setting_asks_the_database(
    world: World, shared_postgres: str, cache_url: str
) -> None:
    claim, _ = begun(world)
    with World(shared_postgres, cache_url) as other:
        decision, cost = other.replay(claim)
        assert isinstance(decision, Outstanding)
        assert cost == ["identity", "reserve"]


def test_a_late_marker_takes_no_place_of_a_copy(world: World) -> None:
    claim = new_claim()

    def completed_meanwhile(_: object) -> None:
        """The claim is committed; before its marker is planted, all the rest happens."""
        lease = Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms)
        world.run(lambda: world.keys.complete(lease, ANSWER))
        assert isinstance(world.replay(claim)[0], Replay)

    world.run(lambda: world.keys.read(claim.scope, claim.key))  # which database it is, is known
    world.database.after = completed_meanwhile
    assert isinstance(world.claim(claim), Execute)
    assert isinstance(world.replay(claim)[0], Replay)


def test_without_the_cache_nothing_is_lost(shared_postgres: str, own_cache_server: RedisServer) -> None:
    with World(shared_postgres, own_cache_server.url, in_progress=True) as world:
        claim, lease = begun(world)
        own_cache_server.kill()
        assert isinstance(world.replay(claim)[0], Outstanding)
        assert world.run(lambda: world.keys.complete(lease, ANSWER)) is not None
        assert isinstance(world.replay(claim)[0], Replay)

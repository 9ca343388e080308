"""An evicted answer is never given again, however readers and operators interleave.

Each test stops between two steps of one of them and lets the other do all of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.servers.redis import RedisServer
from samekey.core.claim import Claim
from samekey.core.decide import Replay, Withheld
from samekey.drivers.wrappers.cache_scripts import BLOCK
from samekey.errors import StoreUnavailable
from tests.cached.world import ANN, ANSWER, World
from tests.chosen import whole

pytestmark = whole


@pytest.fixture
def operator(shared_postgres: str, cache_url: str) -> Iterator[World]:
    """Another node: where the operator's command runs."""
    with World(shared_postgres, cache_url) as made:
        yield made


class Died(Exception):
    """The process that evicts is gone."""


def assert_gone(world: World, claim: Claim) -> None:
    """From here on nobody gets the answer, whoever answers."""
    for _ in range(3):
        decision, _ = world.replay(claim)
        assert isinstance(decision, Withheld)


def test_an_evicted_answer_leaves_the_cache_too(world: World, operator: World) -> None:
    claim = world.completed()
    for _ in range(2):
        assert isinstance(world.replay(claim)[0], Replay)
    assert operator.evict(claim)
    assert world.cached() == {}
    assert_gone(world, claim)
    assert world.replay(claim)[1] == [], "that it is withheld is cached in its turn"


def test_through_the_async_driver(world: World, operator: World) -> None:
    claim = world.completed()
    world.replay(claim)
    operation = world.id_of(claim)
    assert operator.run_async(lambda: operator.operator.evict(operation, ANN)) == [True]
    assert_gone(world, claim)


def test_a_reader_that_read_before_does_not_put_it_back(world: World, operator: World) -> None:
    claim = world.completed()
    world.database.after = lambda statement: _evict(operator, claim)
    decision, _ = world.replay(claim)
    assert isinstance(decision, Replay), "it had read the answer before it was evicted"
    assert world.cached() == {}
    assert_gone(world, claim)


def test_nor_after_the_blocker_has_gone(world: World, operator: World) -> None:
    claim = world.completed()

    def evict_and_sleep(_: object) -> None:
        operator.database.after_commit = _die
        with pytest.raises(Died):
            operator.evict(claim)
        [name] = world.cached()
        world.redis.delete(name)  # as if BLOCK had run out

    world.database.after = evict_and_sleep
    world.replay(claim)
    assert world.cached() == {}
    assert_gone(world, claim)


def _die() -> None:
    raise Died


def _evict(operator: World, claim: Claim) -> None:
    assert operator.evict(claim)


def test_a_reader_between_the_blocker_and_commit_brings_no_copy(world: World, operator: World) -> None:
    claim = world.completed()
    world.replay(claim)
    seen: list[object] = []

    def before_commit() -> None:
        decision, cost = world.replay(claim)
        seen.append(type(decision))
        assert cost == ["reserve"], "the copy is gone already"

    operator.database.before_commit = before_commit
    assert operator.evict(claim)
    assert seen == [Replay], "until COMMIT the answer is the answer"
    assert_gone(world, claim)


def test_a_reader_between_commit_and_the_end_hears_the_truth(world: World, operator: World) -> None:
    claim = world.completed()
    world.replay(claim)
    operator.database.after_commit = lambda: assert_gone(world, claim)
    assert operator.evict(claim)
    assert_gone(world, claim)


def test_the_operator_s_process_dies_after_commit(world: World, operator: World) -> None:
    claim = world.completed()
    world.replay(claim)
    operator.database.after_commit = _die
    with pytest.raises(Died):
        operator.evict(claim)
    assert_gone(world, claim)
    [(name, value)] = world.cached().items()
    assert value == b"blocked"
    left = world.redis.pttl(name)
    assert isinstance(left, int)
    assert 0 < left <= BLOCK, "it goes by itself"


def test_the_operator_s_process_dies_before_commit(world: World, operator: World) -> None:
    claim = world.completed()
    operator.database.before_commit = _die
    with pytest.raises(Died):
        operator.evict(claim)
    decision, cost = world.replay(claim)
    assert isinstance(decision, Replay), "nothing was evicted"
    assert cost == ["reserve"]


def test_a_cache_that_is_emptied_between_the_steps(world: World, operator: World) -> None:
    claim = world.completed()
    world.replay(claim)

    def flush_and_fill() -> None:
        world.redis.flushdb()
        assert isinstance(world.replay(claim)[0], Replay)
        assert world.cached(), "a copy of the row that is about to change"

    operator.database.before_commit = flush_and_fill
    assert operator.evict(claim)
    assert_gone(world, claim)


def test_a_reader_s_copy_is_refused_by_a_cache_that_was_emptied(world: World) -> None:
    claim = world.completed()

    def emptied(_: object) -> None:
        world.redis.flushdb()

    world.database.after = emptied
    assert isinstance(world.replay(claim)[0], Replay)
    assert world.cached() == {}


def test_without_the_cache_nothing_is_evicted(
    shared_postgres: str, own_cache_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with World(shared_postgres, own_cache_server.url) as world:
        claim = world.completed()
        own_cache_server.kill()
        with pytest.raises(StoreUnavailable, match=r"could not be told.*Nothing\s+was changed"):
            world.evict(claim)
        decision, _ = world.replay(claim)
        assert isinstance(decision, Replay)
        assert decision.record.answer == ANSWER
        own_cache_server.start_again()
        assert world.evict(claim), "the operator tries again"
        assert_gone(world, claim)


def test_the_cache_goes_away_after_the_blocker(shared_postgres: str, own_cache_server: RedisServer) -> None:
    with World(shared_postgres, own_cache_server.url) as world:
        claim = world.completed()
        world.database.after_commit = own_cache_server.kill
        assert world.evict(claim), "it is done, and nobody is told that it is not"
        assert_gone(world, claim)

"""What the cache answers, what it does not, and what lies in it."""

from __future__ import annotations

import pytest

from samekey.core.decide import Execute, Mismatch, Outstanding, Replay, Uncertain, Withheld
from samekey.core.record import Answer
from samekey.drivers.run import run
from samekey.drivers.wrappers.copies import LARGEST, LIFE, CacheRequest
from samekey.testing.conformance_subject import (
    different_request,
    executed,
    lease_of,
    new_claim,
    retry_of,
)
from tests.cached.world import ANN, ANSWER, POLICY, World


def test_from_the_second_replay_on_the_database_is_not_asked(world: World) -> None:
    claim = world.completed()
    first, cost = world.replay(claim)
    assert cost == ["reserve"], "the first replay is the database's, and fills the cache"
    for _ in range(3):
        again, cost = world.replay(claim)
        assert cost == []
        assert again == first
    assert isinstance(first, Replay)
    assert first.record.answer == ANSWER
    assert (first.record.scope, first.record.key) == (claim.scope, claim.key)


def test_async_code_shares_the_copies(world: World) -> None:
    claim = world.completed()
    first, _ = world.replay(claim)
    programs = [lambda: world.keys.claim(retry_of(claim), POLICY)] * 3
    assert world.run_async(*programs) == [first] * 3
    other = world.completed()
    from_the_database, from_the_cache = world.run_async(
        *[lambda: world.keys.claim(retry_of(other), POLICY)] * 2
    )
    assert from_the_cache == from_the_database
    assert world.replay(other) == (from_the_cache, []), "filled by async code"


def test_a_look_is_answered_as_a_claim_is(world: World) -> None:
    claim = world.completed()
    looks = [world.run(lambda: world.keys.look(retry_of(claim), POLICY)) for _ in range(2)]
    assert world.database.take() == ["find"]
    assert looks[0] == looks[1]
    assert world.replay(claim) == (looks[0], [])


def test_another_request_is_refused_without_the_database(world: World) -> None:
    claim = world.completed()
    world.replay(claim)
    world.database.take()
    assert isinstance(world.claim(different_request(claim)), Mismatch)
    assert world.database.take() == []


def test_an_answer_that_was_withheld_is_cached_as_that(world: World) -> None:
    claim = world.completed(answer=None)
    world.replay(claim)
    decision, cost = world.replay(claim)
    assert isinstance(decision, Withheld)
    assert cost == []


def test_only_completed_records_are_cached(world: World) -> None:
    running, failed, lost = (new_claim() for _ in range(3))
    leases = [lease_of(executed(world.claim(claim)), claim) for claim in (running, failed, lost)]
    world.run(lambda: world.keys.fail(leases[1], "nothing"))
    world.run(lambda: world.keys.lose(leases[2], "who knows"))
    for _ in range(2):
        decision, cost = world.replay(running)
        assert isinstance(decision, Outstanding)
        assert cost == ["reserve"]
        decision, cost = world.replay(lost)
        assert isinstance(decision, Uncertain)
        assert cost == ["reserve"]
    assert world.cached() == {}
    assert isinstance(world.replay(failed)[0], Execute)
    assert world.cached() == {}


def test_an_operator_resolves_and_the_next_one_hears_it(world: World) -> None:
    claim = new_claim()
    lease = lease_of(executed(world.claim(claim)), claim)
    world.run(lambda: world.keys.lose(lease, "who knows"))
    assert isinstance(world.replay(claim)[0], Uncertain)
    operation = world.id_of(claim)
    assert world.run(lambda: world.operator.executed(operation, ANSWER, ANN))
    for expected in (["reserve"], []):
        decision, cost = world.replay(claim)
        assert isinstance(decision, Replay)
        assert decision.record.answer == ANSWER
        assert cost == expected


def test_inside_a_transaction_the_database_answers(world: World) -> None:
    claim = world.completed()
    world.replay(claim)
    session = world.driver.open()
    rows = session.execute(world.queries.statement("find", None, scope=claim.scope, key=claim.key))
    session.rollback()
    assert world.database.take() == ["begin", "find"]
    assert len(rows) == 1


def test_neither_key_nor_scope_lie_in_the_cache(world: World) -> None:
    claim = world.completed(scope="tenant-of-a-secret", key="ann@example.org")
    world.replay(claim)
    [(name, value)] = world.cached().items()
    for secret in (claim.scope, claim.key):
        assert secret not in name
        assert secret.encode() not in value


def test_what_is_large_is_left_to_the_database(world: World) -> None:
    claim = world.completed(answer=Answer(200, (), b"x" * LARGEST))
    for _ in range(2):
        decision, cost = world.replay(claim)
        assert isinstance(decision, Replay)
        assert cost == ["reserve"]
    assert world.cached() == {}


@pytest.mark.parametrize("ttl_ms", [40_000, 24 * 3600 * 1000])
def test_a_copy_lives_a_minute_and_no_longer_than_its_record(world: World, ttl_ms: int) -> None:
    claim = world.completed(ttl_ms=ttl_ms)
    world.replay(claim)
    [name] = world.cached()
    left = world.redis.pttl(name)
    assert isinstance(left, int)
    assert 0 < left <= min(LIFE, ttl_ms)


def test_two_databases_share_a_cache_and_never_an_answer(world: World, template: str, cache_url: str) -> None:
    with World("sqlite:///:memory:", cache_url) as other:
        from samekey.stores.sql.migrations import migrate

        run(other.database, lambda: migrate(other.queries))
        claim = world.completed()
        world.replay(claim)
        assert isinstance(other.claim(retry_of(claim)), Execute), "the same scope and key, elsewhere"
    with World(template, cache_url, namespace="named apart") as apart:
        assert apart.replay(claim)[1] == ["identity", "reserve"]


@pytest.mark.parametrize(("in_progress", "new_key"), [(False, 1), (True, 3)])
def test_how_often_the_cache_is_asked(
    shared_postgres: str,
    cache_url: str,
    monkeypatch: pytest.MonkeyPatch,
    in_progress: bool,
    new_key: int,
) -> None:
    """As docs/stores/cached.md says it; with markers one is planted and removed for each new key."""
    with World(shared_postgres, cache_url, in_progress=in_progress) as world:
        asked: list[CacheRequest] = []
        ask = world.cache.ask

        def noted(step: CacheRequest) -> object:
            asked.append(step)
            return ask(step)

        monkeypatch.setattr(world.cache, "ask", noted)
        claim = world.completed()
        assert len(asked) == new_key
        for expected in (2, 1, 1):
            asked.clear()
            world.replay(claim)
            assert len(asked) == expected

"""The operator's commands with ``--cache``: what they change, the cache hears of."""

from __future__ import annotations

import pytest

from lab.servers.redis import RedisServer
from samekey.core.decide import Replay, Uncertain, Withheld
from samekey.testing.conformance_subject import executed, lease_of, new_claim
from tests.cached.world import World
from tests.chosen import whole
from tests.operator.command import samekey

pytestmark = whole


def test_evict(world: World, shared_postgres: str, cache_url: str) -> None:
    for arguments, env in ((("--cache", cache_url), {}), ((), {"SAMEKEY_CACHE_URL": cache_url})):
        claim = world.completed()
        for _ in range(2):
            assert isinstance(world.replay(claim)[0], Replay)
        order = ("keys", "evict", world.id_of(claim), "--reason", "a test", "--url", shared_postgres)
        ran = samekey(*order, *arguments, env=env)
        assert ran.code == 0, ran.err
        for _ in range(3):
            assert isinstance(world.replay(claim)[0], Withheld)


def test_evict_without_the_cache_being_there(
    shared_postgres: str, own_cache_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with World(shared_postgres, own_cache_server.url) as world:
        claim = world.completed()
        own_cache_server.kill()
        order = ("keys", "evict", world.id_of(claim), "--reason", "a test", "--url", shared_postgres)
        ran = samekey(*order, "--cache", own_cache_server.url)
        assert ran.code == 2, "as where the store cannot be reached"
        assert "The cache could not be told" in ran.sentence
        assert "Nothing was changed" in " ".join(ran.sentence.split())
        assert isinstance(world.replay(claim)[0], Replay)


def test_resolve(world: World, shared_postgres: str, cache_url: str) -> None:
    claim = new_claim()
    lease = lease_of(executed(world.claim(claim)), claim)
    world.run(lambda: world.keys.lose(lease, "who knows"))
    assert isinstance(world.replay(claim)[0], Uncertain)
    order = ("keys", "resolve", world.id_of(claim), "--executed", "--status", "201", "--body", "{}")
    ran = samekey(*order, "--reason", "a test", "--url", shared_postgres, "--cache", cache_url)
    assert ran.code == 0, ran.err
    assert isinstance(world.replay(claim)[0], Replay)


def test_looking_never_asks_the_cache(world: World, shared_postgres: str, cache_url: str) -> None:
    claim = world.completed()
    world.replay(claim)
    before = world.redis.info("commandstats")
    order = ("keys", "evict", world.id_of(claim), "--reason", "a test", "--dry-run")
    ran = samekey(*order, "--url", shared_postgres, "--cache", cache_url)
    assert ran.code == 0, ran.err
    assert _asked(world.redis.info("commandstats")) == _asked(before)


def _asked(figures: object) -> int:
    assert isinstance(figures, dict)
    return sum(figures[name]["calls"] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in figures)

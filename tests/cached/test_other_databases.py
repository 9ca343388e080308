"""SQLite and MariaDB underneath: it is a layer over any SQL store."""

from __future__ import annotations

import pytest

from samekey.core.decide import Replay, Withheld
from samekey.testing.conformance_subject import HOUR, NOW, executed, retry_of
from tests.cached.world import ANSWER, POLICY, World, migrated
from tests.chosen import whole

pytestmark = whole


@pytest.mark.parametrize("fixture", ["sqlite_url", "mariadb_url"])
def test_replays_evictions_and_new_lives(
    request: pytest.FixtureRequest, cache_url: str, fixture: str
) -> None:
    url = request.getfixturevalue(fixture)
    migrated(url)
    with World(url, cache_url) as world:
        claim = world.completed()
        world.replay(claim)
        decision, cost = world.replay(claim)
        assert isinstance(decision, Replay)
        assert decision.record.answer == ANSWER
        assert cost == []
        assert world.run_async(lambda: world.keys.claim(retry_of(claim), POLICY)) == [decision]
        assert world.evict(claim)
        for _ in range(3):
            assert isinstance(world.replay(claim)[0], Withheld)
        other = world.completed(now=NOW, ttl_ms=HOUR)
        world.replay(other, now=NOW + 1)
        assert executed(world.replay(other, now=NOW + HOUR)[0])

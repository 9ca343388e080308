"""A cached copy never outlives its record, whatever the clocks say and however late it comes."""

from __future__ import annotations

from typing import Any

import pytest

from samekey.core.decide import Execute, Replay
from samekey.core.record import COLUMNS
from samekey.drivers.wrappers.cache_scripts import DROP, FILL, LOOK
from samekey.drivers.wrappers.copies import LIFE, CacheRequest, Copies, Fetch
from samekey.errors import StoreUnavailable
from samekey.stores.cached import identity
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance_subject import HOUR, NOW, retry_of
from tests.cached.world import World
from tests.chosen import whole

pytestmark = whole


QUERIES = queries_for("postgres")
FIND = QUERIES.statement("find", None, scope="s", key="k")


def row(*, clock: int, expires_at: int) -> list[Any]:
    """A completed record as the database gives it at that time."""
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    values |= {"id": "1", "scope": "s", "key": "k", "state": "completed", "expires_at": expires_at}
    return [clock, *values.values()]


def fill_of(*, cache_clock: int, found: list[Any]) -> CacheRequest | None:
    """What a reader would put into the cache, whose clock said this before the database was asked."""
    copies = Copies(identity(QUERIES), schema="samekey")
    flow = copies.read(FIND)
    assert isinstance(next(flow), Fetch), "which database is it?"
    look = flow.send([("app", 1)])
    assert isinstance(look, CacheRequest)
    assert look.script is LOOK
    assert isinstance(flow.send([0, b"epoch", cache_clock]), Fetch)
    try:
        ask = flow.send([found])
    except StopIteration:
        return None
    assert isinstance(ask, CacheRequest)
    assert ask.script is FILL
    return ask


def test_the_clocks_of_cache_and_database_need_not_agree() -> None:
    for cache_clock in (1_000, NOW - HOUR, NOW + HOUR):
        ask = fill_of(cache_clock=cache_clock, found=row(clock=NOW, expires_at=NOW + 5_000))
        assert ask is not None
        assert ask.arguments[2] == cache_clock + 5_000
        ask = fill_of(cache_clock=cache_clock, found=row(clock=NOW, expires_at=NOW + HOUR))
        assert ask is not None
        assert ask.arguments[2] == cache_clock + LIFE


def test_what_has_expired_is_not_cached() -> None:
    assert fill_of(cache_clock=NOW, found=row(clock=NOW, expires_at=NOW)) is None


def test_a_copy_that_comes_after_its_record_has_expired_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = world.completed()
    asked: list[CacheRequest] = []
    ask = world.cache.ask

    def noted(step: CacheRequest) -> Any:
        asked.append(step)
        return ask(step)

    monkeypatch.setattr(world.cache, "ask", noted)
    world.replay(claim)
    [name] = world.cached()
    fill = next(step for step in asked if step.script is FILL)
    epoch, value, until, *rest = fill.arguments
    world.redis.delete(name)
    assert isinstance(until, int)
    ask(CacheRequest(FILL, fill.keys, (epoch, value, until - LIFE - 1, *rest)))
    assert world.cached() == {}
    ask(fill)
    assert [*world.cached()] == [name], "the same copy in time is kept"


def test_the_reader_s_clock_may_refuse_a_copy(world: World) -> None:
    claim = world.completed(ttl_ms=HOUR)
    world.replay(claim)
    assert world.replay(claim)[1] == []
    world.copies._clock = lambda: 2 * NOW
    decision, cost = world.replay(claim)
    assert isinstance(decision, Replay)
    assert cost == ["reserve"], "the database knows better"


def test_after_its_retention_the_key_is_new_again(world: World) -> None:
    claim = world.completed(now=NOW, ttl_ms=HOUR)
    assert world.replay(claim, now=NOW + 1)[1] == ["reserve"]
    assert world.replay(claim, now=NOW + HOUR - 1)[1] == []
    decision, cost = world.replay(claim, now=NOW + HOUR)
    assert isinstance(decision, Execute)
    assert decision.reused
    assert cost == ["reserve", "unfinished", "reuse"]
    assert world.cached() == {}, "the old answer went with the old life"
    later, _ = world.replay(claim, now=NOW + HOUR + 1)
    assert not isinstance(later, Replay)


def test_a_tombstone_takes_the_copy_along(world: World) -> None:
    claim = world.completed(now=NOW, ttl_ms=HOUR)
    world.replay(claim, now=NOW + 1)
    assert world.cached()
    assert world.run(lambda: world.keys.expire(claim.scope, claim.key, now=NOW + HOUR))
    assert world.cached() == {}


def test_a_slow_reader_does_not_bring_back_what_was_reused(world: World) -> None:
    claim = world.completed(now=NOW, ttl_ms=HOUR)

    def meanwhile(_: object) -> None:
        assert isinstance(world.claim(retry_of(claim), now=NOW + HOUR), Execute)

    world.database.after = meanwhile
    decision, _ = world.replay(claim, now=NOW + 1)
    assert isinstance(decision, Replay), "it had read the old row in time"
    assert world.cached() == {}


def test_what_was_done_is_done_even_if_nobody_can_say_in_which_database() -> None:
    copies = Copies(identity(QUERIES), schema="samekey")
    touched = copies.touched(QUERIES.statement("expire", None, scope="s", key="k"), [])
    flow = copies.drop(touched)
    assert isinstance(next(flow), Fetch)
    with pytest.raises(StopIteration):
        flow.throw(StoreUnavailable("gone in this very moment"))


def test_removing_is_one_script_too() -> None:
    copies = Copies(identity(QUERIES), schema="samekey")
    flow = copies.drop(copies.touched(QUERIES.statement("expire", None, scope="s", key="k"), []))
    next(flow)
    ask = flow.send([("app", 1)])
    assert isinstance(ask, CacheRequest)
    assert ask.script is DROP

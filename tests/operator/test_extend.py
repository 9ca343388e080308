"""Keeping an answer for longer: audited, and refused with a sentence where it makes no sense."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from samekey.core.states import Mode
from samekey.errors import ConfigurationError, NotExtended
from samekey.stores.protocols import Actor
from tests.operator.command import samekey
from tests.operator.world import DAY, TENANT, World, moment_of


def test_by_so_much_more(world: World) -> None:
    record = world.completed("k")
    end = world.engine.extend(record.id, by=timedelta(days=30), reason="an audit is under way", actor="ann")
    assert world.read(record).expires_at == record.expires_at + 30 * DAY
    assert end == moment_of(record.expires_at + 30 * DAY)
    last = world.timeline(record)[-1]
    assert (last.before, last.after) == ("completed", "completed")
    assert (last.actor, last.reason) == ("ann", "an audit is under way")


def test_until_a_moment_by_tenant_and_key(world: World) -> None:
    record = world.completed("k")
    until = datetime(2200, 1, 31, 12, tzinfo=UTC)
    extended = world.engine.extend(tenant=TENANT, key="k", until=until, reason="r")
    assert extended == moment_of(world.read(record).expires_at) == until
    assert world.timeline(record)[-1].actor == "application"


def test_a_retry_still_gets_the_answer_when_it_would_have_expired(world: World) -> None:
    ran: list[int] = []

    def once() -> Any:
        return world.engine.once(tenant=TENANT, key="k", run=lambda: ran.append(1))

    once()
    world.engine.extend(tenant=TENANT, key="k", by=timedelta(days=30), reason="r")
    world.run(lambda: world.upkeep.reap(batch=10, now=world.clock() + 3 * DAY))
    once()
    assert ran == [1]


def test_what_cannot_be_extended_is_refused_with_a_sentence(world: World) -> None:
    over = world.completed("over", at=-3 * DAY)
    for record, why in (
        (world.unknown(), "It is unknown"),
        (world.claim(mode=Mode.REPEATABLE), "It is in_progress"),
        (world.dead(), "It is dead_letter"),
        (world.pending()[0], "It is pending"),
        (world.failed(), "Nothing happened"),
        (over, "retention is over"),
    ):
        with pytest.raises(NotExtended, match=why):
            world.engine.extend(record.id, by=timedelta(days=1), reason="r")
        assert world.read(record) == record
        ran = samekey("keys", "extend", record.id, "--by", "1d", "--reason", "r", "--url", world.url)
        assert ran.code == 1 and why in ran.sentence, ran
    nowhere: list[dict[str, Any]] = [{"operation_id": "nothing"}, {"tenant": TENANT, "key": "nothing"}]
    for named in nowhere:
        with pytest.raises(NotExtended, match="no such"):
            world.engine.extend(**named, by=timedelta(days=1), reason="r")


def test_retention_is_never_shortened(world: World) -> None:
    record = world.completed()
    for until in (moment_of(record.expires_at), moment_of(world.now)):
        with pytest.raises(NotExtended, match="already"):
            world.engine.extend(record.id, until=until, reason="r")
    with pytest.raises(NotExtended, match="9999"):
        world.engine.extend(record.id, by=timedelta(days=4_000_000), reason="r")
    assert world.read(record) == record


def test_what_ended_or_moved_meanwhile_stays(world: World) -> None:
    record = world.completed(at=-3 * DAY)
    late, actor = world.now + 30 * DAY, Actor("ann", "r")
    extend = world.operator.extend
    assert not world.run(lambda: extend(record.id, late, actor, attempt=record.attempt))
    assert not world.run(lambda: extend(record.id, late, actor, attempt="another", now=world.now - 3 * DAY))
    assert world.run(lambda: extend(record.id, late, actor, attempt=record.attempt, now=world.now - 3 * DAY))
    assert world.read(record).expires_at == late


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"by": 1, "until": datetime(2200, 1, 1, tzinfo=UTC)},
        {"until": datetime(2200, 1, 1)},
        {"by": timedelta(0)},
        {"by": timedelta(days=-1)},
        {"by": 1, "reason": " "},
        {"by": 1, "key": "k"},
        {"by": 1, "operation_id": None},
        {"by": 1, "operation_id": None, "tenant": TENANT},
    ],
)
def test_a_call_that_makes_no_sense(lite: World, wrong: dict[str, Any]) -> None:
    record = lite.completed("k")
    with pytest.raises(ConfigurationError):
        lite.engine.extend(**{"operation_id": record.id, "reason": "r", **wrong})
    assert lite.read(record) == record


def test_the_command(world: World) -> None:
    record = world.completed()
    command = ("keys", "extend", record.id, "--reason", "ticket 9", "--actor", "ann", "--url", world.url)
    assert samekey(*command, "--by", "30d", "--dry-run").code == 0
    assert world.read(record) == record
    ran = samekey(*command, "--by", "30d")
    assert ran.code == 0 and f"{moment_of(record.expires_at + 30 * DAY):%Y-%m-%d %H:%M:%SZ}" in ran.out
    assert world.timeline(record)[-1].reason == "ticket 9"
    assert samekey(*command, "--until", "2200-01-31").code == 0
    assert moment_of(world.read(record).expires_at) == datetime(2200, 1, 31, tzinfo=UTC)
    for wrong in ((), ("--by", "1d", "--until", "2201-01-01"), ("--until", "soon"), ("--by", "soon")):
        assert samekey(*command, *wrong).code == 2

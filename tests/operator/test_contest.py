"""Client retries, completer, sweeper, reaper, reconciler, a webhook at one key: one effect, one final answer.

Many keys on each store, in three processes. Each key begins as something that was left behind: work whose
holder died before or after its effect, phased work that was abandoned, and a key whose former life is over.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter, defaultdict

import pytest

from lab.processes import Racers
from samekey.core.states import Mode
from samekey.engine.phased.input import Captured, Given, Input
from samekey.stores.sql.phases import StoredInput
from tests.chosen import whole
from tests.operator.contest import ROLES, Bout, Node, Said, fight, leave
from tests.operator.world import DAY, HOUR, MINUTE, TENANT, World

pytestmark = whole


KEYS = int(os.environ.get("SAMEKEY_CONTEST_KEYS", "500"))  # on each store
AT_ONCE = 50
KINDS = ("died after its effect", "died before its effect", "abandoned phases", "expired")


def left_behind(world: World, effects: list[str], kind: str, key: str) -> Bout:
    """A record as a dead process would have left it."""
    if kind == "abandoned phases":
        record = world.claim(key, mode=Mode.PHASED, at=-HOUR, endpoint="POST /rides")
        given = Input(json.dumps({"key": key}).encode(), content_type="application/json")
        stored = StoredInput("ride", 1, Captured(TENANT, Given(given, {})).encode(None))
        lease = record.lease(MINUTE)
        world.run(lambda: world.phases.begin(lease, record.id, stored, now=world.now - HOUR))
        return Bout(key, record.id, "/rides", Mode.PHASED)
    if kind == "expired":
        return Bout(key, world.completed(key, at=-3 * DAY).id, "/payments", is_over=True)
    if kind == "died after its effect":
        effects.append(key)
    return Bout(key, world.claim(key, at=-HOUR).id, "/payments")


@pytest.mark.timeout(240)
def test_one_effect_and_one_answer(world: World) -> None:
    world.sql("drop table if exists effects")
    world.sql("create table effects (key text)")
    heard: dict[str, set[Said]] = defaultdict(set)
    left: list[Bout] = []
    with Racers(len(ROLES)) as racers:
        for start in range(0, KEYS, AT_ONCE):
            numbers = range(start, start + AT_ONCE)
            effects: list[str] = []
            bouts = [left_behind(world, effects, KINDS[n % len(KINDS)], f"key-{n}") for n in numbers]
            world.sql(f"insert into effects values {', '.join('(?)' for _ in effects)}", *effects)
            for said in racers.race(fight, world.url, bouts):
                for key, answer in said:
                    if answer.final:
                        heard[key].add(answer)
            left += [bout for bout in bouts if bout.key not in heard]
        racers.race(leave)
    settle(world, left, heard)
    assert_one_effect_each(world)
    assert all(len(answers) == 1 for answers in heard.values()) and len(heard) == KEYS
    assert_the_audit_makes_sense(world)


def settle(world: World, bouts: list[Bout], heard: dict[str, set[Said]]) -> None:
    """The client goes on retrying, and the workers working, until every key has its answer."""

    async def work() -> None:
        node = Node(world.url)
        try:
            rest = list(bouts)
            for _ in range(5 + len(bouts) // 10):
                answers = await asyncio.gather(*map(node.post, rest))
                for bout, answer in zip(rest, answers, strict=True):
                    if answer.final:
                        heard[bout.key].add(answer)
                rest = [bout for bout, answer in zip(rest, answers, strict=True) if not answer.final]
                if not rest:
                    return
                for role in (node.sweeper, node.completer, node.reconciler, node.reaper):
                    await role(rest[0])
            raise AssertionError(f"still without an answer: {rest}")
        finally:
            await node.engine.aclose()

    world.serve(work)


def assert_one_effect_each(world: World) -> None:
    counts = Counter(key for (key,) in world.sql("select key from effects"))
    assert {key: count for key, count in counts.items() if count != 1} == {}
    assert len(counts) == KEYS


def assert_the_audit_makes_sense(world: World) -> None:
    """Nobody moved a record that was completed, but the reaper and a new life of an expired key."""
    lines = world.sql("select key, from_state, to_state, actor from {audit} order by key, id")
    finished: dict[str, int] = Counter()
    for (key, before, after, actor), following in zip(lines, [*lines[1:], None], strict=True):
        if after == "completed":
            finished[key] += 1
        if before == "completed":
            assert (after, actor) in {(None, "reaper"), (None, "request"), ("in_progress", "request")}
            if (after, actor) == (
                None,
                "request",
            ):  # it makes room for its own new life, and for nothing else
                assert tuple(following) == (key, None, "in_progress", "request")
            finished[key] -= 1
    assert set(finished.values()) == {1}

"""The state machine walks Redis and the plain model side by side; and broken scripts are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from samekey.core.program import Query
from samekey.errors import SamekeyError
from samekey.stores.redis.scripts import RedisStatements
from samekey.stores.redis.upkeep import RedisUpkeep
from samekey.testing.conformance import KeyStoreConformance, run_all
from tests.chosen import whole
from tests.redis.looking import assert_in_order
from tests.redis.subjects import AsyncRedisSubject, RedisSubject, SyncRedisSubject
from tests.stores.test_model import walk

pytestmark = whole


MUTANTS = [
    ("reserve", "p.lease_ms", "0"),
    ("reserve", "if there then", "if false then"),
    ("retry", "attempt = p.attempt, ", ""),
    ("resume", "attempt = p.attempt, ", ""),
    ("reuse", "attempts = 1", "attempts = 2"),
    ("end_lease", "locked_until = false, ", ""),
    ("end_lease", "becomes == 'unknown' and clock or false", "false"),
    ("renew", "found[1] == attempt and ", ""),
    ("complete", "held(p.attempt", "held(mine().attempt"),
    ("fail", "held(p.attempt", "held(mine().attempt"),
    ("lose", "reconcile_after = clock", "reconcile_after = false"),
    ("release", "held(p.attempt", "held(mine().attempt"),
    ("expire", "> clock", ">= clock"),
    ("expire", "answer_body = false", "answer_body = record.answer_body"),
]
"""(script, what is right in it, what to put there)"""


@pytest.mark.parametrize("kind", [SyncRedisSubject, AsyncRedisSubject])
def test_redis_tells_the_story_of_the_model(
    redis_url: str, kind: Callable[[str], SyncRedisSubject | AsyncRedisSubject]
) -> None:
    subject = kind(redis_url)
    walk(subject, RedisUpkeep(RedisStatements()), max_examples=15)
    assert assert_in_order(subject.client) > 10
    subject.close()


@pytest.fixture
def subject(redis_url: str) -> Iterator[RedisSubject]:
    subject = SyncRedisSubject(redis_url)
    yield subject
    subject.close()


@pytest.mark.parametrize(("name", "right", "wrong"), MUTANTS)
def test_the_suite_finds_a_broken_script(
    subject: SyncRedisSubject, name: str, right: str, wrong: str
) -> None:
    statements = RedisStatements()
    whole = statements[name]
    text, parameters = whole.rendered["lua"]
    body = text.rindex("-- durable\n") if "-- durable\n" in text else text.index("ipairs(({'id'")
    assert right in text[body:], f"{name} no longer says {right!r}"
    broken = text[:body] + text[body:].replace(right, wrong)
    statements._queries = {**statements._queries, name: Query(name, whole.sql, {"lua": (broken, parameters)})}
    subject.keys._statements = statements
    with pytest.raises((AssertionError, SamekeyError)):
        run_all(subject, KeyStoreConformance)

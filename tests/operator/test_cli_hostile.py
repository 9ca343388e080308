"""What clients, providers and their errors have left in the store reaches no terminal as it is."""

from __future__ import annotations

import json

import pytest

from samekey import Executed, Response
from samekey.core.effects import Sent, SentStep
from tests.operator.command import samekey
from tests.operator.world import MINUTE, World

EVIL = "a\nforged line\r\x1b[2J\x9b31m\u202eb"

TEXTS = {
    "keys": ("endpoint", "error_code", "provider_id", "downstream"),
    "jobs": ("name", "error", "provider_id"),
    "effects": ("source", "downstream_key", "provider_id"),
    "audit": ("actor", "reason"),
    "evidence": ("source", "event_id", "about", "provider_id"),
}
"""Columns that hold what others have said."""


@pytest.fixture
def ids(lite: World) -> list[str]:
    """One of each kind, all with hostile words; the ids of the operations, then the job's."""
    dead, job = lite.dead_job("dead")
    records = [lite.claim("u"), lite.failed("f"), lite.completed("c"), dead]
    steps = tuple(SentStep(step, records[0].downstream_key(step)) for step in ("a", "b"))
    lite.run(lambda: lite.keys.lose(records[0].lease(MINUTE), "timeout", sent=Sent(steps)))
    lite.tell(Executed(Response(201)), "e1", at=1, downstream_key=records[0].downstream_key("strange"))
    for table, columns in TEXTS.items():
        for column in columns:
            lite.sql(f"update {{{table}}} set {column} = ? where {column} is not null", EVIL)
    lite.sql("update {keys} set error_code = ?, provider_id = ?", EVIL, EVIL)
    return [*(record.id for record in records), job]


def test_no_command_shows_it_as_it_is(lite: World, ids: list[str]) -> None:
    shown = [samekey("keys", "show", one, "--url", lite.url, "--reveal") for one in ids[:4]]
    shown += [samekey(*command, "--url", lite.url) for command in (("keys", "list"), ("dead", "list"))]
    shown += [samekey("dead", "show", ids[-1], "--url", lite.url)]
    shown += [samekey("evidence", "list", "--url", lite.url), samekey("doctor", "--url", lite.url)]
    words = "".join(ran.out + ran.err for ran in shown)
    assert r"a\nforged line\r\x1b[2J" in words, "it was shown"
    for line in words.split("\n"):
        assert line.isprintable(), line
        assert not line.strip().startswith("forged"), line


def test_json_keeps_the_text_and_not_its_power(lite: World, ids: list[str]) -> None:
    for command in (("keys", "list"), ("keys", "show", ids[0]), ("dead", "list"), ("evidence", "list")):
        out = samekey(*command, "--json", "--url", lite.url).out
        assert all(line.isprintable() for line in out.split("\n")), command
        assert EVIL in _texts(json.loads(out)), command


def test_an_error_that_repeats_it_is_disarmed(lite: World) -> None:
    ran = samekey("keys", "show", EVIL, "--url", lite.url)
    assert ran.code != 0
    assert all(line.isprintable() for line in (ran.out + ran.err).split("\n"))


def _texts(value: object) -> list[object]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value]

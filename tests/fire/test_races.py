"""Ten processes, one key, one moment: one run, and nobody waits for it.

Each process has an engine and an application of its own, as ten workers of a service have. In every fourth
round the handler does not end before all duplicates have their answers: a duplicate that waited for it would
bring the round to a standstill.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from lab.processes import Racers, Turn
from samekey import Idempotency
from samekey.drivers.run import run
from samekey.stores.sql.migrations import migrate
from tests.chosen import every_pair, whole
from tests.fire.apps import Mode, Settings, World
from tests.fire.clients import Client, Got, in_process
from tests.fire.evidence import query

pytestmark = whole


ROUNDS = 100
PATIENT_EVERY = 4

modes = pytest.mark.parametrize("mode", get_args(Mode))
worlds = pytest.mark.parametrize("world", get_args(World))

_clients: dict[Settings, Client] = {}
"""In a racing process: what it keeps from round to round."""


def attempt(turn: Turn, settings: Settings, path: str, key: str, bodies: int) -> Got:
    """One process's request. Each of ``bodies`` different ones is sent by as many processes."""
    if settings not in _clients:
        _clients[settings] = in_process(settings)
    body = json.dumps({"amount": turn.racer % bodies}).encode()
    got = _clients[settings].send(path, key, body)
    if not got.is_new:
        settings.journal(f"answered-{key}").write("answered")
    return got


def leave(_turn: Turn, settings: Settings) -> None:
    """Gives back what the process kept."""
    _clients.pop(settings).close()


def play(
    racers: Racers, settings: Settings, mode: Mode, *, rounds: int, bodies: int = 1
) -> list[tuple[str, bool, list[Got]]]:
    """The key, whether the handler waited for the duplicates, and all answers, round by round."""
    played = []
    for number in range(rounds):
        key, patient = f"round-{number}", number % PATIENT_EVERY == 0
        path = f"/patient/{mode}" if patient else f"/{mode}"
        played.append((key, patient, racers.race(attempt, settings, path, key, bodies)))
    racers.race(leave, settings)
    return played


def assert_one_run_each(settings: Settings, rounds: int) -> None:
    """Every key was run once and took effect once."""
    lines = (Path(settings.directory) / "runs.journal").read_text().splitlines()
    once = {f"round-{number}": 1 for number in range(rounds)}
    assert Counter(key for word, key in map(str.split, lines) if word == "run") == once
    effects = Counter(key for (key,) in query(settings.url, "select key from effects"))
    effects.update(key for word, key in map(str.split, lines) if word == "effect")
    assert effects == once


def assert_refused_for_now(got: Got) -> None:
    assert (got.status, got.code) == (409, "in_progress")
    assert int(got.headers["retry-after"]) >= 1


@every_pair
@worlds
@modes
def test_one_runs_and_the_others_are_answered(
    racers: Racers, url: str, directory: str, mode: Mode, world: World
) -> None:
    settings = Settings(world=world, url=url, directory=directory)
    for key, patient, answers in play(racers, settings, mode, rounds=ROUNDS):
        assert [got.error for got in answers] == [None] * 10, key
        [first] = [got for got in answers if got.is_new]
        others = [got for got in answers if got is not first]
        assert len(others) == 9
        for got in others:
            if patient or not got.replayed:
                assert_refused_for_now(got)
            else:
                assert got.repeats(first), key
    assert_one_run_each(settings, ROUNDS)


@every_pair
@worlds
@modes
def test_different_requests_under_one_key(
    racers: Racers, store: str, url: str, directory: str, mode: Mode, world: World
) -> None:
    """Two processes send each of five bodies: one wins, its twin is a duplicate, the rest is refused.

    The two worlds share the hundred rounds of a store and mode.
    """
    rounds = ROUNDS // len(get_args(World))
    settings = Settings(world=world, url=url, directory=directory)
    # Nobody can see the fingerprint of atomic work that PostgreSQL has not committed.
    hidden = mode == "atomic" and store == "postgresql"
    for key, patient, answers in play(racers, settings, mode, rounds=rounds, bodies=5):
        [winner] = [racer for racer, got in enumerate(answers) if got.is_new]
        for racer, got in enumerate(answers):
            if racer == winner:
                continue
            if racer % 5 == winner % 5:
                if patient or not got.replayed:
                    assert_refused_for_now(got)
                else:
                    assert got.repeats(answers[winner]), key
            elif hidden and (patient or got.status == 409):
                assert_refused_for_now(got)
            else:
                assert (got.status, got.code) == (422, "reused"), key
    assert_one_run_each(settings, rounds)


def open_store(_turn: Turn, url: str) -> None:
    idempotency = Idempotency(url)
    try:
        run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
        idempotency.check()
    finally:
        idempotency.close()


@pytest.mark.parametrize("fresh", ["sqlite_url", "postgres_url"])
def test_ten_processes_create_the_tables_at_once(
    racers: Racers, fresh: str, request: pytest.FixtureRequest
) -> None:
    racers.race(open_store, request.getfixturevalue(fresh))

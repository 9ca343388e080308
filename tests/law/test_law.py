"""The table of states is law: what every statement does, and that no row can be lost unnoticed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from samekey.core import states
from samekey.core.program import Dialect
from samekey.core.states import LEASE_END, IllegalTransition, Mode, State, StateEvent
from samekey.drivers.protocol import Driver
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.stores.law import Unlawful, check
from samekey.stores.redis import scripts
from samekey.stores.sql import queries as sql
from samekey.stores.sql.migrations import migrate
from tests.chosen import whole
from tests.law.moves import NOTHING, moves

TRANSITIONS = cast("dict[tuple[State | None, StateEvent], State | None]", states.TRANSITIONS)
OBSERVED = Path(__file__).with_name("observed.txt")
"""What was seen on real stores, by dialect and statement. ``python -m tests.law`` writes it anew."""

DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgres", "mysql")


def observed() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for line in OBSERVED.read_text().splitlines():
        head, _, told = line.partition(": ")
        dialect, name, _event = head.split(" ", 2)
        found[dialect, name] = told.split("; ")
    return found


def lines(driver: Driver, queries: sql.Queries) -> list[str]:
    """One for each statement that writes a state."""
    return [
        f"{queries.dialect} {name} [{', '.join(events)}]: {'; '.join(moves(driver, queries, name))}"
        for name, events in sorted(queries.events.items())
    ]


@contextlib.contextmanager
def store(url: str) -> Iterator[tuple[Driver, sql.Queries]]:
    drivers = drivers_for(url)
    queries = sql.queries_for(drivers.dialect)
    run(drivers.sync, lambda: migrate(queries))
    yield drivers.sync, queries
    drivers.sync.close()


def _as_seen(url: str) -> None:
    with store(url) as (driver, queries):
        before = [line for line in OBSERVED.read_text().splitlines() if line.startswith(queries.dialect)]
        assert lines(driver, queries) == before


def test_sqlite_does_what_was_seen(sqlite_url: str) -> None:
    _as_seen(sqlite_url)


@whole
def test_postgres_does_what_was_seen(postgres_url: str) -> None:
    _as_seen(postgres_url)


@whole
def test_mariadb_does_what_was_seen(mariadb_url: str) -> None:
    _as_seen(mariadb_url)


def test_whatever_a_statement_does_is_a_row_of_its_event() -> None:
    """And for each pair that is no row, no statement does it."""
    for (dialect, name), told in observed().items():
        events = sql.queries_for(dialect).events[name]
        for move in told:
            before, after = (_state(word) for word in move.split(" (")[0].split(" → "))
            assert any(_allowed(before, event, after) for event in events), f"{dialect} {name}: {move}"


def _state(word: str) -> State | None:
    return None if word == NOTHING else State(word)


def _allowed(before: State | None, event: StateEvent, after: State | None) -> bool:
    if event is StateEvent.LEASE_END:
        return before is State.IN_PROGRESS and after in LEASE_END.values()
    if TRANSITIONS.get((before, event), "no row") == after:
        return True
    # What is past retention counts as expired, whether or not the reaper has been by.
    lapsed = (before, StateEvent.EXPIRE) in TRANSITIONS and (State.EXPIRED, event) in TRANSITIONS
    return lapsed and TRANSITIONS[State.EXPIRED, event] == after


def test_for_each_row_there_is_a_statement() -> None:
    performed = set()
    for (dialect, name), told in observed().items():
        for move in told:
            before, after = (_state(word) for word in move.split(" (")[0].split(" → "))
            performed |= {(before, event, after) for event in sql.queries_for(dialect).events[name]}
    rows = {(before, event, after) for (before, event), after in TRANSITIONS.items()}
    assert not rows - performed


ROWS = sorted(TRANSITIONS, key=str)


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Driver]:
    rows = dict(TRANSITIONS)
    with store(sqlite_url) as (driver, _):
        yield driver
    TRANSITIONS.clear()
    TRANSITIONS.update(rows)  # in their order, too: the diagram draws them so
    _forget()


def _forget() -> None:
    for kept in (sql._read, sql.queries_for, scripts._load):
        kept.cache_clear()


def _noticed(driver: Driver, event: StateEvent) -> str | None:
    """What is said of a changed table: by the loader, or by what the statements of the event do now."""
    _forget()
    try:
        loaded = {dialect: sql.Queries(dialect) for dialect in DIALECTS}
        scripts.RedisStatements()
    except (Unlawful, IllegalTransition) as error:
        return str(error)
    queries, before = loaded["sqlite"], observed()
    for name, events in queries.events.items():
        if event in events or event in (StateEvent.CLAIM, StateEvent.EXPIRE):
            now = moves(driver, queries, name)
            if now != before["sqlite", name]:
                return f"{name} did {before['sqlite', name]}, and now {now}"
    return None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0] or NOTHING} {row[1]}")
def test_no_row_can_be_deleted(row: tuple[State | None, StateEvent], lite: Driver) -> None:
    del TRANSITIONS[row]
    assert _noticed(lite, row[1]), f"{row[0] or NOTHING} {row[1]} could be deleted"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0] or NOTHING} {row[1]}")
def test_no_row_can_lead_elsewhere(row: tuple[State | None, StateEvent], lite: Driver) -> None:
    elsewhere = State.DEAD_LETTER if TRANSITIONS[row] is not State.DEAD_LETTER else State.UNKNOWN
    TRANSITIONS[row] = elsewhere
    assert _noticed(lite, row[1]), f"{row[0] or NOTHING} {row[1]} could lead to {elsewhere}"


@pytest.mark.parametrize("mode", Mode)
def test_no_end_of_a_lease_can_change(mode: Mode, lite: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = State.UNKNOWN if LEASE_END[mode] is not State.UNKNOWN else State.FAILED_RETRYABLE
    monkeypatch.setitem(states.LEASE_END, mode, elsewhere)
    noticed = _noticed(lite, StateEvent.LEASE_END)
    if mode is Mode.PHASED:
        # Phased work is the completer's: no statement ends its lease, whatever the table says.
        assert noticed is None and not any("phased" in move for move in observed()["sqlite", "sweep"])
    else:
        assert noticed


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_statement_can_have_another_event(dialect: Dialect) -> None:
    written = {line.split(": ")[0] for line in OBSERVED.read_text().splitlines()}
    for name, events in sql.queries_for(dialect).events.items():
        assert f"{dialect} {name} [{', '.join(events)}]" in written


@pytest.mark.parametrize(
    ("events", "text", "says"),
    [
        ((), "update {keys} set state = 'unknown'", "writes a state and declares no event"),
        ((StateEvent.LOSE,), "select 1 from {keys}", "writes no state and declares lose"),
        ((StateEvent.FAIL,), "update {keys} set state = {to:lose}", "uses the states of lose"),
        (
            (StateEvent.FAIL,),
            "update {keys} set state = {to:fail} where state = 'dead_letter'",
            "names dead_letter",
        ),
        ((StateEvent.RETRY,), "insert into {keys} (state) values ({to:retry})", "begins with no record"),
        (
            (StateEvent.FAIL,),
            "update {keys} set state = {to:fail} where {over}",
            "begins at an expired record",
        ),
    ],
)
def test_what_is_unlawful_does_not_load(events: tuple[StateEvent, ...], text: str, says: str) -> None:
    with pytest.raises(Unlawful, match=says):
        check("this", events, text, writes=sql._writes(text), inserts="insert into" in text)

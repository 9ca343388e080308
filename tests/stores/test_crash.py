"""Crashes at every point: inside this process, by SIGKILL, and by a cut connection. Both modes, both stores.

The invariants after each: atomic work happens exactly once as soon as a retry succeeds; leased work happens
at most once and never again silently; no key answers 409 "in progress" for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from lab.processes import wait_until
from lab.servers import mariadb
from lab.servers.postgres import NamedServer
from samekey import ietf
from samekey.core.program import Program
from samekey.core.record import Answer, Lease
from samekey.core.states import Mode
from samekey.drivers.protocol import Driver
from samekey.drivers.run import run, run_in
from samekey.drivers.url import drivers_for
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.migrations import check, migrate, migrations
from samekey.stores.sql.queries import Queries, queries_for
from samekey.testing.conformance import new_claim
from samekey.testing.crash import (
    Crash,
    Crashed,
    NotReproducible,
    Point,
    Points,
    WatchedDriver,
    enumerate_crashes,
    enumerate_cuts,
    enumerate_kills,
)
from tests.chosen import some, stores
from tests.stores.conftest import migrated
from tests.stores.crash_scenarios import (
    PAID,
    effects,
    end_lease,
    guarded_request,
    prepare,
    state_of,
)

STORES = ("sqlite", "postgres", "mysql")
STYLES = ("sync", "async")


@pytest.fixture(scope="module")
def sqlite_crash_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('crash') / 'samekey.db'}"
    prepare(url)
    return url


@pytest.fixture(scope="module")
def postgres_crash_url(postgres_server: NamedServer) -> Iterator[str]:
    url = postgres_server.create_database()
    prepare(url)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="module")
def mysql_crash_url(mariadb_server: mariadb.NamedServer) -> Iterator[str]:
    url = mariadb_server.create_database()
    prepare(url)
    yield url
    mariadb_server.drop_database(url)


class Prepared(dict[str, str]):
    """One prepared database of each kind, made when it is asked for: every run has a key of its own."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__()
        self._request = request

    def __missing__(self, store: str) -> str:
        url: str = self._request.getfixturevalue(f"{store}_crash_url")
        return url


@pytest.fixture
def urls(request: pytest.FixtureRequest) -> Prepared:
    return Prepared(request)


def code_of(answer: Answer) -> str | None:
    return json.loads(answer.body).get("code") if answer.status >= 400 else None


def retry(url: str, mode: Mode, label: str) -> Answer:
    """The client sends its request again, to a process that has just been started."""
    answer = guarded_request(Points(label), url, mode, "sync")
    assert answer is not None
    return answer


def settled(url: str, mode: Mode, label: str) -> Answer:
    """What a patient client gets in the end: it retries, and the dead holder's lease ends."""

    def answer() -> Answer | None:
        got = retry(url, mode, label)
        if code_of(got) != "in_progress":
            return got
        end_lease(url, label)
        return None

    found = wait_until(answer, timeout=10)  # a killed client's connection takes the server a moment
    assert found is not None
    return found


def check_atomic(url: str, crash: Crashed) -> None:
    already = effects(url, crash.label)
    assert already <= 1
    answer = settled(url, Mode.ATOMIC, crash.label)
    assert (answer.status, answer.body) == (201, b"paid"), crash
    assert effects(url, crash.label) == 1, crash
    replay = retry(url, Mode.ATOMIC, crash.label)
    assert (replay.status, replay.body) == (201, b"paid"), crash
    assert (b"Idempotent-Replayed", b"true") in replay.headers, crash
    assert effects(url, crash.label) == 1, crash


def check_leased(url: str, crash: Crashed) -> None:
    already, recorded = effects(url, crash.label), state_of(url, crash.label)
    answer = settled(url, Mode.LEASED, crash.label)
    for _ in range(2):
        if recorded == "in_progress":
            # The claim stood and its outcome did not: nobody may guess.
            assert code_of(answer) == "outcome_unknown", crash
            assert effects(url, crash.label) == already <= 1, crash
            assert state_of(url, crash.label) == "unknown", crash
        else:
            assert recorded in (None, "completed"), crash
            assert (answer.status, answer.body) == (201, b"paid"), crash
            assert effects(url, crash.label) == 1, crash
        answer = retry(url, Mode.LEASED, crash.label)


def check_repeatable(url: str, crash: Crashed) -> None:
    before = effects(url, crash.label)
    answer = settled(url, Mode.REPEATABLE, crash.label)
    assert (answer.status, answer.body) == (201, b"paid"), crash
    assert effects(url, crash.label) in (before, before + 1), crash
    assert effects(url, crash.label) >= 1, crash


CHECKS: dict[Mode, Callable[[str, Crashed], None]] = {
    Mode.ATOMIC: check_atomic,
    Mode.LEASED: check_leased,
    Mode.REPEATABLE: check_repeatable,
}


# ------------------------------------------------------------------ whole requests


def always(mode: Mode, store: str, style: str) -> bool:
    """Each mode, each style and both kinds of store, but not all of their combinations."""
    return (store, style) == ("sqlite", "sync") or (mode, store, style) == (Mode.ATOMIC, "postgres", "async")


@pytest.mark.parametrize(("mode", "store", "style"), some(product(CHECKS, STORES, STYLES), always))
def test_a_request_survives_a_crash_at_every_point(
    urls: dict[str, str], mode: Mode, store: str, style: str
) -> None:
    url = urls[store]
    scenario = partial(guarded_request, url=url, mode=mode, style=style)
    seen = []
    for crash in enumerate_crashes(scenario):
        CHECKS[mode](url, crash)
        seen.append(crash.point.name)
    assert {"before the effect", "after the effect", "before the answer is sent"} < set(seen)
    claimed = "after reserve" if (store, mode) != ("postgres", Mode.ATOMIC) else "after atomic_enter"
    assert seen.index(claimed) < seen.index("before the effect")
    if mode is Mode.ATOMIC:
        assert seen.index("after the effect") < seen.index("before commit") < seen.index("after commit")


KILLED = [
    *product(("sqlite", "postgres"), (Mode.ATOMIC, Mode.LEASED), STYLES),
    # What a kill leaves behind does not depend on the style; each costs a process for every point.
    ("mysql", Mode.ATOMIC, "sync"),
    ("mysql", Mode.LEASED, "async"),
]


@pytest.mark.parametrize(
    ("store", "mode", "style"), some(KILLED, lambda *case: case == ("sqlite", Mode.ATOMIC, "sync"))
)
def test_a_request_survives_sigkill_at_every_point(
    urls: dict[str, str], mode: Mode, store: str, style: str
) -> None:
    url = urls[store]
    crashes = 0
    for crash in enumerate_kills(guarded_request, url, mode, style):
        CHECKS[mode](url, crash)
        crashes += 1
    assert crashes > 10


@pytest.mark.parametrize(
    ("mode", "store", "style"), some(product((Mode.ATOMIC, Mode.LEASED), STORES, STYLES), always)
)
def test_a_request_survives_a_cut_connection_at_every_point(
    urls: dict[str, str], mode: Mode, store: str, style: str
) -> None:
    url = urls[store]
    answers: list[Answer | None] = []

    def scenario(points: Points) -> None:
        answers.append(guarded_request(points, url, mode, style))

    for cut in enumerate_cuts(scenario):
        first = answers[-1]
        assert first is not None, cut
        assert first.status in (201, 503), cut
        if first.status == 201:
            assert effects(url, cut.label) == 1, f"{cut}: the answer was sent, but nothing was done"
        if mode is Mode.LEASED:
            assert first.status == 201, f"{cut}: every program of leased work can be asked again"
        answer = settled(url, mode, cut.label)
        assert (answer.status, answer.body) == (201, b"paid"), cut
        assert effects(url, cut.label) == 1, cut


# ------------------------------------------------------------------ single programs

Outcomes = Callable[[SqlKeys, Lease], Program[object]]
OUTCOMES: dict[str, tuple[Outcomes, str | None]] = {
    "complete": (lambda keys, lease: keys.complete(lease, PAID), "completed"),
    "fail": (lambda keys, lease: keys.fail(lease, "declined"), "failed_retryable"),
    "lose": (lambda keys, lease: keys.lose(lease, "timeout"), "unknown"),
    "release": (lambda keys, lease: keys.release(lease), None),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("store", stores(*STORES))
def test_a_program_happens_wholly_or_not_at_all(urls: dict[str, str], store: str, outcome: str) -> None:
    drivers = drivers_for(urls[store])
    keys, policy = SqlKeys(queries_for(drivers.dialect)), ietf()
    act, final = OUTCOMES[outcome]

    def scenario(points: Points) -> None:
        claim = new_claim(key=points.label)
        lease = Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms)
        driver = WatchedDriver(drivers.sync, points)
        run(driver, lambda: keys.claim(claim, policy))
        run(driver, lambda: act(keys, lease))

    states = {str(crash): state_of(urls[store], crash.label) for crash in enumerate_crashes(scenario)}
    drivers.sync.close()
    # Nothing, then the claim, then the outcome: a later crash never leaves an earlier state.
    found = list(states.values())
    claimed = found.index("in_progress")
    assert set(found[:claimed]) == {None}, states
    rest = found[claimed:]
    done = rest.index(final)
    assert set(rest[:done]) == {"in_progress"} and set(rest[done:]) == {final}, states
    assert [name.partition(" ")[2] for name in states][-2:] == [f"before {outcome}", f"after {outcome}"]


@pytest.mark.parametrize(
    "store", stores("sqlite", "postgres", first=1)
)  # DDL of MySQL's commits: see test_mariadb.py
def test_a_migration_happens_wholly_or_not_at_all(store: str, tmp_path: Path, migrated_postgres: str) -> None:
    def database(label: str) -> tuple[Driver, Queries]:
        if store == "sqlite":
            return drivers_for(f"sqlite:///{tmp_path / label}.db").sync, queries_for("sqlite")
        return drivers_for(migrated_postgres).sync, queries_for("postgres", f"s_{label}")

    def scenario(points: Points) -> None:
        driver, queries = database(points.label)
        watched = WatchedDriver(driver, points)
        try:
            run(watched, lambda: migrate(queries))
        finally:
            watched.close()

    everything = None
    tables = []
    for crash in enumerate_crashes(scenario):
        driver, queries = database(crash.label)
        tables.append(run(driver, partial(_count_tables, queries)))
        if tables[-1] == 0 and everything is None:
            everything = len(run(driver, partial(migrate, queries)))
            run(driver, partial(check, queries))
        driver.close()
    assert everything == len(migrations(queries_for(store).dialect))
    assert len(set(tables)) == 2 and 0 in tables, f"a migration was applied in part: {tables}"
    assert tables == sorted(tables)


def _count_tables(queries: Queries) -> Program[int]:
    sql = (
        "select count(*) from sqlite_master where type = 'table' and :schema_name <> ''"
        if queries.dialect == "sqlite"
        else "select count(*) from pg_class where relnamespace = to_regnamespace(:schema_name::text)"
    )
    rows = yield queries.build("count_tables", sql)(schema_name=queries.schema)
    assert isinstance(rows[0][0], int)
    return rows[0][0]


# ------------------------------------------------------------------ the enumerator itself


def test_every_statement_begin_commit_and_rollback_is_two_points(sqlite_url: str) -> None:
    drivers = migrated(sqlite_url)
    keys = SqlKeys(queries_for(drivers.dialect))
    points = Points("label")
    driver = WatchedDriver(drivers.sync, points)
    session = driver.open()
    run_in(session, keys.read("scope", "key"))
    session.commit()
    driver.open().rollback()
    points.reach("of my own")
    drivers.sync.close()
    names = [point.name for point in points.passed]
    assert names == [
        "before begin",
        "after begin",
        "before find",
        "after find",
        "before commit",
        "after commit",
        "before begin",
        "after begin",
        "before rollback",
        "after rollback",
        "of my own",
    ]
    assert [point.io for point in points.passed] == [True] * 10 + [False]


def test_a_dead_run_does_nothing_more(sqlite_url: str) -> None:
    drivers = migrated(sqlite_url)
    keys, claim, other = SqlKeys(queries_for(drivers.dialect)), new_claim(), new_claim()
    points = Points("label", strike_at=1)
    driver = WatchedDriver(drivers.sync, points)
    for request in (claim, other):
        with pytest.raises(Crash):
            run(driver, partial(keys.claim, request, ietf()))
        assert run(drivers.sync, partial(keys.read, request.scope, request.key)) is None
    assert points.struck == Point(1, "before find")
    drivers.sync.close()


@pytest.mark.parametrize("store", stores(*STORES))
def test_a_crash_at_a_point_of_ones_own_loses_the_open_transaction(urls: dict[str, str], store: str) -> None:
    url = urls[store]
    labels = []

    def scenario(points: Points) -> None:
        labels.append(points.label)
        driver = WatchedDriver(drivers_for(url).sync, points)
        try:
            session = driver.open()
            session.connection.execute(f"insert into effects values ('{points.label}')")
            points.reach("after the effect")
            session.commit()
        finally:
            driver.close()

    counts = {str(crash): effects(url, crash.label) for crash in enumerate_crashes(scenario)}
    assert effects(url, labels[0]) == 1
    assert list(counts.values()) == [0, 0, 0, 0, 1], counts


def test_a_scenario_that_changes_its_way_is_refused() -> None:
    runs = []

    def scenario(points: Points) -> None:
        runs.append(points)
        points.reach(f"run {len(runs)}")

    with pytest.raises(NotReproducible, match="Point 1 run 1 of the first run was 1 run 2"):
        list(enumerate_crashes(scenario))


def _reach_two(points: Points, *, name: str = "one") -> None:
    points.reach(name)
    points.reach("two")


def _fail(points: Points) -> None:
    raise ValueError("this scenario does not work")


def test_kills_are_real() -> None:
    assert [str(crash) for crash in enumerate_kills(_reach_two)] == ["1 one", "2 two"]


def test_a_scenario_that_fails_by_itself_is_reported() -> None:
    with pytest.raises(NotReproducible, match="failed without any crash"):
        list(enumerate_kills(_fail))

"""The primary is lost and its standby takes over, in the middle of traffic.

No operation runs twice, none that was acknowledged is lost, and clients need nothing but a URL that names
both servers. ``python -m bench.failover`` is the same story at length.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bench.failover import fail_over, traffic
from lab.processes import LOOPBACK, PATIENCE, wait_until
from lab.proxy import FaultProxy
from lab.servers.postgres import PostgresServer, PostgresUnavailable
from lab.servers.postgres_pair import PostgresPair
from samekey import Idempotency, current_operation, ietf
from samekey.drivers.run import run, run_async
from samekey.drivers.url import drivers_for
from samekey.engine.modes import atomic
from samekey.errors import SamekeyError, StoreUnavailable
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance import new_claim
from tests.chosen import whole
from tests.fire.evidence import prepare, query

pytestmark = whole


DRIVERS = ("psycopg", "asyncpg")
TENANT = "failover"
IMPATIENCE = 3.0
"""Seconds after which the drivers give up: long enough for a slow machine to connect, and soon over."""


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    try:
        made = PostgresPair.start()
    except PostgresUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    with made:
        yield made


def place(url: str, driver: str, key: str, timeout: float) -> str:
    """One atomic order: its row, and an answer that says which run made it."""
    if driver == "psycopg":
        return _place(url, key, timeout)
    return asyncio.run(_place_async(url, key, timeout))


def _place(url: str, key: str, timeout: float) -> str:
    engine = Idempotency(url, timeout=timeout)

    def insert() -> str:
        current_operation().connection.execute("insert into effects values (%s)", [key])
        return f"run of {key}"

    try:
        answer: str = engine.once(tenant=TENANT, key=key, mode="atomic", run=insert)
        return answer
    finally:
        engine.close()


async def _place_async(url: str, key: str, timeout: float) -> str:
    engine = Idempotency(url, timeout=timeout)

    async def insert() -> str:
        await current_operation().connection.execute("insert into effects values ($1)", key)
        return f"run of {key}"

    try:
        answer: str = await engine.once_async(tenant=TENANT, key=key, mode="atomic", run=insert)
        return answer
    finally:
        await engine.aclose()


def claim(url: str, driver: str, key: str) -> None:
    """One claim, a statement that commits by itself."""
    drivers, keys = drivers_for(url, timeout=IMPATIENCE), SqlKeys(queries_for("postgres"))
    wanted = new_claim(key=key)
    if driver == "psycopg":
        run(drivers.sync, lambda: keys.claim(wanted, ietf()))
        return

    async def ask() -> None:
        try:
            await run_async(drivers.aio, lambda: keys.claim(wanted, ietf()))
        finally:
            for _ in range(20):  # round trips in which a cancel request would get through
                await drivers.aio.execute(queries_for("postgres").statement("clock", None))
            await drivers.aio.close()

    asyncio.run(ask())


def at(pair: PostgresPair, server: PostgresServer, url: str) -> Callable[[str], Any]:
    """Asks one of the two servers."""
    here = pair.at(server, url)
    return lambda sql: query(here, sql)[0][0]


# ------------------------------------------------------------------ under load


def test_the_primary_is_killed_under_load() -> None:
    with traffic() as made:
        account = fail_over(made, orders=100)
    assert account.twice == []
    assert account.lost == {}
    assert min(account.acknowledged.values()) > 300
    assert account.asked_again > 0, "nobody noticed"


# ------------------------------------------------------------------ commits that the standby does not have


def test_a_commit_that_waits_for_its_standby_is_not_acknowledged(
    pair: PostgresPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Giving up must not be a cancel request, by which the primary would go on without its standby."""
    monkeypatch.setattr(atomic, "SETTLE_PAUSES", (0.05, 0.05))
    url = pair.create_database()
    prepare(url)
    ask = at(pair, pair.primary, url)
    pair.link.stall()
    with ThreadPoolExecutor(2 * len(DRIVERS)) as threads:
        waiting: list[Future[Any]] = []
        for driver in DRIVERS:
            waiting.append(threads.submit(place, url, driver, driver, IMPATIENCE))
            waiting.append(threads.submit(claim, url, driver, f"{driver}-leased"))
        for future in waiting:
            with pytest.raises(SamekeyError):
                future.result(2 * PATIENCE)
    # Nothing waits for a look at what could still be taken back.
    assert ask("select count(*) from KEYS") == ask("select count(*) from effects") == 0
    # The standby is heard of again: what waited is committed, and its answer is there.
    pair.link.flow()
    wait_until(lambda: ask("select count(*) from KEYS") == 2 * len(DRIVERS))
    for driver in DRIVERS:
        assert place(url, driver, driver, timeout=PATIENCE) == f"run of {driver}"
    assert ask("select count(*) from effects") == len(DRIVERS)


def test_a_number_that_the_new_primary_gave_to_another_transaction_proves_nothing(pair: PostgresPair) -> None:
    """Whoever asks what became of a COMMIT may be asking a server that never heard of it."""
    url = pair.create_database()
    prepare(url)
    primary, standby = at(pair, pair.primary, url), at(pair, pair.standby, url)
    waiting = "from pg_stat_activity where wait_event = 'SyncRep'"
    pair.link.stall()
    with ThreadPoolExecutor(len(DRIVERS)) as threads:
        doubtful = {driver: threads.submit(place, url, driver, driver, PATIENCE) for driver in DRIVERS}
        wait_until(lambda: primary(f"select count(*) {waiting}") == len(DRIVERS))
        last = int(primary(f"select max(backend_xid::text::bigint) {waiting}"))
        pair.kill_primary()
        pair.link.cut_all()
        pair.promote()
        while int(standby("select pg_current_xact_id()::text::bigint")) <= last:
            pass
        for future in doubtful.values():
            with pytest.raises(SamekeyError):
                future.result(2 * PATIENCE)
    assert standby("select count(*) from effects") == 0
    for driver in DRIVERS:
        assert place(url, driver, driver, timeout=PATIENCE) == f"run of {driver}"
        assert standby(f"select count(*) from effects where key = '{driver}'") == 1


def test_an_old_primary_that_was_not_fenced_acknowledges_nothing(
    pair: PostgresPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a standby that is no longer one. But it can be read: it must not come back like this."""
    monkeypatch.setattr(atomic, "SETTLE_PAUSES", (0.05, 0.05))
    url = pair.create_database()
    prepare(url)
    pair.kill_primary()
    pair.link.cut_all()
    pair.promote()
    pair.return_as_primary()
    with ThreadPoolExecutor(len(DRIVERS)) as threads:
        old = pair.at(pair.primary, url)
        for future in [threads.submit(place, old, driver, driver, IMPATIENCE) for driver in DRIVERS]:
            with pytest.raises(SamekeyError):
                future.result(2 * PATIENCE)
    assert query(old, "select count(*) from effects") == [(0,)]


# ------------------------------------------------------------------ finding the server to write to


def test_a_standby_is_refused(pair: PostgresPair) -> None:
    url = pair.create_database()
    prepare(url)
    there = pair.at(pair.standby, url)
    wait_until(lambda: _answers(there))
    for driver in DRIVERS:
        with pytest.raises(StoreUnavailable, match=r"is a standby.*target_session_attrs=read-write"):
            place(there, driver, "k", timeout=PATIENCE)
    # Named second or first, the primary is found.
    servers = [urlsplit(pair.at(server, url)) for server in (pair.standby, pair.primary)]
    hosts = ",".join(f"{LOOPBACK}:{server.port}" for server in servers)
    plain = f"postgresql://postgres@{hosts}{servers[0].path}"
    for number, both in enumerate((plain, f"{plain}?target_session_attrs=any", pair.both(url))):
        for driver in DRIVERS:
            assert place(both, driver, f"{driver}-{number}", timeout=PATIENCE)


def _answers(url: str) -> bool:
    """A database on the primary is there a moment later on its standby."""
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_server_that_says_nothing_does_not_use_up_the_time_of_the_other(
    postgres_url: str, driver: str
) -> None:
    prepare(postgres_url)
    parts = urlsplit(postgres_url)
    with FaultProxy.before(postgres_url) as silent:
        silent.stall()
        user = parts.netloc.rpartition("@")[0]
        hosts = f"{LOOPBACK}:{urlsplit(silent.url_for(postgres_url)).port},{parts.hostname}:{parts.port}"
        url = parts._replace(netloc=f"{user}@{hosts}").geturl()
        assert place(url, driver, "k", timeout=IMPATIENCE) == "run of k"
    assert query(postgres_url, "select count(*) from effects") == [(1,)]

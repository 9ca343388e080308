"""``samekey doctor`` on live stores: what it finds, how it ends, and that it changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from samekey.core.states import Mode
from samekey.drivers.run import run
from samekey.stores.protocols import Actor
from samekey.stores.sql.migrations import code_version
from tests.operator.command import Ran, samekey
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, SECOND, World

MACHINE = {"fsync_off", "no_idle_timeout", "lazy_flush"}
"""What is found on a throwaway server whatever one does."""


def doctor(world: World, *arguments: str) -> Ran:
    return samekey("doctor", *arguments, "--url", world.url)


def found(world: World, *arguments: str) -> set[str]:
    ran = doctor(world, "--json", *arguments)
    assert ran.code in (0, 1), ran.err
    return {finding["code"] for finding in ran.json["findings"]} - MACHINE


def test_a_healthy_store(lite: World) -> None:
    lite.completed()
    lite.pending()
    ran = doctor(lite)
    assert ran.code == 0
    assert ran.out.startswith("All is well.\n")
    assert "journal mode" in ran.out and "wal" in ran.out
    assert doctor(lite, "--json").json["healthy"] is True


def test_a_healthy_postgres(pg: World) -> None:
    pg.completed()
    described = doctor(pg, "--json").json
    assert {finding["code"] for finding in described["findings"]} <= MACHINE
    assert described["facts"]["synchronous_commit"] == "on"
    assert abs(described["skew_ms"]) < 2000
    assert int(described["facts"]["keys_bytes"]) > 0


def test_everything_that_nobody_does(world: World) -> None:
    world.claim(at=-HOUR)
    world.phased(at=-HOUR)
    world.pending(at=-2 * HOUR)
    world.unknown(at=-2 * HOUR)
    world.completed(at=-3 * DAY)
    world.dead()
    world.dead_job()
    # The last one took the oldest due job, too.
    world.sql("update {jobs} set due_at = 1 where state = 'live'")
    assert found(world) == {
        "no_worker",
        "no_sweeper",
        "no_completer",
        "no_reconciler",
        "no_reaper",
        "old_unknown",
        "dead_letters",
        "old_pending",
    }
    ran = doctor(world)
    assert ran.code == 1
    # A throwaway server is set to be fast, and the doctor says so.
    more = any(said in ran.out for said in ("fsync is off", "innodb_flush_log_at_trx_commit is not 1"))
    assert ran.out.startswith(f"{8 + more} things need attention.")
    assert "→ samekey dead list" in ran.out


def test_the_lease_that_it_recommends(world: World) -> None:
    for seconds in range(1, 51):
        record = world.claim(at=-HOUR)
        at = world.now - HOUR + seconds * SECOND
        lease = record.lease(MINUTE)
        world.run(lambda lease=lease, at=at: world.keys.complete(lease, ANSWER, now=at))  # type: ignore[misc]
    # What an operator found out hours later is no duration of a run; nor is a job's.
    late = world.unknown(at=-20 * HOUR)
    world.run(lambda: world.operator.executed(late.id, ANSWER, Actor("ann")))
    world.claim(mode=Mode.ATOMIC)
    lease = doctor(world, "--json").json["lease"]
    assert (lease["runs"], lease["p50"], lease["p99"], lease["longest"]) == (50, 25_000, 50_000, 50_000)
    assert (lease["shortest_lease"], lease["longest_lease"]) == (100_000, 150_000)
    out = doctor(world).out
    assert "50 measured: half under 25 s, 99 % under 50 s, longest 50 s" in out
    assert "recommended 1 min 40 s to 2 min 30 s" in out
    assert "short_lease" in found(world)


def test_it_changes_nothing(world: World) -> None:
    world.claim(at=-HOUR)
    world.completed(at=-3 * DAY)
    before = world.sql("select * from {keys} order by id")
    lines = world.count("audit")
    doctor(world)
    assert world.sql("select * from {keys} order by id") == before
    assert world.count("audit") == lines


# ------------------------------------------------------------------ tables


def test_missing_tables_are_a_finding(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    for url in (postgres_url, f"sqlite:///{tmp_path}/empty.db"):
        ran = samekey("doctor", "--url", url, "--json")
        assert ran.code == 1
        assert [finding["code"] for finding in ran.json["findings"]] == ["tables"]
        assert ran.json["figures"] is None
    ran = samekey("doctor", "--url", postgres_url)
    assert ran.code == 1 and "→ samekey migrate URL" in ran.out


def test_old_tables_are_a_finding(postgres_url: str) -> None:
    world = World(postgres_url)
    newest = code_version("postgres")
    world.sql("update samekey.schema_versions set version = version - 1 where version = ?", newest)
    world.close()
    ran = samekey("doctor", "--url", postgres_url)
    assert ran.code == 1 and f"have version {newest - 1}, this code needs {newest}" in ran.out


def test_tables_of_the_future_are_a_finding(postgres_url: str) -> None:
    world = World(postgres_url)
    world.sql("insert into samekey.schema_versions (version, min_compatible) values (99, 99)")
    world.close()
    ran = samekey("doctor", "--url", postgres_url)
    assert ran.code == 1 and "Upgrade samekey" in ran.out


# ------------------------------------------------------------------ settings of the server


def test_settings_of_the_database(postgres_url: str) -> None:
    world = World(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        [[name]] = connection.execute("select current_database()").fetchall()
        connection.execute(f'alter database "{name}" set synchronous_commit = off'.encode())
        connection.execute(
            f"alter database \"{name}\" set default_transaction_isolation = 'serializable'".encode()
        )
    assert found(world) == {"asynchronous_commit", "isolation"}
    world.close()


# ------------------------------------------------------------------ not able to look


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "postgresql://nobody@127.0.0.1:1/none"),
        ("--url", "sqlite:///no/such/file.db"),
        ("--url", "carrier-pigeon://"),
        ("--url", "no_such_module:idempotency"),
        (),
    ],
    ids=" ".join,
)
def test_exit_code_2(arguments: tuple[str, ...]) -> None:
    ran = samekey("doctor", *arguments, "--timeout", "1")
    assert ran.code == 2 and ran.out == ""
    assert "Traceback" not in ran.err and ran.err


# ------------------------------------------------------------------ with the application


def test_with_the_application_it_knows_the_lease_and_the_lookups(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "doctored_shop_" + world.engine.engine.drivers.dialect
    (tmp_path / f"{name}.py").write_text(
        "from samekey import Idempotency, StillUnknown, ietf\n"
        f"idempotency = Idempotency({world.url!r}, policy=ietf(lease=20))\n"
        "idempotency.lookup('POST /known')(lambda record: StillUnknown)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    world.unknown(endpoint="POST /known")
    world.unknown(endpoint="POST /forgotten")
    for _ in range(30):
        record = world.claim(at=-HOUR)
        lease = record.lease(MINUTE)
        at = world.now - HOUR + 15 * SECOND
        world.run(lambda lease=lease, at=at: world.keys.complete(lease, ANSWER, now=at))  # type: ignore[misc]
    ran = samekey("doctor", "--url", f"{name}:idempotency", "--json")
    findings: list[Any] = ran.json["findings"]
    told = {finding["code"]: finding["says"] for finding in findings}
    assert {"no_lookup", "short_lease"} <= set(told)
    assert "POST /forgotten" in told["no_lookup"] and "POST /known" not in told["no_lookup"]
    assert "the lease of 20 s" in told["short_lease"]
    assert "configured 20 s" in samekey("doctor", "--url", f"{name}:idempotency").out


def test_a_large_table_is_estimated_and_not_counted(pg: World) -> None:
    pg.completed()
    pg.sql("analyze samekey.keys")
    assert run(pg.engine.engine.drivers.sync, pg.operator.overview).records == 1
    pg.sql("update pg_class set reltuples = 2000000 where oid = 'samekey.keys'::regclass")
    assert run(pg.engine.engine.drivers.sync, pg.operator.overview).records == 2_000_000
    pg.sql("analyze samekey.keys")

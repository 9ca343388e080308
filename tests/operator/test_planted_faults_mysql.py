"""The doctor on MySQL: it finds each fault that is planted, and is silent where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pymysql  # type: ignore[import-untyped]
import pytest

from lab.processes import wait_until
from lab.servers.mariadb import numbers
from samekey.ops import doctor_tables
from tests.chosen import whole
from tests.operator.command import samekey
from tests.operator.world import DAY, HOUR, MINUTE, World

pytestmark = whole

MACHINE = {"lazy_flush", "lazy_binlog"}
"""What is found on a throwaway server whatever one does."""
TABLES = ("keys", "inputs", "phases", "jobs", "effects", "evidence", "limits")


class Patient:
    """A live store, and what must be undone after the test."""

    def __init__(self, url: str, patch: pytest.MonkeyPatch) -> None:
        self.world = World(url)
        self.url = url
        self.patch = patch
        self.after = ExitStack()

    def connect(self) -> Any:
        parts = urlsplit(self.world.url)
        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=parts.username,
            password=parts.password or "",
            database=self.database,
            autocommit=True,
        )

    @property
    def database(self) -> str:
        return urlsplit(self.world.url).path.strip("/")

    def sql(self, *statements: str) -> None:
        connection = self.connect()
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def clerk(self, *without: str) -> None:
        """Somebody with the rights that are on the page, less some."""
        name = f"clerk{id(self) % 10**8}"
        self.sql(
            f"create user {name}@'127.0.0.1'",
            f"create user {name}@localhost",
            *(
                f"grant {right} on {self.database}.samekey_{table} to {name}@'{host}'"
                for host in ("127.0.0.1", "localhost")
                for table in TABLES
                for right in ("select", "insert", "update", "delete")
                if f"{right} {table}" not in without
            ),
            *(
                f"grant select, insert, delete on {self.database}.samekey_{table} to {name}@'{host}'"
                for host in ("127.0.0.1", "localhost")
                for table in ("made", "audit")
            ),
            *(
                f"grant select on {self.database}.samekey_schema_versions to {name}@'{host}'"
                for host in ("127.0.0.1", "localhost")
            ),
        )
        self.after.callback(self.sql, f"drop user {name}@'127.0.0.1'", f"drop user {name}@localhost")
        parts = urlsplit(self.world.url)
        host = parts.netloc.rpartition("@")[2]
        self.url = parts._replace(netloc=f"{name}@{host}").geturl()

    def found(self) -> set[str]:
        ran = samekey("doctor", "--url", self.url, "--json")
        assert ran.code in (0, 1), ran.err
        assert all(finding["advice"] for finding in ran.json["findings"])
        return {finding["code"] for finding in ran.json["findings"]} - MACHINE


@pytest.fixture
def patient(maria_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    made = Patient(maria_url, monkeypatch)
    yield made
    made.after.close()
    made.world.close()


def rights(patient: Patient) -> None:
    patient.clerk("update jobs")


def missing_index(patient: Patient) -> None:
    patient.sql("alter table samekey_keys drop index samekey_keys_lease")
    patient.after.callback(patient.sql, "alter table samekey_keys add key samekey_keys_lease (locked_until)")


def missing_trigger(patient: Patient) -> None:
    connection = patient.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("show create trigger samekey_note_change")
        definition = cursor.fetchone()[2]
    patient.sql("drop trigger samekey_note_change")
    patient.after.callback(patient.sql, definition)


def long_transaction(patient: Patient) -> None:
    patient.patch.setattr(doctor_tables, "LONG_TRANSACTION", 0)
    _open_transaction(patient)


def _open_transaction(patient: Patient) -> None:
    connection = patient.after.enter_context(patient.connect())
    with connection.cursor() as cursor:
        cursor.execute("start transaction with consistent snapshot")
        cursor.execute("select count(*) from samekey_keys")


def connections(patient: Patient) -> None:
    patient.patch.setattr(doctor_tables, "CROWDED", 0.001)


def bloat(patient: Patient) -> None:
    """Changes that cannot be cleared away, because somebody may still look at what was before."""
    patient.patch.setattr(doctor_tables, "HISTORY", 20)
    _open_transaction(patient)
    patient.sql(
        "insert into samekey_limits (tenant, `minute`, used) values ('t', 1, 1)",
        *["update samekey_limits set used = used + 1"] * 60,
    )


def room(patient: Patient) -> None:
    patient.patch.setattr(doctor_tables, "ROOM", 1 << 20)
    patient.sql(
        "insert into samekey_inputs (operation_id, name, version, payload, created_at)"
        f" select seq, '', 1, repeat('x', 8000), 1 from {numbers(4000)}",
        "delete from samekey_inputs",
    )
    patient.after.callback(patient.sql, "optimize table samekey_inputs")

    def is_free() -> bool:
        connection = patient.connect()
        with connection, connection.cursor() as cursor:
            cursor.execute("analyze table samekey_inputs")
            cursor.execute(
                "select data_free, data_length from information_schema.tables"
                " where table_schema = database() and table_name = 'samekey_inputs'"
            )
            free, used = cursor.fetchone()
        return bool(free > max(1 << 20, used // 2))

    wait_until(is_free, timeout=60, interval=0.05)  # the server clears away in its own time


def standby(patient: Patient) -> None:
    patient.sql("set global read_only = 1")
    patient.after.callback(patient.sql, "set global read_only = 0")


def no_worker(patient: Patient) -> None:
    patient.world.pending(at=-5 * MINUTE)


def no_sweeper(patient: Patient) -> None:
    patient.world.claim(at=-HOUR)


def no_completer(patient: Patient) -> None:
    patient.world.phased(at=-HOUR)


def no_reconciler(patient: Patient) -> None:
    patient.world.unknown(at=-30 * MINUTE)


def no_reaper(patient: Patient) -> None:
    patient.world.completed(at=-3 * DAY)


def dead_letters(patient: Patient) -> None:
    patient.world.dead()


def clock_skew(patient: Patient) -> None:
    real = time.time
    patient.patch.setattr("samekey.cli.doctor.time.time", lambda: real() + 30)


def growing(patient: Patient) -> None:
    patient.patch.setattr("samekey.ops.doctor.PILE", 3)
    for _ in range(5):
        patient.world.completed(at=-25 * HOUR)


FAULTS: tuple[Callable[[Patient], None], ...] = (
    *(rights, missing_index, missing_trigger, long_transaction, connections, bloat, room, standby),
    *(no_worker, no_sweeper, no_completer, no_reconciler, no_reaper, dead_letters, clock_skew, growing),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_it_finds(patient: Patient, fault: Callable[[Patient], None]) -> None:
    fault(patient)
    assert patient.found() == {fault.__name__}


@pytest.mark.parametrize("who", ["administrator", "operator"])
def test_it_is_silent_on_a_healthy_store(patient: Patient, who: str) -> None:
    """Also to somebody who has no more than the rights on the page, and is shown neither triggers nor others'
    transactions."""
    patient.world.completed()
    patient.world.claim()
    patient.world.pending()
    if who == "operator":
        patient.clerk()
    assert patient.found() == set()

"""The doctor finds each fault that is planted in a live store, and is silent where there is none."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from lab.processes import wait_until
from samekey import Executed, Response
from samekey.ops import doctor_tables
from tests.chosen import whole
from tests.operator.command import samekey
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, SECOND, World

MACHINE = {"fsync_off", "no_idle_timeout"}
"""What is found on a throwaway server whatever one does."""


class Patient:
    """A live store, and what must be undone after the test."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.world = world
        self.patch = patch
        self.folder = folder
        self.url = world.url
        self.after = ExitStack()

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.world.sql(statement)

    def found(self) -> set[str]:
        ran = samekey("doctor", "--url", self.url, "--json")
        assert ran.code in (0, 1), ran.err
        assert all(finding["advice"] for finding in ran.json["findings"])
        return {finding["code"] for finding in ran.json["findings"]} - MACHINE

    def with_application(self, text: str) -> None:
        name = f"patient_{id(self)}"
        (self.folder / f"{name}.py").write_text(
            "from samekey import Idempotency, StillUnknown, ietf\n"
            f"idempotency = Idempotency({self.url!r}{text}"
        )
        self.patch.chdir(self.folder)
        self.patch.setattr(sys, "path", [*sys.path])
        self.url = f"{name}:idempotency"


@pytest.fixture
def patient(pg: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Patient]:
    made = Patient(pg, monkeypatch, tmp_path)
    yield made
    made.after.close()


# ------------------------------------------------------------------ the faults, each by the finding's code


def tables(patient: Patient) -> None:
    patient.sql("alter table samekey.schema_versions rename to elsewhere")
    patient.after.callback(patient.sql, "alter table samekey.elsewhere rename to schema_versions")


def rights(patient: Patient) -> None:
    role = f"clerk_{id(patient)}"
    patient.sql(
        f"create role {role} login",
        f"grant usage on schema samekey to {role}",
        f"grant select, insert, update, delete on all tables in schema samekey to {role}",
        f"revoke update on samekey.jobs from {role}",
    )
    patient.after.callback(patient.sql, f"drop owned by {role}", f"drop role {role}")
    patient.url = re.sub(r"//[^@]*@", f"//{role}@", patient.world.url)


def missing_index(patient: Patient) -> None:
    patient.sql("drop index samekey.keys_lease")
    again = "create index keys_lease on samekey.keys (locked_until) where state = 'in_progress'"
    patient.after.callback(patient.sql, again)


def missing_trigger(patient: Patient) -> None:
    patient.sql("alter table samekey.keys disable trigger note_change")
    patient.after.callback(patient.sql, "alter table samekey.keys enable trigger note_change")


def long_transaction(patient: Patient) -> None:
    patient.patch.setattr(doctor_tables, "LONG_TRANSACTION", 0)
    connection = patient.after.enter_context(psycopg.connect(patient.world.url))
    connection.execute("select count(*) from samekey.keys")


def no_autovacuum(patient: Patient) -> None:
    patient.sql("alter table samekey.jobs set (autovacuum_enabled = off)")
    patient.after.callback(patient.sql, "alter table samekey.jobs reset (autovacuum_enabled)")


def connections(patient: Patient) -> None:
    patient.patch.setattr(doctor_tables, "CROWDED", 0.01)


def bloat(patient: Patient) -> None:
    patient.patch.setattr(doctor_tables, "DEAD", 1000)
    patient.sql(
        # Autovacuum is on, and has no reason to come by just now.
        "alter table samekey.inputs set (autovacuum_vacuum_threshold = 1000000)",
        "insert into samekey.inputs select n::text, '', 1, '', 1 from generate_series(1, 5000) as n",
        "delete from samekey.inputs",
    )
    again = "alter table samekey.inputs reset (autovacuum_vacuum_threshold)"
    patient.after.callback(patient.sql, again, "vacuum samekey.inputs")

    def dead() -> int:
        found = "select n_dead_tup from pg_stat_all_tables where relid = 'samekey.inputs'::regclass"
        [[count]] = patient.world.sql(found)
        return int(count)

    wait_until(lambda: dead() > 1000)  # the server tells its figures with a delay of up to a second


def asynchronous_commit(patient: Patient) -> None:
    _setting(patient, "synchronous_commit", "off")


def isolation(patient: Patient) -> None:
    _setting(patient, "default_transaction_isolation", "serializable")


def _setting(patient: Patient, name: str, value: str) -> None:
    [[database]] = patient.world.sql("select current_database()")
    patient.sql(f"alter database \"{database}\" set {name} = '{value}'")
    patient.after.callback(patient.sql, f'alter database "{database}" reset {name}')


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


def old_unknown(patient: Patient) -> None:
    patient.world.unknown(at=-2 * HOUR)
    patient.sql(f"update samekey.keys set reconcile_after = {patient.world.now + HOUR}")


def dead_letters(patient: Patient) -> None:
    patient.world.dead()


def evidence(patient: Patient) -> None:
    record = patient.world.claim()
    declined = ANSWER.__class__(402, (), b"no")
    patient.world.run(lambda: patient.world.keys.complete(record.lease(MINUTE), declined))
    patient.world.tell(Executed(Response(201)), downstream_key=record.downstream_key(), at=2 * MINUTE)


def old_pending(patient: Patient) -> None:
    patient.world.pending(at=-2 * HOUR)
    patient.sql(f"update samekey.jobs set due_at = {patient.world.now + HOUR}")


def no_lookup(patient: Patient) -> None:
    patient.world.unknown(endpoint="POST /forgotten")
    patient.with_application(")\nidempotency.lookup('POST /known')(lambda record: StillUnknown)\n")


def short_lease(patient: Patient) -> None:
    for _ in range(25):
        lease = patient.world.claim(at=-HOUR).lease(MINUTE)
        done = patient.world.now - HOUR + 15 * SECOND
        patient.world.run(lambda lease=lease, done=done: patient.world.keys.complete(lease, ANSWER, now=done))  # type: ignore[misc]
    patient.with_application(", policy=ietf(lease=20))\n")


def clock_skew(patient: Patient) -> None:
    real = time.time
    patient.patch.setattr("samekey.cli.doctor.time.time", lambda: real() + 30)


def growing(patient: Patient) -> None:
    patient.patch.setattr("samekey.ops.doctor.PILE", 3)
    for _ in range(5):
        patient.world.completed(at=-25 * HOUR)


FAULTS: tuple[Callable[[Patient], None], ...] = (
    tables,
    rights,
    missing_index,
    missing_trigger,
    long_transaction,
    no_autovacuum,
    connections,
    asynchronous_commit,
    isolation,
    no_worker,
    no_sweeper,
    no_completer,
    no_reconciler,
    no_reaper,
    old_unknown,
    dead_letters,
    evidence,
    old_pending,
    no_lookup,
    short_lease,
    clock_skew,
    growing,
)


@pytest.mark.parametrize(
    "fault", [*FAULTS, pytest.param(bloat, marks=whole)], ids=lambda fault: fault.__name__
)
def test_it_finds(patient: Patient, fault: Callable[[Patient], None]) -> None:
    fault(patient)
    assert patient.found() == {fault.__name__}


def test_it_is_silent_on_a_healthy_store(patient: Patient) -> None:
    world = patient.world
    world.completed()
    world.claim()
    world.pending()
    assert patient.found() == set()


def test_there_are_more_than_twenty() -> None:
    assert len({fault.__name__ for fault in FAULTS}) > 20


# ------------------------------------------------------------------ SQLite


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        ("drop index samekey_keys_created", "missing_index"),
        ("drop trigger samekey_note_change", "missing_trigger"),
    ],
)
def test_it_finds_on_sqlite(lite: World, plant: str, code: str) -> None:
    ran = samekey("doctor", "--url", lite.url)
    assert ran.code == 0 and ran.out.startswith("All is well.\n")
    lite.engine.close()
    lite.sql(plant)
    ran = samekey("doctor", "--url", lite.url, "--json")
    assert [finding["code"] for finding in ran.json["findings"]] == [code]


def test_room_that_is_empty_on_sqlite(lite: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_tables, "ROOM", 100_000)
    lite.sql(
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < 500)"
        " insert into samekey_inputs (operation_id, name, version, payload, created_at)"
        " select 'op ' || i, 'x', 1, zeroblob(4000), 1 from n"
    )
    assert samekey("doctor", "--url", lite.url, "--json").json["findings"] == []
    lite.sql("delete from samekey_inputs")
    ran = samekey("doctor", "--url", lite.url, "--json")
    assert [(finding["code"], finding["level"]) for finding in ran.json["findings"]] == [("room", "note")]
    assert ran.code == 0

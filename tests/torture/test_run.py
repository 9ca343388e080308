"""``python -m lab.torture service`` itself: short real runs on each store, and runs that cannot be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from lab.servers.mariadb import MariaDBServer, NamedServer
from lab.torture.service.migration import migrate
from lab.torture.service.nodes import CouldNotRun
from lab.torture.service.plan import DATABASE_FAULTS, Plan, only, with_second_lives
from lab.torture.service.run import torture_service
from samekey import Idempotency
from samekey.drivers.run import run
from samekey.stores.sql.migrations import check, code_version
from tests.chosen import whole

pytestmark = whole


COMMAND = [sys.executable, "-m", "lab.torture", "service"]


def run_command(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.mark.timeout(900)
def test_postgresql_holds(tmp_path: Path) -> None:
    """A server of its own, restarted and cut off in the middle of its commits."""
    options = ("--url", "postgresql:", "--fault-every", "0.5", "--clients", "16", "--seed", "2")
    for seconds in ("7", "14", "28"):  # a machine that crawls sends too little in the first
        ran = run_command(*options, "--seconds", seconds, "--json", "--report", str(tmp_path))
        found = json.loads(ran.stdout)
        assert (ran.returncode, found["held"], found["findings"]) == (0, True, {}), (
            tmp_path / "report.txt"
        ).read_text()
        assert (found["store"], found["seed"]) == ("postgresql", 2)
        if len(found["timeline"]) >= 5 and "late" in found["sent"] and len(found["operations"]) >= 3:
            break
    assert len(found["timeline"]) >= 5
    assert found["operations"].keys() >= {"payment", "order", "transfer"}
    assert found["sent"].keys() >= {"first", "race", "late"}
    assert (tmp_path / "report.json").exists()
    assert (tmp_path / "timeline.svg").read_text().startswith("<svg ")


def test_mysql_holds(mariadb_server: NamedServer, tmp_path: Path) -> None:
    """The same on MariaDB; without restarts if the server is somebody's."""
    url = "mysql:" if isinstance(mariadb_server, MariaDBServer) else mariadb_server.url
    report = torture_service(Plan(url=url, seconds=7, seed=4, fault_every=0.5, clients=16), keep=tmp_path)
    assert report.held, report.text()
    assert report.store == "mysql"
    assert {one.kind for one in report.befell} & DATABASE_FAULTS


def test_keys_are_rotated_and_tables_migrated_under_load() -> None:
    faults = only("rotate_keys", "migrate", "kill_node")
    report = torture_service(Plan(seconds=10, seed=3, fault_every=2, clients=8, faults=faults))
    assert report.held, report.text()
    assert {"rotate_keys", "migrate"} <= {one.kind for one in report.befell}


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb"])
def test_a_migration_changes_the_tables_of_processes_that_go_on(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each is a version of its own, by samekey's own migrator; older code runs on what it leaves."""
    url: str = request.getfixturevalue(f"{store}_url")
    with closing(Idempotency(url)) as before:
        before.migrate()
        found = code_version(before.engine.queries.dialect)
        log = tmp_path / "log"
        migrate(1, url, log, os.environ)
        migrate(2, url, log, os.environ)
        told = log.read_text()
        assert re.findall(r"applied (\d+) (\w+)", told) == [
            (f"{found + 1:04d}", "torture_0"),
            (f"{found + 2:04d}", "torture_1"),
        ], told
        run(before.engine.drivers.sync, lambda: check(before.engine.queries))
        assert before.once(tenant="t", key="k", run=lambda: 1) == 1


@pytest.mark.timeout(900)
def test_keys_have_second_lives() -> None:
    """Answers are kept for longer than any request takes, and the key then stands for something else."""
    for seconds in (22, 44, 88):  # a machine that crawls sends too little in the first
        plan = with_second_lives(Plan(seconds=seconds, seed=3, fault_every=0.7, clients=8), ttl=6)
        report = torture_service(plan)
        assert report.held, report.text()
        assert "--ttl 6" in report.command
        if report.figures()["second_lives"] and report.figures()["sent"].get("expired"):
            return
    pytest.fail(f"no key had a second life, or none was asked about after its end:\n{report.text()}")


def test_sqlite_holds_and_shows_its_progress() -> None:
    """On a terminal, with every option from the environment and a seed of its own choice."""
    ran = run_command(
        SAMEKEY_TORTURE_SECONDS="6",
        SAMEKEY_TORTURE_FAULT_EVERY="0.7",
        SAMEKEY_TORTURE_CLIENTS="16",
        FORCE_COLOR="1",
        TERM="xterm",
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    first, *_, last = ran.stdout.splitlines()
    assert first.startswith("seed ")
    assert last == "held: one effect and one answer for every key"
    assert "load and faults" in ran.stdout and "operations settled" in ran.stdout


def test_a_broken_promise_is_told_with_its_seed() -> None:
    options = ("--app", "tests.torture.mutants:app", "--seconds", "3", "--fault-every", "0")
    for number in (5, 6, 7):  # a machine that crawls may have too little load in three seconds
        ran = run_command(*options, "--seed", str(number), SAMEKEY_MUTANT="tenant")
        if ran.returncode != 0:
            break
    assert ran.returncode == 1, ran.stdout + ran.stderr
    *_, broken, seed, command = ran.stdout.splitlines()
    assert broken.startswith("BROKEN: ") and "refused_without_cause" in broken
    assert seed == f"seed {number}; run it again with:"
    assert command.strip().startswith(
        f"python -m lab.torture service --seconds 3 --seed {number} --clients 24"
    )
    assert "422 as if the key were taken, with another tenant's key" in ran.stdout


def test_no_verdict_is_neither() -> None:
    ran = run_command("--app", "tests.torture.nowhere:app", "--seconds", "1")
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "does not start" in ran.stderr and "tests.torture.nowhere" in ran.stderr


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://nobody@127.0.0.1:9/nowhere", "cannot be reached"),
        ("mysql://nobody@127.0.0.1:9/nowhere", "cannot be reached"),
        ("mongodb://nowhere", "does not know the store"),
    ],
)
def test_a_store_that_cannot_be_used(url: str, sentence: str) -> None:
    with pytest.raises(CouldNotRun, match=sentence):
        torture_service(Plan(url=url))


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious.db"
    path.write_bytes(b"precious")
    with pytest.raises(CouldNotRun, match="is there already"):
        torture_service(Plan(url=f"sqlite:///{path}"))
    assert path.read_bytes() == b"precious"

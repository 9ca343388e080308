"""Every journal: what is begun is there after any death, once, and under one key."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lab
from lab.processes import race
from samekey import ConfigurationError
from samekey.client import FileJournal, Journal, JournalFailed, MemoryJournal, Request, TableJournal
from samekey.client.entry import Entry
from tests.chosen import whole

REQUEST = Request("POST", "https://api.example/payments", (("content-type", "text/plain"),), b"\x00pay\xff")
NOW = 1_700_000_000.0


def entry(name: str | None = None, key: str | None = None, at: float = NOW) -> Entry:
    return Entry.of(REQUEST, name, key, at)


KINDS = ["memory", "file", "sqlite", "sqlite connection"]


@pytest.fixture(
    params=[*KINDS, pytest.param("postgresql", marks=whole), pytest.param("psycopg", marks=whole)]
)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    kind = request.param
    if kind == "memory":
        yield MemoryJournal()
    elif kind == "file":
        yield FileJournal(tmp_path / "operations")
    elif kind == "sqlite":
        yield TableJournal(f"sqlite:///{tmp_path / 'app.db'}")
    elif kind == "sqlite connection":
        connection = sqlite3.connect(tmp_path / "app.db")
        yield TableJournal(connection)
        connection.close()
    else:
        url = request.getfixturevalue("postgres_url")
        if kind == "postgresql":
            yield TableJournal(url)
            return
        with psycopg.connect(url) as lent:
            yield TableJournal(lent)


def test_an_entry_is_what_it_was() -> None:
    one = entry("order 17")
    assert Entry.decode(one.encode(), "here") == one
    assert one.request == REQUEST


def test_what_is_begun_stays_until_it_is_finished(journal: Journal) -> None:
    first, second = entry(at=NOW), entry("order 17", at=NOW - 1)
    assert journal.begin(first) is None and journal.begin(second) is None
    assert journal.pending() == [second, first]
    journal.note(first, NOW + 5)
    (found,) = [one for one in journal.pending() if one.name is None]
    assert found.expires_at == NOW + 5
    journal.finish(first, NOW)
    assert journal.pending() == [second]


def test_under_one_name_there_is_one_key_also_when_it_is_done(journal: Journal) -> None:
    first = entry("order 17")
    assert journal.begin(first) is None
    found = journal.begin(entry("order 17"))
    assert found is not None and found.key == first.key
    journal.finish(first, NOW)
    found = journal.begin(entry("order 17"))
    assert found is not None and (found.key, found.digest, found.body) == (first.key, first.digest, b"")
    assert journal.pending() == []
    assert journal.forget(timedelta(days=1), NOW + 60) == 0
    assert journal.forget(timedelta(days=1), NOW + 2 * 86400) == 1
    assert journal.begin(entry("order 17")) is None


def test_only_what_nobody_else_has_joined_can_be_dropped(journal: Journal) -> None:
    alone, joined = entry("alone"), entry("joined")
    for one in (alone, joined):
        journal.begin(one)
    journal.begin(entry("joined"))
    journal.drop(alone)
    journal.drop(joined)
    assert [one.name for one in journal.pending()] == ["joined"]
    journal.discard(joined)
    assert journal.pending() == []


def test_a_connection_inside_a_transaction_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "app.db")
    journal = TableJournal(connection)
    connection.execute("create table mine (x)")
    connection.execute("insert into mine values (1)")
    with pytest.raises(JournalFailed, match="inside a transaction"):
        journal.begin(entry())
    connection.rollback()
    journal.begin(entry())
    connection.close()


@pytest.mark.parametrize("target", ["mysql://x", "sqlite:///:memory:", object()])
def test_a_table_that_cannot_be_is_refused_at_once(target: Any) -> None:
    with pytest.raises(ConfigurationError):
        TableJournal(target)


def test_a_journal_that_cannot_be_written_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no folder")
    with pytest.raises(JournalFailed):
        FileJournal(tmp_path / "taken")
    journal = FileJournal(tmp_path / "gone")
    for path in (tmp_path / "gone").iterdir():
        path.unlink()
    (tmp_path / "gone").rmdir()
    with pytest.raises(JournalFailed, match="nothing was sent"):
        journal.begin(entry())


def test_torn_and_damaged_files(tmp_path: Path) -> None:
    """Half a file is never one that has its name; a damaged one stops us, because it may have been sent."""
    journal = FileJournal(tmp_path)
    one = entry("order 17")
    (tmp_path / ".part").write_bytes(one.encode()[:100])  # as a process that died leaves it
    assert journal.pending() == []
    journal.begin(one)
    (path,) = tmp_path.glob("*.operation")
    assert path.stat().st_mode & 0o077 == 0
    whole_file = path.read_bytes()
    for torn in (whole_file[:-10], b"", whole_file[:10] + b"x" + whole_file[11:]):
        path.write_bytes(torn)
        with pytest.raises(JournalFailed, match=r"cannot be read.*Nothing"):
            journal.begin(entry("order 17"))
        assert journal.pending() == []


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_one_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    journal = FileJournal(tmp_path) if kind == "file" else TableJournal(f"sqlite:///{tmp_path / 'app.db'}")
    damaged, good, done = entry("order 1"), entry("order 2"), entry("order 3")
    for one in (damaged, good, done):
        journal.begin(one)
    journal.finish(done, NOW)
    if kind == "file":
        (tmp_path / f"{damaged.label}.operation").write_bytes(damaged.encode()[:100])
    else:
        with sqlite3.connect(tmp_path / "app.db") as connection:
            cut = (damaged.encode()[:100], damaged.label)
            connection.execute("update samekey_operations set entry = ? where label = ?", cut)
        connection.close()
    assert journal.pending() == [good]
    assert damaged.label in caplog.text and "cannot be read" in caplog.text
    assert journal.forget(timedelta(days=1), NOW + 2 * 86400) == 1
    with pytest.raises(JournalFailed):  # it may have been sent
        journal.begin(entry("order 1"))


def begin_here(_turn: object, target: str, name: str) -> str:
    """One of several processes at once."""
    journal: Journal = TableJournal(target) if ":" in target else FileJournal(target)
    mine = Entry.of(REQUEST, name, None, time.time())
    return (journal.begin(mine) or mine).key


@whole
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_two_processes_that_begin_one_operation_have_one_key(kind: str, tmp_path: Path) -> None:
    target = str(tmp_path / "operations") if kind == "file" else f"sqlite:///{tmp_path / 'app.db'}"
    if kind == "sqlite":
        TableJournal(target)
    (keys,) = race(begin_here, 3, target, "order 17")
    assert len(keys) == 3 and len(set(keys)) == 1


WRITER = """
import sys, time
from samekey.client import FileJournal, Request
from samekey.client.entry import Entry
journal = FileJournal(sys.argv[1])
number = 0
while True:
    request = Request("POST", "https://api.example/payments", (), b"x" * 5000)
    one = Entry.of(request, f"order {number}", None, 1.0)
    journal.begin(one)
    print(one.key, flush=True)
    if number % 2:
        journal.finish(one, 2.0)
    number += 1
"""


@whole
def test_a_writer_that_is_killed_loses_nothing_that_it_had_begun(tmp_path: Path) -> None:
    folder = tmp_path / "operations"
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, env=lab.environment()
        )
        assert writer.stdout is not None
        seen = [writer.stdout.readline() for _ in range(30)]
        writer.kill()
        writer.communicate()
        kept = {one.key for one in FileJournal(folder).pending()}
        begun = [line.decode().strip() for line in seen]
        # Every other one was finished; of the rest none is missing, and none is torn.
        assert set(begun[0:29:2]) <= kept
        for one in FileJournal(folder).pending():
            FileJournal(folder).discard(one)
        for path in folder.glob("*.operation"):
            path.unlink()


def test_the_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    FileJournal(tmp_path / "operations").begin(entry())
    assert (tmp_path / "operations").stat().st_mode & 0o077 == 0
    assert json.loads((next((tmp_path / "operations").glob("*.operation"))).read_text().split("\n")[1])
    assert os.listdir(tmp_path) == ["operations"]


def test_a_journal_in_memory_does_not_grow_for_ever() -> None:
    journal = MemoryJournal(remembered=3)
    for number in range(10):
        one = entry(f"order {number}")
        journal.begin(one)
        for _ in range(2):
            journal.finish(one, NOW)
    open_one = entry("still open")
    journal.begin(open_one)
    assert journal.pending() == [open_one]
    assert [number for number in range(10) if journal.begin(entry(f"order {number}")) is not None] == [
        7,
        8,
        9,
    ]


def test_nor_with_operations_that_have_neither_an_answer_nor_a_name(caplog: pytest.LogCaptureFixture) -> None:
    journal = MemoryJournal(bytes_kept=10_000)
    kept = [Entry.of(replace(REQUEST, body=b"x" * 1000), None, None, NOW + number) for number in range(9)]
    for one in kept:
        journal.begin(one)
    assert journal.pending() == kept[-len(journal.pending()) :] and 2 < len(journal.pending()) < 6
    assert kept[0].key in caplog.text
    for one in kept[-2:]:
        journal.finish(one, NOW)
    room = [entry(f"order {number}") for number in range(3)]
    for one in room:
        journal.begin(one)
    assert {one.name for one in room} <= {one.name for one in journal.pending()}, "what has a name stays"


def test_the_file_of_a_table_is_for_its_owner_only(tmp_path: Path) -> None:
    TableJournal(f"sqlite:///{tmp_path / 'app.db'}").begin(entry())
    assert (tmp_path / "app.db").stat().st_mode & 0o077 == 0


def test_what_is_done_is_not_read_by_who_looks_for_what_is_pending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = FileJournal(tmp_path)
    for number in range(3):
        done = entry(f"order {number}")
        journal.begin(done)
        journal.finish(done, NOW)
    open_one = entry("still open")
    journal.begin(open_one)
    for path in tmp_path.glob("*.done"):
        path.rename(path.with_suffix(".away"))
        path.write_bytes(b"not to be read")
    assert journal.pending() == [open_one] and not caplog.records
    for path in tmp_path.glob("*.away"):
        path.rename(path.with_suffix(".done"))
    assert journal.forget(timedelta(hours=1), NOW + 7200) == 3
    assert [path.suffix for path in tmp_path.glob("?*.*")] == [".operation"]


@pytest.mark.parametrize("ending", [".done", ".operation"])
def test_a_name_is_one_file_whichever_its_ending_also_after_a_crash_between_two(
    tmp_path: Path, ending: str
) -> None:
    journal = FileJournal(tmp_path)
    done = entry("order 17")
    journal.begin(done)
    journal.finish(replace(done, refused=True), NOW)
    (path,) = tmp_path.glob("*.done")
    path.rename(path.with_suffix(ending))
    assert journal.pending() == []
    again = journal.begin(entry("order 17"))
    assert again is not None and again.key == done.key
    assert [one.key for one in journal.pending()] == [done.key]
    assert [one.suffix for one in tmp_path.glob("?*.*")] == [".operation"]


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
def test_a_child_that_is_forked_while_a_thread_is_inside_can_use_it(kind: str, tmp_path: Path) -> None:
    kinds: dict[str, Any] = {
        "memory": MemoryJournal,
        "file": lambda: FileJournal(tmp_path / "operations"),
        "sqlite": lambda: TableJournal(f"sqlite:///{tmp_path / 'app.db'}"),
    }
    journal = kinds[kind]()
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with journal._lock if kind == "memory" else journal._alone():
            inside.set()
            leave.wait(0.5)  # a fork waits for it

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(30)
    child = os.fork()
    if not child:
        signal.alarm(20)  # a hang ends it
        try:
            journal.begin(entry("in the child"))
            os._exit(0 if journal.pending() else 2)
        finally:
            os._exit(1)
    leave.set()
    thread.join()
    journal.pending()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""SQLite and forks: a child locks the file as every other process does, or refuses to use it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lab import environment
from samekey import Idempotency, current_operation
from samekey.drivers.sqlite import forks
from samekey.errors import StoreUnreachable
from tests.stores.test_fork import PATIENCE, in_child

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def call(idempotency: Idempotency, key: str, run: Callable[[], object]) -> object:
    return idempotency.once(tenant="t", key=key, name="call", run=run)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


def is_open(path: str) -> bool:
    numbers = os.listdir("/dev/fd")
    wanted = os.path.realpath(path)
    return any(os.path.realpath(f"/dev/fd/{number}") == wanted for number in numbers)


def beside(url: str, key: str) -> str:
    """How many records of a key a process finds that comes and goes. The last to close it deletes the WAL."""
    program = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
        "print(*db.execute('select count(*) from samekey_keys where key = ?', sys.argv[2:]).fetchone());"
        "db.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, url.removeprefix("sqlite:///"), key],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_making_one_leaves_no_file_open(url: str) -> None:
    idempotency = Idempotency(url)
    assert not is_open(idempotency.engine.drivers.sync.path)  # type: ignore[attr-defined]
    assert call(idempotency, "k", lambda: 1) == 1
    assert is_open(idempotency.engine.drivers.sync.path)  # type: ignore[attr-defined]
    idempotency.close()


def test_what_a_child_records_is_seen_by_others_when_its_parent_has_gone(url: str) -> None:
    """The parent here is a child itself: it has used the file, forks, and ends."""
    from_heir, to_us = os.pipe()

    def parent() -> None:
        idempotency = Idempotency(url)
        assert call(idempotency, "parent", lambda: "parent") == "parent"
        reading, writing = os.pipe()
        if os.fork() == 0:
            code = b"x"
            try:
                os.close(writing)
                os.read(reading, 1)  # the parent has ended
                assert call(idempotency, "first", lambda: "child") == "child"
                assert beside(url, "first") == "1"
                assert call(idempotency, "second", lambda: "child") == "child"
                assert beside(url, "second") == "1"
                code = b"."
            finally:
                os.write(to_us, code)
                os._exit(0)

    in_child(parent)
    os.close(to_us)
    assert os.read(from_heir, 1) == b"."
    os.close(from_heir)


def test_a_child_that_is_forked_inside_a_transaction_refuses_and_says_what_to_do(url: str) -> None:
    idempotency = Idempotency(url)

    def story() -> None:
        with pytest.raises(StoreUnreachable, match=r"forked while .*keys\.db was open in its parent"):
            call(idempotency, "child", lambda: pytest.fail("it ran"))
        with pytest.raises(StoreUnreachable, match="forked while"):
            Idempotency(url)

    def handler() -> str:
        current_operation().connection.execute("create table effects (n int)")
        current_operation().connection.execute("insert into effects values (1)")
        in_child(story)
        return "parent"

    assert idempotency.once(tenant="t", key="k", name="call", run=handler, mode="atomic") == "parent"
    in_child(lambda: call(idempotency, "later", lambda: "child"))
    assert call(idempotency, "later", lambda: pytest.fail("it ran again")) == "child"
    idempotency.close()


def test_a_child_refuses_while_a_connection_of_the_applications_own_is_its_parents(url: str) -> None:
    idempotency = Idempotency(url)
    theirs = sqlite3.connect(url.removeprefix("sqlite:///"))
    theirs.execute("select count(*) from sqlite_master").fetchall()

    def story() -> None:
        with pytest.raises(StoreUnreachable, match="no connection of your own"):
            call(idempotency, "k", lambda: pytest.fail("it ran"))
        theirs.close()
        assert call(idempotency, "k", lambda: "child") == "child"

    in_child(story)
    theirs.close()
    assert call(idempotency, "k", lambda: pytest.fail("it ran again")) == "child"
    idempotency.close()


def test_a_fork_waits_for_single_statements_and_none_begins_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that claim and replay all the time, and children that each find the file free."""
    monkeypatch.setattr(forks, "LONGEST", float(PATIENCE))
    idempotency = Idempotency(url, timeout=PATIENCE)
    over = threading.Event()

    def work(name: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            assert call(idempotency, f"{name}-{number % 50}", lambda: 1) == 1

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(5):
            in_child(partial(call, idempotency, f"child-{number}", lambda: "child"))
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
    for number in range(5):
        assert call(idempotency, f"child-{number}", lambda: pytest.fail("it ran again")) == "child"
    idempotency.close()

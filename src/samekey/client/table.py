"""A journal in a table of the user's own database: SQLite or PostgreSQL.

Given a URL, it has connections of its own, one for each act. Given a connection, it uses that, and commits:
what is saved must be durable before anything is sent, so it refuses one that is inside a transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from ..errors import ConfigurationError
from .entry import Entry
from .errors import JournalFailed
from .inside import Inside
from .journal import is_old, readable

WAIT: Final = 10.0
"""Seconds for a connection, or for a lock that another process has."""
_TURNS: Final = 10
"""How often a row is looked for that somebody else inserts and removes at the same time."""


class TableJournal:
    """``target``: ``sqlite:///file.db``, ``postgresql://…``, or a connection of sqlite3 or psycopg."""

    def __init__(self, target: Any) -> None:
        self.in_threads = isinstance(target, str)
        self._inside = Inside()
        self._connect, self._kind = _opener(target) if isinstance(target, str) else _lent(target)
        self._closes = self.in_threads
        self._make_table()

    def _make_table(self) -> None:
        """Unless it is there: whoever may only use it need not be allowed to make it."""
        sqlite = self._kind == "sqlite"
        seen = (
            "select 1 from sqlite_master where type = 'table' and name = 'samekey_operations'"
            if sqlite
            else "select 1 where to_regclass('samekey_operations') is not null"
        )
        with self._alone() as run:
            if not sqlite:
                run("select pg_advisory_xact_lock(hashtext('samekey_operations'))")  # others start, too
            if not run(seen):
                run(
                    "create table if not exists samekey_operations (label text primary key, "
                    f"entry {'blob' if sqlite else 'bytea'} not null, finished boolean not null)"
                )

    def begin(self, entry: Entry) -> Entry | None:
        with self._alone() as run:
            for _ in range(_TURNS):
                # The database says who has inserted it. What is stored does not: it may equal ours.
                inserted = run(
                    "insert into samekey_operations (label, entry, finished) values (%s, %s, false) "
                    "on conflict (label) do nothing returning label",
                    entry.label,
                    entry.encode(),
                )
                if inserted:
                    return None
                found = self._read(run, entry.label)
                if found is not None:  # else somebody has removed it since
                    self._write(run, found.begun_again(entry))
                    return found
            raise JournalFailed("The journal's row was removed again and again. Nothing was sent.")

    def join(self, entry: Entry) -> Entry | None:
        with self._alone() as run:
            found = self._read(run, entry.label)
            if found is None or found.key != entry.key:
                return None
            self._write(run, found.is_joined())
            return found

    def note(self, entry: Entry, expires_at: float) -> None:
        with self._alone() as run:
            found = self._read(run, entry.label)
            if found is not None and found.key == entry.key:
                self._write(run, found.noted(expires_at))

    def finish(self, entry: Entry, now: float, expires_at: float | None = None) -> None:
        with self._alone() as run:
            found = self._read(run, entry.label) or entry
            if found.key != entry.key:
                return
            if entry.name is not None:
                self._write(run, found.finished(entry, now, expires_at))
            else:
                self._remove(run, entry.label)

    def drop(self, entry: Entry) -> None:
        with self._alone() as run:
            found = self._read(run, entry.label)
            if found is not None and found.may_be_dropped(entry.key):
                self._remove(run, entry.label)

    def discard(self, entry: Entry) -> None:
        with self._alone() as run:
            found = self._read(run, entry.label)
            if found is not None and found.may_be_discarded(entry.key):
                self._remove(run, entry.label)

    def pending(self) -> list[Entry]:
        with self._alone() as run:
            rows = run("select label, entry from samekey_operations where not finished")
            return sorted(readable(map(_place, rows)), key=lambda one: one.begun_at)

    def forget(self, older_than: timedelta, now: float) -> int:
        with self._alone() as run:
            rows = run("select label, entry from samekey_operations where finished")
            old = [one for one in readable(map(_place, rows)) if is_old(one, older_than, now)]
            for one in old:
                self._remove(run, one.label)
            return len(old)

    # One transaction

    @contextmanager
    def _alone(self) -> Iterator[Run]:
        with self._inside, _in_our_words():
            connection = self._connect()
            try:
                if not self._closes:
                    _check_idle(connection, self._kind)
                with self._transaction(connection):
                    yield lambda sql, *arguments: self._run(connection, sql, arguments)
            finally:
                if self._closes:
                    connection.close()

    @contextmanager
    def _transaction(self, connection: Any) -> Iterator[None]:
        if self._kind == "sqlite":
            connection.execute("begin immediate")
            try:
                yield
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
        else:
            with connection.transaction():
                yield

    def _run(self, connection: Any, sql: str, arguments: tuple[Any, ...]) -> list[Any]:
        if self._kind == "sqlite":
            cursor = connection.cursor()
            cursor.row_factory = None  # a lent connection may have one of its own
            cursor.execute(sql.replace("%s", "?"), arguments)
        else:
            from psycopg.rows import tuple_row

            cursor = connection.cursor(row_factory=tuple_row)
            cursor.execute(sql, arguments)
        return list(cursor.fetchall()) if cursor.description is not None else []

    def _read(self, run: Run, label: str) -> Entry | None:
        # In a transaction of SQLite's that has begun to write, nobody else does; PostgreSQL locks the row.
        sql = "select label, entry from samekey_operations where label = %s"
        rows = run(sql if self._kind == "sqlite" else f"{sql} for update", label)
        if not rows:
            return None
        where, stored = _place(rows[0])
        return Entry.decode(stored, where)

    def _write(self, run: Run, entry: Entry) -> None:
        run(
            "insert into samekey_operations (label, entry, finished) values (%s, %s, %s) "
            "on conflict (label) do update set entry = excluded.entry, finished = excluded.finished",
            entry.label,
            entry.encode(),
            entry.finished_at is not None,
        )

    def _remove(self, run: Run, label: str) -> None:
        run("delete from samekey_operations where label = %s", label)


Run = Callable[..., list[Any]]


def _place(row: Any) -> tuple[str, bytes]:
    label, stored = row
    return f"samekey_operations, label {label}", bytes(stored)


def _opener(url: str) -> tuple[Callable[[], Any], str]:
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        path = url.removeprefix("sqlite:///")
        if path in ("", ":memory:"):
            raise ConfigurationError("A journal in memory is MemoryJournal(); a table needs a file.")
        return lambda: _sqlite(path), "sqlite"
    if scheme in ("postgresql", "postgres"):
        import psycopg

        return lambda: psycopg.connect(url, connect_timeout=int(WAIT)), "postgresql"
    raise ConfigurationError(f"A journal's table is in sqlite:/// or postgresql://, not in {scheme}:.")


def _sqlite(path: str) -> sqlite3.Connection:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass  # whoever has made it says who may read it
    connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
    connection.execute("pragma synchronous = full")  # also where the file is in WAL mode
    return connection


def _lent(connection: Any) -> tuple[Callable[[], Any], str]:
    kind = type(connection).__module__.partition(".")[0]
    kinds = {"sqlite3": "sqlite", "psycopg": "postgresql"}
    if kind not in kinds or not hasattr(connection, "execute") or _is_async(connection):
        raise ConfigurationError(
            f"A journal's table needs a URL, or a connection of sqlite3 or psycopg, not {type(connection)!r}."
        )
    return lambda: connection, kinds[kind]


def _is_async(connection: Any) -> bool:
    return type(connection).__name__.startswith("Async")


def _check_idle(connection: Any, kind: str) -> None:
    idle = not connection.in_transaction if kind == "sqlite" else connection.info.transaction_status == 0
    if not idle:
        raise JournalFailed(
            "The journal's connection is inside a transaction of yours, whose rollback would undo what must "
            "be kept. Nothing was sent. Commit it first, or give the journal a connection or URL of its own."
        )


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise JournalFailed(f"The journal's table cannot be used, so nothing was sent: {error}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "psycopg":
            raise
        raise JournalFailed(f"The journal's table cannot be used, so nothing was sent: {error}") from error

"""The drivers of a store on a ``DATABASES`` alias.

Statements of ours go over connections of our own; a transaction in which a view's code runs is opened on
Django's connection (``USERS``). Inside the transaction of a ``TestCase``, and in a database in memory, nobody
else would see what Django sees: there everything runs on Django's connection.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.db import Error, connections, transaction

from ..core.program import Dialect, Row, Statement
from ..drivers.protocol import AsyncSession, Session
from ..drivers.url import Drivers, drivers_for
from ..errors import ConfigurationError, ConnectionLost, StoreUnavailable
from .address import dialect_of, in_memory, url_of
from .session import DjangoSession, SavepointSession

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Users:
    """Stands for Django's connection of whoever asks: each thread has its own."""


USERS = Users()


def drivers_on(alias: str, url: str | None = None, **options: Any) -> Drivers:
    """Drivers on an alias. ``url``: the same database as our own connections shall reach it."""
    dialect = dialect_of(alias)
    sync = DjangoDriver(alias, dialect, lambda: drivers_for(url or url_of(alias), **options))
    known = "" if dialect != "postgres" else url or url_of(alias)
    return Drivers(dialect, sync, AsyncDjangoDriver(sync), users=USERS, url=known)


class DjangoDriver:
    """Sync. ``make`` opens the drivers of our own connections: a test runner renames the database later."""

    def __init__(self, alias: str, dialect: Dialect, make: Callable[[], Drivers]) -> None:
        self.alias = alias
        self.dialect = dialect
        self._make = make
        self._lock = threading.Lock()
        self._own: tuple[str, Drivers] | None = None

    @property
    def own(self) -> Drivers:
        """The drivers of our own connections, to the database that the alias names now."""
        name = str(connections[self.alias].settings_dict["NAME"])
        with self._lock:
            if self._own is None or self._own[0] != name:
                if self._own is not None:
                    self._own[1].sync.close()
                self._own = name, self._make()
            return self._own[1]

    def execute(self, statement: Statement) -> Sequence[Row]:
        shared = self._shared()
        return self._alone(shared, statement) if shared is not None else self.own.sync.execute(statement)

    def open(self, connection: Any = None) -> Session:
        shared = self._shared()
        if shared is not None:
            return SavepointSession(shared, execute_on)
        if not isinstance(connection, Users):
            return self.own.sync.open(connection)
        wrapper = connections[self.alias]
        try:
            return DjangoSession(wrapper, self._begin)
        except ConnectionLost:
            # Django's connection had died unseen, between two requests. Nothing was done on it.
            wrapper.close()
            return DjangoSession(wrapper, self._begin)

    def close(self) -> None:
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own[1].sync.close()

    def _shared(self) -> Any:
        """Django's connection, where everything must run on it; else None."""
        wrapper = connections[self.alias]
        return wrapper if in_memory(self.alias) or _is_in_testcase(wrapper) else None

    def _begin(self, wrapper: Any) -> Any:
        """A transaction of samekey's on Django's raw connection."""
        raw = wrapper.connection
        if self.dialect == "sqlite":
            from .sqlite import SQLiteOnDjango

            return SQLiteOnDjango(wrapper)
        driver = type(raw).__module__.partition(".")[0]
        if driver not in ("psycopg", "pymysql"):
            wanted = "psycopg 3" if self.dialect == "postgres" else "PyMySQL (pymysql.install_as_MySQLdb())"
            raise ConfigurationError(
                f"Django reaches {self.alias!r} through {driver}, whose transactions samekey cannot end "
                f"safely, so nothing was run: atomic, deferred and phased views need {wanted}. Leased views "
                "work as it is."
            )
        return self.own.sync.open(raw)

    def _alone(self, wrapper: Any, statement: Statement) -> Sequence[Row]:
        """In a savepoint: an error must not break the transaction of a test."""
        try:
            with transaction.atomic(using=self.alias):
                return execute_on(wrapper, statement)
        except Error as error:
            raise StoreUnavailable(f"The database {self.alias!r} cannot be used: {error}") from error


def execute_on(wrapper: Any, statement: Statement) -> Sequence[Row]:
    """A statement of ours on Django's connection, in whatever transaction that is in."""
    wrapper.ensure_connection()
    raw = wrapper.connection
    rows: Sequence[Row]
    match wrapper.vendor:
        case "sqlite":
            from ..drivers.sqlite import driver as sqlite

            rows = sqlite._execute(raw, statement)
        case "postgresql":
            from ..drivers.postgres import psycopg_session

            # The test's transaction began long before this statement: it has not waited since.
            psycopg_session.send(raw, "set local samekey.nested = 'on'", _PATIENCE)
            rows = psycopg_session.execute(raw, statement, _PATIENCE)
        case _:
            from ..drivers.mysql import wire as pymysql_wire

            rows = pymysql_wire.execute(raw, statement, _PATIENCE, alone=False)
    return rows


_PATIENCE = 5.0
"""Seconds for one statement, where the driver bounds it."""


def _is_in_testcase(wrapper: Any) -> bool:
    """Whether the test around has opened a transaction, which it will roll back."""
    blocks = (block for block in wrapper.atomic_blocks if isinstance(block, transaction.Atomic))
    return any(block._from_testcase for block in blocks)


def is_in_transaction() -> bool:
    """Whether somebody holds a transaction of Django's open in this thread, other than a test."""
    opened = connections.all(initialized_only=True)
    return any(wrapper.in_atomic_block and not _is_in_testcase(wrapper) for wrapper in opened)


IN_TRANSACTION: Final = (
    "A middleware before samekey's holds a transaction open around it. The answer would be recorded before "
    "that one commits, and replayed although it was rolled back. Nothing was run. Put the middleware that "
    "opens it below samekey's in MIDDLEWARE, or use ATOMIC_REQUESTS."
)


def in_tests() -> bool:
    """Whether Django's test environment is set up in this process."""
    utils = sys.modules.get("django.test.utils")
    return utils is not None and hasattr(utils._TestState, "saved_data")


class AsyncDjangoDriver:
    """For async code: Django's connection is used in the thread that Django uses it in."""

    def __init__(self, driver: DjangoDriver) -> None:
        self._driver = driver

    async def execute(self, statement: Statement) -> Sequence[Row]:
        if in_tests():
            return await _in_djangos_thread(self._driver.execute, statement)
        return await self._driver.own.aio.execute(statement)

    async def open(self, connection: Any = None) -> AsyncSession:
        if not in_tests() and not isinstance(connection, Users):
            return await self._driver.own.aio.open(connection)
        opening = _Opening(lambda: self._driver.open(connection))
        try:
            return AsyncDjangoSession(await _in_djangos_thread(opening.run))
        except BaseException:
            opening.give_up()
            raise

    async def close(self) -> None:
        await self._driver.own.aio.close()


class _Opening:
    """A session that a thread opens for somebody who may be gone by then: whoever comes last ends it."""

    def __init__(self, open: Callable[[], Any]) -> None:
        self._open = open
        self._lock = threading.Lock()
        self._session: Any = None
        self._given_up = False

    def run(self) -> Any:
        session = self._open()
        with self._lock:
            self._session = session
            given_up = self._given_up
        if given_up:
            session.rollback()  # here, where it may wait for the database
        return session

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            session = self._session
        if session is not None:
            getattr(session, "give_up", session.rollback)()


class AsyncDjangoSession:
    """A session on Django's connection, for async code."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.wrote = session.wrote
        self.in_transaction = session.in_transaction
        self.expire_after = session.expire_after
        self.cut = getattr(session, "cut", lambda: None)
        self.give_up = getattr(session, "give_up", session.rollback)

    @property
    def connection(self) -> Any:
        return self.session.connection

    async def execute(self, statement: Statement) -> Sequence[Row]:
        return await _in_djangos_thread(self.session.execute, statement)

    async def commit(self) -> None:
        await _in_djangos_thread(self.session.commit)

    async def rollback(self) -> None:
        await _in_djangos_thread(self.session.rollback)


async def _in_djangos_thread(work: Callable[..., T], *args: Any) -> T:
    """Where the ORM's own async methods run for this request."""
    done: T = await sync_to_async(work, thread_sensitive=True)(*args)
    return done

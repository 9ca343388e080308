"""MySQL and MariaDB for async code, through asyncmy.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import asyncmy.connection
import asyncmy.errors
from asyncmy.constants import FIELD_TYPE
from asyncmy.constants.COMMAND import COM_QUERY
from asyncmy.cursors import Cursor

from ..core.program import Row, Statement
from ..errors import (
    CommitRefused,
    CommitUncertain,
    ConfigurationError,
    ConnectionLost,
    EscapedTransaction,
    OpenTransaction,
    ReadOnlyStore,
    SamekeyError,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
)
from .mysql import (
    COMMIT_REFUSED,
    IN_TRANSACTION,
    MULTI_STATEMENTS,
    RESET_CONNECTION,
    decode_text,
    ends_transaction,
    packets,
    setup,
    target_of,
)
from .mysql_errors import DEADLOCK, from_code, unreachable
from .pool import AsyncPool
from .threads import Result

Connections: TypeAlias = AsyncPool[Any]
PlainConnection: Any = asyncmy.connection.Connection
"""It has types, but not for what a subclass needs."""

_DECODERS: Final = {
    **dict.fromkeys((FIELD_TYPE.VAR_STRING, FIELD_TYPE.VARCHAR, FIELD_TYPE.STRING), decode_text),
    **dict.fromkeys(
        (
            FIELD_TYPE.TINY,
            FIELD_TYPE.SHORT,
            FIELD_TYPE.LONG,
            FIELD_TYPE.INT24,
            FIELD_TYPE.LONGLONG,
            FIELD_TYPE.NEWDECIMAL,
        ),
        int,
    ),
}
"""Ours, on whatever connection: a user's own must not change what we read."""

_QUIT: Final = b"\x01\x00\x00\x00\x01"
_ERRORS: Final = (asyncmy.errors.MySQLError, OSError, asyncio.IncompleteReadError)


class HandlerConnection(PlainConnection):  # type: ignore[misc]
    """A connection that refuses to end its transaction while a handler holds it, and counts its writes."""

    guarded = False
    written = 0
    gave_way: int | None = None
    """How much was written when the server rolled back everything to resolve a deadlock."""

    async def execute(self, sql: str, parameters: Any = None) -> Result:
        """Runs one statement and gives its rows; ``%s`` stands for a parameter."""
        async with self.cursor() as cursor:
            await cursor.execute(sql, parameters)
            rows = await cursor.fetchall() if cursor.description else []
            return Result(list(rows), cursor.lastrowid or None, cursor.rowcount)

    async def query(self, sql: Any, unbuffered: bool = False) -> Any:
        if self.guarded and ends_transaction(sql):
            raise CommitRefused(COMMIT_REFUSED)
        return await super().query(sql, unbuffered)

    async def _read_query_result(self, unbuffered: bool = False) -> None:
        try:
            await super()._read_query_result(unbuffered)
        except asyncmy.errors.MySQLError as error:
            if _code(error) == DEADLOCK:
                self.gave_way = self.written
            raise
        result = self._result
        if result.description is None and result.affected_rows:
            self.written += 1

    async def begin(self) -> None:
        self._refuse_if_guarded()
        await super().begin()

    async def commit(self) -> None:
        self._refuse_if_guarded()
        await super().commit()

    async def rollback(self) -> None:
        self._refuse_if_guarded()
        await super().rollback()

    async def autocommit(self, value: bool) -> None:
        self._refuse_if_guarded()
        await super().autocommit(value)

    def _refuse_if_guarded(self) -> None:
        if self.guarded:
            raise CommitRefused(COMMIT_REFUSED)


class AsyncmyDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for one statement of ours."""

    def __init__(self, url: str, *, pool_size: int = 10, timeout: float = 5.0) -> None:
        self._target = target_of(url)
        self._pool_size = pool_size
        self.timeout = timeout
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._made: tuple[Connections, Connections] | None = None

    async def execute(self, statement: Statement) -> Sequence[Row]:
        pool = self._pools()[0]
        connection = await pool.take()
        try:
            return await _execute(connection, statement, self.timeout, alone=True)
        except StoreUnavailable as error:
            if isinstance(error, ConnectionLost | ReadOnlyStore):
                # Its siblings died of the same cause, or are connected to the same replica.
                pool.drop_idle()
            if isinstance(error, ReadOnlyStore):
                _close(connection)
            raise
        finally:
            pool.give_back(connection)

    async def open(self, connection: Any = None) -> AsyncmySession:
        if connection is not None:
            return await AsyncmySession.begin(self, connection, pool=None)
        pool = self._pools()[1]
        try:
            return await self._open(pool)
        except ConnectionLost:
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            pool.drop_idle()
            return await self._open(pool)

    async def _open(self, pool: Connections) -> AsyncmySession:
        held = await pool.take()
        try:
            return await AsyncmySession.begin(self, held, pool=pool)
        except BaseException:
            pool.give_back(held)
            raise

    async def close(self) -> None:
        pools, self._made = self._made or (), None
        if self._home == self._here():
            for pool in pools:
                pool.drop_idle()

    @property
    def database(self) -> str:
        return self._target.database

    def _pools(self) -> tuple[Connections, Connections]:
        """For short statements of ours, and for handlers that hold a connection."""
        here = self._here()
        if self._made is None or self._home != here:
            # Connections belong to one event loop of one process; those of another are left alone.
            self._home = here
            self._made = (self._make_pool(short=True), self._make_pool(short=False))
        return self._made

    def _make_pool(self, *, short: bool) -> Connections:
        return AsyncPool(
            lambda: self._connect(short=short),
            _close,
            size=self._pool_size,
            timeout=self.timeout,
            usable=_usable,
        )

    async def _connect(self, *, short: bool) -> HandlerConnection:
        connection = HandlerConnection(
            **self._target.arguments(), connect_timeout=max(1, round(self.timeout))
        )
        try:
            async with asyncio.timeout(self.timeout):
                await connection.connect()
        except (TimeoutError, *_ERRORS) as error:
            # Not a lost connection: there was none, and trying again at once would only take longer.
            _close(connection)
            raise unreachable(_code(error), _message(error)) from error
        try:
            await _set_up(connection, short=short, bound=self.timeout)
        except BaseException:
            _close(connection)
            raise
        return connection

    @staticmethod
    def _here() -> tuple[int, asyncio.AbstractEventLoop]:
        return os.getpid(), asyncio.get_running_loop()


class AsyncmySession:
    """One transaction on a connection of ours, or on the user's."""

    def __init__(self, driver: AsyncmyDriver, connection: Any, pool: Connections | None) -> None:
        self._connection = connection
        self._pool = pool
        self._bound = driver.timeout
        self._lent = False
        self._condemned = False
        self._before = getattr(connection, "written", 0)
        if pool is not None:
            connection.gave_way = None

    @classmethod
    async def begin(
        cls, driver: AsyncmyDriver, connection: Any, *, pool: Connections | None
    ) -> AsyncmySession:
        if not _open(connection):
            raise ConnectionLost("The connection that was given for atomic work is closed.")
        if pool is None:
            await _check_own(connection, driver.database, driver.timeout)
        await _say(connection, "start transaction", driver.timeout)
        return cls(driver, connection, pool)

    @property
    def connection(self) -> Any:
        self._lent = True
        if self._pool is not None:
            self._connection.guarded = True
        return self._connection

    def wrote(self) -> bool | None:
        if not isinstance(self._connection, HandlerConnection):
            return None
        return bool(self._connection.written != self._before)

    def in_transaction(self) -> bool:
        return _open(self._connection) and bool(self._connection.server_status & IN_TRANSACTION)

    async def execute(self, statement: Statement) -> Sequence[Row]:
        before = getattr(self._connection, "written", 0)
        try:
            return await _execute(self._connection, statement, self._bound, alone=False)
        except ReadOnlyStore:
            self._condemned = True  # the server is no longer the primary, if it ever was
            raise
        except EscapedTransaction as error:
            if getattr(self._connection, "gave_way", None) == before:
                # Not the handler but the server has ended it, and nothing was written since.
                raise TransactionConflict("MySQL gave up this transaction in a deadlock.") from error
            raise
        finally:
            # What we write does not count as the handler's.
            self._before += getattr(self._connection, "written", 0) - before

    async def commit(self) -> None:
        try:
            await _say(self._connection, "commit", self._bound)
        except StoreUnavailable as error:
            await self._leave()
            raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error
        except SamekeyError:
            # The server answered, and the answer was no: a conflict that a cluster found at the end, say.
            await self.rollback()
            raise
        except BaseException:
            self._abandon()
            raise
        await self._leave()

    async def rollback(self) -> None:
        try:
            await _say(self._connection, "rollback", self._bound)
            # Who acts is a variable of the session, and so is a migrator's lock: no rollback takes them back.
            self._lent = True
            if self._pool is None:
                await _run(self._connection, "set @samekey_actor = null, @samekey_reason = null", self._bound)
        except Exception:
            # Ended already or broken: closing the connection makes the server roll back for certain.
            self._abandon()
            return
        await self._leave()

    async def _leave(self) -> None:
        connection, pool = self._connection, self._pool
        if pool is None:
            return
        connection.guarded = False
        if self._condemned:
            _close(connection)
            pool.drop_idle()
        if self._lent and _usable(connection):
            # What a handler set must not meet the next caller, who may be another tenant.
            try:
                async with asyncio.timeout(self._bound):
                    await connection._execute_command(RESET_CONNECTION, b"")
                    await connection._read_ok_packet()
                connection._cursor_cls = Cursor
                await _set_up(connection, short=False, bound=self._bound)
            except Exception:
                _close(connection)
        pool.give_back(connection)

    def _abandon(self) -> None:
        _close(self._connection)
        if self._pool is not None:
            self._connection.guarded = False
            self._pool.give_back(self._connection)


async def _check_own(connection: Any, database: str, bound: float) -> None:
    """A user's own connection: fresh, and on the database that has our tables."""
    await _say(connection, "do 0", bound)  # brings the server's status; a transaction shows in it
    if connection.server_status & IN_TRANSACTION:
        raise OpenTransaction
    rows = await _run(connection, "select database()", bound) or ()
    found = rows[0][0] if rows else None
    if found != database:
        raise ConfigurationError(
            f"Atomic work was given a connection to the database {found!r}, but samekey's tables are in "
            f"{database!r}. Nothing was run. Give it a connection to that database."
        )


async def _set_up(connection: Any, *, short: bool, bound: float) -> None:
    await _run(connection, setup(str(connection.server_version), short=short), bound)


async def _execute(connection: Any, statement: Statement, bound: float, *, alone: bool) -> Sequence[Row]:
    # Asked of the connection: a user's own may or may not take several statements at once.
    joined = bool(connection._client_flag & MULTI_STATEMENTS)
    exchange = packets(statement, joined=joined, alone=alone)
    try:
        text = next(exchange)
        while True:
            rows = await _run(connection, text, bound)
            try:
                text = exchange.send(rows)
            except StopIteration as stop:
                found: Sequence[Row] = stop.value
                return found
    except UnicodeError as error:
        raise StoreError(f"MySQL cannot take this text: {error}") from error


async def _say(connection: Any, text: str, bound: float) -> None:
    """Sends one text that has no rows, and takes the server's status as it is.

    A cursor leaves the old status where the new one is 0: outside of a transaction, without autocommit.
    """
    try:
        async with asyncio.timeout(bound):
            await connection._execute_command(COM_QUERY, text)
            await connection._read_ok_packet()
    except TimeoutError as error:
        _close(connection)  # whatever comes later belongs to nobody
        raise StoreUnavailable("MySQL did not answer in time.") from error
    except _ERRORS as error:
        raise from_code(_code(error), _message(error)) from error


async def _run(connection: Any, text: str, bound: float) -> Sequence[Row] | None:
    """Sends one text; gives the last rows among its results, None if there are none."""
    found: Sequence[Row] | None = None
    try:
        async with _ours(connection), asyncio.timeout(bound):
            cursor = Cursor(connection)
            await cursor.execute(text)
            while True:
                if cursor.description is not None:
                    found = await cursor.fetchall()
                if not await cursor.nextset():
                    break
    except TimeoutError as error:
        _close(connection)  # whatever comes later belongs to nobody
        raise StoreUnavailable("MySQL did not answer in time.") from error
    except _ERRORS as error:
        raise from_code(_code(error), _message(error)) from error
    return found


@asynccontextmanager
async def _ours(connection: Any) -> AsyncIterator[None]:
    """While a statement of ours runs: our decoders, and no guard on our own connections."""
    decoders, connection._decoders = connection._decoders, _DECODERS
    guarded = getattr(connection, "guarded", None)
    if guarded:
        connection.guarded = False
    try:
        yield
    finally:
        connection._decoders = decoders
        if guarded:
            connection.guarded = True


def _open(connection: Any) -> bool:
    return bool(connection.connected) and not connection._stream_broken


def _usable(connection: Any) -> bool:
    """Open and idle. Whatever was left in another state is not worth mending."""
    return _open(connection) and not connection.server_status & IN_TRANSACTION


def _close(connection: Any) -> None:
    if _usable(connection):
        try:
            connection._write_bytes(_QUIT)  # or the server would log an aborted connection
        except Exception:  # noqa: S110 - it is being closed
            pass
    connection.close()
    connection._connected = False


def _code(error: BaseException) -> int | None:
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) and not isinstance(error, OSError) else None


def _message(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    return str(error.args[1]) if len(error.args) > 1 else str(error)

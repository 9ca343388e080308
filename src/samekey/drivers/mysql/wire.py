"""How a text goes over a PyMySQL connection: with our decoders, our patience, our errors.

It works on connections of ours and on the user's own, whatever they are set to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from pymysql.constants import FIELD_TYPE  # type: ignore[import-untyped]
from pymysql.cursors import Cursor  # type: ignore[import-untyped]
from pymysql.err import MySQLError  # type: ignore[import-untyped]

from ...core.program import Row, Statement
from ...errors import ConfigurationError, OpenTransaction, StoreError
from .errors import from_code
from .lent import OurConnection
from .url import IN_TRANSACTION, MULTI_STATEMENTS, RESET_CONNECTION, decode_text, packets, setup

Connection: TypeAlias = Any
"""PyMySQL has no types of its own."""

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


def reset(connection: Connection, bound: float) -> None:
    with ours(connection, bound):
        connection._execute_command(RESET_CONNECTION, b"")
        connection._read_ok_packet()
    set_up(connection, short=False)


def check_own(connection: Connection, database: str, bound: float) -> None:
    """A user's own connection: fresh, and on the database that has our tables."""
    run(connection, "do 0", bound)  # brings the server's status; a transaction shows in it
    if connection.server_status & IN_TRANSACTION:
        raise OpenTransaction
    rows = run(connection, "select database()", bound) or ()
    found = rows[0][0] if rows else None
    if found != database:
        raise ConfigurationError(
            f"Atomic work was given a connection to the database {found!r}, but samekey's tables are in "
            f"{database!r}. Nothing was run. Give it a connection to that database."
        )


def set_up(connection: Connection, *, short: bool) -> None:
    run(connection, setup(str(connection.server_version), short=short), connection._read_timeout)


def execute(connection: Connection, statement: Statement, bound: float, *, alone: bool) -> Sequence[Row]:
    # Asked of the connection: a user's own may or may not take several statements at once.
    joined = bool(connection.client_flag & MULTI_STATEMENTS)
    try:
        exchange = packets(statement, joined=joined, alone=alone)
        text = next(exchange)
        while True:
            text = exchange.send(run(connection, text, bound))
    except StopIteration as stop:
        rows: Sequence[Row] = stop.value
        return rows
    except UnicodeError as error:
        raise StoreError(f"MySQL cannot take this text: {error}") from error


def run(connection: Connection, text: str, bound: float | None) -> Sequence[Row] | None:
    """Sends one text; gives the last rows among its results, None if there are none."""
    found: Sequence[Row] | None = None
    try:
        with ours(connection, bound):
            cursor = Cursor(connection)
            cursor.execute(text)
            while True:
                if cursor.description is not None:
                    found = cursor.fetchall()
                if not cursor.nextset():
                    break
    except (MySQLError, OSError) as error:
        raise from_code(code(error), message(error)) from error
    except BaseException:
        cut(connection)  # interrupted half-way: what comes next would be read as the answer
        raise
    return found


@contextmanager
def ours(connection: Connection, bound: float | None) -> Iterator[None]:
    """While a statement of ours runs: our decoders and, on our own connections, our patience."""
    decoders, connection.decoders = connection.decoders, _DECODERS
    mine = isinstance(connection, OurConnection)
    if mine:
        patience, connection._read_timeout = connection._read_timeout, bound
    try:
        yield
    finally:
        connection.decoders = decoders
        if mine:
            connection._read_timeout = patience


def usable(connection: Connection) -> bool:
    """Open and idle. Whatever was left in another state is not worth mending."""
    return bool(connection.open) and not connection.server_status & IN_TRANSACTION


def close(connection: Connection) -> None:
    if connection.open:
        connection.close()  # with a word of goodbye, or the server would log an aborted connection


def cut(connection: Connection) -> None:
    """Closed without a word: whatever it was doing, nobody reads the answer."""
    connection._force_close()


def code(error: BaseException) -> int | None:
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) else None


def message(error: BaseException) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)

"""The shop's table, for shops that write SQL themselves: on SQLite and PostgreSQL, sync and async.

What is written goes through the connection of the operation, so it commits with the answer or not at all.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from samekey import Idempotency, current_operation

from . import policy

_INSERT = "insert into orders (account, sku, quantity) values ({0}, {1}, {2}) returning id"
_SELECT = "select id, sku, quantity from orders where account = {0} order by id"


def prepare(url: str) -> None:
    """Makes the tables of samekey, and the one of the shop."""
    idempotency = Idempotency(url, policy=policy())
    idempotency.migrate()
    idempotency.close()
    number = "integer primary key" if _is_sqlite(url) else "serial primary key"
    with _connected(url) as connection:
        connection.execute(
            f"create table if not exists orders ("
            f"id {number}, account text not null, sku text not null, quantity integer not null)"
        )


class Books:
    """The orders in a database."""

    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, account: str, sku: str, quantity: int) -> dict[str, Any]:
        """Writes an order inside the operation that runs. Sync."""
        marks = ("?",) * 3 if _is_sqlite(self._url) else ("%s",) * 3
        row = (
            current_operation()
            .connection.execute(_INSERT.format(*marks), (account, sku, quantity))
            .fetchone()
        )
        return {"id": row[0], "sku": sku, "quantity": quantity}

    async def write_async(self, account: str, sku: str, quantity: int) -> dict[str, Any]:
        """The same for async handlers."""
        connection = current_operation().connection
        if _is_sqlite(self._url):
            rows = list(await connection.execute(_INSERT.format("?", "?", "?"), (account, sku, quantity)))
        else:
            rows = await connection.fetch(_INSERT.format("$1", "$2", "$3"), account, sku, quantity)
        return {"id": rows[0][0], "sku": sku, "quantity": quantity}

    def orders(self, account: str) -> list[dict[str, Any]]:
        """What an account has ordered."""
        mark = "?" if _is_sqlite(self._url) else "%s"
        with _connected(self._url) as connection:
            rows = connection.execute(_SELECT.format(mark), (account,)).fetchall()
        return [{"id": number, "sku": sku, "quantity": quantity} for number, sku, quantity in rows]


def _is_sqlite(url: str) -> bool:
    return url.startswith("sqlite:")


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    if _is_sqlite(url):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            yield connection
    else:
        with psycopg.connect(url) as session:
            yield session

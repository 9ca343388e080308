"""The tables, made when a process starts. Any number of processes may start at once.

The id of a payment, refund, order or transfer is the id of the operation that makes it: one operation, one
row, whatever is tried how often.
"""

from contextlib import closing

from samekey import Idempotency
from samekey.drivers.run import run
from samekey.stores.sql.migrations import migrate

from .database import Database, connect_sqlite

STOCK = {"coffee": 1_000_000, "tea": 1_000_000, "cake": 12}

_LOCK = 7_061_796_013_116_914_789
"""Any number that nobody else on this server takes for an advisory lock."""

_TABLES = """
create table if not exists payments (
    number {serial},
    id text not null unique,
    account text not null,
    amount bigint not null,
    currency text not null,
    reference text not null,
    status text not null check (status in ('pending', 'succeeded', 'declined')),
    provider_id text,
    refunded bigint not null default 0 check (refunded between 0 and amount)
);
create table if not exists refunds (
    number {serial},
    id text not null unique,
    account text not null,
    payment text not null references payments (id),
    amount bigint not null,
    reference text not null,
    status text not null check (status in ('pending', 'succeeded', 'declined')),
    provider_id text
);
create table if not exists transfers (
    number {serial},
    id text not null unique,
    account text not null,
    beneficiary text not null,
    amount bigint not null,
    reference text not null,
    status text not null check (status in ('pending', 'succeeded', 'declined')),
    provider_id text
);
create table if not exists orders (
    number {serial},
    id text not null unique,
    account text not null,
    item text not null,
    quantity bigint not null,
    reference text not null
);
create table if not exists stock (item text primary key, quantity bigint not null check (quantity >= 0));
create index if not exists payments_of_account on payments (account, number);
create index if not exists refunds_of_payment on refunds (payment, number);
create index if not exists transfers_of_account on transfers (account, number);
create index if not exists orders_of_account on orders (account, number)
"""

_SERIAL = {
    "sqlite": "integer primary key autoincrement",
    "postgres": "bigint generated always as identity primary key",
}


def prepare(database: Database, idempotency: Idempotency) -> None:
    """Makes what is not there: our tables, then samekey's. On SQLite samekey has made its own already."""
    statements = _TABLES.format(serial=_SERIAL[database.dialect]).split(";\n")
    stock = "insert into stock (item, quantity) values ({}, {}) on conflict (item) do nothing"
    if database.dialect == "sqlite":
        with closing(connect_sqlite(database.url)) as connection:
            connection.execute("begin immediate")
            for statement in statements:
                connection.execute(statement)
            connection.executemany(stock.format("?", "?"), STOCK.items())
            connection.execute("commit")
        return
    import psycopg

    with psycopg.connect(database.url) as server:
        # "if not exists" alone is not safe: two processes may both find nothing, and one then fails.
        server.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        for statement in statements:
            server.execute(statement)
        for item, quantity in STOCK.items():
            server.execute(stock.format("%s", "%s"), (item, quantity))
    run(idempotency.drivers.sync, lambda: migrate(idempotency.queries))

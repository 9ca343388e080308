"""The stands of ``make bench``: a server, the databases it needs, and what is asked of it there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from bench.load import Relay, connect
from lab.processes import ServedApp, serve_asgi, serve_wsgi
from lab.servers.mariadb import MariaDBServer, ask
from lab.servers.postgres import PostgresServer, Setting
from lab.servers.redis import RedisServer
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for

UNGUARDED: Final = "unguarded"
BY_HAND: Final = (UNGUARDED, "by-hand", "three-commits")
SAMEKEY: Final = ("atomic", "leased", "deferred")


@dataclass(frozen=True)
class Stand:
    """One row of the table's first column, ready to be asked."""

    app: ServedApp
    counted: ServedApp | None
    """The same with a relay in between, for counting."""
    relays: list[Relay]
    servers: list[int]
    """Process ids of the databases."""
    written: Callable[[], tuple[int, int]] | None
    """Transactions that wrote so far, and bytes of log."""
    variants: tuple[str, ...]


@dataclass
class Starting:
    """What a stand has started; ended with it."""

    stack: ExitStack
    cores: list[int]
    relays: list[Relay] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)

    def relay(self, url: str) -> str:
        relay = self.stack.enter_context(Relay.before(url))
        self.relays.append(relay)
        return relay.url(url)

    def serve(self, kind: str, rows: str, keys: str) -> ServedApp:
        environment = {"BENCH_ROWS": rows, "BENCH_KEYS": keys}
        if kind == "asgi":
            app = serve_asgi("bench.app:app", environment, options=["--no-access-log", "--loop", "asyncio"])
        else:
            app = serve_wsgi("bench.sync_app:app", environment, threads=10)
        self.stack.enter_context(app)
        pin(app.pid, self.cores[0])
        return app


def pin(pid: int, core: int) -> None:
    """With every thread of it, and every process that it starts from now on."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})


def _postgres(starting: Starting) -> tuple[str, Callable[[], tuple[int, int]]]:
    settings: dict[str, Setting] = {"fsync": True, "shared_buffers": "256MB"}
    settings |= {"max_wal_size": "4GB", "checkpoint_timeout": "30min"}  # no checkpoint in the middle
    server = starting.stack.enter_context(PostgresServer(settings=settings))
    starting.servers.append(server.pid)
    url = server.create_database()
    tables(url, "postgres", "bigserial primary key", "text", "bytea")

    def written() -> tuple[int, int]:
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(
                "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint, "
                "pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
            ).fetchone()
        assert row is not None
        return row

    return url, written


def tables(url: str, dialect: str, number: str, text: str, binary: str) -> None:
    """Ours, and those of the hand-written variants."""
    drivers = drivers_for(url)
    run(drivers.sync, lambda: migrate(queries_for(dialect)))
    drivers.sync.close()
    name = "`key`" if dialect == "mysql" else "key"
    connection = connect(url)
    cursor = connection.cursor()
    cursor.execute(f"create table bench_payments (id {number}, amount bigint)")
    cursor.execute(
        f"create table bench_keys ({name} {text} primary key, request {binary}, status int, body {binary})"
    )
    connection.close()


def asyncpg(starting: Starting) -> Stand:
    url, written = _postgres(starting)
    relayed = starting.relay(url)
    app, counted = starting.serve("asgi", url, url), starting.serve("asgi", relayed, relayed)
    return Stand(app, counted, starting.relays, starting.servers, written, BY_HAND + SAMEKEY)


def psycopg_(starting: Starting) -> Stand:
    url, written = _postgres(starting)
    relayed = starting.relay(url)
    app, counted = starting.serve("wsgi", url, url), starting.serve("wsgi", relayed, relayed)
    return Stand(app, counted, starting.relays, starting.servers, written, BY_HAND + SAMEKEY)


def sqlite(starting: Starting) -> Stand:
    directory = starting.stack.enter_context(tempfile.TemporaryDirectory())
    url = f"sqlite:///{Path(directory)}/bench.db"
    tables(url, "sqlite", "integer primary key", "text", "blob")
    return Stand(starting.serve("wsgi", url, url), None, [], [], None, BY_HAND + SAMEKEY)


def mariadb(starting: Starting) -> Stand:
    server = starting.stack.enter_context(MariaDBServer())
    starting.servers.append(server.pid)
    url = server.create_database()
    tables(url, "mysql", "bigint auto_increment primary key", "varchar(64)", "blob")
    relayed = starting.relay(url)

    def written() -> tuple[int, int]:
        values = dict(ask(url, "show global status where variable_name in ('Innodb_os_log_written')"))
        return 0, int(values["Innodb_os_log_written"])

    app, counted = starting.serve("wsgi", url, url), starting.serve("wsgi", relayed, relayed)
    return Stand(app, counted, starting.relays, starting.servers, written, BY_HAND + SAMEKEY)


def redis(starting: Starting) -> Stand:
    url, written = _postgres(starting)
    server = starting.stack.enter_context(RedisServer.start())
    starting.servers.append(server.pid)
    app = starting.serve("asgi", url, server.url)
    counted = starting.serve("asgi", starting.relay(url), starting.relay(server.url))
    return Stand(app, counted, starting.relays, starting.servers, written, (UNGUARDED, "leased"))


STANDS: Final[dict[str, Callable[[Starting], Stand]]] = {
    "asyncpg": asyncpg,
    "psycopg": psycopg_,
    "sqlite": sqlite,
    "mariadb": mariadb,
    "redis": redis,
}
TITLES: Final = {
    "asyncpg": "PostgreSQL, ASGI (asyncpg)",
    "psycopg": "PostgreSQL, WSGI (psycopg)",
    "sqlite": "SQLite, WSGI, full durability",
    "mariadb": "MariaDB, WSGI (PyMySQL)",
    "redis": "keys in Redis, rows in PostgreSQL, ASGI",
}


@contextmanager
def standing(name: str) -> Iterator[Stand]:
    """The application on one core; its databases and the load on another."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        pin(os.getpid(), cores[-1])
        stack.callback(lambda: os.sched_setaffinity(0, cores))
        yield STANDS[name](Starting(stack, cores))

"""URL in, drivers out: ``sqlite:///app.db``, ``sqlite:///:memory:``, ``postgresql://…``, ``mysql://…``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ..core.program import Dialect
from ..errors import ConfigurationError
from .protocol import AsyncDriver, Driver, Ready
from .redis.url import SCHEMES as REDIS_SCHEMES
from .redis.url import read_url
from .sqlite.driver import SQLiteDriver
from .sqlite.driver_async import AsyncSQLiteDriver
from .unsaid import unsaid
from .url_kinds import plain_url


@dataclass(frozen=True, slots=True)
class Drivers:
    """The drivers of one database: sync for threads, async for event loops."""

    dialect: Dialect
    sync: Driver
    aio: AsyncDriver
    users: Any = None
    """What ``open`` is given for a transaction in which users' own code runs, where they give no connection:
    an integration has it on theirs. None for one of ours."""
    url: str = ""
    """For what needs a connection of its own (LISTEN, migrations); empty where there is no such URL."""


def drivers_for(
    url: str,
    *,
    pool_size: int = 10,
    timeout: float = 5.0,
    prepared_statements: bool = True,
    ready: Ready | None = None,
) -> Drivers:
    """The drivers that a URL names. Nothing is connected yet."""
    with unsaid(url):
        return _drivers_for(plain_url(url), pool_size, timeout, prepared_statements, ready)


def _drivers_for(
    url: str, pool_size: int, timeout: float, prepared_statements: bool, ready: Ready | None
) -> Drivers:
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        driver = SQLiteDriver(_sqlite_path(url), busy_seconds=timeout, ready=ready)
        return Drivers("sqlite", driver, AsyncSQLiteDriver(driver))
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, pool_size, timeout, prepared_statements, ready)
    if scheme in ("mysql", "mariadb"):
        return _mysql(url, pool_size, timeout, ready)
    if scheme in REDIS_SCHEMES:
        return _redis(url, pool_size, timeout)
    if scheme == "dynamodb":
        return _dynamodb(url, pool_size, timeout)
    raise ConfigurationError(
        f"samekey does not know the store {scheme!r}. Use sqlite:///app.db, sqlite:///:memory:, "
        "postgresql://user@host/database, mysql://user@host/database, "
        "redis://host/0 or dynamodb://region/table."
    )


def _sqlite_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigurationError(
            "A SQLite URL has three slashes before a relative path (sqlite:///app.db) and four "
            "before an absolute one."
        )
    path = unquote(parts.path).removeprefix("/")
    if not path:
        raise ConfigurationError("The SQLite URL names no file: write sqlite:///app.db.")
    return path


def _postgres(
    url: str, pool_size: int, timeout: float, prepared_statements: bool, ready: Ready | None
) -> Drivers:
    missing = [name for name in ("asyncpg", "psycopg") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"PostgreSQL needs {' and '.join(missing)}: pip install 'samekey[postgresql]'."
        )
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    from .postgres.asyncpg import AsyncpgDriver
    from .postgres.psycopg import PsycopgDriver

    try:
        conninfo_to_dict(url)
    except Error as error:
        raise ConfigurationError(f"The PostgreSQL URL cannot be read: {str(error).strip()}") from error

    aio = AsyncpgDriver(
        url, pool_size=pool_size, timeout=timeout, prepared_statements=prepared_statements, ready=ready
    )
    sync = PsycopgDriver(
        url,
        pool_size=pool_size,
        timeout=timeout,
        prepared_statements=prepared_statements,
        beside=aio.close_now,
        ready=ready,
    )
    return Drivers("postgres", sync, aio)


def _mysql(url: str, pool_size: int, timeout: float, ready: Ready | None) -> Drivers:
    if importlib.util.find_spec("pymysql") is None:
        raise ConfigurationError("MySQL and MariaDB need PyMySQL: pip install 'samekey[mysql]'.")
    from .mysql.driver import PyMySQLDriver
    from .mysql.driver_async import AsyncPyMySQLDriver

    driver = PyMySQLDriver(url, pool_size=pool_size, timeout=timeout, ready=ready)
    return Drivers("mysql", driver, AsyncPyMySQLDriver(driver))


def _redis(url: str, pool_size: int, timeout: float) -> Drivers:
    if importlib.util.find_spec("redis") is None:
        raise ConfigurationError("Redis and Valkey need redis: pip install 'samekey[redis]'.")
    from .redis.driver import AsyncRedisDriver, RedisDriver

    read = read_url(url)
    aio = AsyncRedisDriver(read, pool_size=pool_size, timeout=timeout)
    sync = RedisDriver(read, pool_size=pool_size, timeout=timeout, beside=aio.close_now)
    return Drivers("redis", sync, aio)


def _dynamodb(url: str, pool_size: int, timeout: float) -> Drivers:
    missing = [name for name in ("aiobotocore", "botocore") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"DynamoDB needs {' and '.join(missing)}: pip install 'samekey[dynamodb]'.")
    from .dynamodb.clock import Clock
    from .dynamodb.driver import AsyncDynamoDriver, DynamoDriver
    from .dynamodb.url import DynamoURL

    table, clock = DynamoURL.parse(url), Clock()
    return Drivers(
        "dynamodb",
        DynamoDriver(table, clock, pool_size=pool_size, timeout=timeout),
        AsyncDynamoDriver(table, clock, pool_size=pool_size, timeout=timeout),
    )

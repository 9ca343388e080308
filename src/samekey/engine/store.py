"""URL in, store out: the drivers of one store and the programs that it offers, joined.

A transactional store (SQLite, PostgreSQL, MySQL) carries every mode. A key store (Redis, DynamoDB) keeps keys
and nothing else: there is no transaction that a handler's writes could share, so it carries leased work only.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..core.policy import Policy
from ..core.program import Program
from ..core.states import Mode
from ..drivers.protocol import Ready
from ..drivers.unsaid import unsaid
from ..drivers.url import Drivers, drivers_for
from ..drivers.wrappers.batched import AsyncBatchedDriver
from ..drivers.wrappers.encrypted import AsyncEncryptedDriver, Cipher, EncryptedDriver, Sealing
from ..errors import ConfigurationError
from ..stores.cached import identity
from ..stores.keys import Keys
from ..stores.protocols import Searching, Tending
from ..stores.sql.effects import Effects
from ..stores.sql.identity import agree
from ..stores.sql.keys import SqlKeys
from ..stores.sql.migrations import check, migrate
from ..stores.sql.operator import Operator
from ..stores.sql.queries import Queries, queries_for
from ..stores.sql.upkeep import Upkeep
from .breaker import Breaker

logger = logging.getLogger("samekey")

LEASED_MODES = (Mode.LEASED, Mode.REPEATABLE)


@dataclass(frozen=True, slots=True)
class Tables:
    """What only a transactional store has."""

    queries: Queries
    keys: SqlKeys
    operator: Operator
    effects: Effects


@dataclass(frozen=True, slots=True)
class Store:
    """One store, opened."""

    name: str
    """What users call it."""
    drivers: Drivers
    keys: Keys
    finding: Searching
    tending: Tending
    check: Callable[[], Program[None]]
    """Raises a sentence where the store cannot be used as it is."""
    agree: Callable[[str | None], Program[None]]
    """Raises a sentence where the store holds keys of another identity secret."""
    migrate: Callable[[], Program[object]]
    """Makes the tables, or brings them up to date. Safe to run twice, and two at once."""
    transactional: Tables | None

    @property
    def tables(self) -> Tables:
        if self.transactional is None:
            raise ConfigurationError(f"{self.name} keeps keys only: there are no tables. {_ADVICE}")
        return self.transactional

    def must_carry(self, mode: Mode, policy: Policy | None = None) -> None:
        """What the store cannot carry fails when it is declared, not when a payment comes."""
        if self.transactional is not None:
            return
        if mode not in LEASED_MODES:
            raise ConfigurationError(
                f"{self.name} keeps keys only and has no transaction for {mode} work. Declare the handler "
                f"@idempotency.leased, or use a transactional store. {_ADVICE}"
            )
        if policy is not None and (policy.new_keys_per_minute, policy.active_keys) != (None, None):
            raise ConfigurationError(
                f"{self.name} cannot count a tenant's keys: new_keys_per_minute and active_keys need a "
                f"transactional store. {_ADVICE}"
            )


_ADVICE = "SQLite, PostgreSQL and MySQL/MariaDB are transactional stores."


def open_store(
    url: str | Drivers,
    *,
    schema: str = "samekey",
    pool_size: int = 10,
    timeout: float = 5.0,
    prepared_statements: bool = True,
    encryption: Cipher | Sealing | None = None,
    cache: str | None = None,
    cache_in_progress: bool = False,
    ready: Ready | None = None,
) -> Store:
    """The store that a URL names, or that an integration has drivers for. Nothing is connected yet."""
    if isinstance(url, Drivers):
        drivers = url
    else:
        drivers = drivers_for(
            url, pool_size=pool_size, timeout=timeout, prepared_statements=prepared_statements, ready=ready
        )
        drivers = _batched(drivers, schema, timeout)
    drivers = cached(drivers, schema, cache, in_progress=cache_in_progress)
    if encryption is not None:
        sealing = encryption if isinstance(encryption, Sealing) else Sealing(encryption)
        drivers = replace(
            drivers,
            sync=EncryptedDriver(drivers.sync, sealing),
            aio=AsyncEncryptedDriver(drivers.aio, sealing),
        )
    return store_on(drivers, schema)


def cached(drivers: Drivers, schema: str, cache: str | None, *, in_progress: bool = False) -> Drivers:
    """With a Redis in front that answers replays. Below encryption: it sees what the database sees."""
    if cache is None:
        if in_progress:
            raise ConfigurationError("cache_in_progress needs a cache: give cache='redis://…' too.")
        return drivers
    if drivers.dialect not in _SQL:
        raise ConfigurationError(f"A cache stands in front of a transactional store only. {_ADVICE}")
    if importlib.util.find_spec("redis") is None:
        raise ConfigurationError("The cache needs redis: pip install 'samekey[redis]'.")
    from ..drivers.wrappers.cached import with_cache
    from ..drivers.wrappers.redis_cache import CacheUrl

    which = identity(queries_for(drivers.dialect, schema))
    with unsaid(cache):
        url = CacheUrl.parse(cache)
    return with_cache(drivers, url, which, schema=schema, in_progress=in_progress, breaker=Breaker)


_SQL = ("sqlite", "postgres", "mysql")


def _batched(drivers: Drivers, schema: str, timeout: float) -> Drivers:
    """Where the dialect knows how: what many requests want at once goes to the database together."""
    if drivers.dialect != "postgres":
        return drivers
    queries = queries_for(drivers.dialect, schema)
    together = {name: queries[f"{name}_many"] for name in ("find", "reserve")}
    return replace(drivers, aio=AsyncBatchedDriver(drivers.aio, together, timeout=timeout))


def store_on(drivers: Drivers, schema: str = "samekey") -> Store:
    """The store behind drivers that are there already."""
    if drivers.dialect == "redis":
        return _redis_store(drivers)
    if drivers.dialect == "dynamodb":
        return _dynamodb_store(drivers)
    queries = queries_for(drivers.dialect, schema)
    keys = SqlKeys(queries)
    operator = Operator(keys)
    return Store(
        name=_NAMES[drivers.dialect],
        drivers=drivers,
        keys=keys,
        finding=operator,
        tending=Upkeep(keys),
        check=lambda: check(queries),
        agree=lambda mark: agree(queries, mark),
        migrate=lambda: migrate(queries),
        transactional=Tables(queries, keys, operator, Effects(operator, queries)),
    )


# Imported where they are used: most applications have one store, and start-up should be quick.


def _redis_store(drivers: Drivers) -> Store:
    from ..stores.redis.check import agree as agree_redis
    from ..stores.redis.check import check as check_redis
    from ..stores.redis.finding import RedisFinding
    from ..stores.redis.scripts import RedisStatements
    from ..stores.redis.upkeep import RedisUpkeep

    statements = RedisStatements()
    return Store(
        name=_NAMES[drivers.dialect],
        drivers=drivers,
        keys=Keys(statements),
        finding=RedisFinding(statements),
        tending=RedisUpkeep(statements),
        check=lambda: _said_aloud(check_redis(statements)),
        agree=lambda mark: agree_redis(statements, mark),
        migrate=lambda: check_redis(statements),  # there is nothing to make
        transactional=None,
    )


def _dynamodb_store(drivers: Drivers) -> Store:
    from ..stores.dynamodb.finding import DynamoFinding
    from ..stores.dynamodb.statements import DynamoStatements
    from ..stores.dynamodb.table import agree as agree_dynamodb
    from ..stores.dynamodb.table import check as check_dynamodb
    from ..stores.dynamodb.table import migrate as migrate_dynamodb
    from ..stores.dynamodb.upkeep import DynamoUpkeep

    statements = DynamoStatements()
    return Store(
        name=_NAMES[drivers.dialect],
        drivers=drivers,
        keys=Keys(statements),
        finding=DynamoFinding(statements),
        tending=DynamoUpkeep(statements),
        check=lambda: _said_aloud(check_dynamodb(statements)),
        agree=lambda mark: agree_dynamodb(statements, mark),
        migrate=lambda: migrate_dynamodb(statements),
        transactional=None,
    )


def _said_aloud(check: Program[list[str]]) -> Program[None]:
    """What is wrong and still allowed goes to the log, where whoever runs the application looks."""
    for sentence in (yield from check):
        logger.warning(sentence)


_NAMES = {
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "mysql": "MySQL",
    "redis": "Redis",
    "dynamodb": "DynamoDB",
}

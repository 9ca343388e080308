"""URL in, store out: the drivers of one store and the programs that it offers, joined.

A transactional store (SQLite, PostgreSQL, MySQL) carries every mode. A key store (Redis, DynamoDB) keeps keys
and nothing else: there is no transaction that a handler's writes could share, so it carries leased work only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.policy import Policy
from ..core.program import Program
from ..core.states import Mode
from ..drivers.encrypted import AsyncEncryptedDriver, Cipher, EncryptedDriver
from ..drivers.url import Drivers, drivers_for
from ..errors import ConfigurationError
from ..stores.keys import Keys
from ..stores.protocols import Finding, Tending
from ..stores.sql.keys import Keys as SQLKeys
from ..stores.sql.migrations import check
from ..stores.sql.operator import Operator
from ..stores.sql.queries import Queries, queries_for
from ..stores.sql.upkeep import Upkeep

LEASED_MODES = (Mode.LEASED, Mode.REPEATABLE)


@dataclass(frozen=True, slots=True)
class Tables:
    """What only a transactional store has."""

    queries: Queries
    keys: SQLKeys
    operator: Operator


@dataclass(frozen=True, slots=True)
class Store:
    """One store, opened."""

    name: str
    """What users call it."""
    drivers: Drivers
    keys: Keys
    finding: Finding
    tending: Tending
    check: Callable[[], Program[None]]
    """Raises a sentence where the store cannot be used as it is."""
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
    url: str,
    *,
    schema: str = "samekey",
    pool_size: int = 10,
    timeout: float = 5.0,
    prepared_statements: bool = True,
    encryption: Cipher | None = None,
) -> Store:
    """The store that a URL names. Nothing is connected yet."""
    drivers = drivers_for(url, pool_size=pool_size, timeout=timeout, prepared_statements=prepared_statements)
    if encryption is not None:
        drivers = Drivers(
            drivers.dialect,
            EncryptedDriver(drivers.sync, encryption),
            AsyncEncryptedDriver(drivers.aio, encryption),
        )
    return store_on(drivers, schema)


def store_on(drivers: Drivers, schema: str = "samekey") -> Store:
    """The store behind drivers that are there already."""
    queries = queries_for(drivers.dialect, schema)
    keys = SQLKeys(queries)
    operator = Operator(keys)
    return Store(
        name=_NAMES[drivers.dialect],
        drivers=drivers,
        keys=keys,
        finding=operator,
        tending=Upkeep(keys),
        check=lambda: check(queries),
        transactional=Tables(queries, keys, operator),
    )


_NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

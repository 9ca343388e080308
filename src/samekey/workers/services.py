"""The settings of the background work: which services run, and how often."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final

from ..core.backoff import Backoff
from ..engine.evidence.desk import LOOKUP_TIMEOUT
from ..engine.handler.rules import seconds
from ..errors import ConfigurationError
from .completer import CONCURRENCY as COMPLETER_CONCURRENCY
from .completer import INTERVAL as COMPLETER_INTERVAL
from .ledger import INTERVAL as LEDGER_INTERVAL
from .outbox import CONCURRENCY, GRACE, LEASE
from .reaper import INTERVAL as REAPER_INTERVAL
from .reaper import PENDING_TIMEOUT, TOMBSTONES
from .reconciler import BACKOFF, MAX_TRIES
from .reconciler import CONCURRENCY as LOOKUPS
from .reconciler import INTERVAL as RECONCILER_INTERVAL
from .sweeper import INTERVAL as SWEEPER_INTERVAL

SHORTEST_LEASE: Final = timedelta(milliseconds=100)
"""Shorter ones run out between two renewals."""
LONGEST: Final = timedelta(days=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Which services run, and how often. Each default has its reason where it is defined."""

    outbox: bool = True
    completer: bool = True
    sweeper: bool = True
    reaper: bool = True
    reconciler: bool = True
    ledger: bool = True
    concurrency: int = CONCURRENCY
    lease: timedelta = LEASE
    grace: timedelta = GRACE
    completer_interval: timedelta = COMPLETER_INTERVAL
    completer_concurrency: int = COMPLETER_CONCURRENCY
    sweeper_interval: timedelta = SWEEPER_INTERVAL
    reaper_interval: timedelta = REAPER_INTERVAL
    reconciler_interval: timedelta = RECONCILER_INTERVAL
    reconciler_concurrency: int = LOOKUPS
    reconciler_timeout: timedelta = LOOKUP_TIMEOUT
    reconciler_tries: int = MAX_TRIES
    reconciler_backoff: Backoff = BACKOFF
    ledger_interval: timedelta = LEDGER_INTERVAL
    pending_timeout: timedelta = PENDING_TIMEOUT
    tombstones: timedelta = TOMBSTONES
    audit_retention: timedelta | None = None
    """How long lines of the audit are kept. None: for good."""
    listen_url: str | None = None
    """A direct URL for LISTEN, where the store's own goes through a pooler."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            lasts = field.name == "audit_retention" and value is not None
            if isinstance(field.default, timedelta) or lasts:
                object.__setattr__(self, field.name, _duration(field.name, value))
            elif type(field.default) is int and (type(value) is not int or value < 1):
                raise ConfigurationError(f"{field.name} is {value!r}: give a number of at least 1.")


def _duration(name: str, value: Any) -> timedelta:
    least = SHORTEST_LEASE if name == "lease" else timedelta(0)
    given = seconds(value)
    if not least <= given <= LONGEST:
        raise ConfigurationError(f"{name} is {given}: give between {least} and {LONGEST.days} days.")
    return given

"""Atomic operations on a connection of the user's, and the settings that such a connection may have."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import psycopg

from samekey import Idempotency
from samekey.core.record import Answer
from samekey.core.states import Mode
from samekey.engine.handler.rules import Rules, rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from tests.stores.crash_scenarios import PAID, exchange_of

Connection = psycopg.Connection[Any]

SETTINGS = {
    "another search_path": {"search_path": "hostile, public"},
    "a search_path with the catalogue last": {"search_path": "hostile, pg_catalog"},
    "no search_path": {"search_path": ""},
    "another time zone": {
        "timezone": "Pacific/Chatham",
        "datestyle": "sql, dmy",
        "intervalstyle": "iso_8601",
    },
    "another language": {"lc_numeric": "C", "lc_messages": "C", "lc_time": "C"},
    "old string syntax": {"standard_conforming_strings": "off", "backslash_quote": "on"},
    "escaped bytes": {"bytea_output": "escape"},
    "another encoding": {"client_encoding": "LATIN1"},
    "no encoding": {"client_encoding": "SQL_ASCII"},
    "short time-outs": {"statement_timeout": "2s", "lock_timeout": "1s"},
    "its own idle time-out": {"idle_in_transaction_session_timeout": "1s"},
    "commits that do not wait": {"synchronous_commit": "off"},
    "generic plans": {"plan_cache_mode": "force_generic_plan"},
    "no index scans": {"enable_indexscan": "off", "enable_bitmapscan": "off"},
    "everything compiled": {"jit": "on", "jit_above_cost": "0"},
    "nulls that equal": {"transform_null_equals": "on"},
}


def with_setting(url: str, name: str, value: str) -> str:
    """The URL with a setting for every session, as libpq and asyncpg both read it."""
    return f"{url}?{urlencode({'options': f'-c {name}={value}'}, quote_via=quote)}"


def claim_rules(idempotency: Idempotency, connection: Any) -> Rules:
    return rules_from(idempotency.engine.policy, Mode.ATOMIC, {"connection": lambda _context: connection})


def atomic(url: str, connection: Connection, label: str) -> Answer | None:
    """One request on the user's connection."""
    idempotency = Idempotency(url)
    try:
        begun = idempotency.engine.begin(exchange_of(label), claim_rules(idempotency, connection))
        if not isinstance(begun, Running):
            return begun
        begun.operation.connection.execute(f"insert into public.effects values ('{label}')")
        return idempotency.engine.finish(begun, Handled(PAID)).answer
    finally:
        idempotency.close()


async def atomic_async(url: str, connection: Any, label: str) -> Answer | None:
    idempotency = Idempotency(url)
    try:
        begun = await idempotency.engine.begin_async(exchange_of(label), claim_rules(idempotency, connection))
        if not isinstance(begun, Running):
            return begun
        await begun.operation.connection.execute(f"insert into public.effects values ('{label}')")
        return (await idempotency.engine.finish_async(begun, Handled(PAID))).answer
    finally:
        await idempotency.aclose()

"""What PostgreSQL's error codes mean to samekey, for every driver alike."""

from __future__ import annotations

import re
from typing import Final

from ...errors import (
    ConfigurationError,
    ConnectionLost,
    FailedTransaction,
    ReadOnlyStore,
    SamekeyError,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StoreUnreachable,
    TransactionConflict,
)

OLDEST_SERVER: Final = 13
"""The first PostgreSQL with xid8 and pg_current_xact_id, which our statements use."""

ESCAPED = "The transaction was ended before samekey ended it, so its writes may stand without their record."
UNLOCK: Final = "select pg_advisory_unlock_all()"
CLEAN: Final = (
    "close all; unlisten *; reset all; reset role; reset session authorization; discard temp; "
    "discard sequences"
)
LEFT: Final = (
    "select from pg_catalog.pg_prepared_statements where from_sql and left(name, 8) <> 'samekey_' limit 1"
)
RESET: Final = f"{UNLOCK}; {CLEAN}; {LEFT}"
"""After a handler's transaction, for the next holder. What was prepared by a statement, in a function say, it
would take the driver's own ones along to remove: that session is closed."""
LEFT_NOTHING: Final = "SELECT 0"
RESET_ROLE = "reset session authorization; reset role"
"""In front of our last statements: they run with our own rights, whatever role a handler has taken."""
COMMIT_ROLLED_BACK: Final = (
    "COMMIT was answered with ROLLBACK: the transaction had failed before, so nothing of it was kept."
)
SILENT_FOR: Final = 4
"""How many times as long as for one statement a program's transaction may say nothing."""
RAN_TOO_LONG: Final = (
    "The operation ran longer than its max_run, so it was rolled back and its connection was closed."
)
SESSION_ENDED: Final = "The transaction has ended and its connection was given back."

_POOLER: Final = (
    "A pooler in transaction mode is in between and does not keep prepared statements. Give "
    "Idempotency(…, prepared_statements=False); on a connection of your own switch them off too "
    "(asyncpg: statement_cache_size=0, psycopg: prepare_threshold=None)."
)
_GRANT: Final = (
    "Grant this role what it needs, as the owner of samekey's tables: grant usage on schema SCHEMA to ROLE; "
    "grant select, insert, update, delete on all tables in schema SCHEMA to ROLE. To migrate, a role must "
    "own the schema, or have the right to create it."
)
_STANDBY: Final = (
    "Name the primary in the URL, or all servers and target_session_attrs=read-write: "
    "postgresql://user@one:5432,two:5432/database?target_session_attrs=read-write"
)

# What to do about a connection that could not be had: by its code where the driver has one, else by
# what the server or the system said in English.
_ADVICE: Final = (
    ("28P01", r"password authentication failed|no password supplied", "Check user and password in the URL."),
    ("28000", r"role .* does not exist", "Create that role, or correct the user in the URL."),
    (
        "28000",
        r"pg_hba\.conf",
        "Allow this role to connect from here in the server's pg_hba.conf, or correct the URL.",
    ),
    ("3D000", r"database .* does not exist", "Create that database, or correct its name in the URL."),
    (
        "53300",
        r"too many (clients|connections)|remaining connection slots|no more connections allowed",
        "Every process needs up to 2 × pool_size connections: lower pool_size, raise max_connections, or "
        "put a pooler in between.",
    ),
    (
        None,
        r"refused|Connect call failed|No such file or directory",
        "Is PostgreSQL running there, and are host and port in the URL right?",
    ),
    (
        None,
        r"[Nn]ame or service not known|translate host name|resolve host|Temporary failure in name|"
        r"[Nn]o address associated|nodename nor servname",
        "Check the host in the URL.",
    ),
    (
        None,
        r"read-write|read-only|TargetServerAttribute|target attribute",
        "No server in the URL can be written to now: is there a primary? " + _STANDBY,
    ),
)


def ends_if_silent(bound: float) -> str:
    """For the transaction of a program: its locks are not held for longer by a process that stands still. In
    the text of BEGIN, since a pooler keeps no setting of a session's."""
    return f"set local idle_in_transaction_session_timeout = {max(1, round(bound * SILENT_FOR * 1000))}"


def servers_of(url: str) -> list[dict[str, str]]:
    """What to change in the URL to reach each of its servers; one that changes nothing if it names one.

    Several are asked for the one that can be written to, unless the URL says otherwise.
    """
    from psycopg.conninfo import conninfo_to_dict

    found = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    hosts, ports = found.get("host", "").split(","), found.get("port", "5432").split(",")
    for port in ports:
        if port and not (port.isdecimal() and 0 < int(port) < 65_536):
            raise ConfigurationError(f"The PostgreSQL URL names the port {port!r}, which is no port number.")
    if len(hosts) == 1:
        return [{}]
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        raise ConfigurationError(
            f"The PostgreSQL URL names {len(hosts)} hosts and {len(ports)} ports. Give each host its port."
        )
    wanted = found.get("target_session_attrs", "read-write")
    return [
        {"host": host, "port": port or "5432", "target_session_attrs": wanted}
        for host, port in zip(hosts, ports, strict=True)
    ]


def unreachable(state: str | None, message: str) -> StoreUnreachable:
    """A connection that could not be had. It says what to do, as far as that can be told."""
    words = " ".join(message.split()).rstrip(".")
    for code, pattern, advice in _ADVICE:
        if (state is None or code is None or state == code) and re.search(pattern, words):
            return StoreUnreachable(f"PostgreSQL cannot be reached: {words}. {advice}")
    return StoreUnreachable(
        f"PostgreSQL cannot be reached: {words}. Check host, port, database, user and password in the URL."
    )


def is_standby() -> StoreUnreachable:
    return StoreUnreachable(
        f"This PostgreSQL is a standby, which can only be read, and samekey has to write. {_STANDBY}"
    )


def too_old(version: str) -> ConfigurationError:
    return ConfigurationError(
        f"PostgreSQL {version} is too old: samekey needs {OLDEST_SERVER} or newer. Upgrade the server."
    )


def at_commit(error: Exception, said: object) -> Exception:
    """What an error means as the answer to COMMIT. None of our statements is carried out there, so what is
    refused is what the handler wrote."""
    if type(error) is StoreError or isinstance(error, ConfigurationError):
        return FailedTransaction(
            f"PostgreSQL refused COMMIT because of what the handler wrote ({said}): a constraint or a "
            "trigger that is deferred until then. Everything was rolled back."
        )
    return error


def from_sqlstate(state: str | None, message: str) -> SamekeyError:
    """The error that a five-character SQLSTATE stands for."""
    if state is None:
        return ConnectionLost(f"The connection to PostgreSQL was lost: {message}")
    if state in ("26000", "42P05") or (state == "08P01" and "prepared statement" in message):
        return StoreError(f"PostgreSQL refused ({message}). {_POOLER}")
    if state == "25P02":
        return FailedTransaction()
    if state in ("40001", "40P01"):
        return TransactionConflict(f"PostgreSQL gave up this transaction: {message}")
    if state in ("42P01", "3F000", "42703"):
        return SchemaMismatch(
            f"The tables of samekey are missing or old ({message}). Run: samekey migrate URL"
        )
    if state == "42501":
        return ConfigurationError(f"PostgreSQL refused ({message}). {_GRANT}")
    if state.startswith("08") or state in ("57P01", "57P02", "57P03", "25P03", "57P05"):
        return ConnectionLost(f"The connection to PostgreSQL was lost: {message}")
    if state == "25006":
        return ReadOnlyStore(f"PostgreSQL refused to write ({message}). Is this a standby? {_STANDBY}")
    if state == "55P03":
        return StoreBusy(f"PostgreSQL could not have a lock: {message}")
    if state.startswith(("53", "57", "58", "XX", "28", "3D")):
        return StoreUnavailable(f"PostgreSQL cannot do it now: {message}")
    return StoreError(f"PostgreSQL refused a statement of samekey ({state}): {message}")

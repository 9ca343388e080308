"""The doctor's judgement of the servers: what each kind may be set to that it should not be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .symptoms import Diagnosis, Symptoms

OLDEST_POSTGRES: Final = 13
"""The first with ``pg_current_xact_id_if_assigned``, which settles a lost acknowledgement of COMMIT."""


def _postgres(symptoms: Symptoms) -> Iterator[Diagnosis]:
    facts = symptoms.facts
    major = int(facts.get("server_version_num", "0")) // 10_000
    if 0 < major < OLDEST_POSTGRES:
        yield Diagnosis(
            "old_server",
            "problem",
            f"This is PostgreSQL {major}; a lost acknowledgement of COMMIT cannot be settled before "
            f"{OLDEST_POSTGRES}.",
            f"PostgreSQL {OLDEST_POSTGRES} or newer",
        )
    if facts.get("in_recovery") == "1":
        yield Diagnosis(
            "standby",
            "problem",
            "This server is a standby: nothing can be claimed on it, and it may lag behind.",
            "a URL of the primary, say with target_session_attrs=read-write",
        )
    if facts.get("fsync") == "off":
        yield Diagnosis(
            "fsync_off",
            "problem",
            "fsync is off: after a crash of the machine the database may have forgotten keys whose answers "
            "were sent, and their retries run again.",
            "fsync = on",
        )
    if facts.get("synchronous_commit") == "off":
        yield Diagnosis(
            "asynchronous_commit",
            "note",
            "synchronous_commit is off. samekey switches it on for its own commits, so keys are safe; your "
            "other transactions are not.",
            "synchronous_commit = on, unless you mean it",
        )
    if facts.get("idle_in_transaction_session_timeout") == "0":
        yield Diagnosis(
            "no_idle_timeout",
            "note",
            "idle_in_transaction_session_timeout is off. samekey sets it for atomic handlers; other "
            "transactions that hang hold their locks for ever.",
            "idle_in_transaction_session_timeout = '5min'",
        )
    isolation = facts.get("default_transaction_isolation", "read committed")
    if isolation != "read committed":
        yield Diagnosis(
            "isolation",
            "note",
            f"default_transaction_isolation is {isolation}. samekey's own connections do not mind; atomic "
            "handlers on a connection of yours are refused.",
            "read committed for the role that runs atomic handlers",
        )


def _sqlite(symptoms: Symptoms) -> Iterator[Diagnosis]:
    mode = symptoms.facts.get("journal_mode", "wal")
    if mode != "wal":
        yield Diagnosis(
            "no_wal",
            "problem",
            f"The journal mode is {mode}, not wal: duplicates wait for writers. On a network file system WAL "
            "cannot be had, and SQLite's locks cannot be trusted either.",
            "a local disk, or PostgreSQL",
        )


LAYOUT: Final = "the URL that the application uses"
_ONLY_NOTED: Final = frozenset({"fsync", "unseen"})
"""A second of claims that a crash of the machine may lose, and what could not be looked at."""


def _redis(symptoms: Symptoms) -> Iterator[Diagnosis]:
    for code, says, advice in symptoms.weaknesses:
        yield Diagnosis(code, "note" if code in _ONLY_NOTED else "problem", says, advice)


def _mysql(symptoms: Symptoms) -> Iterator[Diagnosis]:
    facts = symptoms.facts
    if facts.get("read_only", "0") not in ("0", "OFF"):
        yield Diagnosis(
            "standby",
            "problem",
            "This server is read-only, as replicas are: nothing can be claimed on it, and it may lag behind.",
            "a URL of the primary",
        )
    if facts.get("innodb_flush_log_at_trx_commit", "1") != "1":
        yield Diagnosis(
            "lazy_flush",
            "problem",
            "innodb_flush_log_at_trx_commit is not 1: after a crash the database may have forgotten keys "
            "whose answers were sent, and their retries run again.",
            "innodb_flush_log_at_trx_commit = 1",
        )
    if facts.get("log_bin", "0") not in ("0", "OFF") and facts.get("sync_binlog", "1") != "1":
        yield Diagnosis(
            "lazy_binlog",
            "note",
            "sync_binlog is not 1: after a crash the replicas may lack what this server has committed.",
            "sync_binlog = 1",
        )


_SERVERS: Final = {"postgres": _postgres, "sqlite": _sqlite, "mysql": _mysql, "redis": _redis}
"""What each kind of server may be set to that it should not be."""


def check_server(symptoms: Symptoms) -> Iterator[Diagnosis]:
    """What the server is set to that it should not be."""
    check = _SERVERS.get(symptoms.dialect)
    if check is not None:
        yield from check(symptoms)

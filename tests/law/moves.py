"""What a statement does to a record: each is run on a record in each state, and what became of it is noted.

Nothing here reads the table of states. Records are written by hand, with a lease and a retention that are
over, in every mode and with everything that a statement may ask for: a job, an input, an expiry of each kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samekey.core.program import Statement
from samekey.core.states import Mode, State
from samekey.drivers.protocol import Driver
from samekey.stores.sql.queries import Queries

NOTHING = "nothing"
NOW = 1_700_000_000_000
DAY = 86_400_000
SCOPE, KEY, ID = "law", "k", "operation"

PARAMETERS: Mapping[str, Any] = {
    **{"scope": SCOPE, "key": KEY, "id": ID, "operation_id": ID, "tenant": "t", "endpoint": "POST /x"},
    **{"fingerprint": b"f" * 32, "fingerprint_version": "1", "lease_ms": 1000, "downstream": "d", "life": 2},
    **{
        "ttl_ms": DAY,
        "ttl_from": "completion",
        "after_expiry": "new",
        "error_code": "e",
        "provider_id": None,
    },
    **{"answer_version": 1, "answer_status": 201, "answer_headers": b"[]", "answer_body": b"{}"},
    **{"batch": 10, "keep_ms": DAY, "seen": "a1", "reused": 1, "lock": 5, "job_id": "job", "name": "phase"},
    **{"token": "w-", "known": ["ride/1"], "known_list": '["ride/1"]', "full": ["none"], "full_list": "[]"},
    **{
        "min_age_ms": 0,
        "actor": "law",
        "reason": None,
        "event": None,
        "freed_by": None,
        "source": None,
        "freed": 1,
        "happened": 1,
        "heeded": None,
    },
}


@dataclass(frozen=True)
class Written:
    """A record that a statement finds; none, without a state."""

    state: State | None
    mode: Mode = Mode.LEASED
    after_expiry: str = "new"
    known: bool = True
    """Whether it has its job or its input."""
    disputed: bool = False
    """Whether a provider's yes waits."""


def moves(driver: Driver, queries: Queries, name: str) -> list[str]:
    """``unknown → completed`` …, for one statement that writes a state; with its modes, if not all move."""
    found: dict[tuple[str, str], set[Mode]] = {}
    for record in _records():
        for chosen in _chosen(queries, name):
            after = _moved(driver, queries, name, record, chosen)
            if after is not None:
                found.setdefault((record.state or NOTHING, after), set()).add(record.mode)
    return [
        f"{before} → {after}{_only(modes) if before != NOTHING else ''}"
        for (before, after), modes in sorted(found.items())
    ]


def _only(modes: set[Mode]) -> str:
    return "" if len(modes) == len(Mode) else f" ({', '.join(sorted(modes))})"


def _records() -> Iterator[Written]:
    """No record, and one in each state, of each mode, with and without what a statement may look for."""
    yield Written(None)
    for state, mode in itertools.product(State, Mode):
        yield Written(state, mode)
        if mode is Mode.LEASED:
            yield Written(state, after_expiry="gone")
            if state is not State.FAILED_RETRYABLE:  # such a record cannot be written
                yield Written(state, disputed=True)
        if mode is Mode.PHASED:
            yield Written(state, mode, known=False)


def _chosen(queries: Queries, name: str) -> list[Mapping[str, Any]]:
    """A statement that is told what to write is run with each that it may be told."""
    if "state" in _names(queries, name):
        return [{"state": str(State.COMPLETED)}, {"state": str(State.UNKNOWN)}]
    return [{}]


def _moved(
    driver: Driver, queries: Queries, name: str, record: Written, chosen: Mapping[str, Any]
) -> str | None:
    """The state afterwards; None if the statement left everything as it was."""
    session = driver.open()
    try:
        if record.state is not None:
            _write(session, queries, record, failure=name == "reopen")
        before = _read(session, queries)
        session.execute(_statement(session, queries, name, {**chosen, "mode": str(record.mode)}))
        after = _read(session, queries)
    finally:
        session.rollback()
    if after == before:
        return None
    return NOTHING if after["state"] is None else str(after["state"])


def _read(session: Any, queries: Queries) -> dict[str, Any]:
    (row,) = session.execute(queries.statement("find", NOW, scope=SCOPE, key=KEY))
    found = dict(zip(_columns(queries), row[1:], strict=True))
    found.pop("disputed", None)  # a mark beside the state
    return found


def _columns(queries: Queries) -> list[str]:
    return [name.strip("` ") for name in queries.expand("{record}").split(",")]


def _names(queries: Queries, name: str) -> set[str]:
    query = queries[name]
    return {name for one in (query, *query.then) for _, names in one.rendered.values() for name in names}


def _statement(session: Any, queries: Queries, name: str, chosen: Mapping[str, Any]) -> Statement:
    needed = _names(queries, name)
    # Whoever wants a key that somebody has had comes with a new attempt; everybody else is its holder.
    values = {**PARAMETERS, "attempt": "a2" if "seen" in needed else "a1", **chosen}
    if name == "revive_pending":
        values["id"] = "job"
    if name in ("atomic_commit", "accept"):
        values["reused"] = 0  # a former life has made room before
    if queries.dialect == "postgres" and "lock" in needed:
        probe: dict[str, Any] = {"probe_text": "probe", "probe_bytes": b"\x00\xff"}
        attempt = str(values["attempt"])
        session.execute(
            queries.statement("atomic_lock", NOW, lock=5, attempt=attempt, max_run_ms="1000", **probe)
        )
    given = {one: values[one] for one in needed - {"now", "mark", "locked"}}
    if name == "reserve_many":
        given = {one: [value] for one, value in given.items()}
    return queries.statement(name, NOW, **given)


def _write(session: Any, queries: Queries, record: Written, *, failure: bool) -> None:
    """Past its retention; or, as a remembered ``failure``, not yet."""
    mode, known = record.mode, record.known
    columns = {
        **{"scope": SCOPE, "key": KEY, "id": ID, "life": 1, "tenant": "t", "endpoint": "POST /x"},
        **{
            "fingerprint": b"f" * 32,
            "fingerprint_version": "1",
            "state": str(record.state),
            "mode": str(mode),
        },
        **{"attempt": "a1", "attempts": 1, "locked_until": NOW - 1, "reconcile_after": NOW - 1},
        **{"created_at": NOW - 3 * DAY, "last_run_at": NOW - 2 * DAY, "completed_at": NOW - 2 * DAY},
        **{"ttl_ms": DAY, "ttl_from": "completion", "after_expiry": record.after_expiry},
    }
    columns |= {"expires_at": NOW - 1, "disputed": int(record.disputed)}
    if failure:
        columns |= {"expires_at": NOW + DAY, "answer_version": 1, "answer_status": 402, "answer_body": b"no"}
    _insert(session, queries, "keys", columns)
    job = {
        **{"id": "job", "operation_id": ID, "scope": SCOPE, "key": KEY, "tenant": "t", "name": "charge"},
        **{"payload": b"{}", "answers": 1, "state": "dead", "attempts": 1, "due_at": NOW, "created_at": NOW},
    }
    if mode is Mode.DEFERRED and known:
        _insert(session, queries, "jobs", job)
    if mode is Mode.PHASED and known:
        written = {"operation_id": ID, "name": "ride", "version": 1, "payload": b"{}", "created_at": NOW}
        _insert(session, queries, "inputs", written)


def _insert(session: Any, queries: Queries, table: str, values: Mapping[str, Any]) -> None:
    names = ", ".join(queries.column(name) for name in values)
    places = ", ".join(f":{name}" for name in values)
    session.execute(queries.build("law", f"insert into {{{table}}} ({names}) values ({places})")(**values))

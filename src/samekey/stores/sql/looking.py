"""The programs of looking: at records, jobs, timelines and figures. They change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...core.claim import scope_of
from ...core.disputes import Yes
from ...core.effects import KnownEffect, decode_effect
from ...core.program import Program, Row, Undecryptable, at_home, home_of
from ...core.record import COLUMNS, Record, decode_record, run_of, with_own_answer
from ...core.states import State
from ..protocols import Overview
from .keys import SqlKeys
from .migrations import missing_parts
from .overruling import waiting_yeses

LOOKED_THROUGH: Final = 1_000_000
"""Records, the newest, among which those are looked for that no index leads to: some seconds of the server's
time."""
LAST: Final = "\x7f"
"""It sorts after every printable character."""
_STATUS: Final = {"Threads_connected": "connections", "Innodb_history_list_length": "not_cleared"}
MANY: Final = (None, str(State.COMPLETED), str(State.IN_PROGRESS))
"""States that are no help in a search: most records have one of them."""


def looks_through(*, state: str | None, tenant: str | None, key: str | None, endpoint: str | None) -> bool:
    """Whether nothing but the time can lead to these records."""
    return tenant is None and state in MANY and (key is not None or endpoint is not None)


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of a record's timeline."""

    at: int
    before: str | None
    after: str | None
    attempt: str | None
    actor: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job as an operator sees it; most often one that was given up."""

    id: str
    operation_id: str
    scope: str
    key: str
    tenant: str
    name: str
    payload: bytes
    answers: bool
    attempts: int
    created_at: int
    state: str
    error: str | None
    provider_id: str | None
    buried_at: int | None


@dataclass(frozen=True, slots=True)
class ShownPhase:
    """A phase as an operator sees it; its result is the user's."""

    name: str
    kind: str
    done: bool
    provider_id: str | None
    begun_at: int
    done_at: int | None


@dataclass(frozen=True, slots=True)
class NamedKey:
    """Which key it is: all that finding one by its digest needs to see."""

    scope: str
    key: str
    tenant: str


class Looking:
    """Programs for one dialect."""

    def __init__(self, keys: SqlKeys) -> None:
        self._queries = keys.queries

    def effects(self, operation_id: str) -> Program[list[KnownEffect]]:
        """What the operation may have sent."""
        rows = yield self._queries.statement("effects_of", None, operation_id=operation_id)
        effects = [decode_effect(row) for row in rows]
        if not any(effect.sends > 1 for effect in effects):
            return effects  # there was one attempt
        made = yield self._queries.statement("made_of", None, operation_id=operation_id)
        return [
            replace(
                effect,
                former_ids=tuple(
                    str(provider_id)
                    for step, attempt, provider_id in made
                    if step == effect.step and run_of(str(attempt)) != effect.run
                ),
            )
            for effect in effects
        ]

    def former_lives(self, record: Record) -> Program[int]:
        """How many lives its key had before this one: the audit outlives what the reaper has deleted."""
        rows = yield self._queries.statement(
            "former_lives", None, scope=record.scope, key=record.key, operation_id=record.id
        )
        assert isinstance(rows[0][0], int)
        return rows[0][0]

    def past_ids(self, operation_id: str) -> Program[list[str]]:
        """The provider's ids that former lives of the operation's key have noted."""
        rows = yield self._queries.statement("past_ids", None, operation_id=operation_id)
        return [str(row[0]) for row in rows]

    def find(
        self,
        *,
        state: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        endpoint: str | None = None,
        created_after: int | None = None,
        created_before: int | None = None,
        limit: int = 50,
    ) -> Program[list[Record]]:
        """Records, newest first. By a state of few, a tenant or a time an index leads to them; by an endpoint
        or a key alone the newest ``LOOKED_THROUGH`` are looked through (see ``looked_through_to``)."""
        wanted = {"state": state, "key": key, "endpoint": endpoint}
        times = {"created_after": created_after, "created_before": created_before}
        if looks_through(state=state, tenant=tenant, key=key, endpoint=endpoint):
            rows = yield self._queries.statement(
                "look_through_keys", None, **wanted, **times, looked=LOOKED_THROUGH, limit=limit
            )
        else:
            first, call = scope_of(tenant or ""), scope_of(f"@{tenant}")
            rows = yield self._queries.statement(
                "list_keys",
                None,
                **wanted,
                **times,
                tenant=tenant,
                first_scope=first,
                last_scope=first + LAST,
                first_call=call,
                last_call=call + LAST,
                limit=limit,
            )
        return [_seen(row[1:]) for row in rows]

    def looked_through_to(
        self, *, created_after: int | None, created_before: int | None
    ) -> Program[int | None]:
        """Until when the newest ``LOOKED_THROUGH`` reach; None if that was all of them."""
        rows = yield self._queries.statement(
            "looked_through_to",
            None,
            created_after=created_after,
            created_before=created_before,
            looked=LOOKED_THROUGH,
        )
        return int(rows[0][0]) if rows else None  # type: ignore[arg-type]

    def noted_by_provider(self, provider_id: str, *, limit: int = 50) -> Program[list[Record]]:
        """Operations, whosoever, one of whose effects has this id of the provider's."""
        rows = yield self._queries.statement("noted_by_provider", None, provider_id=provider_id, limit=limit)
        return [_seen(row[1:]) for row in rows]

    def ids_like(self, beginning: str) -> Program[list[str]]:
        """The ids of operations and jobs that begin so, also of operations that are gone; a few of them."""
        rows = yield self._queries.statement("ids_like", None, first=beginning, last=beginning + LAST)
        return [str(row[0]) for row in rows]

    def by_id(self, operation_id: str) -> Program[Record | None]:
        """The record of an operation, for somebody who only looks."""
        rows = yield self._queries.statement("find_by_id", None, id=operation_id)
        return _seen(rows[0][1:]) if rows else None

    def freed_by(self, operation_id: str) -> Program[list[str]]:
        """None here: the table of evidence keeps events."""
        yield from ()
        return []

    def dispute(self, operation_id: str, yes: Yes, *, attempt: str, now: int | None = None) -> Program[bool]:
        """Nothing here: it is noted with the event, in one transaction (``sql/effects.py``)."""
        yield from ()
        return False

    def disputed_by(self, operation_id: str) -> Program[list[Yes]]:
        """The events by which providers say that it happened, and that wait."""
        return waiting_yeses(self._queries, operation_id)

    def clocked(self, operation_id: str) -> Program[tuple[int, Record] | None]:
        """The record of an operation, with the store's clock."""
        rows = yield self._queries.statement("find_by_id", None, id=operation_id)
        if not rows:
            return None
        assert isinstance(rows[0][0], int)
        return rows[0][0], _seen(rows[0][1:])

    def by_key(self, scope: str, key: str) -> Program[Record | None]:
        """The record of a key, for somebody who only looks."""
        rows = yield self._queries.statement("find", None, scope=scope, key=key)
        return None if rows[0][1] is None else _seen(rows[0][1:])

    def newest_answer(self) -> Program[bytes | None]:
        """A stored answer, whichever: it shows whether this store's answers can be read."""
        rows = yield self._queries.statement("newest_answer", None)
        found = rows[0][0] if rows else None
        return found if isinstance(found, bytes) else None

    def dead_jobs(self, *, limit: int = 50) -> Program[Sequence[DeadJob]]:
        rows = yield self._queries.statement("list_dead_jobs", None, limit=limit)
        return [_dead_job(row) for row in rows]

    def job(self, job_id: str) -> Program[DeadJob | None]:
        rows = yield self._queries.statement("find_job", None, id=job_id)
        return _dead_job(rows[0]) if rows else None

    def jobs_of(self, operation_id: str) -> Program[Sequence[DeadJob]]:
        """Every job of an operation, whatever became of it."""
        rows = yield self._queries.statement("jobs_of", None, operation_id=operation_id)
        return [_dead_job(row) for row in rows]

    def phases_of(self, operation_id: str) -> Program[Sequence[ShownPhase]]:
        """The phases of an operation that is not settled: done ones, and the one that was begun."""
        rows = yield self._queries.statement("phases_of", None, operation_id=operation_id)
        return [
            ShownPhase(str(name), str(kind), done == 1, provider_id, begun, ended)  # type: ignore[arg-type]
            for name, kind, done, provider_id, begun, ended in rows
        ]

    def timeline(self, scope: str, key: str) -> Program[Sequence[Transition]]:
        """Everything that ever happened to a key, in order; it outlives the record."""
        rows = yield self._queries.statement("timeline", None, scope=scope, key=key)
        return [Transition(*row) for row in rows]  # type: ignore[arg-type]

    def timeline_of_key(self, tenant: str, key: str) -> Program[Sequence[Transition]]:
        """The same where the scope is not known; ``tenant`` as records hold it."""
        rows = yield self._queries.statement("timeline_of_key", None, tenant=tenant, key=key)
        return [Transition(*row) for row in rows]  # type: ignore[arg-type]

    def timeline_of(self, operation_id: str) -> Program[Sequence[Transition]]:
        rows = yield self._queries.statement("timeline_of_operation", None, operation_id=operation_id)
        return [Transition(*row) for row in rows]  # type: ignore[arg-type]

    def overview(self, *, now: int | None = None) -> Program[Overview]:
        rows = yield self._queries.statement("overview", now)
        return Overview(*rows[0])  # type: ignore[arg-type]

    def durations(self, *, limit: int = 10_000) -> Program[list[int]]:
        """How long the newest finished operations took, in milliseconds; of those with a lease."""
        rows = yield self._queries.statement("durations", None, limit=limit, looked=10 * limit)
        return [int(row[0]) for row in rows]  # type: ignore[arg-type]

    def unknown_endpoints(self) -> Program[dict[str, int]]:
        """Where outcomes are unknown, and how many; those with the most."""
        rows = yield self._queries.statement("unknown_endpoints", None)
        return {str(endpoint): int(count) for endpoint, count in rows}  # type: ignore[arg-type]

    def server_facts(self) -> Program[dict[str, str]]:
        """The server's settings and sizes that matter to us."""
        rows = [*(yield self._queries.statement("server_facts", None))]
        if "server_status" in self._queries:
            rows += yield self._queries.statement("server_status", None)
        return {_STATUS.get(str(name), str(name)): str(value) for name, value in rows if value is not None}

    def open_transaction(self) -> Program[str | None]:
        """The oldest one on MySQL: for how long, and whose. Refused without the right PROCESS."""
        rows = yield self._queries.statement("open_transaction", None)
        return str(rows[0][0]) if rows else None

    def missing_parts(self) -> Program[list[str]]:
        """Indexes and triggers that should be there and are not."""
        return missing_parts(self._queries)

    # Every key, page by page: a digest cannot be turned back into its key

    def audited_keys(self, *, before: int, limit: int) -> Program[tuple[list[NamedKey], int]]:
        """Keys that were ever claimed, newest first, gone ones too; and where to go on (0: that was all)."""
        rows = yield self._queries.statement("audited_keys", None, before=before, limit=limit)
        names = [NamedKey(str(scope), str(key), str(tenant)) for _, scope, key, tenant in rows]
        return names, int(rows[-1][0]) if len(rows) == limit else 0  # type: ignore[arg-type]

    def stored_keys(self, *, after: tuple[str, str], limit: int) -> Program[list[NamedKey]]:
        """Keys that are there, in their own order, after this scope and key."""
        rows = yield self._queries.statement("stored_keys", None, scope=after[0], key=after[1], limit=limit)
        return [NamedKey(str(scope), str(key), str(tenant)) for scope, key, tenant in rows]


_ANSWER: Final = ("answer_status", "answer_headers", "answer_body")


def _seen(row: Row) -> Record:
    """A record to look at. An answer that cannot be decrypted counts as withheld; the rest can be shown."""
    values = [*with_own_answer(row)]
    if any(isinstance(value, Undecryptable) for value in values):
        for name in _ANSWER:
            values[COLUMNS.index(name)] = None
    return decode_record(values)


def _dead_job(row: Row) -> DeadJob:
    job, operation, scope, key, tenant, name, payload, answers, attempts, created, *rest = row
    state, error, provider_id, done_at = rest
    return DeadJob(
        str(job),
        str(operation),
        str(scope),
        str(key),
        str(tenant),
        str(name),
        at_home(payload, home_of("payload", job)),
        answers == 1,
        attempts,  # type: ignore[arg-type]
        created,  # type: ignore[arg-type]
        str(state),
        None if error is None else str(error),
        None if provider_id is None else str(provider_id),
        done_at,  # type: ignore[arg-type]
    )

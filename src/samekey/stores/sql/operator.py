"""The programs of finding out and overriding. Each act is a transaction of its own that says who and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.program import BEGIN, Program, Row
from ...core.record import Answer, Record, decode_record
from .keys import Keys, answer_values


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and why. It goes into the audit table."""

    name: str
    reason: str | None = None


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
    """A job that was given up, as an operator sees it."""

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
class Overview:
    """The figures that a doctor looks at. Times are milliseconds by the store's clock."""

    now: int
    records: int
    unknown: int
    oldest_unknown: int | None
    dead_letters: int
    ended_leases: int
    oldest_lease_end: int | None
    past_retention: int
    live_jobs: int
    oldest_due: int | None
    dead_jobs: int
    pending: int


class Operator:
    """Programs for one dialect."""

    def __init__(self, keys: Keys) -> None:
        self._queries = keys.queries

    # Finding out

    def take_unknown(
        self, *, batch: int, lease_ms: int, now: int | None = None
    ) -> Program[list[tuple[int, Record]]]:
        """Unknown outcomes to ask about now, each with how often it has been asked, this time included."""
        rows = yield self._queries.statement("take_unknown", now, batch=batch, lease_ms=lease_ms)
        return [(int(row[0]), decode_record(row[1:])) for row in rows]  # type: ignore[arg-type]

    def ask_again(self, operation_id: str, *, pause_ms: int, now: int | None = None) -> Program[None]:
        yield self._queries.statement("ask_again", now, operation_id=operation_id, pause_ms=pause_ms)

    def executed(
        self,
        operation_id: str,
        answer: Answer,
        actor: Actor,
        *,
        provider_id: str | None = None,
        now: int | None = None,
    ) -> Program[bool]:
        """It happened, or was declined: the answer becomes final. False if it is settled already."""
        yield BEGIN
        yield from self._act_as(actor)
        rows = yield self._queries.statement(
            "found_executed",
            now,
            operation_id=operation_id,
            provider_id=provider_id,
            **answer_values(answer),
        )
        yield from self._act_end()
        return bool(rows)

    def not_executed(self, operation_id: str, actor: Actor, *, now: int | None = None) -> Program[bool]:
        """It never happened: one retry may run. False if it is settled already."""
        yield BEGIN
        yield from self._act_as(actor)
        rows = yield self._queries.statement("found_not_executed", now, operation_id=operation_id)
        yield from self._act_end()
        return bool(rows)

    def give_up(self, operation_id: str, actor: Actor, *, now: int | None = None) -> Program[bool]:
        """Asking has been exhausted: dead letter."""
        yield BEGIN
        yield from self._act_as(actor)
        rows = yield self._queries.statement("give_up_finding", now, operation_id=operation_id)
        yield from self._act_end()
        return bool(rows)

    # Evidence that comes by itself

    def note_evidence(
        self,
        event_id: str,
        operation_id: str | None,
        outcome: bytes,
        *,
        applied: bool,
        now: int | None = None,
    ) -> Program[bool]:
        """Keeps a provider's event once. False: it was there already."""
        rows = yield self._queries.statement(
            "note_evidence",
            now,
            event_id=event_id,
            operation_id=operation_id,
            outcome=outcome,
            applied=int(applied),
        )
        return bool(rows)

    def waiting_evidence(self, operation_id: str) -> Program[tuple[str, bytes] | None]:
        """The oldest event about this operation that has not been applied yet."""
        rows = yield self._queries.statement("waiting_evidence", None, operation_id=operation_id)
        if not rows:
            return None
        event_id, outcome = rows[0]
        assert isinstance(outcome, bytes)
        return str(event_id), outcome

    def use_evidence(self, event_id: str) -> Program[None]:
        yield self._queries.statement("use_evidence", None, event_id=event_id)

    # Overriding

    def evict(self, operation_id: str, actor: Actor, *, now: int | None = None) -> Program[bool]:
        """Drops a stored answer. The fact stays: a retry is told that it was done, and is not run."""
        yield BEGIN
        rows = yield self._queries.statement("evict_answer", now, operation_id=operation_id)
        if rows:
            yield self._queries.statement(
                "note_act", now, operation_id=operation_id, actor=actor.name, reason=actor.reason
            )
        return bool(rows)

    def retry_dead_job(self, job_id: str, actor: Actor, *, now: int | None = None) -> Program[bool]:
        """A dead job is tried again, with all its attempts."""
        yield BEGIN
        yield from self._act_as(actor)
        rows = yield self._queries.statement("revive_job", now, id=job_id)
        if rows:
            yield self._queries.statement("revive_pending", now, operation_id=rows[0][0])
        yield from self._act_end()
        return bool(rows)

    def retry_dead_operation(
        self, operation_id: str, actor: Actor, *, now: int | None = None
    ) -> Program[bool]:
        """A dead phased operation is left to the completer again."""
        yield BEGIN
        yield from self._act_as(actor)
        rows = yield self._queries.statement("revive_phased", now, operation_id=operation_id)
        yield from self._act_end()
        return bool(rows)

    def discard_dead_job(
        self, job_id: str, answer: Answer, actor: Actor, *, now: int | None = None
    ) -> Program[bool]:
        """A dead job is given up for good, and its operation gets this final answer."""
        yield BEGIN
        yield from self._act_as(actor)
        rows = yield self._queries.statement("discard_job", now, id=job_id)
        if rows:
            yield self._queries.statement(
                "found_executed",
                now,
                operation_id=rows[0][0],
                provider_id=None,
                **answer_values(answer),
            )
        yield from self._act_end()
        return bool(rows)

    # Looking

    def find(
        self,
        *,
        state: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        created_before: int | None = None,
        limit: int = 50,
    ) -> Program[list[Record]]:
        """Records, newest first."""
        rows = yield self._queries.statement(
            "list_keys",
            None,
            state=state,
            tenant=tenant,
            key=key,
            created_before=created_before,
            limit=limit,
        )
        return [decode_record(row[1:]) for row in rows]

    def dead_jobs(self, *, limit: int = 50) -> Program[Sequence[DeadJob]]:
        rows = yield self._queries.statement("list_dead_jobs", None, limit=limit)
        return [_dead_job(row) for row in rows]

    def job(self, job_id: str) -> Program[DeadJob | None]:
        rows = yield self._queries.statement("find_job", None, id=job_id)
        return _dead_job(rows[0]) if rows else None

    def timeline(self, scope: str, key: str) -> Program[Sequence[Transition]]:
        """Everything that ever happened to a key, in order; it outlives the record."""
        rows = yield self._queries.statement("timeline", None, scope=scope, key=key)
        return [Transition(*row) for row in rows]  # type: ignore[arg-type]

    def timeline_of(self, operation_id: str) -> Program[Sequence[Transition]]:
        rows = yield self._queries.statement("timeline_of_operation", None, operation_id=operation_id)
        return [Transition(*row) for row in rows]  # type: ignore[arg-type]

    def overview(self, *, now: int | None = None) -> Program[Overview]:
        rows = yield self._queries.statement("overview", now)
        return Overview(*rows[0])  # type: ignore[arg-type]

    def durations(self, *, limit: int = 10_000) -> Program[list[int]]:
        """How long the newest finished operations took, in milliseconds."""
        rows = yield self._queries.statement("durations", None, limit=limit)
        return [int(row[0]) for row in rows]  # type: ignore[arg-type]

    def _act_as(self, actor: Actor) -> Program[None]:
        yield self._queries.statement("act_as", None, actor=actor.name, reason=actor.reason or "")

    def _act_end(self) -> Program[None]:
        yield self._queries.statement("act_end", None)


def _dead_job(row: Row) -> DeadJob:
    job, operation, scope, key, tenant, name, payload, answers, _, attempts, created, _, *rest = row
    state, error, provider_id, done_at = rest
    return DeadJob(
        str(job),
        str(operation),
        str(scope),
        str(key),
        str(tenant),
        str(name),
        payload,  # type: ignore[arg-type]
        answers == 1,
        attempts,  # type: ignore[arg-type]
        created,  # type: ignore[arg-type]
        str(state),
        None if error is None else str(error),
        None if provider_id is None else str(provider_id),
        done_at,  # type: ignore[arg-type]
    )

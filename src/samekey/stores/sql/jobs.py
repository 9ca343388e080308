"""The programs of the outbox: enqueue, take, renew, finish, retry, bury.

A job is written in the handler's own transaction, so it exists exactly if the handler's writes do. Each time
it is taken it gets a new attempt id, which everything later must match.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.claim import Claim
from ...core.program import BEGIN, Program, Row, Value
from ...core.record import Answer, Lease
from ...errors import LeaseLost
from ..keys import answer_values, claim_values
from .atomic import Escaped, Opened, Taken, Written
from .keys import Keys


@dataclass(frozen=True, slots=True)
class Job:
    """A job as a worker has taken it."""

    id: str
    operation_id: str
    scope: str
    key: str
    tenant: str
    name: str
    payload: bytes
    answers: bool
    """Whether its result is the operation's final answer."""
    attempt: str
    attempts: int
    created_at: int
    taken_at: int


class Jobs:
    """Programs on the jobs table of one dialect."""

    def __init__(self, keys: Keys) -> None:
        self._queries = keys.queries

    def enqueue(
        self,
        job_id: str,
        operation_id: str,
        claim: Claim,
        tenant: str,
        name: str,
        payload: bytes,
        *,
        answers: bool,
        now: int | None = None,
    ) -> Program[None]:
        """Writes one job, inside the handler's transaction."""
        yield self._queries.statement(
            "enqueue",
            now,
            id=job_id,
            operation_id=operation_id,
            scope=claim.scope,
            key=claim.key,
            tenant=tenant,
            name=name,
            payload=payload,
            answers=int(answers),
        )

    def accept_locked(
        self, claim: Claim, opened: Opened, *, now: int | None = None
    ) -> Program[Written | Taken | Escaped]:
        """PostgreSQL: the pending record appears with the handler's transaction."""
        rows = yield self._queries.statement(
            "accept",
            now,
            **claim_values(claim),
            began=opened.began,
            backend=opened.backend,
            seen=opened.seen,
        )
        same, wrote, expires_at, transaction = rows[0]
        if not same:
            return Escaped()
        if expires_at is None:
            return Taken()
        assert isinstance(expires_at, int)
        return Written(expires_at, bool(wrote), str(transaction))

    def accept_claimed(self, lease: Lease, *, ttl_ms: int, now: int | None = None) -> Program[int | None]:
        """SQLite: the claim becomes pending with the handler's transaction. None if it was lost."""
        rows = yield self._queries.statement(
            "accept", now, scope=lease.scope, key=lease.key, attempt=lease.attempt, ttl_ms=ttl_ms
        )
        if not rows:
            return None
        assert isinstance(rows[0][1], int)
        return rows[0][1]

    def take(
        self,
        token: str,
        *,
        lease_ms: int,
        batch: int,
        suspects: bool = False,
        now: int | None = None,
    ) -> Program[list[Job]]:
        """A batch of due jobs. ``token`` must be new each time.

        ``suspects``: those whose worker fell silent more than once, and only those. One of them may kill
        the next process too, so each should run where nothing else does.
        """
        rows = yield self._queries.statement(
            "take_jobs", now, token=token, lease_ms=lease_ms, batch=batch, suspects=int(suspects)
        )
        return [_decode(row) for row in rows]

    def suspect_due(self, *, now: int | None = None) -> Program[bool]:
        """Whether a suspect waits to be run alone."""
        rows = yield self._queries.statement("suspect_due", now)
        return bool(rows)

    def next_due(self, *, now: int | None = None) -> Program[int | None]:
        """Milliseconds until a job may be taken; None if nothing waits."""
        rows = yield self._queries.statement("next_due", now)
        return rows[0][0]  # type: ignore[return-value]

    def renew(self, leases: Sequence[Lease], *, now: int | None = None) -> Program[set[str]]:
        """Renews them at once (``scope`` is the job's id); gives the attempts that it renewed.

        It waits for nobody: a job that is locked is left out, like one that was lost (see ``held``).
        """
        longest = max(lease.duration_ms for lease in leases)
        rows = yield self._queries.statement("renew_jobs", now, **_taken(leases), lease_ms=longest)
        return {str(row[0]) for row in rows}

    def held(self, leases: Sequence[Lease], *, now: int | None = None) -> Program[set[str]]:
        """The attempts that still have their job."""
        rows = yield self._queries.statement("held_jobs", now, **_taken(leases))
        return {str(row[0]) for row in rows}

    def note_provider_id(self, job: Job, provider_id: str, *, now: int | None = None) -> Program[bool]:
        """Keeps the provider's id at once, before anything else is done about the job."""
        rows = yield self._queries.statement(
            "note_provider_id", now, id=job.id, attempt=job.attempt, provider_id=provider_id
        )
        return bool(rows)

    def finish(
        self, job: Job, answer: Answer | None, provider_id: str | None, *, now: int | None = None
    ) -> Program[None]:
        """The job is done and, if it answers, so is its operation. ``LeaseLost`` if another has it.

        An answer of None is one that cannot be kept: the operation is done, its answer withheld. It may run
        inside a transaction with writes of the job's own.
        """
        yield BEGIN
        if job.answers:
            yield from self._queries.act_as("worker")
            yield self._queries.statement(
                "complete_operation",
                now,
                **_operation(job),
                **answer_values(answer),
                provider_id=provider_id,
            )
            yield from self._queries.act_no_more()
        rows = yield self._queries.statement(
            "finish_job", now, id=job.id, attempt=job.attempt, provider_id=provider_id
        )
        if not rows:
            raise LeaseLost("Another worker has taken the job; its result counts, not this one.")

    def retry(
        self,
        job: Job,
        *,
        pause_ms: int,
        error: str | None,
        forgiven: bool = False,
        now: int | None = None,
    ) -> Program[bool]:
        """Gives the job back. ``forgiven``: the attempt does not count (a clean stop)."""
        rows = yield self._queries.statement(
            "retry_job",
            now,
            id=job.id,
            attempt=job.attempt,
            pause_ms=pause_ms,
            error=error,
            forgiven=int(forgiven),
        )
        return bool(rows)

    def bury(self, job: Job, *, error: str, now: int | None = None) -> Program[None]:
        """Dead letter: the job stops here with its error, and its operation with it. ``LeaseLost`` too."""
        yield BEGIN
        if job.answers:
            yield from self._queries.act_as("worker")
            yield self._queries.statement(
                "bury_operation", now, **_operation(job), job_id=job.id, error_code="job_failed"
            )
            yield from self._queries.act_no_more()
        rows = yield self._queries.statement("bury_job", now, id=job.id, attempt=job.attempt, error=error)
        if not rows:
            raise LeaseLost("Another worker has taken the job.")

    def counts(self) -> Program[dict[str, int]]:
        """How many jobs are in each state."""
        rows = yield self._queries.statement("count_jobs", None)
        return {str(state): int(count) for state, count in rows}  # type: ignore[arg-type]


def _taken(leases: Sequence[Lease]) -> dict[str, Value]:
    attempts, ids = [lease.attempt for lease in leases], [lease.scope for lease in leases]
    return {
        "attempts": attempts,
        "attempt_list": json.dumps(attempts),
        "ids": ids,
        "id_list": json.dumps(ids),
    }


def _operation(job: Job) -> dict[str, Value]:
    return {"scope": job.scope, "key": job.key, "operation_id": job.operation_id}


def _decode(row: Row) -> Job:
    job_id, operation_id, scope, key, tenant, name, payload, answers, attempt, attempts, created, now = row
    assert isinstance(attempts, int) and isinstance(created, int) and isinstance(now, int)
    return Job(
        str(job_id),
        str(operation_id),
        str(scope),
        str(key),
        str(tenant),
        str(name),
        # SQLite keeps what it was given: a payload that was edited by hand may have become text.
        payload if isinstance(payload, bytes) else str(payload).encode(),
        answers == 1,
        str(attempt),
        attempts,
        created,
        now,
    )

"""The programs of the outbox: enqueue, take, enter, renew, finish, retry, bury.

A job is written in the handler's own transaction, so it exists exactly if the handler's writes do. Each time
it is taken it gets a new attempt id, which everything later must match. An attempt counts when the job's
function is entered, not before: whoever cannot run it gives it back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...core.agreement import ERRORS_FROM
from ...core.claim import Claim, downstream_key
from ...core.disputes import is_known_to
from ...core.effects import ANSWERED, SentStep, decode_effect
from ...core.program import BEGIN, Program, Row, Value, at_home, home_of
from ...core.record import Answer, Lease
from ...errors import EscapedTransaction, LeaseLost, NothingEnqueued
from ..keys import answer_values
from ..readable import never_empty
from .atomic import Escaped, Opened, Taken, Written, opened_values
from .keys import SqlKeys
from .overruling import waiting_yeses
from .phases import Disputed

SUSPICIOUS = 2
"""Silences that make a suspect. One is no sign: a machine dies with all that runs on it."""
JOB_FAILED = "job_failed"
"""The error code of an operation whose job is dead."""
LOOK_AHEAD = 1000
"""Due jobs of a kind among which those of tenants that may still begin are looked for first."""


class Contested(Disputed):
    """A job answers that it did not happen, and a provider's yes waits of which it did not know."""

    def __init__(self, status: int) -> None:
        super().__init__(f"It answers {status}, and a provider says that it happened.")
        self.code = f"{ANSWERED}{status}"


@dataclass(frozen=True, slots=True)
class Taking:
    """What a worker has room for."""

    name: str
    batch: int
    full_tenants: Sequence[str] = ()
    here: Sequence[str] = ()
    """Jobs that run in this process. One whose lease ran out unseen is still running."""
    suspects: bool = True
    patience_ms: int = 0
    """How long ago the lease of a job that somebody holds must have run out."""
    ahead: int = LOOK_AHEAD
    """Due jobs among which those of other tenants than the full ones are looked for."""


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
    """How many of its attempts are used up. A budget: a stop, ``dead retry`` and a finding give them back."""
    sends: int
    """How often its function has been entered, whoever gave attempts back: what may have been sent."""
    silences: int
    """How often in a row its worker has fallen silent while running it."""
    created_at: int
    taken_at: int

    @property
    def suspect(self) -> bool:
        """It may be what its workers died of."""
        return self.silences >= SUSPICIOUS


class Jobs:
    """Programs on the jobs table of one dialect."""

    def __init__(self, keys: SqlKeys) -> None:
        self._queries = keys.queries

    def enqueue(
        self,
        job_id: str,
        operation_id: str,
        of: Claim | Job,
        tenant: str,
        name: str,
        payload: bytes,
        *,
        answers: bool,
        goes_on: bool = False,
        delay_ms: int = 0,
        step: str | None = None,
        source: str | None = None,
        now: int | None = None,
    ) -> Program[None]:
        """Writes one job, inside the transaction of whoever wants it done, and the downstream key that it
        will send: that of ``step``, else of its name. ``goes_on``: its function takes what was found out."""
        step = name if step is None else step
        yield self._queries.statement(
            "note_job",
            now,
            operation_id=operation_id,
            step=step,
            place=job_id,
            tenant=of.tenant,
            source=source,
            downstream_key=downstream_key(of.scope, of.key, step),
        )
        yield self._queries.statement(
            "enqueue",
            now,
            id=job_id,
            operation_id=operation_id,
            scope=of.scope,
            key=of.key,
            tenant=tenant,
            name=name,
            payload=payload,
            answers=int(answers),
            goes_on=int(goes_on),
            delay_ms=delay_ms,
        )

    def has_any(self, operation_id: str) -> Program[bool]:
        """Whether the operation has a job, in the transaction that asks."""
        rows = yield self._queries.statement("has_jobs", None, operation_id=operation_id)
        return bool(rows)

    def accept_locked(
        self, claim: Claim, opened: Opened, *, now: int | None = None
    ) -> Program[Written | Taken | Escaped]:
        """PostgreSQL: the pending record appears with the handler's transaction. ``NothingEnqueued`` if that
        holds no job of the operation's."""
        values = opened_values(claim, opened, self._queries.schema)
        if opened.reused:
            yield self._queries.statement("make_room", now, **values)
        rows = yield self._queries.statement("accept", now, **values)
        same, wrote, expires_at, transaction, enqueued = rows[0]
        if not same:
            return Escaped()
        if not enqueued:
            raise NothingEnqueued
        if expires_at is None:
            return Taken()
        assert isinstance(expires_at, int)
        return Written(expires_at, bool(wrote), str(transaction))

    def accept_claimed(self, lease: Lease, *, now: int | None = None) -> Program[int | None]:
        """SQLite: the claim becomes pending with the handler's transaction. None if it was lost.
        ``NothingEnqueued`` as for ``accept_locked``."""
        rows = yield self._queries.statement(
            "accept", now, scope=lease.scope, key=lease.key, attempt=lease.attempt
        )
        if not rows:
            return None
        if not rows[0][2]:
            raise NothingEnqueued
        assert isinstance(rows[0][1], int)
        return rows[0][1]

    def take(
        self, token: str, taking: Taking, *, lease_ms: int, now: int | None = None
    ) -> Program[list[Job]]:
        """Due jobs of one kind. ``token`` must be new each time. Nothing is counted yet: see ``enter``."""
        full, here = never_empty(taking.full_tenants), never_empty(taking.here)
        until: Value = None
        if taking.full_tenants:
            # Asked for before: as a value it ends the walk along the index, also where a subquery would not.
            found = yield self._queries.statement("look_ahead", now, name=taking.name, ahead=taking.ahead)
            until = found[0][0] if found else None
        rows = yield self._queries.statement(
            "take_jobs",
            now,
            token=token,
            lease_ms=lease_ms,
            name=taking.name,
            batch=taking.batch,
            full=full,
            full_list=json.dumps(full),
            here=here,
            here_list=json.dumps(here),
            until=until,
            suspects=int(taking.suspects),
            patience_ms=taking.patience_ms,
        )
        return [_decode(row) for row in rows]

    def enter(self, jobs: Sequence[Job], *, now: int | None = None) -> Program[list[Job]]:
        """Their functions are about to be called: counts the attempts. Gives those that are still ours."""
        rows = yield self._queries.statement("enter_jobs", now, **_many(jobs))
        counted = {str(job_id): (int(attempts), int(sends)) for job_id, attempts, sends in rows}  # type: ignore[arg-type]
        return [
            replace(job, attempts=counted[job.id][0], sends=counted[job.id][1])
            for job in jobs
            if job.id in counted
        ]

    def give_back(
        self, jobs: Sequence[Job], *, pause_ms: int, error: str | None, now: int | None = None
    ) -> Program[None]:
        """Jobs that were taken and whose functions were not called: as if nobody had touched them, after a
        pause. That ``enter`` may have counted them does not count: nothing was sent."""
        yield self._queries.statement("give_back_jobs", now, **_many(jobs), pause_ms=pause_ms, error=error)

    def leave(self, job: Job, *, now: int | None = None) -> Program[None]:
        """A job that cannot be stopped at its worker's end keeps its lease; the attempt does not count."""
        yield self._queries.statement("leave_job", now, id=job.id, attempt=job.attempt)

    def due(self, *, now: int | None = None) -> Program[dict[str, int]]:
        """Every kind of job that waits, with the milliseconds until one of it may be taken."""
        if "next_kind" not in self._queries:
            rows = yield self._queries.statement("due_jobs", now)
            return {str(name): int(due) for name, due in rows}  # type: ignore[arg-type]
        found, last, asked = dict[str, int](), "", now
        while rows := (yield self._queries.statement("next_kind", now, after=last)):
            name, due_at, clock = rows[0]
            assert isinstance(due_at, int) and isinstance(clock, int)
            # By one clock for all: who was asked about later is not due for longer.
            asked = clock if asked is None else asked
            last = str(name)
            found[last] = due_at - asked
        return found

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

    def is_worked_on(self, operation_id: str) -> Program[bool]:
        """Whether a worker has begun a job of this pending operation and has not reported back."""
        rows = yield self._queries.statement("entered_jobs", None, id=operation_id)
        return bool(rows)

    def open_writes(self) -> Program[Row | None]:
        """First in the transaction of a job's own writes; gives what ``close_writes`` must find again."""
        if "open_proof" in self._queries:
            yield self._queries.statement("open_proof", None)
        if "job_proof" not in self._queries:
            return None
        rows = yield self._queries.statement("job_proof", None)
        return tuple(rows[0])

    def close_writes(self, proof: Row | None, *, in_transaction: bool | None) -> Program[None]:
        """After them. ``EscapedTransaction`` if they ended the transaction that they were given."""
        if "close_proof" in self._queries:
            yield self._queries.statement("close_proof", None)
        if proof is not None:
            rows = yield self._queries.statement("job_proof", None)
            same = tuple(rows[0]) == proof
        else:
            same = in_transaction is not False
        if not same:
            raise EscapedTransaction(
                "A job.write ended its own transaction, so its writes may stand without the job's end. Leave "
                "the end of the transaction to samekey."
            )

    def finish(
        self, job: Job, answer: Answer | None, provider_id: str | None, *, now: int | None = None
    ) -> Program[None]:
        """The job is done and, if it answers, so is its operation. ``LeaseLost`` if another has it.

        An answer of None is one that cannot be kept: the operation is done, its answer withheld. It may run
        inside a transaction with writes of the job's own. ``Contested`` if the answer says no, and a
        provider's yes waits of which the job does not know: nothing of it may stand.
        """
        yield BEGIN
        if job.answers and answer is not None and answer.status >= ERRORS_FROM:
            waits = yield self._queries.statement("yes_waits", now, operation_id=job.operation_id)
            if waits and waits[0][0] == 1 and not (yield from self._knows(job, provider_id)):
                raise Contested(answer.status)
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

    def regain(self, job: Job, *, now: int | None = None) -> Program[None]:
        """For a worker that was overtaken and has done the job after all: if nobody runs it, it is this
        worker's again, for the transaction that ends it. ``LeaseLost`` if somebody does, or it has ended."""
        yield BEGIN
        if not (yield self._queries.statement("regain_job", now, id=job.id, attempt=job.attempt)):
            raise LeaseLost("Another worker has taken the job.")

    def _knows(self, job: Job, provider_id: str | None) -> Program[bool]:
        """Whether the job knows of every yes that waits and is not about another job."""
        rows = yield self._queries.statement("effects_of", None, operation_id=job.operation_id)
        effects = [decode_effect(row) for row in rows]
        mine = [one for one in effects if one.place == job.id]
        steps = [SentStep(one.step, one.downstream_key, provider_id) for one in mine]
        others = {one.downstream_key for one in effects if one not in mine}
        waiting = yield from waiting_yeses(self._queries, job.operation_id)
        # What another job has made and this one, which has an object of its own, has not is that one's.
        made = {one.provider_id for one in effects if one not in mine} - {None}
        elsewhere = made - {provider_id} if provider_id is not None else set()
        concerned = [
            yes
            for yes in waiting
            if yes.about not in others and not (yes.about is None and yes.provider_id in elsewhere)
        ]
        return all(is_known_to(yes, steps, sends=job.sends) for yes in concerned)

    def retry(
        self,
        job: Job,
        *,
        pause_ms: int,
        error: str | None,
        provider_id: str | None = None,
        forgiven: bool = False,
        now: int | None = None,
    ) -> Program[bool]:
        """Gives the job back, with what is known of the provider's id. ``forgiven``: the attempt does not
        count (a clean stop)."""
        rows = yield self._queries.statement(
            "retry_job",
            now,
            id=job.id,
            attempt=job.attempt,
            pause_ms=pause_ms,
            error=error,
            provider_id=provider_id,
            forgiven=int(forgiven),
        )
        return bool(rows)

    def bury(
        self,
        job: Job,
        *,
        error: str,
        code: str = JOB_FAILED,
        provider_id: str | None = None,
        now: int | None = None,
    ) -> Program[None]:
        """Dead letter: the job stops here with its error, and its operation with it. ``LeaseLost`` too."""
        yield BEGIN
        if job.answers:
            yield from self._queries.act_as("worker")
            yield self._queries.statement(
                "bury_operation",
                now,
                **_operation(job),
                job_id=job.id,
                error_code=code,
                provider_id=provider_id,
            )
            yield from self._queries.act_no_more()
        rows = yield self._queries.statement(
            "bury_job", now, id=job.id, attempt=job.attempt, error=error, provider_id=provider_id
        )
        if not rows:
            raise LeaseLost("Another worker has taken the job.")

    def ends_here(self, job: Job, *, now: int | None = None) -> Program[None]:
        """A job of which it is known what became of it, and which nobody can go on with: should that be said
        once more, it is its end."""
        yield self._queries.statement("ends_here", now, id=job.id, attempt=job.attempt)

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


def _many(jobs: Sequence[Job]) -> dict[str, Value]:
    ids, attempts = [job.id for job in jobs], [job.attempt for job in jobs]
    return {
        "ids": ids,
        "id_list": json.dumps(ids),
        "attempts": attempts,
        "attempt_list": json.dumps(attempts),
    }


def _decode(row: Row) -> Job:
    job_id, operation_id, scope, key, tenant, name, payload, answers, attempt, attempts, *rest = row
    sends, silences, created, now = rest
    payload = at_home(payload, home_of("payload", job_id))
    assert isinstance(attempts, int) and isinstance(sends, int) and isinstance(silences, int)
    assert isinstance(created, int) and isinstance(now, int)
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
        sends,
        silences,
        created,
        now,
    )

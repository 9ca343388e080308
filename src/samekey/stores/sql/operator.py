"""The programs of finding out and overriding. Each act is a transaction of its own that says who and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...core.disputes import Yes
from ...core.effects import KnownEffect, decode_effect
from ...core.program import BEGIN, Program, Row, Undecryptable
from ...core.record import COLUMNS, Answer, Record, decode_record, run_of
from ...core.states import Mode
from ..keys import answer_values
from ..protocols import Actor, Overview
from ..readable import Tell, never_empty, readable
from .keys import SqlKeys
from .overruling import Moved, overrule, waiting_yeses
from .queries import Queries


def act_as(queries: Queries, actor: Actor) -> Program[None]:
    """From here to ``act_end``, in this transaction: who acts, for the audit table."""
    yield queries.statement("act_as", None, actor=actor.name, reason=actor.reason or "")


def act_end(queries: Queries) -> Program[None]:
    yield queries.statement("act_end", None)


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
class NamedKey:
    """Which key it is: all that finding one by its digest needs to see."""

    scope: str
    key: str
    tenant: str


class Operator:
    """Programs for one dialect."""

    def __init__(self, keys: SqlKeys) -> None:
        self._queries = keys.queries

    # Finding out

    def take_unknown(
        self,
        *,
        batch: int,
        lease_ms: int,
        without: Sequence[str] = (),
        tell: Tell | None = None,
        now: int | None = None,
    ) -> Program[list[tuple[int, Record]]]:
        """Unknown outcomes to ask about now, each with how often it has been asked, this time included."""
        left_out = never_empty(without)
        rows = yield self._queries.statement(
            "take_unknown",
            now,
            batch=batch,
            lease_ms=lease_ms,
            without=left_out,
            without_list=json.dumps(left_out),
        )
        return readable(((row[0], row[1:]) for row in rows), tell)

    def ask_again(
        self, operation_id: str, *, pause_ms: int, attempt: str | None = None, now: int | None = None
    ) -> Program[None]:
        yield self._queries.statement(
            "ask_again", now, operation_id=operation_id, pause_ms=pause_ms, attempt=attempt
        )

    def executed(
        self,
        operation_id: str,
        answer: Answer | None,
        actor: Actor,
        *,
        provider_id: str | None = None,
        source: str | None = None,
        attempt: str | None = None,
        despite: Sequence[Yes] | None = None,
        now: int | None = None,
    ) -> Program[bool]:
        """It happened, or was declined: the answer becomes final (None: it is withheld).

        False if it is settled already, or ``attempt`` is given and is no longer the current one.
        """
        yield BEGIN
        yield from act_as(self._queries, actor)
        rows = yield self._queries.statement(
            "found_executed",
            now,
            operation_id=operation_id,
            attempt=attempt,
            provider_id=provider_id,
            **answer_values(answer),
        )
        if rows:
            yield from self._settle_parts(rows[0], now)
        yield from act_end(self._queries)
        return bool(rows)

    def recall(
        self,
        operation_id: str,
        answer: Answer | None,
        actor: Actor,
        *,
        seen: str,
        attempt: str,
        provider_id: str | None = None,
        now: int | None = None,
    ) -> Program[bool]:
        """A key that had expired has its answer again. False if the record has moved."""
        yield BEGIN
        yield from act_as(self._queries, actor)
        rows = yield self._queries.statement(
            "recall",
            now,
            operation_id=operation_id,
            seen=seen,
            attempt=attempt,
            provider_id=provider_id,
            **answer_values(answer),
        )
        yield from act_end(self._queries)
        return bool(rows)

    def not_executed(
        self,
        operation_id: str,
        actor: Actor,
        *,
        attempt: str | None = None,
        event: str | None = None,
        despite: Sequence[Yes] = (),
        now: int | None = None,
    ) -> Program[bool]:
        """It never happened: one retry may run. False as for ``executed``.

        False too for deferred work with a dead job, whose handler must not run again: retry the job.
        """
        yield BEGIN
        yield from act_as(self._queries, actor)
        rows = yield self._queries.statement(
            "found_not_executed", now, operation_id=operation_id, attempt=attempt
        )
        if rows:
            # An intent without a result would make the retry's outcome unknown again.
            yield self._queries.statement("drop_intents", now, operation_id=operation_id)
        yield from act_end(self._queries)
        return bool(rows)

    def give_up(
        self, operation_id: str, actor: Actor, *, attempt: str | None = None, now: int | None = None
    ) -> Program[bool]:
        """Asking has been exhausted: dead letter."""
        yield BEGIN
        yield from act_as(self._queries, actor)
        rows = yield self._queries.statement(
            "give_up_finding", now, operation_id=operation_id, attempt=attempt
        )
        yield from act_end(self._queries)
        return bool(rows)

    def _settle_parts(self, row: Row, now: int | None) -> Program[None]:
        """What only unfinished work needs goes, and a dead job of it must not come back to life."""
        record = decode_record(row[1:])
        if record.mode is Mode.PHASED:
            yield self._queries.statement("drop_input", now, operation_id=record.id)
            yield self._queries.statement("drop_phases", now, operation_id=record.id)
        elif record.mode is Mode.DEFERRED:
            yield self._queries.statement("settle_jobs", now, operation_id=record.id)

    # Overriding

    def evict(self, operation_id: str, actor: Actor, *, now: int | None = None) -> Program[bool]:
        """Drops a stored answer. The fact stays: a retry is told that it was done, and is not run."""
        yield BEGIN
        rows = yield self._queries.statement("evict_answer", now, operation_id=operation_id)
        if rows:
            yield from self.note_act(operation_id, actor, now)
        return bool(rows)

    def extend(
        self, operation_id: str, until: int, actor: Actor, *, attempt: str, now: int | None = None
    ) -> Program[bool]:
        """Keeps a completed record for longer. False if it has ended, or moved, or is kept longer already."""
        yield BEGIN
        rows = yield self._queries.statement(
            "extend", now, operation_id=operation_id, attempt=attempt, kept_until=until
        )
        if rows:
            yield from self.note_act(operation_id, actor, now)
        return bool(rows)

    def retry_dead_job(
        self, job_id: str, actor: Actor, *, despite: Sequence[str] = (), now: int | None = None
    ) -> Program[bool]:
        """A dead job is tried again, with all its attempts, and its operation is pending again.

        False if there is no such dead job, or its operation has been settled meanwhile: then the job's effect
        must not happen after all. ``Contradicted`` if a provider says that it happened, unless ``despite``
        names each event; also of the following ones.
        """
        yield BEGIN
        overruled = yield from self._overrule_about(job_id, despite)
        yield from act_as(self._queries, actor)
        revived = yield self._queries.statement("revive_pending", now, id=job_id)
        rows = yield self._queries.statement("revive_job", now, id=job_id, revived=int(bool(revived)))
        if rows and not revived:
            # A job beside the one that answers changes no state, and still leaves its trace.
            yield from self.note_act(str(rows[0][0]), actor, now)
            yield from self._note_job_act(job_id, actor, now)
        yield from act_end(self._queries)
        return _came_to(bool(rows), overruled)

    def retry_dead_operation(
        self, operation_id: str, actor: Actor, *, despite: Sequence[str] = (), now: int | None = None
    ) -> Program[bool]:
        """A dead phased operation is left to the completer again."""
        yield BEGIN
        overruled = yield from self._overrule(operation_id, despite)
        yield from act_as(self._queries, actor)
        rows = yield self._queries.statement("revive_phased", now, operation_id=operation_id)
        yield from act_end(self._queries)
        return _came_to(bool(rows), overruled)

    def discard_dead_job(
        self,
        job_id: str,
        answer: Answer,
        actor: Actor,
        *,
        despite: Sequence[str] = (),
        now: int | None = None,
    ) -> Program[bool]:
        """A dead job is given up for good; if it was to answer, its operation gets this final answer."""
        yield BEGIN
        job = yield from self.job(job_id)
        if job is None or job.state != "dead":
            return False
        yield from self._overrule_about(job_id, despite)
        yield from act_as(self._queries, actor)
        closed = job.answers and (yield from self._close_dead(job.operation_id, answer, now))
        if not closed:
            yield self._queries.statement("discard_job", now, id=job_id)
            yield from self.note_act(job.operation_id, actor, now)
            yield from self._note_job_act(job_id, actor, now)
        yield from act_end(self._queries)
        return True

    def discard_dead_operation(
        self,
        operation_id: str,
        answer: Answer,
        actor: Actor,
        *,
        despite: Sequence[str] = (),
        now: int | None = None,
    ) -> Program[bool]:
        """A dead operation is given up for good, with this final answer; its dead job goes with it. Jobs
        beside that one stay, and so does what a provider says of them."""
        yield BEGIN
        answering = [job.id for job in (yield from self.jobs_of(operation_id)) if job.answers]
        if answering:
            overruled = yield from self._overrule_about(answering[0], despite)
        else:
            overruled = yield from self._overrule(operation_id, despite)
        yield from act_as(self._queries, actor)
        closed = yield from self._close_dead(operation_id, answer, now)
        yield from act_end(self._queries)
        return _came_to(closed, overruled)

    def _overrule(self, operation_id: str, despite: Sequence[str]) -> Program[bool]:
        yield self._queries.statement("lock_operation", None, operation_id=operation_id)
        return (yield from overrule(self._queries, operation_id, despite))

    def _overrule_about(self, job_id: str, despite: Sequence[str]) -> Program[bool]:
        """As far as this job may be meant: what a provider says of the operation's other jobs is not about
        it."""
        job = yield from self.job(job_id)
        if job is None:
            return False
        yield self._queries.statement("lock_operation", None, operation_id=job.operation_id)
        effects = yield from self.effects(job.operation_id)
        others = [one.downstream_key for one in effects if one.place != job_id]
        return (
            yield from overrule(
                self._queries,
                job.operation_id,
                despite,
                lambda yes: yes.about is None or yes.about not in others,
            )
        )

    def _close_dead(self, operation_id: str, answer: Answer, now: int | None) -> Program[bool]:
        rows = yield self._queries.statement(
            "close_dead", now, operation_id=operation_id, **answer_values(answer)
        )
        if rows:
            yield from self._settle_parts(rows[0], now)
        return bool(rows)

    def note_act(self, operation_id: str, actor: Actor, now: int | None = None) -> Program[None]:
        """An act that changes no state leaves its trace all the same."""
        yield self._queries.statement(
            "note_act", now, operation_id=operation_id, actor=actor.name, reason=actor.reason
        )

    def _note_job_act(self, job_id: str, actor: Actor, now: int | None) -> Program[None]:
        """The same where the job's operation is gone, and cannot tell whose it was."""
        yield self._queries.statement("note_job_act", now, id=job_id, actor=actor.name, reason=actor.reason)

    # Looking

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
        return [_seen(row[1:]) for row in rows]

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
        """How long the newest finished operations took, in milliseconds."""
        rows = yield self._queries.statement("durations", None, limit=limit)
        return [int(row[0]) for row in rows]  # type: ignore[arg-type]

    def unknown_endpoints(self) -> Program[dict[str, int]]:
        """Where outcomes are unknown, and how many; those with the most."""
        rows = yield self._queries.statement("unknown_endpoints", None)
        return {str(endpoint): int(count) for endpoint, count in rows}  # type: ignore[arg-type]

    def server_facts(self) -> Program[dict[str, str]]:
        """The server's settings and sizes that matter to us."""
        rows = yield self._queries.statement("server_facts", None)
        return {str(name): str(value) for name, value in rows if value is not None}

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


def _came_to(done: bool, overruled: bool) -> bool:
    """What was set aside for an act is not, if nothing came of that."""
    if overruled and not done:
        raise Moved
    return done


_ANSWER: Final = ("answer_status", "answer_headers", "answer_body")


def _seen(row: Row) -> Record:
    """A record to look at. An answer that cannot be decrypted counts as withheld; the rest can be shown."""
    values = [*row]
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
        payload,  # type: ignore[arg-type]
        answers == 1,
        attempts,  # type: ignore[arg-type]
        created,  # type: ignore[arg-type]
        str(state),
        None if error is None else str(error),
        None if provider_id is None else str(provider_id),
        done_at,  # type: ignore[arg-type]
    )

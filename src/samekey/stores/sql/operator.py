"""The programs of finding out and overriding. Each act is a transaction of its own that says who and why."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...core.disputes import Yes
from ...core.program import BEGIN, Program, Row
from ...core.record import Answer, Record, decode_record
from ...core.states import Mode
from ..keys import answer_values
from ..protocols import Actor
from ..readable import Tell, never_empty, readable
from .looking import Looking
from .overruling import Moved, overrule
from .queries import Queries


def act_as(queries: Queries, actor: Actor) -> Program[None]:
    """From here to ``act_end``, in this transaction: who acts, for the audit table."""
    yield queries.statement("act_as", None, actor=actor.name, reason=actor.reason or "")


def act_end(queries: Queries) -> Program[None]:
    yield queries.statement("act_end", None)


class Operator(Looking):
    """Programs for one dialect."""

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

    def reopen(
        self, operation_id: str, actor: Actor, *, attempt: str, now: int | None = None
    ) -> Program[bool]:
        """A failure that was remembered as the answer may be tried again, once."""
        yield BEGIN
        yield from act_as(self._queries, actor)
        rows = yield self._queries.statement("reopen", now, operation_id=operation_id, attempt=attempt)
        yield from act_end(self._queries)
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


def _came_to(done: bool, overruled: bool) -> bool:
    """What was set aside for an act is not, if nothing came of that."""
    if overruled and not done:
        raise Moved
    return done

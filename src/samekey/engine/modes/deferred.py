"""Deferred work: the handler writes business state and a job in one transaction and answers 202.

It is atomic work whose record appears as ``pending``. A worker does the job and stores the final answer.
"""

from __future__ import annotations

from ...core.problem import accepted_answer
from ...core.program import Program
from ...core.record import Answer, Lease
from ...core.states import State
from ...stores.sql.atomic import Escaped, Taken, Written
from ...stores.sql.jobs import Jobs
from ...stores.sql.keys import SqlKeys
from ..flow import Flow
from ..keeper import Keeper
from ..operation import Running
from .atomic import ClaimedAtomic, LockedAtomic
from .mode import Finished, Handled


def _accepted(running: Running, answer: Answer, expires_at: int) -> Answer:
    """202 with the status resource; a body that the handler chose for its own 202 is kept."""
    accepted = accepted_answer(running.rules.policy, running.operation.id, expires_at, State.PENDING)
    if answer.status != 202 or not answer.body:
        return accepted
    ours = {name for name, _ in accepted.headers} - {b"content-type"}
    kept = tuple((n, v) for n, v in answer.headers if n.lower() not in ours)
    added = tuple((n, v) for n, v in accepted.headers if n in ours)
    return Answer(202, (*kept, *added), answer.body)


class LockedDeferred(LockedAtomic):
    """PostgreSQL: the pending record appears with the handler's writes and its job."""

    def __init__(self, keys: SqlKeys, keeper: Keeper) -> None:
        super().__init__(keys, keeper)
        self._jobs = Jobs(keys)

    def _commit(self, running: Running, handled: Handled, answer: Answer) -> Flow[Finished]:
        forgotten = running.operation._steps.forgotten()
        if forgotten is not None:
            return (yield from self._refuse_to_commit(running, forgotten))
        return (yield from super()._commit(running, handled, answer))

    def _last_statement(self, running: Running, answer: Answer | None) -> Program[Written | Taken | Escaped]:
        assert running.opened is not None
        return self._jobs.accept_locked(running.claim, running.opened)

    def _sent(self, running: Running, answer: Answer, expires_at: int) -> Answer:
        return _accepted(running, answer, expires_at)


class ClaimedDeferred(ClaimedAtomic):
    """SQLite: the claim becomes pending with the handler's writes and its job."""

    def __init__(self, keys: SqlKeys, keeper: Keeper) -> None:
        super().__init__(keys, keeper)
        self._jobs = Jobs(keys)

    def _commit(self, running: Running, handled: Handled, answer: Answer) -> Flow[Finished]:
        forgotten = running.operation._steps.forgotten()
        if forgotten is not None:
            return (yield from self._refuse_to_commit(running, forgotten))
        return (yield from super()._commit(running, handled, answer))

    def _last_statement(self, running: Running, lease: Lease, answer: Answer | None) -> Program[int | None]:
        return self._jobs.accept_claimed(lease)

    def _sent(self, running: Running, answer: Answer, expires_at: int) -> Answer:
        return _accepted(running, answer, expires_at)

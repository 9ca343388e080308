"""Handlers whose key is optional and was not sent: they run as ever, and nothing is remembered.

So keys can be rolled out one client at a time: ``current_operation()`` works with and without a key, and
atomic work is one transaction either way.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

from ...core.claim import Claim
from ...core.outcome import Outcome
from ...core.policy import Policy
from ...core.problem import Refusal, refuse
from ...core.record import Answer
from ...core.states import Mode
from ...errors import (
    CommitUncertain,
    EscapedTransaction,
    FailedTransaction,
    OperationOver,
    StoreError,
    StreamedAnswer,
    TransactionGone,
    UnfinishedWork,
)
from ..exchange import Exchange
from ..flow import Commit, Flow, Open, Rollback
from ..handler.rules import Rules
from ..operation import Operation, Running
from .atomic import PART_FAILED, RAN_TOO_LONG, STREAMED
from .leased import max_run_of
from .mode import Finished, Handled, undone

logger = logging.getLogger("samekey")


def anonymous_operation(mode: Mode, endpoint: str) -> Operation:
    """An operation of its own, whose downstream keys are as new as its id."""
    operation_id = secrets.token_hex(16)
    claim = Claim(
        id=operation_id,
        attempt=secrets.token_hex(16),
        scope="",
        key=operation_id,
        tenant="",
        endpoint=endpoint,
        fingerprint=b"",
        fingerprint_version="",
        digest_as=lambda version: None,
        mode=mode,
        lease_ms=0,
        ttl_ms=0,
    )
    return Operation(claim, operation_id)


class Anonymous:
    """The way of operations without a key."""

    def begin(self, exchange: Exchange, rules: Rules, connection: Any) -> Flow[Running]:
        operation = anonymous_operation(rules.mode, exchange.endpoint)
        session = None
        if rules.mode is Mode.ATOMIC:
            session = yield Open(connection)
            operation._session = session
            try:
                session.expire_after(max_run_of(rules) / 1000, lambda: logger.error(RAN_TOO_LONG))
            except BaseException:
                yield Rollback(session)
                raise
        return Running(operation._claim, rules, operation, session=session, anonymous=True)

    def give_back(self, running: Running) -> Flow[None]:
        """Its caller was gone before the handler began."""
        if running.session is not None:
            yield Rollback(running.session)

    def let_go(self, running: Running) -> None:
        """The same where the event loop ends."""
        if running.session is not None:
            running.session.give_up()

    def fall(self, running: Running) -> Flow[None]:
        """The handler has raised."""
        if running.session is not None:
            yield Rollback(running.session)

    def finish(self, running: Running, handled: Handled) -> Flow[Finished]:
        """Commits or rolls back, by the same judgement as with a key."""
        policy, answer = running.rules.policy, handled.answer
        if running.session is None:
            return Finished(answer, handled.propagated)
        if handled.streamed:
            yield Rollback(running.session)
            return Finished(
                refuse(Refusal(500, "The answer could not be kept."), policy), StreamedAnswer(STREAMED)
            )
        if running.outcome is not Outcome.REMEMBER or handled.falls(running.rules.on_4xx):
            yield Rollback(running.session)
            return Finished(undone(handled, policy), handled.propagated)
        if running.part_failed:
            yield Rollback(running.session)
            rolled_back = refuse(Refusal(500, "The operation was rolled back."), policy)
            return Finished(rolled_back, FailedTransaction(PART_FAILED))
        try:
            yield Commit(running.session)
        except StoreError as error:
            return Finished(_unkept(policy, is_certain=not isinstance(error, CommitUncertain)))
        except (TransactionGone, EscapedTransaction, UnfinishedWork, FailedTransaction) as error:
            return Finished(refuse(Refusal(500, "The operation was not committed."), policy), error)
        except OperationOver:  # it ran too long
            return Finished(_unkept(policy, is_certain=True))
        return Finished(answer)


def _unkept(policy: Policy, *, is_certain: bool) -> Answer:
    """There is no key under which a retry would be the same operation, so nothing here asks for one that
    might be a second."""
    if is_certain:
        return refuse(Refusal(503, "The database could not be used, so nothing was done."), policy)
    detail = (
        "It is not known whether it was done: the database was lost at the end. Find out before you send it "
        "again: without a key that is another operation."
    )
    return refuse(Refusal(500, detail), policy)

"""Finding out unknown outcomes, and looking at records. Each act is one conditional write.

There is no audit table: who settled a record and why stays in the record, and DynamoDB Streams can keep the
rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from ...core.disputes import Yes, decode_all, encode_all, encode_yes
from ...core.effects import KnownEffect, decode_effect
from ...core.program import Program, Row, Undecryptable
from ...core.record import COLUMNS, Answer, Record, decode_record, with_own_answer
from ..keys import answer_values
from ..protocols import Actor, Overview
from ..readable import Tell, readable
from ..statements import Statements


class DynamoFinding:
    """``samekey.stores.protocols.Finding`` for DynamoDB."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def take_unknown(
        self,
        *,
        batch: int,
        lease_ms: int,
        without: Sequence[str] = (),
        tell: Tell | None = None,
        now: int | None = None,
    ) -> Program[list[tuple[int, Record]]]:
        rows = yield self._statements.statement(
            "take_unknown",
            now,
            batch=batch,
            lease_ms=lease_ms,
            without=json.dumps(list(without)),
        )
        return readable(((row[0], row[1:]) for row in rows), tell)

    def ask_again(
        self, operation_id: str, *, pause_ms: int, attempt: str | None = None, now: int | None = None
    ) -> Program[None]:
        yield self._statements.statement(
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
        rows = yield self._statements.statement(
            "found_executed",
            now,
            operation_id=operation_id,
            attempt=attempt,
            provider_id=provider_id,
            source=source,
            despite=None if despite is None else encode_all(despite),
            actor=actor.name,
            reason=actor.reason,
            **answer_values(answer),
        )
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
        rows = yield self._statements.statement(
            "recall",
            now,
            operation_id=operation_id,
            seen=seen,
            attempt=attempt,
            provider_id=provider_id,
            actor=actor.name,
            reason=actor.reason,
            **answer_values(answer),
        )
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
        rows = yield self._statements.statement(
            "found_not_executed",
            now,
            operation_id=operation_id,
            attempt=attempt,
            event=event,
            despite=encode_all(despite),
            actor=actor.name,
            reason=actor.reason,
        )
        return bool(rows)

    def dispute(self, operation_id: str, yes: Yes, *, attempt: str, now: int | None = None) -> Program[bool]:
        rows = yield self._statements.statement(
            "dispute", now, operation_id=operation_id, event=encode_yes(yes), attempt=attempt
        )
        return bool(rows)

    def disputed_by(self, operation_id: str) -> Program[list[Yes]]:
        rows = yield self._statements.statement("disputed_by", None, operation_id=operation_id)
        return decode_all(str(rows[0][0])) if rows else []

    def give_up(
        self, operation_id: str, actor: Actor, *, attempt: str | None = None, now: int | None = None
    ) -> Program[bool]:
        return (yield from self._act("give_up_finding", operation_id, actor, attempt, now))

    def evict(self, operation_id: str, actor: Actor, *, now: int | None = None) -> Program[bool]:
        return (yield from self._act("evict_answer", operation_id, actor, None, now))

    def extend(
        self, operation_id: str, until: int, actor: Actor, *, attempt: str, now: int | None = None
    ) -> Program[bool]:
        rows = yield self._statements.statement(
            "extend",
            now,
            operation_id=operation_id,
            attempt=attempt,
            kept_until=until,
            actor=actor.name,
            reason=actor.reason,
        )
        return bool(rows)

    def reopen(
        self, operation_id: str, actor: Actor, *, attempt: str, now: int | None = None
    ) -> Program[bool]:
        return (yield from self._act("reopen", operation_id, actor, attempt, now))

    def _act(
        self, name: str, operation_id: str, actor: Actor, attempt: str | None, now: int | None
    ) -> Program[bool]:
        rows = yield self._statements.statement(
            name, now, operation_id=operation_id, attempt=attempt, actor=actor.name, reason=actor.reason
        )
        return bool(rows)

    def effects(self, operation_id: str) -> Program[list[KnownEffect]]:
        rows = yield self._statements.statement("effects_of", None, operation_id=operation_id)
        return [decode_effect(row) for row in rows]

    def past_ids(self, operation_id: str) -> Program[list[str]]:
        """The provider's ids that former lives of the operation's key have noted."""
        rows = yield self._statements.statement("past_ids", None, operation_id=operation_id)
        return [str(one) for one in json.loads(str(rows[0][0]))] if rows else []

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
        """Records, newest first. By state alone it reads an index; else the whole table, which costs."""
        rows = yield self._statements.statement(
            "list_keys",
            None,
            state=state,
            tenant=tenant,
            key=key,
            endpoint=endpoint,
            created_after=created_after,
            created_before=created_before,
            limit=limit,
        )
        return [_seen(row[1:]) for row in rows]

    def by_id(self, operation_id: str) -> Program[Record | None]:
        rows = yield self._statements.statement("find_by_id", None, id=operation_id)
        return _seen(rows[0][1:]) if rows else None

    def freed_by(self, operation_id: str) -> Program[list[str]]:
        """The events that have freed attempts of this operation."""
        rows = yield self._statements.statement("freed_by", None, operation_id=operation_id)
        return [str(one) for one in json.loads(str(rows[0][0]))] if rows else []

    def clocked(self, operation_id: str) -> Program[tuple[int, Record] | None]:
        """The record of an operation, with the store's clock."""
        rows = yield self._statements.statement("find_by_id", None, id=operation_id)
        if not rows:
            return None
        assert isinstance(rows[0][0], int)
        return rows[0][0], _seen(rows[0][1:])

    def by_key(self, scope: str, key: str) -> Program[Record | None]:
        rows = yield self._statements.statement("find", None, scope=scope, key=key)
        return None if rows[0][1] is None else _seen(rows[0][1:])

    def overview(self, *, now: int | None = None) -> Program[Overview]:
        rows = yield self._statements.statement("overview", now)
        return Overview(*rows[0])  # type: ignore[arg-type]


_ANSWER: Final = ("answer_status", "answer_headers", "answer_body")


def _seen(row: Row) -> Record:
    """A record to look at. An answer that cannot be decrypted counts as withheld; the rest can be shown."""
    values = [*with_own_answer(row)]
    if any(isinstance(value, Undecryptable) for value in values):
        for name in _ANSWER:
            values[COLUMNS.index(name)] = None
    return decode_record(values)

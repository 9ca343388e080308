"""The programs of finding out and overriding on Redis. Each act is one script; there is no audit table.

What is asked of the whole store is asked of every partition at once; the answers are put together here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from ...core.disputes import Yes, decode_all, encode_all, encode_yes
from ...core.effects import KnownEffect, decode_effect
from ...core.program import Program, Row, Undecryptable
from ...core.record import COLUMNS, Answer, Record, decode_record, with_own_answer
from ...core.states import State, StateEvent, sources
from ..keys import answer_values
from ..protocols import Actor, Overview
from ..readable import Tell, readable
from .scripts import RedisStatements, is_base

PAGE: Final = 1000
"""Entries of one index that a partition looks at in one go: a millisecond of the server's time."""
PAGES: Final = 50
"""Pages of each partition that are read at most past the outcomes of endpoints that are left out."""
INDEXES: Final = ("leases", "unknown", "dead", "settled")


def due(statements: RedisStatements, index: str, batch: int, now: int | None) -> Program[list[str]]:
    """The names of the records that stand first in an index, up to now, earliest first."""
    rows = yield statements.statement("due", now, index=index, batch=batch, at=None)
    found = sorted((_int(score), str(base)) for score, base in rows)
    return [base for _, base in found if is_base(base)][:batch]


class RedisFinding:
    """Finding out unknown outcomes, and looking at records."""

    def __init__(self, statements: RedisStatements) -> None:
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
        """Unknown outcomes to ask about now, each with how often it has been asked, this time included."""
        if without:
            bases = yield from self._of_others(without, batch, now)
        else:
            bases = yield from due(self._statements, "unknown", batch, now)
        if not bases:
            return []
        rows = yield self._statements.statement("take_unknown", now, at=bases, lease_ms=lease_ms)
        return readable(((row[0], row[1:]) for row in rows), tell)

    def _of_others(self, without: Sequence[str], batch: int, now: int | None) -> Program[list[str]]:
        """Names of outcomes that are due, of none of these endpoints. Those that stand before them are read
        past and left as they are: another process may be able to ask about them."""
        found: list[tuple[int, str]] = []
        for page in range(PAGES):
            rows = yield self._statements.statement(
                "due_of_others",
                now,
                at=None,
                endpoints=json.dumps(list(without)),
                offset=page * PAGE,
                page=PAGE,
                batch=batch,
            )
            found += [(_int(score), str(base)) for kind, score, base in rows if kind == 0]
            if len(found) >= batch or not any(row[1] for row in rows if row[0] == 1):
                break
        return [base for _, base in sorted(found) if is_base(base)][:batch]

    def ask_again(
        self, operation_id: str, *, pause_ms: int, attempt: str | None = None, now: int | None = None
    ) -> Program[None]:
        """Puts the next question off."""
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
        """It happened, or was declined: the answer becomes final (None: it is withheld).

        False if it is settled already, or ``attempt`` is given and is no longer the current one.
        """
        rows = yield self._statements.statement(
            "found_executed",
            now,
            operation_id=operation_id,
            attempt=attempt,
            provider_id=provider_id,
            source=source,
            despite=None if despite is None else encode_all(despite),
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
        """A key that had expired has its answer again. False if the record has moved."""
        rows = yield self._statements.statement(
            "recall",
            now,
            operation_id=operation_id,
            seen=seen,
            attempt=attempt,
            provider_id=provider_id,
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
        """It never happened: one retry may run. False as for ``executed``."""
        rows = yield self._statements.statement(
            "found_not_executed",
            now,
            operation_id=operation_id,
            attempt=attempt,
            event=event,
            despite=encode_all(despite),
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
        """Asking has been exhausted: dead letter."""
        rows = yield self._statements.statement(
            "give_up_finding", now, operation_id=operation_id, attempt=attempt
        )
        return bool(rows)

    def evict(self, operation_id: str, actor: Actor, *, now: int | None = None) -> Program[bool]:
        """Drops a stored answer. The fact stays: a retry is told that it was done, and is not run."""
        rows = yield self._statements.statement("evict_answer", now, operation_id=operation_id)
        return bool(rows)

    def extend(
        self, operation_id: str, until: int, actor: Actor, *, attempt: str, now: int | None = None
    ) -> Program[bool]:
        """Keeps a completed record for longer. False if it has ended, or moved, or is kept longer already."""
        rows = yield self._statements.statement(
            "extend", now, operation_id=operation_id, attempt=attempt, kept_until=until
        )
        return bool(rows)

    def reopen(
        self, operation_id: str, actor: Actor, *, attempt: str, now: int | None = None
    ) -> Program[bool]:
        """A failure that was remembered as the answer may be tried again, once."""
        rows = yield self._statements.statement("reopen", now, operation_id=operation_id, attempt=attempt)
        return bool(rows)

    # Looking

    def effects(self, operation_id: str) -> Program[list[KnownEffect]]:
        """What the operation may have sent, as far as the store was told."""
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
        """Records, newest first. Settled ones are looked through in the order of their expiry."""
        found: list[tuple[int, str]] = []
        offset, more = 0, True
        while more and len(found) < limit:
            rows = yield self._statements.statement(
                "list_keys",
                None,
                at=None,
                indexes=list(INDEXES if state is None else (_index_of(state),)),
                state=state,
                tenant=tenant,
                key=key,
                endpoint=endpoint,
                created_after=created_after,
                created_before=created_before,
                offset=offset,
                page=PAGE,
            )
            found += [
                (_int(created), str(base)) for kind, created, base in rows if kind == 0 and is_base(str(base))
            ]
            more = any(row[1] for row in rows if row[0] == 1)
            offset += PAGE
        newest = [base for _, base in sorted(found, key=lambda one: (-one[0], one[1]))[:limit]]
        if not newest:
            return []
        rows = yield self._statements.statement("records", None, at=newest)
        records = [_seen(row[1:]) for row in rows]
        return sorted(records, key=lambda record: (-record.created_at, record.id))

    def by_id(self, operation_id: str) -> Program[Record | None]:
        """The record of an operation, for somebody who only looks."""
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
        """The record of a key, for somebody who only looks."""
        rows = yield self._statements.statement("find", None, scope=scope, key=key)
        return None if rows[0][1] is None else _seen(rows[0][1:])

    def overview(self, *, now: int | None = None) -> Program[Overview]:
        """The figures of all partitions, added up. What a key store has no place for is 0 or None."""
        rows = yield self._statements.statement("overview", now, at=None)
        columns = [list(column) for column in zip(*rows, strict=True)]
        clock, records, unknown, oldest_unknown, dead, ended, lease_end, over, expiry, asking, pending = (
            columns
        )
        return Overview(
            now=max(map(_int, clock)),
            records=_sum(records),
            unknown=_sum(unknown),
            oldest_unknown=_earliest(oldest_unknown),
            dead_letters=_sum(dead),
            ended_leases=_sum(ended),
            oldest_lease_end=_earliest(lease_end),
            past_retention=_sum(over),
            live_jobs=0,
            oldest_due=None,
            dead_jobs=0,
            pending=_sum(pending),
            oldest_expiry=_earliest(expiry),
            ended_phased=0,
            oldest_phased_end=None,
            oldest_other_end=_earliest(lease_end),
            oldest_asking=_earliest(asking),
            oldest_pending=None,
        )

    def durations(self, *, limit: int = 10_000) -> Program[list[int]]:
        """How long the newest finished operations took, in milliseconds."""
        rows = yield self._statements.statement("durations", None, at=None, limit=max(1, limit // 100))
        return [_int(row[0]) for row in rows][:limit]

    def unknown_endpoints(self) -> Program[dict[str, int]]:
        """Where outcomes are unknown, and how many."""
        rows = yield self._statements.statement("unknown_endpoints", None, at=None)
        counts: dict[str, int] = {}
        for endpoint, count in rows:
            counts[str(endpoint)] = counts.get(str(endpoint), 0) + _int(count)
        return counts


_ANSWER: Final = ("answer_status", "answer_headers", "answer_body")


def _seen(row: Row) -> Record:
    """A record to look at. An answer that cannot be decrypted counts as withheld; the rest can be shown."""
    values = [*with_own_answer(row)]
    if any(isinstance(value, Undecryptable) for value in values):
        for name in _ANSWER:
            values[COLUMNS.index(name)] = None
    return decode_record(values)


def _index_of(state: str) -> str:
    """Where the prelude puts a record of this state."""
    if state in sources(StateEvent.LEASE_END):
        return "leases"
    if state == State.UNKNOWN:
        return "unknown"
    return "settled" if state in sources(StateEvent.REAP) else "dead"


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"a number belongs here, not {value!r}")
    return value


def _sum(values: Iterable[object]) -> int:
    return sum(map(_int, values))


def _earliest(values: Sequence[object]) -> int | None:
    return min((value for value in values if isinstance(value, int)), default=None)

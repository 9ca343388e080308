"""The programs of phased work: its input, its recovery points, the fence around each step.

A phase checks its fence in the last statement before COMMIT: whoever no longer holds the lease gets
``LeaseLost``, and nothing of the phase stands.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.phases import Phase, decode_phases
from ...core.program import BEGIN, Program, Value
from ...core.record import Answer, Lease, Record, decode_record
from ...errors import LeaseLost
from .keys import Keys
from .queries import Queries


@dataclass(frozen=True, slots=True)
class StoredInput:
    """What the completer needs to call the function by itself."""

    name: str
    version: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Work:
    """All that is recorded of a phased operation."""

    input: StoredInput | None
    phases: list[Phase]
    now: int
    """The store's clock, in milliseconds."""


class Phases:
    """Programs on the inputs and phases tables of one dialect."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._queries: Queries = keys.queries

    def begin(
        self, lease: Lease, operation_id: str, stored: StoredInput, *, now: int | None = None
    ) -> Program[Work]:
        """Keeps the input at the first claim, and gives what an earlier attempt has recorded."""
        yield self._queries.statement(
            "store_input",
            now,
            **_fence(lease),
            name=stored.name,
            version=stored.version,
            payload=stored.payload,
        )
        return (yield from self.load(operation_id, now=now))

    def load(self, operation_id: str, *, now: int | None = None) -> Program[Work]:
        rows = yield self._queries.statement("load_input", now, operation_id=operation_id)
        stored = None
        if rows:
            name, version, payload = rows[0]
            assert isinstance(version, int) and isinstance(payload, bytes)
            stored = StoredInput(str(name), version, payload)
        clock = yield self._queries.statement("clock", now)
        rows = yield self._queries.statement("load_phases", now, operation_id=operation_id)
        moment = clock[0][0]
        assert isinstance(moment, int)
        return Work(stored, decode_phases(rows), moment)

    def write_phase(
        self,
        lease: Lease,
        operation_id: str,
        position: int,
        name: str,
        result: bytes,
        *,
        now: int | None = None,
    ) -> Program[None]:
        """Inside the transaction of the phase's own writes, as its last two statements."""
        yield self._queries.statement(
            "write_phase", now, operation_id=operation_id, position=position, name=name, result=result
        )
        yield from self._check_fence(lease, name, now)

    def intend(
        self, lease: Lease, operation_id: str, position: int, name: str, *, now: int | None = None
    ) -> Program[None]:
        """Commits that an effect is about to be tried."""
        yield BEGIN
        yield self._queries.statement(
            "write_intent", now, operation_id=operation_id, position=position, name=name
        )
        yield from self._check_fence(lease, name, now)

    def intend_anew(
        self, lease: Lease, operation_id: str, position: int, name: str, *, now: int | None = None
    ) -> Program[None]:
        """The effect provably never happened: its window and settling time count from now."""
        yield BEGIN
        yield self._queries.statement("renew_intent", now, operation_id=operation_id, position=position)
        yield from self._check_fence(lease, name, now)

    def take_back(
        self, lease: Lease, operation_id: str, position: int, name: str, *, now: int | None = None
    ) -> Program[None]:
        """The effect provably never happened, and the operation stops here."""
        yield BEGIN
        yield self._queries.statement("drop_intent", now, operation_id=operation_id, position=position)
        yield from self._check_fence(lease, name, now)

    def write_effect(
        self,
        lease: Lease,
        operation_id: str,
        position: int,
        name: str,
        result: bytes,
        provider_id: str | None,
        *,
        now: int | None = None,
    ) -> Program[None]:
        """The result of an effect. A holder whose lease ran out holds it again, if nobody took it."""
        yield BEGIN
        yield self._queries.statement(
            "write_effect",
            now,
            operation_id=operation_id,
            position=position,
            result=result,
            provider_id=provider_id,
        )
        rows = yield self._queries.statement(
            "regain",
            now,
            **_fence(lease),
            lease_ms=lease.duration_ms,
            name=name,
            provider_id=provider_id,
        )
        if not rows:
            raise LeaseLost(f"Somebody else has taken the operation; the result of {name!r} was not stored.")

    def let_go(
        self, lease: Lease, *, pause_ms: int, error_code: str, now: int | None = None
    ) -> Program[bool]:
        """Stops here; a retry or the completer may go on after the pause."""
        rows = yield self._queries.statement(
            "let_go", now, **_fence(lease), pause_ms=pause_ms, error_code=error_code
        )
        return bool(rows)

    def give_up(self, lease: Lease, *, error_code: str, now: int | None = None) -> Program[bool]:
        """All attempts are used up: an operator decides."""
        rows = yield self._queries.statement("give_up", now, **_fence(lease), error_code=error_code)
        return bool(rows)

    def complete(
        self,
        lease: Lease,
        operation_id: str,
        answer: Answer | None,
        *,
        ttl_ms: int,
        from_creation: bool = False,
        now: int | None = None,
    ) -> Program[int | None]:
        """Stores the final answer; input and phases have done their work and go."""
        yield BEGIN
        expires_at = yield from self._keys.complete(
            lease, answer, ttl_ms=ttl_ms, from_creation=from_creation, now=now
        )
        if expires_at is not None:
            yield self._queries.statement("drop_input", now, operation_id=operation_id)
            yield self._queries.statement("drop_phases", now, operation_id=operation_id)
        return expires_at

    def take_abandoned(
        self,
        token: str,
        known: Sequence[str],
        *,
        lease_ms: int,
        batch: int,
        now: int | None = None,
    ) -> Program[list[Record]]:
        """Operations whose lease ran out, now under attempts of ours. ``known``: ``name/version``."""
        rows = yield self._queries.statement(
            "take_abandoned",
            now,
            token=token,
            known=list(known),
            known_list=json.dumps(list(known)),
            lease_ms=lease_ms,
            batch=batch,
        )
        return [decode_record(row[1:]) for row in rows]

    def _check_fence(self, lease: Lease, name: str, now: int | None) -> Program[None]:
        rows = yield self._queries.statement("fence", now, **_fence(lease), name=name)
        if not rows:
            raise LeaseLost(f"Somebody else has taken the operation; {name!r} was rolled back.")


def _fence(lease: Lease) -> dict[str, Value]:
    return {"scope": lease.scope, "key": lease.key, "attempt": lease.attempt}

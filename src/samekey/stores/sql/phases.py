"""The programs of phased work: its input, its recovery points, the fence around each step.

A phase checks its fence in the last statement before COMMIT: whoever no longer holds the lease gets
``LeaseLost``, and nothing of the phase stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core.claim import downstream_key
from ...core.effects import Says
from ...core.phases import Phase, decode_phases
from ...core.program import BEGIN, NotNow, Program, Value, at_home, home_of
from ...core.record import Answer, Lease, Record
from ...errors import CorruptRecord, EscapedTransaction, LeaseLost, Sealed
from ..protocols import Actor
from ..readable import Tell, never_empty, records
from .keys import SqlKeys
from .operator import act_as, act_end
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


class Phases:
    """Programs on the inputs and phases tables of one dialect."""

    def __init__(self, keys: SqlKeys) -> None:
        self._keys = keys
        self._queries: Queries = keys.queries

    def begin(
        self,
        lease: Lease,
        operation_id: str,
        stored: StoredInput,
        *,
        now: int | None = None,
    ) -> Program[Work]:
        """Keeps the input at the first claim, and gives what an earlier attempt has recorded."""
        yield self._queries.statement(
            "store_input",
            now,
            **_fence(lease),
            operation_id=operation_id,
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
            stored = StoredInput(str(name), version, at_home(payload, home_of("payload", operation_id)))
        rows = yield self._queries.statement("load_phases", now, operation_id=operation_id)
        phases = decode_phases(operation_id, rows)
        if any(isinstance(one, NotNow) for one in (stored and stored.payload, *(x.result for x in phases))):
            raise Sealed
        return Work(stored, phases)

    def clock(self, *, now: int | None = None) -> Program[int]:
        """The store's clock, in milliseconds."""
        rows = yield self._queries.statement("clock", now)
        return _int(rows[0][0])

    def open_phase(self, lease: Lease, name: str, *, max_run_ms: int) -> Program[int | None]:
        """First in a phase's transaction; gives what proves at its end that it is still the same one.

        None where there is no such statement, on SQLite: there the transaction begins with the phase's own
        first statement, and its COMMIT is refused by the connection itself.
        """
        if "open_phase" not in self._queries:
            return None
        rows = yield self._queries.statement("open_phase", None, **_fence(lease), max_run_ms=str(max_run_ms))
        if not rows:
            raise LeaseLost(f"Somebody else has taken the operation; {name!r} was not run.")
        return _int(rows[0][0])

    def write_phase(
        self,
        lease: Lease,
        operation_id: str,
        position: int,
        name: str,
        result: bytes,
        *,
        began: int | None = None,
        now: int | None = None,
    ) -> Program[None]:
        """Inside the transaction of the phase's own writes, as its last two statements.

        ``EscapedTransaction`` if it is another transaction than the one that ``began``.
        """
        if began is not None and "close_proof" in self._queries:
            yield self._queries.statement("close_proof", None)
        written = yield self._queries.statement(
            "write_phase",
            now,
            operation_id=operation_id,
            position=position,
            name=name,
            result=result,
            began=began,
        )
        found, _ = yield from self._check_fence(lease, name, now)
        if began is not None and began != found:
            raise EscapedTransaction(
                f"The phase {name!r} ended its own transaction, so its writes may stand without their "
                "recovery point. Leave the end of the transaction to samekey."
            )
        if not written:
            raise LeaseLost(f"{name!r} is recorded already; what was done now was rolled back.")

    def intend(
        self,
        lease: Lease,
        operation_id: str,
        position: int,
        name: str,
        *,
        source: str | None = None,
        unless: Callable[[], Program[bool]] | None = None,
        now: int | None = None,
    ) -> Program[None]:
        """Commits that an effect is about to be tried. ``Disputed`` if a provider's yes waits, here as in
        the two that follow: nothing is sent before that has been settled. ``unless``, here and below: whether
        what waits is no reason not to."""
        yield BEGIN
        yield self._queries.statement(
            "write_intent", now, operation_id=operation_id, position=position, name=name
        )
        yield from self._note_sent(lease, operation_id, position, name, source, now)
        yield from self._may_send(lease, name, now, unless)

    def intend_again(
        self,
        lease: Lease,
        operation_id: str,
        position: int,
        name: str,
        *,
        source: str | None = None,
        unless: Callable[[], Program[bool]] | None = None,
        now: int | None = None,
    ) -> Program[None]:
        """Commits that the effect is about to be tried once more, under the same intent."""
        yield BEGIN
        yield from self._note_sent(lease, operation_id, position, name, source, now)
        yield from self._may_send(lease, name, now, unless)

    def intend_anew(
        self,
        lease: Lease,
        operation_id: str,
        position: int,
        name: str,
        *,
        source: str | None = None,
        unless: Callable[[], Program[bool]] | None = None,
        now: int | None = None,
    ) -> Program[None]:
        """The effect provably never happened: its window and settling time count from now."""
        yield BEGIN
        yield self._queries.statement("renew_intent", now, operation_id=operation_id, position=position)
        yield from self._note_sent(lease, operation_id, position, name, source, now)
        yield from self._may_send(lease, name, now, unless)

    def _note_sent(
        self, lease: Lease, operation_id: str, position: int, name: str, source: str | None, now: int | None
    ) -> Program[None]:
        yield self._queries.statement(
            "note_sent",
            now,
            operation_id=operation_id,
            step=name,
            place=str(position),
            attempt=lease.attempt,
            source=source,
            downstream_key=downstream_key(lease.scope, lease.key, name),
        )

    def note_effect(
        self,
        lease: Lease,
        operation_id: str,
        name: str,
        provider_id: str,
        source: str | None,
        *,
        now: int | None = None,
    ) -> Program[None]:
        """What the provider made is known, even if the call failed after it. It is that of this attempt, also
        where another one has been sent meanwhile."""
        yield BEGIN
        for statement in ("note_effect", "note_made"):
            yield self._queries.statement(
                statement,
                now,
                operation_id=operation_id,
                step=name,
                attempt=lease.attempt,
                provider_id=provider_id,
                source=source,
            )

    def take_back(
        self,
        lease: Lease,
        operation_id: str,
        position: int,
        name: str,
        *,
        unless: Callable[[], Program[bool]] | None = None,
        now: int | None = None,
    ) -> Program[None]:
        """The effect provably never happened, and the operation stops here; ``Disputed`` if the provider
        says otherwise."""
        yield BEGIN
        yield self._queries.statement("drop_intent", now, operation_id=operation_id, position=position)
        yield from self._settled(operation_id, name, Says.NOT_EXECUTED, None, None, now)
        yield from self._may_send(lease, name, now, unless)

    def write_effect(
        self,
        lease: Lease,
        operation_id: str,
        position: int,
        name: str,
        result: bytes,
        provider_id: str | None,
        *,
        source: str | None = None,
        adopted: bool = False,
        now: int | None = None,
    ) -> Program[None]:
        """The result of an effect. A holder whose lease ran out holds it again, if nobody took it.

        ``adopted``: a provider has told it, and the call may never have been meant by this attempt.
        """
        yield BEGIN
        # First: whoever is not the holder any more has written nothing, and may tell what it knows otherwise.
        rows = yield self._queries.statement(
            "regain",
            now,
            **_fence(lease),
            lease_ms=lease.duration_ms,
            name=name,
            provider_id=provider_id,
        )
        if not rows:
            raise Overtaken(f"Somebody else has taken the operation; the result of {name!r} was not stored.")
        if adopted:
            yield self._queries.statement(
                "write_intent", now, operation_id=operation_id, position=position, name=name
            )
        written = yield self._queries.statement(
            "write_effect",
            now,
            operation_id=operation_id,
            position=position,
            result=result,
            provider_id=provider_id,
        )
        if not written:
            raise LeaseLost(f"There is no intent that the result of {name!r} could belong to.")
        yield from self._settled(operation_id, name, Says.EXECUTED, provider_id, source, now)
        if rows[0][1] == 1:
            # The provider's word about this effect has come before its own reply, as it often does.
            sent = downstream_key(lease.scope, lease.key, name)
            yield self._queries.statement(
                "effect_settled",
                now,
                operation_id=operation_id,
                downstream_key=sent,
                provider_id=provider_id,
            )
            yield self._queries.statement("undispute", now, operation_id=operation_id)

    def _settled(
        self,
        operation_id: str,
        name: str,
        said: Says,
        provider_id: str | None,
        source: str | None,
        now: int | None,
    ) -> Program[None]:
        yield self._queries.statement(
            "settle_effect",
            now,
            operation_id=operation_id,
            step=name,
            said=str(said),
            provider_id=provider_id,
            source=source,
        )

    def let_go(
        self,
        lease: Lease,
        *,
        pause_ms: int,
        error_code: str,
        counted: bool = True,
        now: int | None = None,
    ) -> Program[bool]:
        """Stops here; a retry or the completer may go on after the pause.

        Not ``counted``: nothing was tried, so the operation keeps its attempts.
        """
        rows = yield self._queries.statement(
            "let_go",
            now,
            **_fence(lease),
            pause_ms=pause_ms,
            error_code=error_code,
            uncounted=int(not counted),
        )
        return bool(rows)

    def give_up(
        self, lease: Lease, *, error_code: str, actor: Actor | None = None, now: int | None = None
    ) -> Program[bool]:
        """All attempts are used up: an operator decides."""
        yield from self._begin_as(actor)
        rows = yield self._queries.statement("give_up", now, **_fence(lease), error_code=error_code)
        yield from self._end_as(actor)
        return bool(rows)

    def _begin_as(self, actor: Actor | None) -> Program[None]:
        """Whoever acts is named in the audit; where nobody is given it is the request."""
        if actor is not None:
            yield BEGIN
            yield from act_as(self._queries, actor)

    def _end_as(self, actor: Actor | None) -> Program[None]:
        if actor is not None:
            yield from act_end(self._queries)

    def complete(
        self,
        lease: Lease,
        operation_id: str,
        answer: Answer | None,
        *,
        status: int | None = None,
        actor: Actor | None = None,
        now: int | None = None,
    ) -> Program[int | None]:
        """Stores the final answer; input and phases have done their work and go."""
        yield BEGIN
        yield from self._begin_as(actor)
        expires_at = yield from self._keys.complete(lease, answer, status=status, now=now)
        if expires_at is not None:
            yield self._queries.statement("drop_input", now, operation_id=operation_id)
            yield self._queries.statement("drop_phases", now, operation_id=operation_id)
        yield from self._end_as(actor)
        return expires_at

    def release(self, lease: Lease, operation_id: str, *, now: int | None = None) -> Program[bool]:
        """Frees the key as if it had never been used; the input goes with it."""
        yield BEGIN
        released = yield from self._keys.release(lease, now=now)
        if released:
            yield self._queries.statement("drop_input", now, operation_id=operation_id)
            yield self._queries.statement("drop_phases", now, operation_id=operation_id)
        return released

    def take_abandoned(
        self,
        token: str,
        known: Sequence[str],
        *,
        lease_ms: int,
        batch: int,
        full_tenants: Sequence[str] = (),
        tell: Tell | None = None,
        now: int | None = None,
    ) -> Program[list[Record]]:
        """Operations whose lease ran out, now under attempts of ours. ``known``: ``name/version``.

        Those of ``full_tenants`` are left alone. ``tell`` hears of what this version cannot read.
        """
        full = never_empty(full_tenants)
        if self._queries.names_actor_apart:
            yield BEGIN
        yield from self._queries.act_as("completer")
        rows = yield self._queries.statement(
            "take_abandoned",
            now,
            token=token,
            known=list(known),
            known_list=json.dumps(list(known)),
            lease_ms=lease_ms,
            batch=batch,
            full=full,
            full_list=json.dumps(full),
        )
        yield from self._queries.act_no_more()
        return records(rows, tell)

    def _may_send(
        self,
        lease: Lease,
        name: str,
        now: int | None,
        unless: Callable[[], Program[bool]] | None = None,
    ) -> Program[None]:
        """The fence of what is sent: nothing is, and nothing is taken back, while a provider says that
        something happened of which nobody here knows."""
        _, disputed = yield from self._check_fence(lease, name, now)
        if disputed and not (unless is not None and (yield from unless())):
            raise Disputed

    def _check_fence(self, lease: Lease, name: str, now: int | None) -> Program[tuple[int, bool]]:
        """Gives what tells this transaction from others, on PostgreSQL, and whether a provider's yes
        waits."""
        rows = yield self._queries.statement("fence", now, **_fence(lease), name=name)
        if not rows:
            raise LeaseLost(f"Somebody else has taken the operation; {name!r} was rolled back.")
        return _int(rows[0][0]), rows[0][1] == 1


class Overtaken(LeaseLost):
    """Nothing was written: others have moved the record since its holder looked."""


class Disputed(Exception):
    """A provider says that something of this operation happened, and that word waits: nothing was written."""


def _fence(lease: Lease) -> dict[str, Value]:
    return {"scope": lease.scope, "key": lease.key, "attempt": lease.attempt}


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise CorruptRecord(f"The store answered {type(value).__name__} where a number belongs.")
    return value

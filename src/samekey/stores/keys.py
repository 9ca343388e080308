"""The programs on keys: claim, read, renew, complete, fail, lose, release, expire. The same for every store.

Each statement compares and sets by attempt id, so each may commit by itself: whoever comes second finds
that its attempt id is no longer there and changes nothing. Atomic work has its own file, ``sql/atomic.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from ..core.agreement import ERRORS_FROM
from ..core.claim import Claim, downstream_base
from ..core.decide import (
    Decision,
    EndLease,
    Execute,
    Move,
    Resume,
    Retry,
    Reuse,
    Unreadable,
    Verdict,
    decide,
    has_expired,
)
from ..core.disputes import Yes, decode_all, encode_all, is_known_to, yes_of
from ..core.effects import ANSWERED, NOTHING_SENT, RELEASED, Says, Sent
from ..core.policy import Policy
from ..core.program import BEGIN, Program, Row, Statement, Value
from ..core.record import ANSWER_VERSION, Answer, Lease, Record, decode_record, encode_headers
from ..core.states import Mode, State
from ..errors import CorruptRecord, LimitExceeded, StoreBusy
from .statements import Statements

ROUNDS = 16
"""How often a claim looks again when the record moves under its eyes. Each round means that somebody else
made progress, so more than a few is unheard of; the bound turns the unheard-of into a 503."""

LOOKED_AT = 50
"""Leases that were not renewed and are looked at in one go; with a lock on each, still far below a beat."""
DISPUTED = "disputed"
"""The error code of a key that would have been freed against a provider's word."""
NOT_BEGUN = "not_begun"
"""The error code of an attempt that took its key and never reached its handler."""

_LEASED: Final = (Mode.LEASED, Mode.REPEATABLE)
_LEFT: Final = (State.UNKNOWN, State.FAILED_RETRYABLE, State.DEAD_LETTER)
"""States in which others leave an operation that has no answer, and that nobody runs."""


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no record of the key, at this time of the store's."""

    clock: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A record that is there and may be run again, while its attempt is still the current one."""

    record: Record
    reused: bool
    """It has expired: what runs is the key's next life, and another operation."""


class Keys:
    """Programs on the keys of one store. ``now`` is for tests; else the store's clock rules."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self.lease_ended: Callable[[Record], None] = lambda _: None
        """Hears of records whose lease a request has ended, as the sweeper would have."""

    def operation_id(self, token: str, scope: str, key: str) -> str:
        """The id of this key's operation; ``token`` is random, so nobody can guess it."""
        return self._statements.operation_id(token, scope, key)

    def claim(self, claim: Claim, policy: Policy, *, now: int | None = None) -> Program[Decision]:
        """Takes the key, or says why not. A new key, or a replay, is one statement on PostgreSQL."""
        for _ in range(ROUNDS):
            row, mine, clock = yield from self._reserve(claim, now)
            if row is None:
                continue  # somebody's insert committed while ours looked
            try:
                record = decode_record(row)
                if mine or record.attempt == claim.attempt:
                    # The second: our own insert landed, but its acknowledgement was lost.
                    return Execute(record)
                decision = yield from self._settle(record, claim, policy, clock, now)
            except CorruptRecord as error:
                return Unreadable(str(error))
            if decision is not None:
                return decision
        raise StoreBusy("The record of this key would not hold still. Retry with the same key.")

    def _reserve(self, claim: Claim, now: int | None) -> Program[tuple[Row | None, bool, int]]:
        if self._statements.looks_first:
            found = yield self._statements.statement("find", now, scope=claim.scope, key=claim.key)
            clock, record = found[0][0], found[0][1:]
            if record[0] is not None:
                return record, False, _int(clock)
        rows = yield self._statements.statement("reserve", now, **claim_values(claim))
        if not rows:
            return None, False, 0
        clock, mine, *rest = rows[0]
        return rest, mine == 1, _int(clock)

    def _settle(
        self, record: Record, claim: Claim, policy: Policy, clock: int, now: int | None
    ) -> Program[Decision | None]:
        """Decides, and moves the record where the decision says so. None: it moved, look again."""
        verdict = yield from self._decide(record, claim, policy, clock)
        while isinstance(verdict, Move):
            if isinstance(verdict, Retry):
                must_be_tried(verdict.record, policy)
            rows = yield self._move(verdict, claim, now)
            if not rows:
                return None
            clock, moved = _int(rows[0][0]), decode_record(rows[0][1:])
            match verdict:
                case EndLease():
                    self.lease_ended(moved)
                    verdict = decide(moved, claim, policy, clock)
                case Retry() | Resume():
                    return Execute(moved)
                case Reuse():
                    return Execute(moved, reused=True)
                case _:
                    assert_never(verdict)
        return verdict

    def _decide(self, record: Record, claim: Claim, policy: Policy, clock: int) -> Program[Verdict | Move]:
        kept = has_expired(record, clock) and (yield from self.is_kept(record))
        return decide(record, claim, policy, clock, kept=kept)

    def is_kept(self, record: Record) -> Program[bool]:
        """Of a record whose retention is over: whether something of its operation is left."""
        return bool((yield from self.unfinished(record.id)))

    def unfinished(self, operation_id: str) -> Program[Sequence[tuple[str, str, str]]]:
        """What keeps a settled record beyond its retention: the kind of each part, its name and its state."""
        if not self._statements.has_parts:
            return ()
        rows = yield self._statements.statement("unfinished", None, operation_id=operation_id)
        return [(str(kind), str(name), str(state)) for kind, name, state in rows]

    def _move(self, move: Move, claim: Claim, now: int | None) -> Statement:
        name = {Retry: "retry", Resume: "resume", EndLease: "end_lease", Reuse: "reuse"}[type(move)]
        record = move.record
        return self._statements.statement(
            name, now, seen=record.attempt, life=record.life + 1, **claim_values(claim)
        )

    def look(
        self, claim: Claim, policy: Policy, *, now: int | None = None
    ) -> Program[Verdict | Seen | Absent]:
        """What the record that is there says, without taking it."""
        for _ in range(ROUNDS):
            rows = yield self._statements.statement("find", now, scope=claim.scope, key=claim.key)
            clock, *row = rows[0]
            if row[0] is None:
                return Absent(_int(clock))
            try:
                record = decode_record(row)
                verdict = yield from self._decide(record, claim, policy, _int(clock))
                if isinstance(verdict, EndLease):
                    for moved in (yield self._move(verdict, claim, now)):
                        self.lease_ended(decode_record(moved[1:]))
                    continue
            except CorruptRecord as error:
                return Unreadable(str(error))
            if isinstance(verdict, Retry | Reuse | Resume):
                return Seen(verdict.record, isinstance(verdict, Reuse))
            return verdict
        raise StoreBusy("The record of this key would not hold still. Retry with the same key.")

    def read(self, scope: str, key: str, *, now: int | None = None) -> Program[Record | None]:
        """The record of a key."""
        rows = yield self._statements.statement("find", now, scope=scope, key=key)
        return None if rows[0][1] is None else decode_record(rows[0][1:])

    def read_by_id(self, operation_id: str, *, now: int | None = None) -> Program[tuple[int, Record] | None]:
        """The record of an operation id, with the store's clock."""
        rows = yield self._statements.statement("find_by_id", now, id=operation_id)
        return (_int(rows[0][0]), decode_record(rows[0][1:])) if rows else None

    def existed(self, operation_id: str, tenant: str) -> Program[bool]:
        """Whether this id was one of the tenant's, as far as the store remembers: reaped or a former life."""
        rows = yield self._statements.statement("find_former", None, id=operation_id, tenant=tenant)
        return bool(rows)

    def read_by_downstream(self, downstream_key: str) -> Program[Record | None]:
        """The record whose operation made this downstream key, at whatever step."""
        base = downstream_key.partition("-")[0]
        rows = yield self._statements.statement("find_by_downstream", None, downstream=base)
        return decode_record(rows[0][1:]) if rows else None

    def read_by_provider_id(
        self, provider_id: str, *, tenant: str, source: str | None
    ) -> Program[list[tuple[str | None, Record]]]:
        """The effects of one tenant that keep this id of the provider's: the downstream key of each, and its
        operation. ``tenant`` is as records hold it; without a source, whatever the source."""
        rows = yield self._statements.statement(
            "find_by_provider_id", None, provider_id=provider_id, tenant=tenant, source=source
        )
        return [(None if row[0] is None else str(row[0]), decode_record(row[2:])) for row in rows]

    def renew(self, leases: Sequence[Lease], *, now: int | None = None) -> Program[set[str]]:
        """Renews them in one statement; gives the attempts that it renewed.

        It waits for nobody: a record that is locked is left out, like one that was lost (see ``held``).
        """
        rows = yield self._statements.statement(
            "renew",
            now,
            scopes=[lease.scope for lease in leases],
            key_list=[lease.key for lease in leases],
            attempts=[lease.attempt for lease in leases],
            durations=[lease.duration_ms for lease in leases],
            leases=json.dumps([[x.scope, x.key, x.attempt, x.duration_ms] for x in leases]),
        )
        return {str(row[0]) for row in rows}

    def held(self, leases: Sequence[Lease], *, now: int | None = None) -> Program[set[str]]:
        """Of leases that were not renewed, the attempts that still hold their record.

        Few are looked at, one by one: there are rarely more. The others count as held until their turn comes.
        """
        held = {lease.attempt for lease in leases[LOOKED_AT:]}
        for lease in leases[:LOOKED_AT]:
            record = yield from self.read(lease.scope, lease.key, now=now)
            if record is not None and record.attempt == lease.attempt and record.state is State.IN_PROGRESS:
                held.add(lease.attempt)
        return held

    def complete(
        self,
        lease: Lease,
        answer: Answer | None,
        *,
        provider_id: str | None = None,
        sent: Sent = NOTHING_SENT,
        status: int | None = None,
        now: int | None = None,
    ) -> Program[int | None]:
        """Stores the answer (None: it is withheld; then ``status`` tells which it was). Gives the expiry, or
        None if the lease was lost.

        A leased handler's own answer counts for its own run, whatever others have found out or given up
        meanwhile, as long as there is no answer and nobody has run it since.

        An answer that says no is none against a provider's yes that waits and of which the handler does not
        know: the outcome is unknown then, until somebody has seen both, and it gives None.
        """
        said = status if answer is None else answer.status
        refuses = said is not None and said >= ERRORS_FROM
        values = {**answer_values(answer), "provider_id": provider_id, "happened": int(not refuses)}
        rows = yield from self._noting("complete", lease, sent, now, **values, heeded=None)
        if not rows and refuses:
            known = yield from self._known(lease, sent, now)
            if known is not None:
                rows = yield from self._noting(
                    "complete", lease, sent, now, **values, heeded=encode_all(known)
                )
        if rows:
            return _int(rows[0][1])
        if refuses and (yield from self._noting("hold", lease, sent, now, error_code=f"{ANSWERED}{said}")):
            return None
        # Perhaps it is recorded already, and only the acknowledgement of that was lost.
        record = yield from self.read(lease.scope, lease.key, now=now)
        if record is not None and record.attempt == lease.attempt and record.state is State.COMPLETED:
            return record.expires_at
        rows = yield from self._left_behind("complete", lease, sent, now, **values, heeded=None)
        return _int(rows[0][1]) if rows else None

    def _known(self, lease: Lease, sent: Sent, now: int | None) -> Program[list[Yes] | None]:
        """The events that say yes and wait, if the handler knows of all of them: its answer is given with
        that in mind. None: it does not, or the operation is not its own any more."""
        record = yield from self.read(lease.scope, lease.key, now=now)
        if record is None or record.attempt != lease.attempt:
            return None
        waiting = yield from self._waiting(record.id)
        knows = all(is_known_to(yes, sent.steps, sends=record.attempts) for yes in waiting)
        return waiting if knows else None

    def _waiting(self, operation_id: str) -> Program[list[Yes]]:
        """The events that say yes and wait. Where the store has transactions, no other comes before this one
        ends; else the statement that follows compares them."""
        if self._statements.notes_along:
            rows = yield self._statements.statement("disputed_by", None, operation_id=operation_id)
            return decode_all(str(rows[0][0])) if rows else []
        yield BEGIN
        yield self._statements.statement("lock_operation", None, operation_id=operation_id)
        rows = yield self._statements.statement("unsettled_evidence", None, operation_id=operation_id)
        return [yes_of(row) for row in rows if row[6] == Says.EXECUTED]

    def fail(
        self, lease: Lease, error_code: str, *, sent: Sent = NOTHING_SENT, now: int | None = None
    ) -> Program[bool]:
        """Nothing happened: one retry may run. False if the lease was lost.

        If a provider says otherwise and that word waits, nobody may: the outcome is unknown.
        """
        rows = yield from self._noting("fail", lease, sent, now, error_code=error_code)
        if not rows:
            rows = yield from self._noting("hold", lease, sent, now, error_code=error_code)
        return bool(rows)

    def lose(
        self,
        lease: Lease,
        error_code: str,
        *,
        provider_id: str | None = None,
        sent: Sent = NOTHING_SENT,
        now: int | None = None,
    ) -> Program[int | None]:
        """Nobody can tell what happened. Gives the expiry, or None if the lease was lost.

        A leased handler that knows the provider's id of what it has made is heard as ``complete`` is: what
        others have found out meanwhile, they found out without that.
        """
        values: dict[str, Value] = {"error_code": error_code, "provider_id": provider_id}
        rows = yield from self._noting("lose", lease, sent, now, **values)
        if not rows and sent.made:
            rows = yield from self._left_behind("lose", lease, sent, now, **values)
        return _int(rows[0][1]) if rows else None

    def _left_behind(
        self, name: str, lease: Lease, sent: Sent, now: int | None, **values: Value
    ) -> Program[Sequence[Row]]:
        """The outcome of a leased run that others have moved and nobody has taken: its holder knows best."""
        seen = ""
        for _ in range(ROUNDS):
            record = yield from self.read(lease.scope, lease.key, now=now)
            if record is None or record.run != lease.attempt or record.attempt == seen:
                break
            seen = record.attempt
            if record.mode not in _LEASED or record.state not in _LEFT:
                break
            rows = yield from self._noting(name, replace(lease, attempt=seen), sent, now, **values)
            if rows:
                return rows
        return ()

    def note_former(
        self, lease: Lease, operation_id: str, sent: Sent, *, now: int | None = None
    ) -> Program[None]:
        """What the provider has made for an attempt that is not the current one any more: its ids lead to the
        operation all the same."""
        if not sent.made:
            return
        fence = _lease_values(lease)
        if self._statements.notes_along:
            yield self._statements.statement(
                "note_former", now, **fence, operation_id=operation_id, **sent.values()
            )
            return
        yield BEGIN
        for one in sent.made:
            yield self._statements.statement(
                "note_former",
                now,
                operation_id=operation_id,
                attempt=lease.attempt,
                step=one.step,
                downstream_key=one.downstream_key,
                provider_id=one.provider_id,
                source=one.source,
            )

    def _noting(
        self, name: str, lease: Lease, sent: Sent, now: int | None, **values: Value
    ) -> Program[Sequence[Row]]:
        """An outcome, and with it what the handler may have sent: in one statement where the store can."""
        if sent.steps and not self._statements.notes_along:
            yield BEGIN
        rows = yield self._statements.statement(name, now, **_lease_values(lease), **values, **sent.values())
        if rows and not self._statements.notes_along:
            for place, one in enumerate(sent.steps):
                yield self._statements.statement(
                    "note_call",
                    now,
                    scope=lease.scope,
                    key=lease.key,
                    step=one.step,
                    place=str(place),
                    downstream_key=one.downstream_key,
                    provider_id=one.provider_id,
                    source=one.source,
                )
        return rows

    def release(self, lease: Lease, *, now: int | None = None) -> Program[bool]:
        """Frees the key as if it had never been used, or, where it had a former life, for a retry: what the
        provider has made for that one must stay known. False if the lease was lost, or, as for ``fail``, the
        key must not be free."""
        rows = yield self._statements.statement("release", now, **_lease_values(lease))
        if not rows:
            rows = yield from self._noting("fail", lease, NOTHING_SENT, now, error_code=RELEASED)
        if not rows:
            yield from self._noting("hold", lease, NOTHING_SENT, now, error_code=DISPUTED)
        return bool(rows)

    def give_back(self, lease: Lease, claim_id: str, *, now: int | None = None) -> Program[bool]:
        """Undoes a claim under which nothing was run: the key is free again if this claim made its record,
        and somebody's to retry if it took one over. ``claim_id`` tells which: a record keeps the id of the
        claim that made it, whoever counts its attempts anew.

        False if the claim is not there: it never landed, or has not landed yet.
        """
        record = yield from self.read(lease.scope, lease.key, now=now)
        if record is None or record.attempt != lease.attempt:
            return False
        if record.id == claim_id:
            return (yield from self.release(lease, now=now))
        if record.mode is Mode.PHASED:
            # What earlier attempts did stands: whoever comes next goes on from there, at once.
            rows = yield self._statements.statement(
                "let_go", now, **_lease_values(lease), pause_ms=0, error_code=NOT_BEGUN, uncounted=1
            )
            return bool(rows)
        return (yield from self.fail(lease, NOT_BEGUN, now=now))

    def expire(self, scope: str, key: str, *, now: int | None = None) -> Program[bool]:
        """Turns a settled record past its retention into a tombstone. False if it is not one."""
        rows = yield self._statements.statement("expire", now, scope=scope, key=key)
        return bool(rows)


def must_be_tried(record: Record, policy: Policy) -> None:
    """``LimitExceeded`` if the key has failed as often as it may. Asked where a key is taken, only there."""
    most = policy.attempts_per_key
    if most is not None and record.attempts >= most:
        raise LimitExceeded(
            f"This key was tried {most} times, and failed each time. Nothing was done; it can be used again "
            "when it has expired.",
            max(1, (record.expires_at - record.last_run_at) // 1000),
        )


def claim_values(claim: Claim) -> dict[str, Value]:
    """The parameters that a claim gives to a statement."""
    # Only work with effects outside the database can be asked about by a provider.
    base = None if claim.mode is Mode.ATOMIC else downstream_base(claim.scope, claim.key)
    return {
        "scope": claim.scope,
        "key": claim.key,
        "id": claim.id,
        "tenant": claim.tenant,
        "endpoint": claim.endpoint,
        "fingerprint": claim.fingerprint,
        "fingerprint_version": claim.fingerprint_version,
        "mode": str(claim.mode),
        "attempt": claim.attempt,
        "lease_ms": claim.lease_ms,
        "ttl_ms": claim.ttl_ms,
        "ttl_from": claim.ttl_from,
        "after_expiry": claim.after_expiry,
        "downstream": base,
    }


def answer_values(answer: Answer | None) -> dict[str, Value]:
    """The parameters of a stored answer; a withheld one keeps only the fact."""
    return {
        "answer_version": ANSWER_VERSION,
        "answer_status": None if answer is None else answer.status,
        "answer_headers": None if answer is None else encode_headers(answer.headers),
        "answer_body": None if answer is None else answer.body,
    }


def _lease_values(lease: Lease) -> dict[str, Value]:
    return {"scope": lease.scope, "key": lease.key, "attempt": lease.attempt}


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise CorruptRecord(f"The store answered {type(value).__name__} where a number belongs.")
    return value

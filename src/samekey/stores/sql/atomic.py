"""The programs of atomic work on PostgreSQL: lock, run, commit with the answer.

They run inside the handler's own transaction. The record is written once, completed, as the last
statement before COMMIT. The lock spares duplicates the wait; the unique index is the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.claim import Claim, lock_number
from ...core.decide import Outstanding, Verdict
from ...core.policy import Policy
from ...core.program import Program, Statement, Value
from ...core.record import Answer
from ...core.states import State
from ...errors import ConfigurationError, OpenTransaction, WrongIsolation
from ..keys import Absent, Seen, answer_values, claim_values
from .keys import SqlKeys


@dataclass(frozen=True, slots=True)
class Opened:
    """Atomic work may run: since when, and which older record it may replace."""

    clock: int
    """The store's, in milliseconds."""
    operation_id: str
    life: int = 1
    seen: str | None = None
    reused: bool = False
    """The record that was seen is a former life of the key."""
    attempts: int = 1
    """With this one."""


@dataclass(frozen=True, slots=True)
class Written:
    """The record stands in the transaction and will appear with it."""

    expires_at: int
    wrote: bool
    """Whether the handler itself wrote anything in this transaction."""
    transaction: str
    """The transaction's id, to ask about if the acknowledgement of COMMIT is lost."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody else's record is there: roll back and decide again."""


@dataclass(frozen=True, slots=True)
class Escaped:
    """This is not the transaction that took the lock: the handler ended that one."""


def opened_values(claim: Claim, opened: Opened, schema: str) -> dict[str, Value]:
    """The parameters of a record that appears with its transaction.

    Its id is the one that the handler was told, whatever has become of the record that was there: a reaper
    may have been by.
    """
    return {
        **claim_values(claim),
        "id": opened.operation_id,
        "life": opened.life,
        "seen": opened.seen,
        "reused": int(opened.reused),
        "lock": lock_number(claim.scope, claim.key, schema),
    }


class AtomicKeys:
    """Programs for one dialect that has transaction-scoped advisory locks."""

    def __init__(self, keys: SqlKeys) -> None:
        self.keys = keys
        self.queries = keys.queries

    def enter(self, claim: Claim, absent: Absent, *, max_run_ms: int) -> Program[Opened | None]:
        """Begins atomic work for a key that was just seen to be new. None: it is not, or somebody has it;
        then ``open`` tells what is there."""
        rows = yield Statement(
            self.queries["atomic_enter"],
            {
                "lock": lock_number(claim.scope, claim.key, self.queries.schema),
                "attempt": claim.attempt,
                "max_run_ms": str(max_run_ms),
                "scope": claim.scope,
                "key": claim.key,
                "now": None,
            },
        )
        return Opened(absent.clock, claim.id) if rows else None

    def open(
        self, claim: Claim, policy: Policy, *, max_run_ms: int, now: int | None = None
    ) -> Program[Opened | Verdict]:
        """First in the transaction: the lock, then a fresh look at the record.

        Two statements, because one would look with a snapshot from before it had the lock, and could
        miss a record that was committed in between.
        """
        rows = yield Statement(
            self.queries["atomic_lock"],
            {
                "lock": lock_number(claim.scope, claim.key, self.queries.schema),
                "attempt": claim.attempt,
                "max_run_ms": str(max_run_ms),
                "probe_text": "probe",
                "probe_bytes": b"\x00\xff",
                "now": now,
            },
        )
        locked, clock, isolation, has_written, *probe, _, _ = rows[0]
        trusted = probe == [1, "probe", b"\x00\xff"]
        if not trusted or not isinstance(clock, int):
            raise ConfigurationError(
                "This connection has a codec of its own for text, bigint or bytea, so what is stored "
                "through it cannot be trusted. Nothing was run. Give atomic handlers a connection without "
                "one, or set the codec on another type."
            )
        if isolation != "read committed":
            raise WrongIsolation(str(isolation))
        if has_written:
            raise OpenTransaction
        if not locked:
            return Outstanding(None, clock + claim.ttl_ms)
        seen = yield from self.keys.look(claim, policy, now=now)
        if isinstance(seen, Absent):
            return Opened(clock, claim.id)
        if not isinstance(seen, Seen):
            return seen
        record = seen.record
        if seen.reused:
            return Opened(clock, claim.id, record.life + 1, record.attempt, reused=True)
        return Opened(clock, record.id, record.life, record.attempt, attempts=record.attempts + 1)

    def commit(
        self,
        claim: Claim,
        opened: Opened,
        answer: Answer | None,
        *,
        provider_id: str | None = None,
        now: int | None = None,
    ) -> Program[Written | Taken | Escaped]:
        """Last in the transaction: the record, with the proof that it is still the same one."""
        values = {
            **opened_values(claim, opened, self.queries.schema),
            **answer_values(answer),
            "provider_id": provider_id,
        }
        values["now"] = now
        if opened.reused:
            yield Statement(self.queries["make_room"], values)
        rows = yield Statement(self.queries["atomic_commit"], values)
        same, wrote, expires_at, transaction = rows[0]
        if not same:
            return Escaped()
        if expires_at is None:
            return Taken()
        assert isinstance(expires_at, int)
        return Written(expires_at, bool(wrote), str(transaction))

    def still_open(self, claim: Claim) -> Program[bool]:
        """Before a rollback: whether this is still the transaction that took the lock."""
        rows = yield Statement(
            self.queries["atomic_proof"],
            {"attempt": claim.attempt, "lock": lock_number(claim.scope, claim.key, self.queries.schema)},
        )
        return bool(rows[0][0])

    def remember(
        self, claim: Claim, opened: Opened, answer: Answer | None, *, now: int | None = None
    ) -> Program[int | None]:
        """After a rollback: a refusal to be remembered. None if somebody else was first."""
        return self._outcome(claim, opened, State.COMPLETED, now, **answer_values(answer))

    def lose(
        self, claim: Claim, opened: Opened, error_code: str, *, now: int | None = None
    ) -> Program[int | None]:
        """After an escape: nobody can tell what stands, so no retry may run."""
        return self._outcome(
            claim,
            opened,
            State.UNKNOWN,
            now,
            answer_version=None,
            answer_status=None,
            answer_headers=None,
            answer_body=None,
            error_code=error_code,
        )

    def _outcome(
        self, claim: Claim, opened: Opened, state: State, now: int | None, **values: Value
    ) -> Program[int | None]:
        rows = yield Statement(
            self.queries["atomic_outcome"],
            {
                "error_code": None,
                **opened_values(claim, opened, self.queries.schema),
                **values,
                "state": str(state),
                "now": now,
            },
        )
        if not rows:
            return None
        assert isinstance(rows[0][1], int)
        return rows[0][1]

    def transaction_status(self, transaction: str) -> Program[str]:
        """``committed``, ``aborted``, ``in progress``, or ``unknown`` if it is too long ago."""
        rows = yield Statement(self.queries["transaction_status"], {"transaction": transaction, "now": None})
        return str(rows[0][0])

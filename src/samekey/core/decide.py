"""The decision table: what the second request gets.

``decide`` looks at the record that is there and says one of a closed set of things. Some are answers
(``Replay``, ``Mismatch`` …); some tell the store what to try next (``Retry``, ``EndLease`` …), in one
statement that compares and sets, because between reading and deciding the record may have moved.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from .claim import Claim
from .fingerprint import differing
from .policy import Policy
from .record import Record
from .states import Mode, State, StateEvent, sources


@dataclass(frozen=True, slots=True)
class Execute:
    """The claim was won: run the handler."""

    record: Record
    reused: bool = False
    """The key had a former life that expired (counted, audited, same downstream key)."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Completed: the first answer, byte for byte."""

    record: Record


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Somebody is running it."""

    operation_id: str | None
    """None for atomic work that has not committed: nobody can see its record yet."""
    expires_at: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The same key with another request."""

    record: Record
    differs: tuple[str, ...] = ()
    """In which parts, by the names of ``fingerprint.PARTS``."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Nobody can tell yet whether it happened."""

    record: Record


@dataclass(frozen=True, slots=True)
class Ask:
    """Expired, and whoever can tell must be asked before the key runs again. Until then nobody knows."""

    record: Record


@dataclass(frozen=True, slots=True)
class Accepted:
    """Written down; a worker will do it or is doing it."""

    record: Record


@dataclass(frozen=True, slots=True)
class Gone:
    """Used long ago; only the fact is left."""

    record: Record


@dataclass(frozen=True, slots=True)
class Withheld:
    """It was done, but its answer was streamed or too large to keep."""

    record: Record


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The record is corrupt, or written by a version that this one does not know."""

    detail: str


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """It began as phases, some of which are done, and its handler is no longer made of phases."""

    record: Record

    @property
    def detail(self) -> str:
        done = "nowhere yet" if self.record.recovery_point is None else repr(self.record.recovery_point)
        return (
            f"This operation began as phased work and got as far as {done}; its handler now has another mode "
            "and would begin from the start. It was left as it was. Keep the phased definition registered "
            "and its route in place until its operations are done, or give the new handler its own route."
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """To try next: win the right to run a failed operation again."""

    record: Record


@dataclass(frozen=True, slots=True)
class Resume:
    """To try next: take over phased work at its recovery point."""

    record: Record


@dataclass(frozen=True, slots=True)
class EndLease:
    """To try next: move a record whose lease ran out, by its mode."""

    record: Record


@dataclass(frozen=True, slots=True)
class Reuse:
    """To try next: begin a new life of an expired key."""

    record: Record


Verdict: TypeAlias = (
    Replay | Outstanding | Mismatch | Uncertain | Ask | Accepted | Gone | Withheld | Unreadable | ModeChanged
)
"""The request is answered without running anything."""

Move: TypeAlias = Retry | Resume | EndLease | Reuse
"""The record must move first, by compare and set."""

Decision: TypeAlias = Execute | Verdict
"""What a claim comes to in the end."""


def decide(record: Record, claim: Claim, policy: Policy, now: int, *, kept: bool = False) -> Verdict | Move:
    """What this request gets, given the record that is there at ``now`` (the store's clock).

    ``kept``: its retention is over, but its operation is not (a job is still to run, say). It answers as it
    did before: another life would send the same downstream keys beside it.
    """
    if has_expired(record, now) and not kept:
        # A key whose retention is over means nothing any more, so its fingerprint binds nobody.
        if record.after_expiry == "gone":
            return Gone(record)
        asks = record.after_expiry == "ask" or claim.has_lookup(record.endpoint)
        # What was found out is about this very record, and not about another life that came and went since.
        return Ask(record) if asks and claim.asked != record.attempt else Reuse(record)
    if policy.on_mismatch != "replay":
        # Before any other answer: a different request learns nothing about the first one.
        digest = claim.digest_as(record.fingerprint_version)
        if digest is None:
            return Unreadable(
                f"the stored fingerprint has version {record.fingerprint_version!r}, which this "
                "process cannot compute; was a fingerprint secret removed too early?"
            )
        if not hmac.compare_digest(digest, record.fingerprint):
            return Mismatch(record, differing(digest, record.fingerprint))
    match record.state:
        case State.COMPLETED:
            return Withheld(record) if record.withheld else Replay(record)
        case State.PENDING:
            return Accepted(record)
        case State.FAILED_RETRYABLE:
            # Found not executed: that one effect. What came before it stands.
            begun = record.mode is Mode.PHASED and record.recovery_point is not None
            return ModeChanged(record) if begun and claim.mode is not Mode.PHASED else Retry(record)
        case State.UNKNOWN | State.DEAD_LETTER:
            return Uncertain(record)
        case State.IN_PROGRESS:
            return _in_progress(record, claim, now)
        case State.EXPIRED:
            return Gone(record)
        case _:
            assert_never(record.state)


def _in_progress(record: Record, claim: Claim, now: int) -> Verdict | Move:
    if record.locked_until is None:
        return Unreadable("an operation in progress has no lease")
    if record.locked_until <= now:
        if record.mode is not Mode.PHASED:
            return EndLease(record)
        return Resume(record) if claim.mode is Mode.PHASED else ModeChanged(record)
    return Outstanding(record.id, record.expires_at)


_EXPIRE: Final = frozenset(sources(StateEvent.EXPIRE))


def has_expired(record: Record, now: int) -> bool:
    """Retention is over, whether or not the reaper has been by. Unsettled records never expire."""
    if record.state is State.EXPIRED:
        return True
    return record.state in _EXPIRE and record.expires_at <= now

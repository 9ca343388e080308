"""What the engine, the workers and the operator's commands ask of every store beside its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ..core.disputes import Yes
from ..core.effects import KnownEffect
from ..core.program import Program
from ..core.record import Answer, Record
from .readable import Tell

KEEP_MS: Final = 30 * 86_400_000
"""How long a tombstone is kept, in milliseconds. One that is ``gone`` stays for good."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and why. It goes into the audit, where the store keeps one."""

    name: str
    reason: str | None = None


MANY: Final = 1_000_000
"""As far as records past retention are counted."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The figures that a doctor looks at. Times are milliseconds by the store's clock."""

    now: int
    records: int
    unknown: int
    oldest_unknown: int | None
    dead_letters: int
    ended_leases: int
    oldest_lease_end: int | None
    past_retention: int
    """Counted no further than ``MANY``."""
    live_jobs: int
    oldest_due: int | None
    dead_jobs: int
    pending: int
    oldest_expiry: int | None
    """The earliest expiry of a settled record, past or to come."""
    ended_phased: int
    """Of ``ended_leases``, those that the completer should take up."""
    oldest_phased_end: int | None
    oldest_other_end: int | None
    """The earliest lease end of work that is the sweeper's, past or to come."""
    oldest_asking: int | None
    """When the reconciler should have asked, or will ask, about an unknown outcome next."""
    oldest_pending: int | None


class Searching(Protocol):
    """Finding out unknown outcomes, and looking at records."""

    def take_unknown(
        self,
        *,
        batch: int,
        lease_ms: int,
        without: Sequence[str] = (),
        tell: Tell | None = None,
        now: int | None = None,
    ) -> Program[list[tuple[int, Record]]]:
        """Unknown outcomes to ask about now, each with how often it has been asked, this time included.

        ``without``: endpoints to leave out. Nothing of theirs is changed: others may ask about it now.
        ``tell`` hears of records that this version cannot read; they are left alone.

        Their next date is moved on by ``lease_ms``, so that no other node asks at the same time.
        """

    def ask_again(
        self, operation_id: str, *, pause_ms: int, attempt: str | None = None, now: int | None = None
    ) -> Program[None]:
        """Puts the next question off."""

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

        False if it is settled already, or ``attempt`` is given and is no longer the current one. ``despite``
        is for a refusal, on a store without a table of events: as for ``not_executed``.
        """

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
        """A key that had expired has its answer again (None: it is withheld), for as long as at first.

        ``seen`` is the attempt that was asked about, ``attempt`` a fresh one. False if the record has moved.
        """

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
        """It never happened: one retry may run. False as for ``executed``, and where a provider says that it
        happened in an event that nobody sets aside (``despite``: see ``disputed_by``).

        ``event``: what tells the event that says so from others. A store without a table of events keeps it
        in the record (see ``freed_by``).
        """

    def dispute(self, operation_id: str, yes: Yes, *, attempt: str, now: int | None = None) -> Program[bool]:
        """An event says that it happened, and could not settle this attempt: until somebody has, the key is
        never free. A store with a table of events does this with the event. False if the record has moved."""

    def disputed_by(self, operation_id: str) -> Program[list[Yes]]:
        """All such events that wait."""

    def freed_by(self, operation_id: str) -> Program[list[str]]:
        """The events that have freed attempts of this operation, where the record keeps them."""

    def give_up(
        self, operation_id: str, actor: Actor, *, attempt: str | None = None, now: int | None = None
    ) -> Program[bool]:
        """Asking has been exhausted: dead letter."""

    def evict(self, operation_id: str, actor: Actor, *, now: int | None = None) -> Program[bool]:
        """Drops a stored answer. The fact stays: a retry is told that it was done, and is not run."""

    def extend(
        self, operation_id: str, until: int, actor: Actor, *, attempt: str, now: int | None = None
    ) -> Program[bool]:
        """Keeps a completed record until then (milliseconds by the store's clock). False if its retention is
        over or ends later already, or if it has moved."""

    def reopen(
        self, operation_id: str, actor: Actor, *, attempt: str, now: int | None = None
    ) -> Program[bool]:
        """A failure that was remembered as the answer may be tried again, once. False if the record has moved
        or has no such answer, is phased or deferred, or while a provider says that it happened."""

    def effects(self, operation_id: str) -> Program[list[KnownEffect]]:
        """What the operation may have sent, as far as the store was told."""

    def past_ids(self, operation_id: str) -> Program[list[str]]:
        """The provider's ids that former lives of the operation's key have noted."""

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
        """Records, newest first."""

    def by_id(self, operation_id: str) -> Program[Record | None]:
        """The record of an operation, for somebody who only looks."""

    def clocked(self, operation_id: str) -> Program[tuple[int, Record] | None]:
        """The record of an operation, with the store's clock."""

    def by_key(self, scope: str, key: str) -> Program[Record | None]:
        """The record of a key, for somebody who only looks."""

    def overview(self, *, now: int | None = None) -> Program[Overview]:
        """The figures of the whole store. What it has no place for is 0 or None."""


class Tending(Protocol):
    """Upkeep: leases that ran out, operations that nobody started, records that are old."""

    def sweep(self, *, batch: int, tell: Tell | None = None, now: int | None = None) -> Program[list[Record]]:
        """Moves records whose lease ran out, each by its mode; gives them as they are now. ``tell`` hears of
        those that this version cannot read: they are moved as well."""

    def to_sweep(self, *, now: int | None = None) -> Program[dict[str, int]]:
        """How many records a sweep would move, by mode. Changes nothing."""

    def reap(
        self, *, batch: int, keep_ms: int = KEEP_MS, soft: bool = False, now: int | None = None
    ) -> Program[int]:
        """Deletes or buries settled records past retention, each as it says itself; gives how many.

        ``keep_ms``: how long a tombstone is kept, but for those of ``gone``, which stay. ``soft``: bury all.
        """

    def to_reap(self, *, now: int | None = None) -> Program[dict[str, int]]:
        """How many records are past retention, by state. Changes nothing."""

    def abandoned(
        self, *, timeout_ms: int, batch: int, now: int | None = None
    ) -> Program[list[tuple[str, str, str]]]:
        """Pending operations that have waited too long: scope, key and operation id."""

    def to_time_out(self, *, timeout_ms: int, now: int | None = None) -> Program[int]:
        """How many pending operations have waited too long. Changes nothing."""

    def time_out(
        self, scope: str, key: str, operation_id: str, answer: Answer, *, now: int | None = None
    ) -> Program[bool]:
        """Closes a pending operation with a stored failure."""

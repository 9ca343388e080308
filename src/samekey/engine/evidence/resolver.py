"""What applies evidence to operations, as the rest sees it. A store with tables keeps words
(``reconcile.py``); a key store applies them at once, or not at all (``direct.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...core.program import Program
from ...core.record import Record
from ...evidence import Evidence
from ...stores.protocols import Actor, Searching
from .said import Misfit, Resolution, Said


class Resolver(Protocol):
    """Applies evidence to operations."""

    @property
    def finding(self) -> Searching: ...

    def apply(
        self, record: Record, finding: Evidence, actor: Actor, *, despite: Sequence[str] = ()
    ) -> Program[bool]:
        """A lookup's or an operator's word about an unknown or dead record as it was seen: about the leased
        call, or about the effect of phased work that has no result. False if somebody else was first.

        ``Contradicted`` if a provider says that it happened: only an operator, who names those events
        (``despite``), may say otherwise.
        """

    def receive(self, said: Said, operation_id: str) -> Program[Resolution | Misfit]:
        """One event of a provider's about an operation. ``Moved`` if that moved meanwhile: try again."""

    def apply_waiting(self, operation_id: str) -> Program[bool]:
        """Uses what was kept, if it can be used now."""

    def has_unread(self, operation_id: str) -> Program[bool]:
        """Whether a word about it waits that only a process with another encryption key can read."""

    def stranded(self, *, batch: int) -> Program[list[str]]:
        """Operations that run no more while evidence about them waits."""

    def looked_at(self, operation_id: str) -> Program[None]:
        """What waits about it could not be used now: that of others comes first, next time."""

    def note_ambiguous(self, said: Said, operation_id: str) -> Program[None]:
        """Keeps an event for an operator to see: nothing of this operation is free before that. ``Moved`` as
        for ``receive``."""

    def note_candidate(self, said: Said, operation_id: str) -> Program[bool]:
        """The same of an event that fits this operation and others; unless this one is over, and what it says
        is nothing new: then this is none that may be meant, and False is given."""

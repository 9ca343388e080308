"""One event of a provider's, as it was said, heard and kept, and what becomes of it."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from enum import StrEnum

from ...core.effects import Says, Word
from ...core.record import Record
from ...errors import DefinitionChanged, NotExecuted, NotSerialisable, SamekeyError
from ...evidence import (
    Declined,
    Evidence,
    Executed,
    decode_evidence,
    fault_of,
    says,
    unread,
    unusable,
    why_unusable,
)
from ...stores.protocols import Actor
from ...stores.sql.effects import ProviderEvent
from ..about import about

logger = logging.getLogger("samekey")


class Resolution(StrEnum):
    """What became of a piece of evidence."""

    RESOLVED = "resolved"
    """It settled its effect."""
    DUPLICATE = "duplicate"
    """This event was seen before, and nothing new came of it."""
    KEPT = "kept"
    """It cannot be used yet: the effect may still be under way. It waits, and is used when that ends
    unknown."""
    TOO_EARLY = "too_early"
    """The operation is still running, and a key store keeps no evidence: have the provider send it again."""
    TOO_LATE = "too_late"
    """Its effect is settled already, or it is about a former attempt. Everything stays as it is."""
    UNPLACED = "unplaced"
    """Nobody can tell which effect is meant: the operation has several, or it happened before the operation
    began. Where the store can, it is kept for an operator."""
    AMBIGUOUS = "ambiguous"
    """Two operations have this id of the provider's, and neither was settled; an operator sees the event. If
    it says that it happened, neither runs again before that."""
    NOT_FOUND = "not_found"
    """No such effect of this tenant and source, not yet or no longer. Nothing was noted: the provider may
    send the event again."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """It was heard, but not as it was meant: its answer cannot be used. Where it says that it happened, its
    operation is not free any more, and the same event with a right answer settles it."""

    fault: SamekeyError


@dataclass(frozen=True, slots=True)
class Said:
    """One event, as it was received and verified."""

    evidence: Evidence
    source: str
    event_id: str
    occurred_at: int | None
    """None: it was not said in a way that can be read, and counts as now."""
    about: str | None = None
    """The downstream key of the effect; None: it names the operation alone."""
    provider_id: str | None = None
    among: tuple[str | None, ...] = ()
    """The downstream keys of the effects that have this id, where it came by that."""
    fault: SamekeyError | None = None
    """What is wrong with how it was said, where that is known."""
    is_ours: bool = False
    """A holder's or a lookup's, which know whose operation it is."""
    by_operation: bool = False
    """It came by the operation's own id, which no other life of its key has."""

    @property
    def of_this_life(self) -> bool:
        """Whether it is known to be about this life of the key: that is kept with it."""
        return self.is_ours or self.by_operation

    def about_this(self, record: Record) -> Said:
        """As it is heard by this operation: a yes whose answer does not fit is a yes all the same. Anything
        else that does not fit is an error, before anything."""
        fault = self.fault or fault_of(self.evidence, record)
        if fault is None:
            return self
        if not isinstance(self.evidence, Executed):
            raise fault
        return replace(self, evidence=unusable(fault, self.evidence), fault=fault)

    @property
    def names_id(self) -> str | None:
        """The provider's id that it was found by, which the operation has noted; or the one that it gives. (A
        provider may have several for one payment.)"""
        given = self.evidence
        return self.provider_id or (given.provider_id if isinstance(given, Executed | Declined) else None)

    @property
    def digest(self) -> str:
        """What tells this event from all others, in few characters."""
        named = json.dumps([self.source, self.event_id]).encode()
        return hashlib.sha256(named).hexdigest()[:32]

    def word(self, received_at: int) -> Heard:
        """As it counts if it was received then, by the store's clock: nothing is heard of before it has
        happened, whatever a provider's clock says."""
        at, given = self.moment(received_at), self.evidence
        return Heard(
            says(given),
            self.source,
            self.about,
            self.names_id,
            at,
            self.event_id,
            self.among,
            knows_us=self.is_ours or self.provider_id is None,
            of_this_life=self.of_this_life,
            finding=given,
        )

    def moment(self, received_at: int) -> int:
        return received_at if self.occurred_at is None else min(self.occurred_at, received_at)

    @property
    def actor(self) -> Actor:
        return Actor("webhook", f"event {self.event_id} of {self.source}")


@dataclass(frozen=True, slots=True)
class Heard(Word):
    """A word with what it found: the verdict is about this event, and about no look-alike of it."""

    finding: Evidence = NotExecuted
    event: ProviderEvent | None = None
    """As it was kept; None: it comes now."""
    readable: bool = True
    """False: this process lacks the key that it was encrypted with. It settles nothing here."""


@dataclass(frozen=True, slots=True)
class FoundWord:
    """Evidence that was kept, and can be used now."""

    evidence: Evidence
    event: ProviderEvent


def heard(event: ProviderEvent) -> Heard:
    """A word that cannot be read here says what it says all the same: that stands beside it, in clear."""
    try:
        finding, readable = decode_evidence(event.outcome), True
    except NotSerialisable:
        finding, readable = unread(Says(event.says), event.provider_id), False
    at = min(event.occurred_at, event.received_at)
    return Heard(
        says(finding),
        event.source,
        event.about,
        event.provider_id,
        at,
        event.event_id,
        of_this_life=event.of_this_life,
        finding=finding,
        event=event,
        readable=readable,
    )


def finding_of(word: Word) -> Evidence:
    """What the deciding word found."""
    assert isinstance(word, Heard)
    return word.finding


def is_usable(word: Word) -> bool:
    """Whether the deciding word has an answer to decide with."""
    return is_readable(word) and why_unusable(finding_of(word)) is None


def is_readable(word: Word) -> bool:
    assert isinstance(word, Heard)
    return word.readable


class WordLeft(DefinitionChanged):
    """What a provider has said since then is of no use here, and may be elsewhere: the work waits."""

    def __init__(self, sentence: str, since: int) -> None:
        super().__init__(sentence)
        self.since = since


def left_to_others(operation_id: str, since: int) -> WordLeft:
    """What a run raises that would need a word which it cannot read: it waits, and nothing is counted."""
    return WordLeft(
        f"What a provider has said about operation {operation_id} cannot be decrypted here: this process "
        "lacks the encryption key that it was written with. Give it that key too, fernet(…, THAT_KEY), and "
        "it goes on. If the row is damaged, see samekey evidence list.",
        since,
    )


def tell_conflict(word: Word, record: Record) -> None:
    """A person must see it: the client was told otherwise, or it happened twice."""
    logger.error(
        "Event %s of %s contradicts what is known of operation %s: the provider has made %s. Look at its "
        "side whether it happened after all, or twice. See samekey evidence list, where there is one.",
        word.event_id,
        word.source,
        record.id,
        "something" if word.provider_id is None else repr(word.provider_id),
        extra=about(operation=record.id, endpoint=record.endpoint, attempt=record.attempts),
    )


def kept_as(word: Word) -> ProviderEvent:
    assert isinstance(word, Heard) and word.event is not None
    return word.event

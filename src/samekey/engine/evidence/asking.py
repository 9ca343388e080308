"""Before a key that had expired runs again: whoever can tell what became of it is asked.

Its record says no more than that it was used. The provider may remember for longer: then its answer is the
key's answer again, and nothing runs. Only "it never happened" lets the key begin a new life, and while nobody
can tell, nothing does.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable

from ...core.claim import Claim
from ...core.decide import Ask, Verdict
from ...core.policy import Policy
from ...core.record import Answer, Record
from ...core.states import Mode
from ...errors import SamekeyError
from ...evidence import Declined, Executed, answer_for, check_answer, fault_of, is_still_unknown
from ...response import Response
from ...stores.keys import Absent, Keys, Seen
from ...stores.protocols import Actor, Searching
from ..events import Events
from ..flow import Consult, Flow, ask
from ..operation import Running
from .desk import Desk, Lookup, LookupFailed

logger = logging.getLogger("samekey")

ROUNDS = 3
"""How often a request asks: again only if the key had yet another life meanwhile."""


class Asking:
    """Asks the lookups of one engine."""

    def __init__(
        self,
        keys: Keys,
        finding: Searching,
        events: Events,
        lookup_for: Callable[[str], Lookup | None],
        desk: Desk | None = None,
    ) -> None:
        self._keys = keys
        self._finding = finding
        self._events = events
        self._lookup_for = lookup_for
        self._desk = desk or Desk()

    def begin(
        self, claim: Claim, policy: Policy, begin: Callable[[Claim], Flow[Running | Verdict]]
    ) -> Flow[Running | Verdict]:
        """Takes the key, after asking where that comes first. A key that is new or alive pays nothing."""
        begun = yield from begin(claim)
        for _ in range(ROUNDS):
            if not isinstance(begun, Ask):
                break
            verdict = yield from self._ask(begun, claim, policy)
            if verdict is not None:
                return verdict
            claim = dataclasses.replace(claim, asked=begun.record.attempt)
            begun = yield from begin(claim)
        return begun

    def _lookup(self, record: Record) -> Lookup:
        lookup = self._lookup_for(record.endpoint)
        if lookup is None:
            raise LookupFailed("There is no lookup for its endpoint any more; declare it again.")
        return lookup

    def _ask(self, question: Ask, claim: Claim, policy: Policy) -> Flow[Verdict | None]:
        """What the request gets. None: it never happened, so the key may run again."""
        record = question.record
        try:
            finding = yield Consult(self._lookup(record), record, self._desk)
            answer = _answer(finding, record)
        except (LookupFailed, SamekeyError) as error:
            logger.error("A key had expired and was not run again, operation %s: %s", record.id, error)
            self._events.emit("reconcile.failed", mode=str(record.mode), endpoint=record.endpoint)
            return question
        self._events.emit("reconcile.resolved", mode=str(record.mode), endpoint=record.endpoint)
        if not isinstance(finding, Executed | Declined):
            return None
        provider_id, attempt = finding.provider_id, secrets.token_hex(16)
        actor = Actor("lookup", f"asked before it ran again: {type(finding).__name__}")
        yield from ask(
            lambda: self._finding.recall(
                record.id, answer, actor, seen=record.attempt, attempt=attempt, provider_id=provider_id
            )
        )
        # Ours, or whatever somebody else made of it meanwhile; another request than the first is a mismatch.
        seen = yield from ask(lambda: self._keys.look(claim, policy))
        return question if isinstance(seen, Absent | Seen) else seen


def _answer(finding: object, record: Record) -> Answer | None:
    """The answer that is stored, if it happened. Of phased work a lookup may know one effect only: then it is
    withheld."""
    if is_still_unknown(finding):
        raise LookupFailed("The provider cannot tell.")
    if not isinstance(finding, Executed | Declined):
        return None
    whole = record.mode is not Mode.PHASED or isinstance(finding.response, Response | Answer)
    if not whole:
        return None
    if record.mode is Mode.PHASED:
        check_answer(finding)
    elif (fault := fault_of(finding, record)) is not None:
        raise fault
    return answer_for(finding, record)

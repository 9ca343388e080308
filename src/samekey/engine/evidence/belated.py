"""What a holder still has to say after others have taken its operation: a truth that nobody else may know.

Its lease ran out, somebody found that nothing had happened, which was true then, and another attempt began.
Now its own call has gone through. That is a yes as good as a provider's, so it is told as one: noted for the
operation, which is not free until it is settled or an operator has seen to it. Nothing is dropped in silence.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from ...core.agreement import ERRORS_FROM
from ...core.claim import downstream_key, is_call
from ...core.effects import Sent, SentStep, unburied
from ...core.phases import decode_value
from ...core.program import Program
from ...core.record import Answer, Lease, Record
from ...core.states import State
from ...errors import ConfigurationError
from ...evidence import Executed, Unusable, check_answer
from ...stores.keys import Keys
from .resolver import Resolver
from .said import Said

logger = logging.getLogger("samekey")

NOT_WHOLE: Final = (
    "the run that tells this could not make its own writes, nor the jobs after it: another one had the job"
)
MADE_TWICE: Final = "another run of the job has ended it, with another object of the provider's"
OWN_VOICE: Final = "holder"
"""The source of what a holder tells whose handler has named no provider."""
_OVER: Final = (State.COMPLETED, State.EXPIRED)


class Belated:
    """Programs of a holder that was overtaken. Each may be run again: what is noted is noted once."""

    def __init__(self, keys: Keys, resolver: Resolver) -> None:
        self._keys = keys
        self._resolver = resolver

    def answered(
        self, lease: Lease, operation_id: str, answer: Answer | None, status: int, sent: Sent
    ) -> Program[None]:
        """Its handler has given this answer (None: one that cannot be kept)."""
        found = yield from self._noted(lease, operation_id, sent)
        if found is None or status >= ERRORS_FROM:
            return  # a refusal is nothing that could happen twice
        now, record = found[0], unburied(found[1])
        refused = record.answer is not None and record.answer.status >= ERRORS_FROM
        if record.state in _OVER and not refused:
            if record.run != lease.attempt:
                logger.error(
                    "Two attempts at operation %s have succeeded: the answer of the later one is kept. Look "
                    "at the provider's side whether it happened twice.",
                    operation_id,
                )
            return
        steps = sent.steps or (SentStep("", downstream_key(lease.scope, lease.key, "")),)
        evidence = _evidence(record, answer, sent)
        for step in steps:
            yield from self._tell(lease, operation_id, step, evidence, now)

    def unsure(self, lease: Lease, operation_id: str, sent: Sent) -> Program[None]:
        """It cannot tell what became of what the provider has made: nobody may run it as if there was
        nothing, and no answer can be made of it."""
        found = yield from self._keys.read_by_id(operation_id)
        if not sent.made or (found is not None and _is_held_or_known(unburied(found[1]), lease)):
            return
        found = yield from self._noted(lease, operation_id, sent)
        if found is None:
            return
        now, record = found
        news = sent.made
        if record.state in _OVER:
            effects = yield from self._resolver.finding.effects(operation_id)
            told = {record.provider_id, *(effect.provider_id for effect in effects)}
            news = tuple(step for step in sent.made if step.provider_id not in told)
        if not news:
            return  # whoever has answered has made of it what there is to make
        for step in news:
            said = _said(lease, step, Executed(None, step.provider_id), now)
            yield from self._resolver.note_ambiguous(said, operation_id)
        logger.error(
            "Others have moved operation %s while an attempt was under way, which has made %s at the "
            "provider and can tell no more: nothing of it is free before somebody has seen to that. See "
            "samekey evidence list.",
            operation_id,
            ", ".join(repr(step.provider_id) for step in news),
        )

    def effect_done(self, lease: Lease, operation_id: str, step: SentStep, result: Any) -> Program[None]:
        """The call of a phase has given this result, and others have moved the operation: as if it had never
        been made, perhaps. It is the phase's result for whoever goes on."""
        found = yield from self._noted(lease, operation_id, Sent((step,)))
        if found is not None:
            yield from self._tell(lease, operation_id, step, Executed(result, step.provider_id), found[0])

    def job_done(
        self,
        lease: Lease,
        operation_id: str,
        step: SentStep,
        answer: Answer | None,
        *,
        answers: bool,
        whole: bool = True,
    ) -> Program[None]:
        """A job has ended so, and another worker runs it. No answer: it gives none (``answers``: one that
        cannot be kept). Not ``whole``: there were writes of its own or jobs after it, so that its word must
        not settle anything; it only keeps the operation from being freed, and an operator sees it."""
        found = yield from self._noted(lease, operation_id, Sent((step,)))
        if found is None or (answer is not None and answer.status >= ERRORS_FROM):
            return
        given = answer if answers else Answer(200)
        evidence = None if given is None else Executed(given, step.provider_id)
        if not whole:
            evidence = Executed(Unusable(NOT_WHOLE), step.provider_id)
        yield from self._tell(lease, operation_id, step, evidence, found[0])

    def made_twice(self, lease: Lease, operation_id: str, step: SentStep) -> Program[None]:
        """Another run of the job has ended it, with another object of the provider's: an operator must see
        both."""
        found = yield from self._keys.read_by_id(operation_id)
        if found is None:
            return
        evidence = Executed(Unusable(MADE_TWICE), step.provider_id)
        yield from self._resolver.note_ambiguous(_said(lease, step, evidence, found[0]), operation_id)
        logger.error(
            "Two runs of a job of operation %s have each made something at the provider; the later one is "
            "%r. See samekey evidence list, and look whether it happened twice.",
            operation_id,
            step.provider_id,
        )

    def _noted(self, lease: Lease, operation_id: str, sent: Sent) -> Program[tuple[int, Record] | None]:
        """The operation, with the provider's ids noted; None if it is gone."""
        yield from self._keys.note_former(lease, operation_id, sent)
        found = yield from self._keys.read_by_id(operation_id)
        if found is None:
            made = ", ".join(repr(step.provider_id) for step in sent.made) or "nothing that is known by an id"
            logger.error(
                "A result came after its operation %s was forgotten; at the provider there is %s.",
                operation_id,
                made,
            )
        return found

    def _tell(
        self, lease: Lease, operation_id: str, step: SentStep, evidence: Executed | None, now: int
    ) -> Program[None]:
        said = _said(lease, step, evidence or Executed(None, step.provider_id), now)
        if evidence is None:
            yield from self._resolver.note_ambiguous(said, operation_id)
        else:
            yield from self._resolver.receive(said, operation_id)
        logger.error(
            "The result of a former attempt at operation %s came late. It is noted as event %s of %s, and "
            "nothing of the operation is free to run until that is settled.",
            operation_id,
            said.event_id,
            said.source,
        )


def _is_held_or_known(record: Record, lease: Lease) -> bool:
    """Whether it is its holder's to say what follows, or others have found out what became of its run."""
    return record.attempt == lease.attempt or (record.state in _OVER and record.run == lease.attempt)


def _said(lease: Lease, step: SentStep, evidence: Executed, now: int) -> Said:
    return Said(
        evidence,
        step.source or OWN_VOICE,
        f"late-{lease.attempt}",
        now,
        about=step.downstream_key,
        provider_id=step.provider_id,
        is_ours=True,
    )


def _evidence(record: Record, answer: Answer | None, sent: Sent) -> Executed | None:
    """None: it happened, and there is no answer to give to others."""
    made = sent.made[-1].provider_id if sent.made else None
    if answer is None:
        return None
    given: Any = decode_value(answer.body) if is_call(record.scope) else answer
    evidence = Executed(given, made)
    if not is_call(record.scope):
        try:
            check_answer(evidence)
        except ConfigurationError:
            return None
    return evidence

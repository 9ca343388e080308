"""One attempt at a phased operation: the flows of its steps, and what becomes of it at the end.

Nothing here waits or calls: the flows say what to do with the store, in order, and the two faces of ``op``
(``phases.py``) carry them out around the user's own functions.
"""

from __future__ import annotations

import logging
import random
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from ...core.arrival import proof_in
from ...core.claim import downstream_key
from ...core.decide import Outstanding, Replay, Uncertain, Withheld
from ...core.effects import Sent, SentStep
from ...core.outcome import NOT_NOW, Ending, OnError, Outcome, of_error
from ...core.phases import (
    Phase,
    PhaseKind,
    ResumeEffect,
    all_reached,
    decode_value,
    encode_value,
    how_to_resume,
    recorded,
    settles_at,
)
from ...core.policy import Policy
from ...core.problem import Refusal, refuse, uncertain_answer, verdict_answer
from ...core.program import Program
from ...core.record import Answer, Lease
from ...core.states import State
from ...core.texts import checked_text
from ...core.whose import Whose
from ...errors import (
    ConfigurationError,
    ConnectionLost,
    DefinitionChanged,
    EscapedTransaction,
    LeaseLost,
    NotExecuted,
    NotSerialisable,
    OutcomeUnknown,
    SamekeyError,
    StepNotAwaited,
    StoreError,
)
from ...evidence import Declined, Executed, value_in
from ...stores.protocols import Actor
from ...stores.sql.effects import ProviderEvent
from ...stores.sql.overruling import Moved
from ...stores.sql.phases import Disputed, Overtaken, Work
from ..evidence.said import FoundWord
from ..flow import Commit, Flow, Open, Rollback, ask, ask_in
from ..handler import raised
from ..keeper import gone_by
from ..modes.mode import Finished, Handled, keep, unavailable, with_expiry
from ..operation import MOMENTS
from .definition import Definition, Effect, EffectRules, NotSettled, StoppedByWord, max_run_ms
from .input import Captured
from .steps import Steps

if TYPE_CHECKING:
    from .phased import PhasedWay

logger = logging.getLogger("samekey")

RAN_TOO_LONG = (
    "A transaction of %s ran longer than max_run and was rolled back; what it still does on its connection "
    "is refused. Raise max_run if it needs the time."
)

REFUSED_PAUSE_MS = 30_000
"""How long the completer leaves an operation alone whose definition does not fit: a process that has the
right one may come by, and nothing changes here before the next deployment."""


class PhasedRun:
    """One attempt at a phased operation: what is recorded, and the flows of its steps."""

    def __init__(
        self,
        ways: PhasedWay,
        definition: Definition,
        lease: Lease,
        operation_id: str,
        captured: Captured,
        work: Work,
        attempts: int,
        *,
        first: bool = False,
        unattended: bool = False,
    ) -> None:
        """``first``: its own claim made the record, so nobody has run under it before."""
        self.ways = ways
        self._first = first
        self.definition = definition
        self.lease = lease
        self.operation_id = operation_id
        self.captured = captured
        self.attempts = attempts
        self.expires_at = 0
        """When the key expires, for the answers of a request."""
        self._unattended = unattended
        self._actor = Actor("completer") if unattended else None
        self.is_forgiven = False
        """Its worker stops: if it is cancelled for that, this attempt does not count."""
        self.waits_in: State | None = None
        """The state in which it waits, once it has stopped without an answer."""
        """No client waits for it: the completer runs it, and would come back at once."""
        self._phases = work.phases
        self.steps = Steps()
        self._position = 0
        self._names: set[str] = set()
        self._step: str | None = None
        self._broken: BaseException | None = None
        """What a phase raised. The function may answer for it, but not go on as if nothing had been."""
        self._acted = bool(work.phases)
        self._meant = False
        """An effect was about to be sent, even if it was taken back since."""
        self._rolled_back: BaseException | None = None
        """What a database phase raised: whatever it was, nothing of that phase has happened."""
        self._resumable = True
        self._recording = False
        """A result could not be stored yet and is tried again in the background: the lease must stay ours."""
        self._provider_id: str | None = None
        self._meant_at = 0.0, 0.0
        self._began = next(MOMENTS)

    @contextmanager
    def step(self, name: str, kind: PhaseKind) -> Iterator[tuple[int, Phase | None]]:
        """The next phase: its position, and what was recorded there. One after the other, each name once."""
        if self._step is not None:
            raise ConfigurationError(
                f"The phase {name!r} was begun inside {self._step!r}. Phases come one after the other: a "
                "recovery point says that everything before it is done."
            )
        if self._broken is not None:
            raise ConfigurationError(
                f"The phase {name!r} was begun after another one had failed. Let that error out, or return "
                "an answer; a refusal that you want to go on from is a result, so return it from the call."
            ) from self._broken
        forgotten = self.steps.forgotten(before=step_name(name, kind))
        if forgotten is not None:
            raise forgotten  # before anything comes after a step that did not happen
        checked_text("The name of a phase", name)
        if name in self._names:
            raise ConfigurationError(
                f"Two phases are named {name!r}. Give each its own name: it is also what their downstream "
                "keys are made of."
            )
        position = self._position
        phase = recorded(self._phases, position, name, kind)
        self._position += 1
        self._names.add(name)
        self._step = name
        try:
            yield position, phase
        except BaseException as error:
            self._broken = error
            raise
        finally:
            self._step = None

    # A database phase

    def open(self) -> Flow[Any]:
        session = yield Open(self.ways.users)
        try:
            # A function that hangs must not keep the locks of its transaction, or its place in the pool.
            longest = max_run_ms(self.definition.rules) / 1000
            session.expire_after(longest, lambda: logger.error(RAN_TOO_LONG, self.definition.identity))
        except BaseException:
            yield Rollback(session)
            raise
        return session

    def enter(self, session: Any, name: str) -> Flow[int | None]:
        """What proves at the end that the transaction is still the same."""
        longest = max_run_ms(self.definition.rules)
        return (yield from ask_in(session, self.ways.phases.open_phase(self.lease, name, max_run_ms=longest)))

    def close(self, session: Any, position: int, name: str, result: Any, began: int | None) -> Flow[Any]:
        """The recovery point commits with the writes, or everything is undone."""
        try:
            return (yield from self._commit(session, position, name, result, began))
        except BaseException as error:
            lost = yield from self.undo(session, error)
            if lost is not None:
                raise lost from error
            raise

    def _commit(self, session: Any, position: int, name: str, result: Any, began: int | None) -> Flow[Any]:
        stored = encode_value(result, f"The result of {name!r}")
        if began is None and not session.in_transaction():
            raise EscapedTransaction(f"The phase {name!r} ended its own transaction; leave that to samekey.")
        yield from ask_in(
            session,
            self.ways.phases.write_phase(self.lease, self.operation_id, position, name, stored, began=began),
        )
        self._acted = True
        yield Commit(session)
        return decode_value(stored)

    def undo(self, session: Any, error: BaseException) -> Flow[ConnectionLost | None]:
        """Rolls back. Gives the loss of the connection, where that was behind the error.

        The user's code meets it as an error of the driver's, which looks like one of a provider that may have
        been reached. Here it is certain that nothing happened: COMMIT was not sent.
        """
        lost = None
        if isinstance(error, Exception) and not isinstance(error, SamekeyError):
            try:
                yield from ask_in(session, self.ways.phases.clock())
            except ConnectionLost as found:
                lost = found
            except StoreError:
                pass  # it is there, and refuses to go on in a transaction that has failed
        yield Rollback(session)
        self._rolled_back = lost or error
        return lost

    # An effect

    def prepare(
        self, position: int, name: str, phase: Phase | None, rules: EffectRules
    ) -> Flow[ResumeEffect | FoundWord | None]:
        """Commits the intent, or says what to do about an older one. None: make the call."""
        self._meant_at = time.monotonic(), time.time()
        phases, lease, operation_id = self.ways.phases, self.lease, self.operation_id
        if phase is None:
            try:
                yield from ask(
                    lambda: phases.intend(
                        lease, operation_id, position, name, source=rules.source, unless=self._mere_doubt
                    )
                )
            except Disputed:
                return (yield from self._told(name))
            self._acted = self._meant = True
            return None
        found = yield from ask(lambda: self.ways.resolver.kept_about(operation_id, name))
        if found is not None and isinstance(found.evidence, Executed | Declined):
            return found
        now = yield from ask(phases.clock)
        resume = how_to_resume(phase.intent_at, now, rules.window_ms, can_look_up=rules.can_look_up)
        if found is not None:
            # The provider says that it never happened: as after a lookup that found nothing.
            # It has freed this one send, and frees no other.
            word = found.event

            def send_anew() -> Program[None]:
                yield from phases.intend_anew(lease, operation_id, position, name, source=rules.source)
                yield from self.ways.resolver.use(word)

            try:
                yield from ask(send_anew)
            except Disputed:
                return (yield from self._told(name))
            return None
        if resume is not ResumeEffect.CALL_AGAIN:
            return resume
        # The provider deduplicates it: safe, whichever effect a word in doubt is about.
        try:
            yield from ask(
                lambda: phases.intend_again(
                    lease, operation_id, position, name, source=rules.source, unless=self._mere_doubt
                )
            )
        except Disputed:
            return (yield from self._told(name))
        return None

    def _mere_doubt(self) -> Program[bool]:
        return self.ways.resolver.is_mere_doubt(self.operation_id)

    def _told(self, name: str) -> Flow[FoundWord]:
        """A provider says that something happened: if it is this effect, that is its result. Else nobody
        knows what it is, and nothing more is sent."""
        found = yield from ask(lambda: self.ways.resolver.kept_about(self.operation_id, name))
        if found is not None and isinstance(found.evidence, Executed):
            return found
        self._resumable = False
        raise StoppedByWord(
            f"{name!r} was not called: a provider says that something of this operation happened, which has "
            "no place in it. See samekey evidence list."
        )

    def adopt(self, position: int, name: str, effect: Effect, found: FoundWord) -> Flow[Any]:
        """What the provider has said meanwhile is the result."""
        assert isinstance(found.evidence, Executed | Declined)
        effect.provider_id, effect.source = found.evidence.provider_id, found.event.source
        return (yield from self.record(position, name, effect, value_in(found.evidence), found.event))

    def since(self) -> Flow[datetime]:
        """How far back a lookup has to look. Not to the intent: where that was renewed, a call before it may
        have gone through after all."""
        found = yield from ask(lambda: self.ways.keys.read_by_id(self.operation_id))
        if found is None:
            raise LeaseLost("The operation is gone.")
        return found[1].since

    def looked_up(self, position: int, name: str, effect: Effect, result: Any) -> Flow[Any]:
        """What its lookup has found is the result, unless it is a former life's, or may be."""
        found = effect.provider_id
        since = effect.has_looked_since
        life = yield from ask(lambda: self.ways.resolver.life_found(self.operation_id, found, since=since))
        if life is not Whose.OURS:
            effect.provider_id = None
            self._resumable = False
            named = "something" if found is None else repr(found)
            raise OutcomeUnknown(
                f"The lookup of {name!r} found {named}, which a former life of the key "
                f"{'has' if life is Whose.NOT_OURS else 'may have'} made. This is another operation, so "
                "nobody can tell whether it happened. Have the lookup look for nothing older than "
                "effect.since."
            )
        return (yield from self.record(position, name, effect, result))

    def not_found(self, position: int, name: str, phase: Phase, rules: EffectRules) -> Flow[FoundWord | None]:
        """The provider knows nothing of it. That counts only once a first caller cannot still be calling, and
        only if it has not told otherwise meanwhile: gives that."""
        now = yield from ask(self.ways.phases.clock)
        settled = settles_at(phase.intent_at, rules.timeout_ms, rules.settle_ms)
        if now < settled:
            raise NotSettled(name, settled - now)
        self._meant_at = time.monotonic(), time.time()
        try:
            yield from ask(
                lambda: self.ways.phases.intend_anew(
                    self.lease,
                    self.operation_id,
                    position,
                    name,
                    source=rules.source,
                    unless=self._mere_doubt,
                )
            )
        except Disputed:
            return (yield from self._told(name))
        return None

    def look_up_or_stop(self, name: str, todo: ResumeEffect) -> None:
        """Where nobody can tell whether an effect happened, the operation stops here as unknown."""
        if todo is ResumeEffect.UNKNOWN:
            self._resumable = False
            raise OutcomeUnknown(
                f"{name!r} was begun by an attempt that did not report back. The provider does not "
                "deduplicate it any more and there is no lookup, so nobody can tell whether it happened."
            )

    def may_call(self, position: int, name: str, rules: EffectRules, *, first: bool) -> Flow[float]:
        """Right before the call: gives the seconds that are left for it, or raises.

        A caller that was paused past its lease must not call any more. Nor may one whose time-out, counted
        from the intent, is over: "not found" would already be believed while it still calls. A pause
        between this check and the call itself cannot be closed by anybody.
        """
        left = rules.timeout_ms / 1000 - gone_by(*self._meant_at)
        held = self.ways.keeper.remaining(self.lease)
        if held > 0 and left > 0:
            return left
        if first:
            try:
                yield from self._take_back(position, name)
            except (LeaseLost, StoreError, Disputed):
                pass  # then the intent stays, and whoever resumes finds out
        if held > 0:
            raise NotExecuted(f"{name!r} was not called: its time was over before the call could begin.")
        raise LeaseLost(f"The lease ran out before {name!r} was called; it was not called.")

    def record(
        self, position: int, name: str, effect: Effect, result: Any, event: ProviderEvent | None = None
    ) -> Flow[Any]:
        """Commits what the call gave, or an event told."""
        self._provider_id = effect.provider_id
        try:
            stored = encode_value(result, f"The result of {name!r}")
        except NotSerialisable:
            # It happened, and what it gave cannot be kept: nobody may guess, so an operator looks.
            self._resumable = False
            raise

        lease, operation_id = self.lease, self.operation_id
        step = SentStep(name, effect.key, effect.provider_id, effect.source)

        def write() -> Program[bool]:
            try:
                yield from self.ways.phases.write_effect(
                    lease,
                    operation_id,
                    position,
                    name,
                    stored,
                    effect.provider_id,
                    source=effect.source,
                    adopted=event is not None,
                )
            except Overtaken:
                if event is None:
                    # It happened, and only this process knows.
                    yield from self.ways.belated.effect_done(lease, operation_id, step, decode_value(stored))
                return False
            if event is not None:
                yield from self.ways.resolver.use(event)
            return True

        try:
            written = yield from ask(write)
        except BaseException as error:
            if isinstance(error, StoreError | Moved) or not isinstance(error, Exception):
                # It happened, and only this process knows: it keeps trying to say so for a while,
                # also where the event loop that asked for it ends now.
                self._recording = True
                self.ways.keeper.record_later(self.lease, write)
            if isinstance(error, Moved):
                raise LeaseLost(
                    f"Others are at the operation; the result of {name!r} is told later."
                ) from error
            raise
        if not written:
            raise LeaseLost(
                f"Others have taken the operation. What {name!r} gave is noted with it, for whoever goes on."
            )
        if self.ways.keeper.remaining(self.lease) <= 0:
            # The lease had run out and is ours again.
            self.ways.keeper.watch(self.lease, max_run_ms(self.definition.rules))
        return decode_value(stored)

    def failed(
        self,
        position: int,
        name: str,
        effect: Effect,
        error: BaseException,
        rules: EffectRules,
        *,
        first: bool,
    ) -> Flow[None]:
        """What an error of the call means for the operation."""
        self._provider_id = effect.provider_id
        outcome = self._judge(error, "unknown")
        if effect.provider_id is not None:
            # What the provider made is known even if the call failed after it.
            made = SentStep(name, effect.key, effect.provider_id, effect.source)
            yield from self._settle(lambda: self._made(made, unsure=outcome is Outcome.UNKNOWN))
        if outcome in (Outcome.FAIL, Outcome.RELEASE):
            if first:
                # It never left this machine, and nobody else has tried: as if it had not been meant.
                try:
                    yield from self._take_back(position, name)
                except Disputed:
                    # Its word is the result, for whoever resumes; no answer may be made of the error.
                    raise OutcomeUnknown(
                        f"The call of {name!r} said that nothing happened, and the provider says that it did."
                    ) from error
        elif outcome is Outcome.UNKNOWN and not rules.can_be_settled:
            self._resumable = False

    def _made(self, step: SentStep, *, unsure: bool) -> Program[None]:
        assert step.provider_id is not None
        yield from self.ways.phases.note_effect(
            self.lease, self.operation_id, step.step, step.provider_id, step.source
        )
        if unsure:
            yield from self.ways.belated.unsure(self.lease, self.operation_id, Sent((step,)))

    def effect(self, name: str, rules: EffectRules, *, first: bool) -> Effect:
        effect = Effect(downstream_key(self.lease.scope, self.lease.key, name), source=rules.source)
        effect.window = None if rules.window_ms is None else rules.window_ms / 1000
        effect.tried_before = not first
        return effect

    def _take_back(self, position: int, name: str) -> Flow[None]:
        yield from ask(
            lambda: self.ways.phases.take_back(
                self.lease, self.operation_id, position, name, unless=self._mere_doubt
            )
        )
        self._acted = position > 0

    def _judge(self, error: BaseException, otherwise: OnError) -> Outcome:
        """By the user's own rule, then by the table."""
        proof = proof_in(error)
        foreign = proof is not None and self._is_foreign(proof)
        never_called = proof is not None and proof is not error and not foreign
        ending = Ending(None, error, foreign=foreign, never_called=never_called)
        return replace(self.definition.rules, on_error=otherwise).judge(ending)

    def _is_foreign(self, error: NotExecuted) -> bool:
        """Whether it is the word of a call inside (``once()``), which does not speak for this operation."""
        return not error.is_word_of(self.operation_id, self._began, next(MOMENTS))

    def _must_not_be_swallowed(self, error: BaseException) -> bool:
        """Whether a function that returns after this error of a phase does not know what it is saying."""
        proof = proof_in(error)
        if proof is not None or isinstance(error, SamekeyError):
            return proof is None or self._is_foreign(proof)
        return of_error(error) is Outcome.UNKNOWN

    # The end

    def end(self, result: Any, refusal: Exception | None = None) -> Flow[Finished]:
        """The function returned, or raised its answer: that becomes the operation's, if it can."""
        try:
            return (yield from self._complete(result, refusal))
        except BaseException as error:
            return (yield from self.stop(error))

    def _complete(self, result: Any, refusal: Exception | None) -> Flow[Finished]:
        if self._broken is not None and self._must_not_be_swallowed(self._broken):
            return (yield from self.stop(self._broken))
        forgotten = self.steps.forgotten()
        if forgotten is not None:
            return (yield from self.stop(forgotten))
        all_reached(self._phases, self._position)
        if refusal is None:
            answer = self.definition.shaped(result, self.captured.shape, self.captured.status)
            ending = Ending(answer.status)
        else:
            answer = raised.answer_in(refusal)
            ending = Ending(answer.status, refusal, refusal=answer.status)
        outcome = self.definition.rules.judge(ending)
        if outcome is Outcome.RELEASE and self._acted and answer.status in NOT_NOW:
            outcome = Outcome.FAIL  # "not now", of what is half done: it goes on, and is never the answer
        if outcome is Outcome.RELEASE and not self._acted:
            if self._meant or not self._first:
                # Something was meant under this key: it is not as if it had never been used.
                yield from self._pause(f"status_{answer.status}", Outcome.FAIL)
            else:
                yield from ask(lambda: self.ways.phases.release(self.lease, self.operation_id))
            return Finished(self._dated(answer))
        if outcome in (Outcome.FAIL, Outcome.UNKNOWN):
            state = yield from self._pause(f"status_{answer.status}", outcome)
            # "Not now" may be its own word while the machine goes on; a definite answer would be a lie then.
            not_now = answer.status >= 500 or answer.status in NOT_NOW
            over = state is State.FAILED_RETRYABLE or (not_now and state is not State.DEAD_LETTER)
            return Finished(self._dated(answer) if over else self._waits(state))
        return (yield from self._store(answer))

    def _is_answer(self, error: BaseException) -> TypeGuard[Exception]:
        """Whether the function has raised its answer, the framework's own HTTP exception, where it could have
        returned it: between the phases, or out of one that is rolled back."""
        status = raised.status_of(error)
        if status is None or status >= 500:
            return False
        broken = self._broken
        if broken is not None and self._must_not_be_swallowed(broken):
            return False
        return error is not broken or error is self._rolled_back

    def _store(self, answer: Answer) -> Flow[Finished]:
        policy = self.definition.rules.policy
        kept = keep(answer, Handled(answer), policy)
        expires_at = yield from ask(
            lambda: self.ways.phases.complete(
                self.lease, self.operation_id, kept, status=answer.status, actor=self._actor
            )
        )
        if expires_at is None:
            return (yield from self._overtaken())
        return Finished(with_expiry(answer, policy, expires_at))

    def stop(self, error: BaseException) -> Flow[Finished]:
        """The function raised: what becomes of the operation, and what the client gets."""
        if self._is_answer(error):
            return (yield from self.end(None, error))
        policy = self.definition.rules.policy
        self.steps.drop()
        match error:
            case LeaseLost():
                return (yield from self._overtaken())
            case DefinitionChanged():
                yield from self._let_go(
                    REFUSED_PAUSE_MS if self._unattended else 0, "definition_changed", counted=False
                )
                logger.error("%s (%s)", error, self.definition.identity)
                return Finished(refuse(Refusal(500, "The operation cannot go on yet."), policy), error)
            case NotSettled():
                yield from self._let_go(error.wait_ms, "not_settled", counted=False)
                return Finished(self._waits(State.IN_PROGRESS))
            case StoreError():
                if not self._recording:
                    yield from self._let_go(self._backoff_ms() if self._unattended else 0, code_of(error))
                return Finished(self._unfinished(policy, error))
            case EscapedTransaction():
                # Its writes may stand without their recovery point.
                self._resumable = False
        outcome = self._judge(error, self.definition.rules.on_error)
        if isinstance(error, StepNotAwaited):
            logger.error("%s (%s)", error, self.definition.identity)
            outcome = Outcome.FAIL  # what was not begun did not happen; what was has its own recovery point
        if outcome is Outcome.REMEMBER and self._resumable:
            finished = yield from self._store(Handled(None, error).answer_or_failure(policy))
            return Finished(finished.answer, error)
        undone = error is self._rolled_back or not isinstance(error, Exception)
        if undone and not self._acted:
            outcome = Outcome.FAIL  # torn down, or rolled back, before any phase was done
        state = self.waits_in = yield from self._pause(
            code_of(error), outcome, forgiven=self.is_forgiven and isinstance(error, CancelledError)
        )
        if not isinstance(error, Exception):
            return Finished(None, error)
        if outcome is Outcome.UNKNOWN or not self._resumable:
            logger.error("A phase of %s has no certain outcome: %r", self.definition.identity, error)
            return Finished(self._waits(state))
        proof = proof_in(error)
        if proof is not None:
            # Given up, no retry goes on from there; the word of a call inside says nothing about this one.
            told = state is State.DEAD_LETTER or (state is State.IN_PROGRESS and self._is_foreign(proof))
            return Finished(self._waits(state) if told else self._unfinished(policy, proof))
        if state is State.FAILED_RETRYABLE:
            return Finished(None, error)
        # Whatever page the application would make of it, the operation is not over.
        if not self._unattended and not isinstance(error, StepNotAwaited):
            logger.error("%s was left by an error: %s", self, _NEXT[state], exc_info=error)
        return Finished(self._waits(state), error)

    def _waits(self, state: State) -> Answer:
        """What every client is told while the operation waits in this state, the first one too.

        In progress: the machine goes on with it, or asks the provider, by itself or at the next retry. Else
        nothing goes on before somebody has found out.
        """
        policy = self.definition.rules.policy
        if state is State.IN_PROGRESS:
            return verdict_answer(Outstanding(self.operation_id, self.expires_at), policy)
        dead = state is State.DEAD_LETTER
        return uncertain_answer(policy, self.operation_id, self.expires_at, dead=dead)

    def _pause(self, code: str, outcome: Outcome, *, forgiven: bool = False) -> Flow[State]:
        """An operation that has begun to act is resumed later; one that has not may simply be retried.
        ``forgiven``: this attempt does not count.

        Gives the state in which it waits.
        """
        keys, phases, lease, provider_id = self.ways.keys, self.ways.phases, self.lease, self._provider_id
        if not self._resumable or (outcome is Outcome.UNKNOWN and not self._acted):
            yield from self._settle(lambda: keys.lose(lease, code, provider_id=provider_id))
            return State.UNKNOWN
        if not self._acted:
            yield from self._settle(lambda: keys.fail(lease, code))
            return State.FAILED_RETRYABLE
        if forgiven:
            yield from self._let_go(0, code, counted=False)
            return State.IN_PROGRESS
        if self.attempts >= self.definition.max_attempts:
            logger.error("%s has been tried %d times; an operator must look", self, self.attempts)
            yield from self._settle(lambda: phases.give_up(lease, error_code=code, actor=self._actor))
            self.ways.given_up()
            return State.DEAD_LETTER
        yield from self._let_go(self._backoff_ms(), code)
        return State.IN_PROGRESS

    def _dated(self, answer: Answer) -> Answer:
        return with_expiry(answer, self.definition.rules.policy, self.expires_at)

    def _settle(self, factory: Callable[[], Program[Any]]) -> Flow[None]:
        """Records what became of the operation; if it cannot be done now, in the background."""
        try:
            yield from ask(factory)
        except StoreError as error:
            logger.error("What became of %s could not be recorded and will be tried again: %s", self, error)
            self.ways.keeper.record_later(self.lease, factory)

    def _let_go(self, pause_ms: int, code: str, *, counted: bool = True) -> Flow[None]:
        yield from let_go(self.ways, self.lease, pause_ms, code, counted=counted)

    def _backoff_ms(self) -> int:
        return self.definition.backoff.pause_ms(self.attempts, random.random())  # noqa: S311

    def _unfinished(self, policy: Policy, error: SamekeyError) -> Answer:
        """503: what it has done stands, and the same key goes on."""
        if not self._acted:
            return unavailable(policy, error)
        detail = "The operation has begun and is not finished. Retry with the same key to go on from there."
        code = "store_unavailable" if isinstance(error, StoreError) else None
        return refuse(
            Refusal(503, detail, code, policy.retry_after, self.operation_id, self.expires_at), policy
        )

    def _overtaken(self) -> Flow[Finished]:
        """Somebody else has the operation: its record says what the client gets."""
        policy = self.definition.rules.policy
        record = yield from ask(lambda: self.ways.keys.read(self.lease.scope, self.lease.key))
        if record is not None and record.state is State.UNKNOWN and (yield from self._word_used()):
            record = yield from ask(lambda: self.ways.keys.read(self.lease.scope, self.lease.key))
        if record is None:
            return Finished(uncertain_answer(policy, self.operation_id, self.expires_at))
        if record.state is State.COMPLETED:
            return Finished(verdict_answer(Withheld(record) if record.withheld else Replay(record), policy))
        if record.state is State.IN_PROGRESS:
            return Finished(verdict_answer(Outstanding(record.id, record.expires_at), policy))
        return Finished(verdict_answer(Uncertain(record), policy))

    def _word_used(self) -> Flow[bool]:
        """A provider's word may wait that no answer could be made against: it settles what is unknown."""
        try:
            return (yield from ask(lambda: self.ways.resolver.apply_waiting(self.operation_id)))
        except (SamekeyError, Moved) as error:
            logger.warning("What waits about %s could not be used: %s", self, error)
            return False

    def __str__(self) -> str:
        return f"operation {self.operation_id} ({self.definition.identity})"


_NEXT: Final = {
    State.IN_PROGRESS: "the next attempt goes on from its last phase",
    State.DEAD_LETTER: "it has no attempt left",
}


def step_name(name: str, kind: PhaseKind) -> str:
    """A step as the function has it."""
    return f"op.{kind}({name!r})"


def code_of(error: BaseException) -> str:
    """What is kept of an error for operators: its kind, never its text, which may be private."""
    return type(error).__name__


def let_go(ways: PhasedWay, lease: Lease, pause_ms: int, code: str, *, counted: bool = True) -> Flow[None]:
    """Gives the operation back, for whoever comes after the pause."""
    ways.keeper.forget(lease)
    try:
        yield from ask(lambda: ways.phases.let_go(lease, pause_ms=pause_ms, error_code=code, counted=counted))
    except StoreError as error:
        logger.warning("A lease could not be given back; it runs out by itself: %s", error)

"""Phased work: a function made of named phases that goes on where it stopped.

    @idempotency.phased("create_ride", version=1)
    async def create_ride(op, input):
        ride = await op.transaction("ride_created", insert_ride, input)
        charge = await op.effect("charge_created", charge_card, ride, provider_window=hours(24))
        await op.transaction("receipt_queued", queue_receipt, ride, charge)
        return Response(201, {"ride": ride["id"]})

A retry, or the completer with no client at all, calls the function again from the start; finished phases
return what they stored and are not run. This file holds the flows; ``phases.py`` beside it the two faces.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..core.backoff import Backoff
from ..core.claim import downstream_key
from ..core.decide import Outstanding, Replay, Uncertain, Withheld
from ..core.outcome import Outcome, of_error
from ..core.phases import Kind, Phase, Resume, decode_value, encode_value, how_to_resume, recorded, settles_at
from ..core.policy import milliseconds
from ..core.problem import Refusal, refuse, uncertain_answer, verdict_answer
from ..core.record import Lease
from ..core.states import State
from ..errors import (
    ConfigurationError,
    DefinitionChanged,
    EscapedTransaction,
    LeaseLost,
    NotSerialisable,
    OutcomeUnknown,
    StoreError,
)
from ..response import answer_of
from ..stores.sql.keys import Keys
from ..stores.sql.phases import Phases, StoredInput, Work
from .flow import Commit, Flow, Open, Rollback, ask, ask_in
from .input import Captured
from .keeper import Keeper
from .operation import Running
from .rules import Rules
from .way import Finished, unavailable, with_expiry

logger = logging.getLogger("samekey")


class _NotFound:
    """What a lookup returns when the provider knows nothing of the effect."""

    def __repr__(self) -> str:
        return "NOT_FOUND"


NOT_FOUND = _NotFound()


class NotSettled(OutcomeUnknown):
    """ "Not found" does not count yet: whoever tried first may still be calling."""

    def __init__(self, name: str, wait_ms: int) -> None:
        super().__init__(f"Whether {name!r} happened cannot be told for another {wait_ms / 1000:.1f} s.")
        self.wait_ms = wait_ms


@dataclass(frozen=True, slots=True)
class Definition:
    """A phased function under its name and version."""

    name: str
    version: int
    function: Callable[..., Any]
    rules: Rules
    model: Any
    max_attempts: int = 10
    """How often an operation that has begun to act is resumed before an operator must look."""
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def identity(self) -> str:
        return f"{self.name}/{self.version}"


@dataclass(slots=True)
class Effect:
    """One outside call: send ``key`` to the provider, and keep the provider's own id here."""

    key: str
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class EffectRules:
    """What is known about a provider."""

    window_ms: int | None
    settle_ms: int
    timeout_ms: int
    can_look_up: bool

    @property
    def can_be_settled(self) -> bool:
        """Whether a later attempt can find out by itself."""
        return self.window_ms is not None or self.can_look_up


class Run:
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
    ) -> None:
        self.ways = ways
        self.definition = definition
        self.lease = lease
        self.operation_id = operation_id
        self.captured = captured
        self.attempts = attempts
        self._phases = work.phases
        self._position = 0
        self._acted = bool(work.phases)
        self._resumable = True
        self._provider_id: str | None = None

    def next_phase(self, name: str, kind: Kind) -> tuple[int, Phase | None]:
        """The position of the step that the function has reached, and what was recorded there."""
        position = self._position
        phase = recorded(self._phases, position, name, kind)
        self._position += 1
        return position, phase

    # A database phase

    def open(self) -> Flow[Any]:
        session = yield Open(None)
        return session

    def close(self, session: Any, position: int, name: str, result: Any) -> Flow[Any]:
        """The recovery point commits with the writes."""
        stored = encode_value(result, f"The result of {name!r}")
        if not session.in_transaction():
            self._resumable = False
            raise EscapedTransaction(f"The phase {name!r} ended its own transaction; leave that to samekey.")
        yield from ask_in(
            session, self.ways.phases.write_phase(self.lease, self.operation_id, position, name, stored)
        )
        self._acted = True
        yield Commit(session)
        return decode_value(stored)

    def undo(self, session: Any) -> Flow[None]:
        yield Rollback(session)

    # An effect

    def prepare(
        self, position: int, name: str, phase: Phase | None, rules: EffectRules
    ) -> Flow[Resume | None]:
        """Commits the intent, or says what to do about an older one. None: make the call."""
        if phase is None:
            yield from ask(lambda: self.ways.phases.intend(self.lease, self.operation_id, position, name))
            self._acted = True
            return None
        now = yield from self._now()
        resume = how_to_resume(phase.intent_at, now, rules.window_ms, can_look_up=rules.can_look_up)
        return None if resume is Resume.CALL_AGAIN else resume

    def not_found(self, position: int, name: str, phase: Phase, rules: EffectRules) -> Flow[None]:
        """The provider knows nothing of it. That counts only once a first caller cannot still be calling."""
        now = yield from self._now()
        settled = settles_at(phase.intent_at, rules.timeout_ms, rules.settle_ms)
        if now < settled:
            raise NotSettled(name, settled - now)
        yield from ask(lambda: self.ways.phases.intend_anew(self.lease, self.operation_id, position, name))

    def look_up_or_stop(self, name: str, todo: Resume) -> None:
        """Where nobody can tell whether an effect happened, the operation stops here as unknown."""
        if todo is Resume.UNKNOWN:
            self._resumable = False
            raise OutcomeUnknown(
                f"{name!r} was begun by an attempt that did not report back. The provider does not "
                "deduplicate it any more and there is no lookup, so nobody can tell whether it happened."
            )

    def check_lease(self, name: str) -> None:
        """Right before the call: a caller that was paused past its lease must not call any more.

        A pause between this line and the call itself cannot be closed by anybody.
        """
        if self.ways.keeper.remaining(self.lease) <= 0:
            raise LeaseLost(f"The lease ran out before {name!r} was called; it was not called.")

    def record(self, position: int, name: str, effect: Effect, result: Any) -> Flow[Any]:
        self._provider_id = effect.provider_id
        try:
            stored = encode_value(result, f"The result of {name!r}")
        except NotSerialisable:
            # It happened, and what it gave cannot be kept: nobody may guess, so an operator looks.
            self._resumable = False
            raise
        yield from ask(
            lambda: self.ways.phases.write_effect(
                self.lease, self.operation_id, position, name, stored, effect.provider_id
            )
        )
        if self.ways.keeper.remaining(self.lease) <= 0:
            # The lease had run out and is ours again.
            self.ways.keeper.watch(self.lease, max_run_ms(self.definition.rules))
        return decode_value(stored)

    def failed(
        self, position: int, name: str, error: BaseException, rules: EffectRules, *, first: bool
    ) -> Flow[None]:
        """What an error of the call means for the operation."""
        if of_error(error, "unknown") is Outcome.FAIL:
            if first:
                # It never left this machine, and nobody else has tried: as if it had not been meant.
                yield from ask(
                    lambda: self.ways.phases.take_back(self.lease, self.operation_id, position, name)
                )
        elif not rules.can_be_settled:
            self._resumable = False

    def effect(self, name: str) -> Effect:
        return Effect(downstream_key(self.lease.scope, self.lease.key, name))

    def _now(self) -> Flow[int]:
        work = yield from ask(lambda: self.ways.phases.load(self.operation_id))
        return work.now

    # The end

    def complete(self, result: Any) -> Flow[Finished]:
        """The function returned: its answer becomes the operation's."""
        answer = answer_of(result)
        policy = self.definition.rules.policy
        outcome = self.definition.rules.outcome(answer.status, None, routed=True)
        if outcome is Outcome.RELEASE and not self._acted:
            yield from ask(lambda: self.ways.keys.release(self.lease))
            return Finished(answer)
        if outcome in (Outcome.FAIL, Outcome.UNKNOWN):
            yield from self._pause(f"status_{answer.status}", outcome)
            return Finished(answer)
        kept = answer if len(answer.body) <= policy.max_answer else None
        expires_at = yield from ask(
            lambda: self.ways.phases.complete(
                self.lease,
                self.operation_id,
                kept,
                ttl_ms=policy.ttl_ms,
                from_creation=policy.ttl_from == "creation",
            )
        )
        if expires_at is None:
            return (yield from self._overtaken())
        return Finished(with_expiry(answer, policy, expires_at))

    def stop(self, error: BaseException) -> Flow[Finished]:
        """The function raised: what becomes of the operation, and what the client gets."""
        policy = self.definition.rules.policy
        match error:
            case LeaseLost():
                return (yield from self._overtaken())
            case DefinitionChanged():
                yield from self._let_go(0, "definition_changed")
                logger.error("%s (%s)", error, self.definition.identity)
                return Finished(refuse(Refusal(500, "The operation cannot go on yet."), policy), error)
            case NotSettled():
                yield from self._let_go(error.wait_ms, "not_settled")
                return Finished(uncertain_answer(policy, self.operation_id, None))
            case StoreError():
                yield from self._let_go(0, type(error).__name__)
                return Finished(unavailable(policy, error))
        outcome = of_error(error, self.definition.rules.on_error)
        yield from self._pause(type(error).__name__, outcome)
        if outcome is Outcome.UNKNOWN and isinstance(error, Exception):
            logger.warning("A phase of %s has no certain outcome: %r", self.definition.identity, error)
            return Finished(uncertain_answer(policy, self.operation_id, None))
        return Finished(None, error)

    def _pause(self, code: str, outcome: Outcome) -> Flow[None]:
        """An operation that has begun to act is resumed later; one that has not may simply be retried."""
        if not self._resumable or (outcome is Outcome.UNKNOWN and not self._acted):
            yield from ask(lambda: self.ways.keys.lose(self.lease, code, provider_id=self._provider_id))
        elif not self._acted:
            yield from ask(lambda: self.ways.keys.fail(self.lease, code))
        elif self.attempts >= self.definition.max_attempts:
            yield from ask(lambda: self.ways.phases.give_up(self.lease, error_code=code))
        else:
            pause = self.definition.backoff.pause_ms(self.attempts, random.random())  # noqa: S311
            yield from self._let_go(pause, code)

    def _let_go(self, pause_ms: int, code: str) -> Flow[None]:
        try:
            yield from ask(lambda: self.ways.phases.let_go(self.lease, pause_ms=pause_ms, error_code=code))
        except StoreError as error:
            logger.warning("A lease could not be given back; it runs out by itself: %s", error)

    def _overtaken(self) -> Flow[Finished]:
        """Somebody else has the operation: its record says what the client gets."""
        policy = self.definition.rules.policy
        record = yield from ask(lambda: self.ways.keys.read(self.lease.scope, self.lease.key))
        if record is None:
            return Finished(uncertain_answer(policy, self.operation_id, None))
        if record.state is State.COMPLETED:
            return Finished(verdict_answer(Withheld(record) if record.withheld else Replay(record), policy))
        if record.state is State.IN_PROGRESS:
            return Finished(verdict_answer(Outstanding(record.id, record.expires_at), policy))
        return Finished(verdict_answer(Uncertain(record), policy))


class PhasedWay:
    """Begins attempts at phased operations, for a request or for the completer."""

    def __init__(self, keys: Keys, keeper: Keeper) -> None:
        self.keys = keys
        self.keeper = keeper
        self.phases = Phases(keys)
        self.definitions: dict[tuple[str, int], Definition] = {}

    def register(self, definition: Definition) -> None:
        key = (definition.name, definition.version)
        if key in self.definitions:
            raise ConfigurationError(
                f"The phased operation {definition.name!r} version {definition.version} is defined twice."
            )
        self.definitions[key] = definition

    def begin(self, running: Running, definition: Definition, captured: Captured, attempts: int) -> Flow[Run]:
        """For a request that holds the key: goes on as the definition that the operation began with."""
        lease = running.lease
        assert lease is not None
        stored = StoredInput(definition.name, definition.version, captured.encode(definition.model))
        work = yield from ask(lambda: self.phases.begin(lease, running.operation.id, stored))
        return self._run(definition, lease, running.operation.id, captured, work, attempts)

    def not_begun(self, lease: Lease, definition: Definition, error: Exception) -> Flow[Finished]:
        """Not a single phase could be run: the operation stays as it was."""
        policy = definition.rules.policy
        try:
            if isinstance(error, NotSerialisable):
                yield from ask(lambda: self.keys.fail(lease, "not_serialisable"))
            else:
                yield from ask(lambda: self.phases.let_go(lease, pause_ms=0, error_code=type(error).__name__))
        except StoreError as unreachable:
            logger.warning("A lease could not be given back; it runs out by itself: %s", unreachable)
        if isinstance(error, StoreError):
            return Finished(unavailable(policy, error))
        logger.error("%s", error)
        if isinstance(error, NotSerialisable):
            return Finished(None, error)
        return Finished(refuse(Refusal(500, "The operation cannot go on yet."), policy), error)

    def resume(self, lease: Lease, operation_id: str, attempts: int) -> Flow[Run | None]:
        """For the completer: everything comes from what was stored. None if there is nothing to do."""
        work = yield from ask(lambda: self.phases.load(operation_id))
        if work.input is None:
            return None
        definition = self.definitions.get((work.input.name, work.input.version))
        if definition is None:
            return None
        captured = Captured.decode(work.input.payload, definition.model)
        return self._run(definition, lease, operation_id, captured, work, attempts)

    def _run(
        self,
        definition: Definition,
        lease: Lease,
        operation_id: str,
        captured: Captured,
        work: Work,
        attempts: int,
    ) -> Run:
        if work.input is not None and (work.input.name, work.input.version) != (
            definition.name,
            definition.version,
        ):
            begun_as = self.definitions.get((work.input.name, work.input.version))
            if begun_as is None:
                raise UnknownVersion(lease, work.input)
            definition = begun_as
            captured = Captured.decode(work.input.payload, definition.model)
        return Run(self, definition, lease, operation_id, captured, work, attempts)


class UnknownVersion(DefinitionChanged):
    """The operation began as a version that this process does not have."""

    def __init__(self, lease: Lease, stored: StoredInput) -> None:
        super().__init__(
            f"This operation began as {stored.name!r} version {stored.version}, which this process does not "
            "have. It was left as it was. Keep old versions registered until their operations are done."
        )
        self.lease = lease


def max_run_ms(rules: Rules) -> int:
    return milliseconds(rules.policy.max_run)


def effect_rules(
    window: timedelta | None, settle: timedelta, timeout: timedelta, *, can_look_up: bool
) -> EffectRules:
    return EffectRules(
        None if window is None else milliseconds(window),
        milliseconds(settle),
        milliseconds(timeout),
        can_look_up,
    )

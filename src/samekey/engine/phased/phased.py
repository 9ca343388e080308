"""Phased work: a function made of named phases that goes on where it stopped.

    @idempotency.phased("create_ride", version=1)
    async def create_ride(op, input):
        ride = await op.transaction("ride_created", insert_ride, input)
        charge = await op.effect("charge_created", charge_card, ride, provider_window=hours(24))
        await op.transaction("receipt_queued", queue_receipt, ride, charge)
        return Response(201, {"ride": ride["id"]})

A retry, or the completer with no client at all, calls the function again from the start; finished phases
return what they stored and are not run. This file begins attempts, ``attempt.py`` beside it runs one, and
``phases.py`` holds the two faces of ``op``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ...core.problem import Refusal, refuse, uncertain_answer
from ...core.program import Program
from ...core.record import Lease
from ...errors import ConfigurationError, CorruptRecord, DefinitionChanged, NotSerialisable, StoreError
from ...stores.keys import NOT_BEGUN
from ...stores.protocols import Actor
from ...stores.sql.keys import SqlKeys
from ...stores.sql.phases import Phases, StoredInput, Work
from ..evidence.belated import Belated
from ..evidence.reconcile import NotingResolver
from ..flow import Flow, ask
from ..keeper import Keeper
from ..modes.mode import Finished, unavailable
from ..operation import Running
from .attempt import REFUSED_PAUSE_MS, PhasedRun, code_of, let_go
from .definition import NOT_FOUND, Definition, Effect, max_run_ms
from .input import Captured

__all__ = ["NOT_FOUND", "Definition", "Effect", "PhasedRun", "PhasedWay", "max_run_ms"]

logger = logging.getLogger("samekey")


class PhasedWay:
    """Begins attempts at phased operations, for a request or for the completer."""

    def __init__(self, keys: SqlKeys, keeper: Keeper, resolver: NotingResolver, users: Any = None) -> None:
        self.users = users
        """What the transactions of phases run on; None for a connection of ours."""
        self.keys = keys
        self.keeper = keeper
        self.phases = Phases(keys)
        self.resolver = resolver
        self.belated = Belated(keys, resolver)
        self.definitions: dict[tuple[str, int], Definition] = {}
        self.given_up: Callable[[], None] = lambda: None
        """Hears of each operation that became a dead letter."""

    def register(self, definition: Definition) -> None:
        """``ConfigurationError`` for what could not be told apart, or not be run, later."""
        name, version = definition.name, definition.version
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"A phased operation needs a name, a string, not {name!r}.")
        if type(version) is not int or version < 1:
            raise ConfigurationError(f"The version of {name!r} must be a number from 1 on, not {version!r}.")
        if type(definition.max_attempts) is not int or definition.max_attempts < 1:
            raise ConfigurationError(f"max_attempts of {name!r} must be a number from 1 on.")
        if (name, version) in self.definitions:
            raise ConfigurationError(f"The phased operation {name!r} version {version} is defined twice.")
        for other in self.definitions.values():
            if other.name == name and other.is_async != definition.is_async:
                raise ConfigurationError(
                    f"Versions {other.version} and {version} of {name!r} must both be async or both be sync: "
                    "a request for the one may have to finish the other."
                )
        self.definitions[name, version] = definition

    def begin(
        self, running: Running, definition: Definition, captured: Captured, attempts: int
    ) -> Flow[PhasedRun]:
        """For a request that holds the key: goes on as the definition that the operation began with."""
        lease, operation_id = running.lease, running.operation.id
        assert lease is not None
        stored = StoredInput(
            definition.name, definition.version, captured.encode(definition.model, definition.extras)
        )
        work = yield from _readable(lambda: self.phases.begin(lease, operation_id, stored))
        if work.input is None:
            # The lease was lost before anything could be kept; the first phase will find that out.
            attempt = PhasedRun(
                self, definition, lease, operation_id, captured, work, attempts, first=running.is_first
            )
        else:
            first = running.is_first
            attempt = self._run(lease, operation_id, work.input, work, attempts, first=first)
        attempt.expires_at = running.expires_at
        return attempt

    def not_begun(self, lease: Lease, definition: Definition, error: Exception) -> Flow[Finished]:
        """Not a single phase could be run: the operation stays as it was."""
        policy = definition.rules.policy
        if isinstance(error, AttemptsUsedUp):
            yield from ask(lambda: self.phases.give_up(lease, error_code="attempts_used_up"))
            self.given_up()
            logger.error("%s", error)
            return Finished(uncertain_answer(policy, None, None, dead=True))
        if isinstance(error, NotSerialisable):
            yield from ask(lambda: self.keys.fail(lease, "not_serialisable"))
            return Finished(None, error)
        yield from let_go(self, lease, 0, code_of(error), counted=False)
        if isinstance(error, StoreError):
            return Finished(unavailable(policy, error))
        logger.error("%s", error)
        return Finished(refuse(Refusal(500, "The operation cannot go on yet."), policy), error)

    def give_back(self, running: Running) -> Flow[None]:
        """The key was taken and the function was never entered: the operation is as it was before."""
        lease, operation_id = running.lease, running.operation.id
        assert lease is not None

        def program() -> Program[bool]:
            if running.is_first:
                return self.phases.release(lease, operation_id)
            return self.phases.let_go(lease, pause_ms=0, error_code=NOT_BEGUN, counted=False)

        self.keeper.forget(lease)
        try:
            yield from ask(program)
        except StoreError as error:
            logger.warning("A claim could not be given back and will be tried again: %s", error)
            self.keeper.give_back_later(program)

    def resume(self, lease: Lease, operation_id: str, attempts: int) -> Flow[PhasedRun | None]:
        """For the completer: everything comes from what was stored. None if there is nothing to do."""
        try:
            work = yield from _readable(lambda: self.phases.load(operation_id))
            if work.input is None:
                return None
            return self._run(lease, operation_id, work.input, work, attempts, unattended=True)
        except AttemptsUsedUp as error:
            yield from ask(
                lambda: self.phases.give_up(lease, error_code="attempts_used_up", actor=Actor("completer"))
            )
            self.given_up()
            logger.error("%s", error)
            return None
        except DefinitionChanged as error:
            yield from let_go(self, lease, REFUSED_PAUSE_MS, code_of(error), counted=False)
            raise

    def _run(
        self,
        lease: Lease,
        operation_id: str,
        stored: StoredInput,
        work: Work,
        attempts: int,
        *,
        first: bool = False,
        unattended: bool = False,
    ) -> PhasedRun:
        """With the input as it was stored: the first attempt sees what every later one will see."""
        definition = self.definitions.get((stored.name, stored.version))
        if definition is None:
            raise UnknownVersion(lease, stored)
        if attempts > definition.max_attempts and (work.phases or unattended):
            raise AttemptsUsedUp(
                f"Operation {operation_id} ({definition.identity}) was begun {attempts - 1} times and never "
                "came to an end, not even to an error. An operator must look."
            )
        captured = Captured.decode(stored.payload, definition.model, definition.extras)
        return PhasedRun(
            self,
            definition,
            lease,
            operation_id,
            captured,
            work,
            attempts,
            first=first,
            unattended=unattended,
        )


def _readable(factory: Callable[[], Program[Work]]) -> Flow[Work]:
    """What cannot be read, or not be decrypted, is left as it is for whoever can."""
    try:
        return (yield from ask(factory))
    except CorruptRecord as error:
        raise DefinitionChanged(f"{error} The operation was left as it was.") from error


class AttemptsUsedUp(DefinitionChanged):
    """Every attempt ended without a word: killed, perhaps by what it does."""


class UnknownVersion(DefinitionChanged):
    """The operation began as a version that this process does not have."""

    def __init__(self, lease: Lease, stored: StoredInput) -> None:
        super().__init__(
            f"This operation began as {stored.name!r} version {stored.version}, which this process does not "
            "have. It was left as it was. Keep old versions registered until their operations are done."
        )
        self.lease = lease

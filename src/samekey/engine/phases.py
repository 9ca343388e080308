"""The two faces of a phased operation: ``op`` in an async function and ``op`` in a sync one.

They differ only in how they wait; what happens is in ``phased.py``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from ..core.phases import Kind, decode_value
from .flow import Flow
from .phased import NOT_FOUND, Run, effect_rules
from .rules import seconds

T = TypeVar("T")
Duration = float | timedelta

SETTLE: Duration = 30
"""Seconds after the longest call during which "not found" proves nothing: the provider's own queues."""
CALL_TIMEOUT: Duration = 30


class Shell(Protocol):
    """What carries flows out: the engine."""

    def drive(self, flow: Flow[T]) -> T: ...

    async def drive_async(self, flow: Flow[T]) -> T: ...


class _Operation:
    def __init__(self, run: Run, shell: Shell) -> None:
        self._run = run
        self._shell = shell

    @property
    def id(self) -> str:
        """The unguessable id of the record: reference it from your tables."""
        return self._run.operation_id

    @property
    def tenant(self) -> str:
        """Whose operation it is, as the tenant resolver said at the first claim."""
        return self._run.captured.tenant

    @property
    def attempts(self) -> int:
        """How often this operation has been run, this time included."""
        return self._run.attempts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._run.definition.identity} {self.id}>"


class AsyncPhasedOperation(_Operation):
    """``op`` in an async phased function."""

    async def transaction(self, name: str, write: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs ``write(connection, …)`` and commits its writes together with the recovery point.

        Once committed, every later attempt gets the stored result and does not run it. The result must be
        plain JSON values. ``write`` must not call other services, and must not commit.
        """
        position, phase = self._run.next_phase(name, Kind.TRANSACTION)
        if phase is not None:
            return decode_value(phase.result)
        session = await self._shell.drive_async(self._run.open())
        try:
            result = write(session.connection, *args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            return await self._shell.drive_async(self._run.close(session, position, name, result))
        except BaseException:
            await self._shell.drive_async(self._run.undo(session))
            raise

    async def effect(
        self,
        name: str,
        call: Callable[..., Any],
        /,
        *args: Any,
        lookup: Callable[..., Any] | None = None,
        settle: Duration = SETTLE,
        provider_window: Duration | None = None,
        timeout: Duration = CALL_TIMEOUT,  # noqa: ASYNC109 (it also counts towards settling)
        **kwargs: Any,
    ) -> Any:
        """Makes one outside call, ``call(effect, …)``, and keeps its result.

        Send ``effect.key`` to the provider as its idempotency key, and set ``effect.provider_id`` to the
        id that it gives. ``provider_window``: how long the provider deduplicates by that key; leave it out
        if it does not. ``lookup(effect, …)``: finds the effect again, or returns ``NOT_FOUND``; "not found"
        is believed only after ``timeout`` plus ``settle``. With neither, a crash here means ``unknown``.
        """
        rules = effect_rules(
            None if provider_window is None else seconds(provider_window),
            seconds(settle),
            seconds(timeout),
            can_look_up=lookup is not None,
        )
        run, drive = self._run, self._shell.drive_async
        position, phase = run.next_phase(name, Kind.EFFECT)
        if phase is not None and phase.done:
            return decode_value(phase.result)
        effect = run.effect(name)
        todo = await drive(run.prepare(position, name, phase, rules))
        if todo is not None:
            assert phase is not None
            run.look_up_or_stop(name, todo)
            assert lookup is not None
            found = await asyncio.wait_for(lookup(effect, *args, **kwargs), rules.timeout_ms / 1000)
            if found is not NOT_FOUND:
                return await drive(run.record(position, name, effect, found))
            await drive(run.not_found(position, name, phase, rules))
        run.check_lease(name)
        try:
            result = await asyncio.wait_for(call(effect, *args, **kwargs), rules.timeout_ms / 1000)
        except BaseException as error:
            await drive(run.failed(position, name, error, rules, first=phase is None))
            raise
        return await drive(run.record(position, name, effect, result))


class PhasedOperation(_Operation):
    """``op`` in a sync phased function; the same without ``await``.

    A sync call cannot be interrupted: give your client a time-out no longer than ``timeout``.
    """

    def transaction(self, name: str, write: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs ``write(connection, …)`` and commits its writes together with the recovery point."""
        position, phase = self._run.next_phase(name, Kind.TRANSACTION)
        if phase is not None:
            return decode_value(phase.result)
        session = self._shell.drive(self._run.open())
        try:
            result = write(session.connection, *args, **kwargs)
            return self._shell.drive(self._run.close(session, position, name, result))
        except BaseException:
            self._shell.drive(self._run.undo(session))
            raise

    def effect(
        self,
        name: str,
        call: Callable[..., Any],
        /,
        *args: Any,
        lookup: Callable[..., Any] | None = None,
        settle: Duration = SETTLE,
        provider_window: Duration | None = None,
        timeout: Duration = CALL_TIMEOUT,
        **kwargs: Any,
    ) -> Any:
        """Makes one outside call, ``call(effect, …)``, and keeps its result."""
        rules = effect_rules(
            None if provider_window is None else seconds(provider_window),
            seconds(settle),
            seconds(timeout),
            can_look_up=lookup is not None,
        )
        run, drive = self._run, self._shell.drive
        position, phase = run.next_phase(name, Kind.EFFECT)
        if phase is not None and phase.done:
            return decode_value(phase.result)
        effect = run.effect(name)
        todo = drive(run.prepare(position, name, phase, rules))
        if todo is not None:
            assert phase is not None
            run.look_up_or_stop(name, todo)
            assert lookup is not None
            found = lookup(effect, *args, **kwargs)
            if found is not NOT_FOUND:
                return drive(run.record(position, name, effect, found))
            drive(run.not_found(position, name, phase, rules))
        run.check_lease(name)
        try:
            result = call(effect, *args, **kwargs)
        except BaseException as error:
            drive(run.failed(position, name, error, rules, first=phase is None))
            raise
        return drive(run.record(position, name, effect, result))

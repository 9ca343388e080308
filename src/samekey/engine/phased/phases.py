"""The two faces of a phased operation: ``op`` in an async function and ``op`` in a sync one.

They differ only in how they wait; what happens is in ``phased.py``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from ...core.phases import PhaseKind, decode_value
from ...errors import ConfigurationError
from ..evidence.said import FoundWord
from ..flow import Flow
from ..handler.rules import seconds
from ..sending import sends
from ..within import Binding, inside
from .attempt import PhasedRun, step_name
from .definition import NOT_FOUND, EffectRules, effect_rules

T = TypeVar("T")
Duration = float | timedelta

SETTLE: Duration = 30
"""Seconds after the longest call during which "not found" proves nothing: the provider's own queues."""
CALL_TIMEOUT: Duration = 30


class Shell(Protocol):
    """What carries flows out: the engine."""

    @property
    def binding(self) -> Binding | None: ...

    def drive(self, flow: Flow[T]) -> T: ...

    async def drive_async(self, flow: Flow[T]) -> T: ...

    async def open_async(self, flow: Flow[T]) -> T: ...


class _Operation:
    def __init__(self, run: PhasedRun, shell: Shell) -> None:
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
    def params(self) -> Mapping[str, Any]:
        """The route's parameters, as the first request had them."""
        return self._run.captured.given.params

    @property
    def attempts(self) -> int:
        """How often this operation has been run, this time included."""
        return self._run.attempts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._run.definition.identity} {self.id}>"


class AsyncPhasedOperation(_Operation):
    """``op`` in an async phased function."""

    def transaction(
        self, name: str, write: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Runs ``write(connection, …)`` and commits its writes together with the recovery point. Await it.

        Once committed, every later attempt gets the stored result and does not run it. The result must be
        plain JSON values. ``write`` must not call other services, and must not commit.
        """
        return self._noted(name, PhaseKind.TRANSACTION, self._transaction(name, write, args, kwargs))

    def _noted(self, name: str, kind: PhaseKind, step: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """A step that nobody awaits is noticed."""
        self._run.steps.note(step_name(name, kind), step)
        return step

    async def _transaction(
        self, name: str, write: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        run, drive = self._run, self._shell.drive_async
        with run.step(name, PhaseKind.TRANSACTION) as (position, phase):
            if phase is not None:
                return decode_value(phase.result)
            session = await self._shell.open_async(run.open())
            try:
                began = await drive(run.enter(session, name))
                with inside(session, self._shell.binding, sync=False) as transaction:
                    result = write(session.connection, *args, **kwargs)
                    if inspect.isawaitable(result):
                        result = await result
                    await transaction.settle_async()
            except BaseException as error:
                lost = await drive(run.undo(session, error))
                if lost is not None:
                    raise lost from error
                raise
            return await drive(run.close(session, position, name, result, began))

    def effect(
        self,
        name: str,
        call: Callable[..., Any],
        /,
        *args: Any,
        lookup: Callable[..., Any] | None = None,
        settle: Duration = SETTLE,
        provider_window: Duration | None = None,
        source: str | None = None,
        timeout: Duration = CALL_TIMEOUT,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Makes one outside call, ``call(effect, …)``, and keeps its result. Await it.

        Send ``effect.key`` to the provider as its idempotency key, and set ``effect.provider_id`` to the
        id that it gives. ``provider_window``: how long the provider deduplicates by that key; leave it out
        if it does not. ``lookup(effect, …)``: finds the effect again, or returns ``NOT_FOUND``; "not found"
        is believed only after ``timeout`` plus ``settle``. With neither, a crash here means ``unknown``.
        ``source`` names the provider, as ``resolve`` does. What an event says about this effect (``resolve``)
        becomes its result, as if the call had returned it.
        """
        rules = effect_rules(
            None if provider_window is None else seconds(provider_window),
            seconds(settle),
            seconds(timeout),
            can_look_up=lookup is not None,
            source=source,
        )
        return self._noted(name, PhaseKind.EFFECT, self._effect(name, call, lookup, rules, args, kwargs))

    async def _effect(
        self,
        name: str,
        call: Callable[..., Any],
        lookup: Callable[..., Any] | None,
        rules: EffectRules,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        run, drive = self._run, self._shell.drive_async
        with run.step(name, PhaseKind.EFFECT) as (position, phase):
            if phase is not None and phase.done:
                return decode_value(phase.result)
            effect = run.effect(name, rules, first=phase is None)
            todo = await drive(run.prepare(position, name, phase, rules))
            if isinstance(todo, FoundWord):
                return await drive(run.adopt(position, name, effect, todo))
            if todo is not None:
                assert phase is not None
                run.look_up_or_stop(name, todo)
                assert lookup is not None
                effect.timeout = rules.timeout_ms / 1000
                effect.look_since(await drive(run.since()))
                found = await _within(effect.timeout, lookup(effect, *args, **kwargs))
                if found is not NOT_FOUND:
                    return await drive(run.looked_up(position, name, effect, _found(name, found)))
                told = await drive(run.not_found(position, name, phase, rules))
                if told is not None:
                    return await drive(run.adopt(position, name, effect, told))
            effect.timeout = await drive(run.may_call(position, name, rules, first=phase is None))
            try:
                with sends(effect):
                    result = await _within(effect.timeout, call(effect, *args, **kwargs))
            except BaseException as error:
                await drive(run.failed(position, name, effect, error, rules, first=phase is None))
                raise
            return await drive(run.record(position, name, effect, result))


class PhasedOperation(_Operation):
    """``op`` in a sync phased function; the same without ``await``.

    A sync call cannot be interrupted: give your client ``effect.timeout`` as its time-out.
    """

    def transaction(self, name: str, write: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs ``write(connection, …)`` and commits its writes together with the recovery point."""
        _must_be_sync(name, write)
        run, drive = self._run, self._shell.drive
        with run.step(name, PhaseKind.TRANSACTION) as (position, phase):
            if phase is not None:
                return decode_value(phase.result)
            session = drive(run.open())
            try:
                began = drive(run.enter(session, name))
                with inside(session, self._shell.binding, sync=True) as transaction:
                    result = write(session.connection, *args, **kwargs)
                    transaction.settle()
            except BaseException as error:
                lost = drive(run.undo(session, error))
                if lost is not None:
                    raise lost from error
                raise
            return drive(run.close(session, position, name, result, began))

    def effect(
        self,
        name: str,
        call: Callable[..., Any],
        /,
        *args: Any,
        lookup: Callable[..., Any] | None = None,
        settle: Duration = SETTLE,
        provider_window: Duration | None = None,
        source: str | None = None,
        timeout: Duration = CALL_TIMEOUT,
        **kwargs: Any,
    ) -> Any:
        """Makes one outside call, ``call(effect, …)``, and keeps its result."""
        rules = effect_rules(
            None if provider_window is None else seconds(provider_window),
            seconds(settle),
            seconds(timeout),
            can_look_up=lookup is not None,
            source=source,
        )
        _must_be_sync(name, call, lookup)
        run, drive = self._run, self._shell.drive
        with run.step(name, PhaseKind.EFFECT) as (position, phase):
            if phase is not None and phase.done:
                return decode_value(phase.result)
            effect = run.effect(name, rules, first=phase is None)
            todo = drive(run.prepare(position, name, phase, rules))
            if isinstance(todo, FoundWord):
                return drive(run.adopt(position, name, effect, todo))
            if todo is not None:
                assert phase is not None
                run.look_up_or_stop(name, todo)
                assert lookup is not None
                effect.timeout = rules.timeout_ms / 1000
                effect.look_since(drive(run.since()))
                found = lookup(effect, *args, **kwargs)
                if found is not NOT_FOUND:
                    return drive(run.looked_up(position, name, effect, _found(name, found)))
                told = drive(run.not_found(position, name, phase, rules))
                if told is not None:
                    return drive(run.adopt(position, name, effect, told))
            effect.timeout = drive(run.may_call(position, name, rules, first=phase is None))
            try:
                with sends(effect):
                    result = call(effect, *args, **kwargs)
            except BaseException as error:
                drive(run.failed(position, name, effect, error, rules, first=phase is None))
                raise
            return drive(run.record(position, name, effect, result))


async def _within(timeout: float, result: Any) -> Any:  # noqa: ASYNC109 (of one call, not of this helper)
    """The result of a call that may be async; one that is not has happened already."""
    return await asyncio.wait_for(result, timeout) if inspect.isawaitable(result) else result


def _found(name: str, found: Any) -> Any:
    if found is None:
        raise ConfigurationError(
            f"The lookup of {name!r} returned None. It must return what the call would have returned, or "
            "samekey.NOT_FOUND; nothing was concluded from this, and nothing was called."
        )
    return found


def _must_be_sync(name: str, *functions: Callable[..., Any] | None) -> None:
    if any(inspect.iscoroutinefunction(function) for function in functions):
        raise ConfigurationError(
            f"The phase {name!r} of a sync operation was given an async function, which would never run. "
            "Declare the operation with async def."
        )

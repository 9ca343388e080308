"""Sync and async functions: which one a handler is, and what is put around it in the same form."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any

from ...errors import NotExecuted, OutcomeUnknown


def in_form_of(
    handler: Any, run_async: Callable[..., Awaitable[Any]], run_sync: Callable[..., Any]
) -> Callable[..., Any]:
    """A function around a handler: async for an async one, and sync stays sync.

    A sync wrapper around an async function (``functools.wraps``), and an object with an async ``__call__``,
    may be either: some frameworks await what it gives, others call it in a thread and take the value. It
    runs as it is called: in an event loop it is to be awaited.
    """
    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)
        async def around_async(*args: Any, **kwargs: Any) -> Any:
            return await run_async(*args, **kwargs)

        return around_async
    if _hides_async(handler):

        @functools.wraps(handler)
        def around_either(*args: Any, **kwargs: Any) -> Any:
            return run_async(*args, **kwargs) if in_a_loop() else run_sync(*args, **kwargs)

        return around_either

    @functools.wraps(handler)
    def around_sync(*args: Any, **kwargs: Any) -> Any:
        return run_sync(*args, **kwargs)

    return around_sync


async def value_of(given: Any) -> Any:
    """What an async handler gives, or whatever a wrapper around one has made of it: a task, a future."""
    if type(given) is CoroutineType:  # nearly always, and asked at a fraction of the price
        return await given
    return await given if inspect.isawaitable(given) else given


def _hides_async(handler: Any) -> bool:
    """Whether a coroutine may come of it although it is no async function itself."""
    function = handler
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or has_async_call(function)


def has_async_call(function: Any) -> bool:
    """Whether it is an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004


def in_a_loop() -> bool:
    """Whether this runs in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def must_have_run(value: Any, function: Any) -> Any:
    """What a sync call of a function returned. A coroutine or a generator has not run yet, and nobody would
    run it. That is no proof that nothing was done, unless calling the function cannot have run a line of its
    own: an ordinary function may have acted before it returned."""
    if not (inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value)):
        return value
    advice = (
        "Guard the function that does the work itself: an async one declared with async def (in a call: "
        "await once_async(…)), and no generator."
    )
    unused = _never_started(value)
    if unused and (inspect.iscoroutine(value) or inspect.isgenerator(value)):
        value.close()
    if not (unused and _only_makes(function)):
        raise OutcomeUnknown(
            f"The function gave {type(value).__name__}, which is not waited for; what the function has done "
            f"before, and whether that runs, is not known. {advice}"
        )
    raise NotExecuted(f"The function gave {type(value).__name__}, so nothing was run. {advice}")


def _only_makes(function: Any) -> bool:
    """Whether calling it only makes a coroutine or a generator, by its code: marks can be set on anything."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    kinds = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
    return code is not None and bool(code.co_flags & kinds)


def _never_started(value: Any) -> bool:
    """Only of these it can be seen: a task, a future or an object of another kind has its own ways."""
    if inspect.iscoroutine(value):
        return inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    if inspect.isgenerator(value):
        return inspect.getgeneratorstate(value) == inspect.GEN_CREATED
    # As the standard library tells it of coroutines; it has no function for these in every version.
    return inspect.isasyncgen(value) and value.ag_frame is not None and value.ag_frame.f_lasti <= 0

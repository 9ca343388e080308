"""Handlers that are told which request they are called for.

A context variable says it too, but not where an application calls another one in-process on its way: what is
reached there would take the outer request's key. The request itself is the better witness. It carries its
exchange; one that an application makes by itself does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

from ..engine.exchange import (
    KEYLESS,
    Asked,
    Exchange,
    Unguarded,
    current_exchange,
    exchange_of,
    is_sign,
    reached,
)
from ..engine.handler.decorate import at_handler, undecorated
from ..engine.handler.forms import in_form_of, value_of
from ..engine.handler.marks import Mark, mark_of, put_in_place
from ..engine.handler.streams import called_at_first_step, claiming_stream

Finds = Callable[[tuple[Any, ...], dict[str, Any]], Asked | None]
"""Gives the request that a call is for; None where it cannot be seen. It may take from the arguments what the
handler has not asked for."""


def bound(
    handler: Any,
    finds: Finds,
    *,
    decorated: bool,
    wrapped: bool,
    leaves: Callable[[tuple[Any, ...]], bool] | None = None,
    mark: Mark | None = None,
) -> Any:
    """A function to stand in the place of a route's handler: it knows its request, and an undecorated handler
    claims for itself. ``wrapped``: others stand around it. ``leaves``: whether a call is for something inside
    it that is decorated. ``mark``: of the guarded function that it leads to, where it bears none itself."""
    known = mark or mark_of(handler) if decorated else None
    guarded = _below_others(handler, known) if decorated else at_handler(handler, wrapped=wrapped)

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        with _within(finds(args, kwargs), known):
            return await value_of((handler if leaves and leaves(args) else guarded)(*args, **kwargs))

    def run_sync(*args: Any, **kwargs: Any) -> Any:
        with _within(finds(args, kwargs), known):
            return (handler if leaves and leaves(args) else guarded)(*args, **kwargs)

    return put_in_place(in_form_of(handler, run_async, run_sync), handler)


def bound_stream(handler: Any, finds: Finds, *, wrapped: bool) -> Any:
    """``bound`` for an undecorated generator. What is around it runs after the claim, too."""

    @functools.wraps(handler)
    def call(*args: Any, **kwargs: Any) -> Any:
        asked = finds(args, kwargs)
        with _within(asked, None):
            found = undecorated((*args, *kwargs.values()), wrapped=wrapped)
            if found is None:
                return handler(*args, **kwargs)
            given = called_at_first_step(handler, args, kwargs) if wrapped else handler(*args, **kwargs)
        return claiming_stream(given, found[2], partial(_within, asked, None), kwargs, wrapped=wrapped)

    return put_in_place(call, handler)


def _below_others(handler: Any, mark: object) -> Any:
    """A handler whose guarded function stands below decorators. On a replay they have nothing to go on with:
    the function leaves them by a sign, and the answer is given in their place."""
    if not isinstance(mark, Mark) or getattr(handler, "__func__", handler) is mark.function:
        return handler

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        with _LeftBySign() as exchange:
            return await value_of(handler(*args, **kwargs))
        return exchange.respond(exchange.answer)

    def run_sync(*args: Any, **kwargs: Any) -> Any:
        with _LeftBySign() as exchange:
            return handler(*args, **kwargs)
        return exchange.respond(exchange.answer)

    return in_form_of(handler, run_async, run_sync)


class _LeftBySign:
    """Around decorators that the guarded function may leave so."""

    def __enter__(self) -> Any:
        self._exchange = current_exchange.get()
        if isinstance(self._exchange, Exchange):
            self._exchange.below_others = True
        return self._exchange

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        decided = isinstance(self._exchange, Exchange) and self._exchange.answer is not None
        return decided and error is not None and is_sign(error)


class _within:  # noqa: N801 (used as a function is; a class costs half as much, on every request)
    """Around a handler that is called for a request."""

    __slots__ = ("_asked", "_handler", "_mark", "_token")

    def __init__(self, asked: Asked | None, mark: object) -> None:
        self._asked = asked
        self._mark = mark

    def __enter__(self) -> None:
        asked, mark = self._asked, self._mark
        exchange = exchange_of(asked, decorated=mark is not None)
        if asked is not None and KEYLESS in asked.context:
            asked.context[KEYLESS]()
        if mark is None and isinstance(exchange, Unguarded) and asked is not None:
            exchange.check(asked)
        if isinstance(exchange, Exchange) and asked is not None:
            exchange.reached_by(asked.framework)
        self._token = current_exchange.set(exchange)
        self._handler = reached.set((mark, "" if asked is None else asked.method))

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        reached.reset(self._handler)
        current_exchange.reset(self._token)

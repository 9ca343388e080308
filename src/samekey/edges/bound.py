"""Handlers that are told which request they are called for.

A context variable says it too, but not where an application calls another one in-process on its way: what is
reached there would take the outer request's key. The request itself is the better witness. It carries its
exchange; one that an application makes by itself does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..engine.decorate import at_handler, undecorated
from ..engine.exchange import Asked, Exchange, current_exchange, exchange_of, reached
from ..engine.forms import in_form_of, value_of
from ..engine.marks import mark_of, put_in_place
from ..engine.streams import claiming_stream

Finds = Callable[[tuple[Any, ...], dict[str, Any]], Asked | None]
"""Gives the request that a call is for; None where it cannot be seen. It may take from the arguments what the
handler has not asked for."""


def bound(handler: Any, finds: Finds, *, decorated: bool) -> Any:
    """A function to stand in the place of a route's handler: it knows its request, and an undecorated handler
    claims for itself."""
    guarded = handler if decorated else at_handler(handler)
    mark = mark_of(handler) if decorated else None

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        with _within(finds(args, kwargs), mark):
            return await value_of(guarded(*args, **kwargs))

    def run_sync(*args: Any, **kwargs: Any) -> Any:
        with _within(finds(args, kwargs), mark):
            return guarded(*args, **kwargs)

    return put_in_place(in_form_of(handler, run_async, run_sync), handler)


def bound_stream(handler: Any, finds: Finds) -> Any:
    """``bound`` for an undecorated generator. Its own decorators run when it is called, before it claims."""

    @functools.wraps(handler)
    def call(*args: Any, **kwargs: Any) -> Any:
        asked = finds(args, kwargs)
        with _within(asked, None):
            found, given = undecorated((*args, *kwargs.values())), handler(*args, **kwargs)
        if found is None:
            return given
        return claiming_stream(given, found[2], partial(_within, asked, None), kwargs)

    return put_in_place(call, handler)


@contextmanager
def _within(asked: Asked | None, mark: object) -> Iterator[None]:
    exchange = exchange_of(asked)
    if isinstance(exchange, Exchange) and asked is not None:
        exchange.reached_by(asked.framework)
    token = current_exchange.set(exchange)
    handler = reached.set((mark, "" if asked is None else asked.method))
    try:
        yield
    finally:
        reached.reset(handler)
        current_exchange.reset(token)

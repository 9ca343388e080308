"""Keys for anything else that sends requests: a function of the caller's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..core.outcome import left_this_machine
from .carry import Finished, Keyed, begin, carriage, run, run_async
from .course import Failed, Moment
from .scope import Named
from .wire import Answer, Request


def with_key(
    send: Callable[[Request, float], Answer],
    request: Request,
    *,
    keyed: Keyed,
    name: str | None = None,
) -> Finished:
    """Has ``send`` send the request until it has its answer: ``send(request, seconds)`` sends what it is
    given, key included, reads the whole answer within so many seconds, and lets the errors of its sockets
    out. Gives the answer and what is known of it."""
    entry = begin(keyed, request, None if name is None else Named(name))
    return run(carriage(keyed, request, entry), send, _thrown)


async def with_key_async(
    send: Callable[[Request, float], Awaitable[Answer]],
    request: Request,
    *,
    keyed: Keyed,
    name: str | None = None,
) -> Finished:
    """The same, for an async function."""
    entry = begin(keyed, request, None if name is None else Named(name))

    async def block(call: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(call) if keyed.journal.in_threads else call()

    return await run_async(carriage(keyed, request, entry), send, _thrown, pause=asyncio.sleep, block=block)


def _thrown(error: Exception, at: Moment) -> Failed | None:
    left = left_this_machine(error)
    return None if left is None else Failed(error, at, left=left)

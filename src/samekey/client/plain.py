"""Keys for anything else that sends requests: a function of the caller's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ..core.arrival import left_this_machine
from .carry import Finished, Keyed, Underway, begin, carriage, run, run_async
from .course import Failed, Moment
from .entry import Entry
from .pending import Pending, listed
from .scope import Listed, Named, current
from .wire import Answer, Pairs, Request

Send = Callable[[Request, float], Answer]
SendAsync = Callable[[Request, float], Awaitable[Answer]]


def with_key(
    send: Send,
    request: Request,
    *,
    keyed: Keyed,
    name: str | None = None,
) -> Finished:
    """Has ``send`` send the request until it has its answer: ``send(request, seconds)`` sends what it is
    given, key included, reads the whole answer within so many seconds, and lets the errors of its sockets
    out. Gives the answer and what is known of it."""
    return _run(send, request, keyed, begin(keyed, request, _named(name)))


async def with_key_async(
    send: SendAsync,
    request: Request,
    *,
    keyed: Keyed,
    name: str | None = None,
) -> Finished:
    """The same, for an async function."""
    return await _run_async(send, request, keyed, begin(keyed, request, _named(name)))


def pending(send: Send, *, keyed: Keyed) -> list[Pending[Finished]]:
    """What was begun, by this process or an earlier one, and has no final answer. ``finish()`` has ``send``
    send it again; credentials were not saved: ``finish(headers=(("Authorization", …),))``."""

    def again(entry: Entry, headers: Pairs = ()) -> Finished:
        return _run(send, _with(entry, headers), keyed, begin(keyed, entry.request, Listed(entry)))

    return listed(keyed, again)


def pending_async(send: SendAsync, *, keyed: Keyed) -> list[Pending[Awaitable[Finished]]]:
    """The same, for an async function: await ``finish()``."""

    async def again(entry: Entry, headers: Pairs = ()) -> Finished:
        going = begin(keyed, entry.request, Listed(entry))
        return await _run_async(send, _with(entry, headers), keyed, going)

    return listed(keyed, again)


def _named(name: str | None) -> Named | None:
    said = current()
    if name is None and isinstance(said, Named):
        said.taken = True
        return said
    return None if name is None else Named(name)


def _with(entry: Entry, headers: Pairs) -> Request:
    return replace(entry.request, headers=(*entry.headers, *headers))


def _run(send: Send, request: Request, keyed: Keyed, going: Underway) -> Finished:
    return run(carriage(keyed, request, going), send, _thrown)


async def _run_async(send: SendAsync, request: Request, keyed: Keyed, going: Underway) -> Finished:
    async def block(call: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(call) if keyed.journal.in_threads else call()

    return await run_async(carriage(keyed, request, going), send, _thrown, pause=asyncio.sleep, block=block)


def _thrown(error: Exception, at: Moment) -> Failed | None:
    left = left_this_machine(error)
    return None if left is None else Failed(error, at, left=left)

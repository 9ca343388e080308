"""A client that leaves does not stop a view that holds a key."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ..engine.exchange import Exchange

logger = logging.getLogger("samekey")


async def whatever_becomes_of_the_client(work: Any, exchange: Exchange) -> Any:
    """Django cancels a request whose client has left. A view that holds a key goes on all the same, and the
    request with it, so that its thread and its connection are there until it has ended."""
    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    left = False
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=_longest(exchange) if left else None)
        except asyncio.CancelledError:
            left = True
            if exchange.let_go():
                task.cancel()  # nobody has claimed: as it would be without us
        else:
            if left and not task.done():
                break  # its longest run is over
    if left:
        if task.done() and not task.cancelled() and task.exception() is not None:
            logger.error("What ran on after its client had left failed", exc_info=task.exception())
        raise asyncio.CancelledError
    return task.result()


_under_way: set[asyncio.Future[Any]] = set()


def _longest(exchange: Exchange) -> float | None:
    running = exchange.running
    return None if running is None else running.rules.policy.max_run.total_seconds()

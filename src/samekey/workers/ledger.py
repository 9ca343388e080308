"""The scheduled comparison of two ledgers: it asks for both sides, compares, tells, and changes nothing.

Safe on many nodes at once, because it only reads; but each node tells what it found, so one is enough.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..core.ledger import FIELDS, Comparison, Entry, Field, Ledgers, compare
from ..engine.engine import Engine

logger = logging.getLogger("samekey")

INTERVAL = timedelta(days=1)
"""Between comparisons. Providers close their books daily, and a day's entries fit into one report."""
AFTER_AN_ERROR = timedelta(hours=1)
"""Before a comparison that failed is tried again: a report is not urgent, and a provider counts calls."""
TIMEOUT = timedelta(minutes=30)
"""For both sides together. An export of a day takes minutes; a connection that hangs must not end the
schedule."""


class LedgerCheck:
    """Compares our ledger with the provider's. ``ours`` and ``theirs`` are described at ``Ledgers``."""

    def __init__(
        self,
        engine: Engine,
        ours: Callable[[], Any],
        theirs: Callable[[], Any],
        *,
        report: Callable[[Comparison], Any] | None = None,
        fields: tuple[Field, ...] = FIELDS,
        name: str = "ledger",
        timeout: timedelta = TIMEOUT,
    ) -> None:
        self._engine = engine
        self._ledgers = Ledgers(ours, theirs, report, fields, name)
        self._timeout = timeout

    @classmethod
    def of(cls, engine: Engine, ledgers: Ledgers, *, timeout: timedelta = TIMEOUT) -> LedgerCheck:
        """The check of a declared pair of ledgers."""
        return cls(
            engine,
            ledgers.ours,
            ledgers.theirs,
            report=ledgers.report,
            fields=ledgers.fields,
            name=ledgers.name,
            timeout=timeout,
        )

    async def run_once(self) -> Comparison:
        """One comparison. The event ``ledger.difference`` is emitted with 0 too: silence is no good news.

        Raises what ``ours``, ``theirs`` or ``report`` raise, ``CannotCompare``, or ``TimeoutError``. The
        differences are logged and counted before the report is called, so that its failure hides nothing.
        """
        ledgers = self._ledgers
        async with asyncio.timeout(self._timeout.total_seconds()):
            ours, theirs = await _both(_entries(ledgers.ours), _entries(ledgers.theirs))
        comparison = await asyncio.to_thread(compare, ours, theirs, ledgers.fields)
        level = logging.ERROR if comparison.differences else logging.INFO
        logger.log(level, "%s: %s", ledgers.name, comparison)
        self._engine.events.emit("ledger.difference", value=comparison.differences, ledger=ledgers.name)
        if ledgers.report is not None:
            told = await _call(ledgers.report, comparison)
            if inspect.isawaitable(told):
                await told
        return comparison


async def _both(ours: Any, theirs: Any) -> tuple[list[Entry], list[Entry]]:
    """Both at once; where one fails, the other is not left behind."""
    try:
        async with asyncio.TaskGroup() as group:
            left, right = group.create_task(ours), group.create_task(theirs)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return left.result(), right.result()


async def _entries(source: Callable[[], Any]) -> list[Entry]:
    """Whatever a user's function gives, as a list. What is sync runs in a thread, also a lazy iterable."""
    given = await _call(source)
    if inspect.isawaitable(given):
        given = await given
    if hasattr(given, "__aiter__"):
        return [entry async for entry in given]
    return await asyncio.to_thread(list, given)


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return function(*arguments) if is_async else await asyncio.to_thread(function, *arguments)

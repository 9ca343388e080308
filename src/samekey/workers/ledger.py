"""The scheduled comparison of two ledgers: it asks for both sides, compares, tells, and changes nothing.

Safe on many nodes at once, because it only reads; but each node tells what it found, so one is enough.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from ..core.ledger import FIELDS, Comparison, Entry, Field, Ledgers, compare
from ..drivers.threads import in_a_thread
from ..engine.engine import Engine
from .apart import Apart, TooLong

logger = logging.getLogger("samekey")

T = TypeVar("T")

INTERVAL = timedelta(days=1)
"""Between comparisons. Providers close their books daily, and a day's entries fit into one report."""
AFTER_AN_ERROR = timedelta(hours=1)
"""Before a comparison that failed is tried again: a report is not urgent, and a provider counts calls."""
TIMEOUT = timedelta(minutes=30)
"""For each of the functions. An export of a day takes minutes; a connection that hangs must not end the
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
        self.apart = Apart(hangs=self._hangs)

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
        ours, theirs = await self._both(
            self._entries("our entries", ledgers.ours), self._entries("their entries", ledgers.theirs)
        )
        comparison = await in_a_thread(compare, ours, theirs, ledgers.fields)
        level = logging.ERROR if comparison.differences else logging.INFO
        logger.log(level, "%s: %s", ledgers.name, comparison)
        self._engine.events.emit("ledger.difference", value=comparison.differences, ledger=ledgers.name)
        if ledgers.report is not None:
            await self._ask("report", self.apart.call_any(self._named("report"), ledgers.report, comparison))
        return comparison

    async def _both(
        self, ours: Coroutine[Any, Any, list[Entry]], theirs: Coroutine[Any, Any, list[Entry]]
    ) -> tuple[list[Entry], list[Entry]]:
        """Both at once; where one fails, the other is not left behind."""
        try:
            async with asyncio.TaskGroup() as group:
                left, right = group.create_task(ours), group.create_task(theirs)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return left.result(), right.result()

    async def _entries(self, what: str, source: Callable[[], Any]) -> list[Entry]:
        return await self._ask(what, self._listed(self._named(what), source))

    async def _listed(self, name: str, source: Callable[[], Any]) -> list[Entry]:
        """Whatever a user's function gives, as a list. Sync ones run in a thread, lazy iterables too."""
        if inspect.isasyncgenfunction(source):
            given = source()
        else:
            given, _ = await self.apart.call_any(name, source)
        if hasattr(given, "__aiter__"):
            return [entry async for entry in given]
        entries: list[Entry] = await self.apart.call(name, list, given)
        return entries

    async def _ask(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """A user's function may hang or exit. Neither ends the worker's loop, nor keeps its process."""
        try:
            return await self.apart.at_most(self._timeout, self._named(what), work)
        except TooLong:
            seconds = self._timeout.total_seconds()
            raise TimeoutError(f"The {self._named(what)} took longer than {seconds:g} s.") from None

    def _named(self, what: str) -> str:
        return f"{what} of {self._ledgers.name}"

    def _hangs(self) -> None:
        self._engine.events.emit("worker.hanging", service="ledger")

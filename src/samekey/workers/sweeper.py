"""The sweeper: finds leases that ran out and moves each record by its mode.

A retry would do the same for its own key; the sweeper does it for keys that nobody retries, so that unknown
outcomes are found out sooner. Phased operations are the completer's, but for those that died before their
input was stored: nobody could resume them, and nothing of them has happened.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from ..core.states import Mode
from ..drivers.run import run_async
from ..engine.engine import Engine
from ..errors import CorruptRecord

logger = logging.getLogger("samekey")

INTERVAL = timedelta(seconds=60)
"""Between looks. Nothing depends on it: a retry does not wait for the sweeper."""
BATCH = 100


class Sweeper:
    """Moves records whose lease ran out. Safe on many nodes at once."""

    def __init__(self, engine: Engine, *, batch: int = BATCH) -> None:
        self._engine = engine
        self._upkeep = engine.store.tending
        self._batch = batch

    async def run_once(self) -> int:
        """One batch; gives how many records were moved."""
        moved = await run_async(
            self._engine.drivers.aio, lambda: self._upkeep.sweep(batch=self._batch, tell=_unreadable)
        )
        if len(moved) < self._batch:
            await self._tell_strangers()
        for record in moved:
            self._engine.tell_lease_end(record)
        return len(moved)

    async def _tell_strangers(self) -> None:
        """What is left although its lease has ended: a newer version wrote it, and must sweep it."""
        if self._engine.store.transactional is None:
            return
        left = await run_async(self._engine.drivers.aio, self._upkeep.to_sweep)
        strange = {mode: count for mode, count in left.items() if mode not in set(Mode)}
        for mode, count in strange.items():
            logger.error(
                "The leases of %d operations ran out whose mode %r this version does not know. They were "
                "left alone; run the worker of the version that wrote them.",
                count,
                mode,
            )


def _unreadable(error: CorruptRecord) -> None:
    logger.error("The lease of an operation that this version cannot read ran out: %s", error)

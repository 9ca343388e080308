"""One request served by a process that may die at a point with a name."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from ..idempotency import Idempotency
from .crash import Crash, Points
from .crash_drivers import AsyncWatchedDriver, WatchedDriver


class NamedCrash(Points):
    """The points of one request, and a crash at the first that has the name ``at``.

    The process goes on living, since it is that of the test. What it held is dropped as a dying process drops
    it: open transactions are rolled back, leases are not renewed, nothing is recorded later.
    """

    def __init__(self, idempotency: Idempotency, at: str | None) -> None:
        super().__init__("")
        self._idempotency = idempotency
        self._at = at

    @property
    def names(self) -> list[str]:
        """The points that were passed, each once, in their order."""
        return list(dict.fromkeys(point.name for point in self.passed))

    def reach(self, name: str, *, io: bool = False) -> None:
        super().reach(name, io=io)
        if name == self._at and self.struck is None:
            self.struck = self.passed[-1]
            self.dead = True
            raise Crash(name)

    async def serve(self, request: Coroutine[Any, Any, object]) -> None:
        """Serves the request under watch. A client of a process that dies hears nothing."""
        engine = self._idempotency.engine
        drivers, stranded = engine.drivers, engine._stranded
        self.watch(self._idempotency)
        sync, aio = cast(WatchedDriver, engine.drivers.sync), cast(AsyncWatchedDriver, engine.drivers.aio)
        serving = asyncio.ensure_future(request)
        try:
            await asyncio.wait({serving})
            await engine._errands.settle(engine.timeout)
        finally:
            engine.drivers = drivers
            for name in ("record_later", "give_back_later"):
                delattr(engine.keeper, name)
            del stranded._carry_on
        if not self.dead:
            serving.result()
            return
        if not serving.cancelled():
            serving.exception()  # whatever it was, nobody heard it
        await aio.abandon()
        sync.abandon()
        await asyncio.to_thread(engine.keeper.stop)
        engine.keeper.start_anew()

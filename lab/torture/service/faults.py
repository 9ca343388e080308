"""Carries the planned faults out, one after the other, and writes down when each began and ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from examples.provider import FAULTS as PROVIDER_FAULTS
from lab.processes import ProcessFailed
from lab.proxy import FaultProxy, cut_after, cut_and_delay, cut_before
from lab.servers.mariadb import MariaDBUnavailable
from lab.servers.postgres import PostgresUnavailable

from .mishaps import IN_CALLS, MISHAPS, Order
from .nodes import CouldNotRun, Member, World
from .outside import Outside
from .plan import FaultKind, Planned

WRITES: Final = r"(?s:(insert|update|delete|with)\b.*)"
"""Statements whose lost reply leaves a caller in doubt."""
MISHAP_TIMES: Final = 5
"""A mishap befalls so many times the planned number of requests: it must hit the moment."""
BETWEEN_STARTS: Final = 0.5
"""Seconds between two processes of a deployment."""
LOOK_AFTER_EVERY: Final = 0.25


@dataclass(frozen=True, slots=True)
class Befell:
    """A fault that was carried out."""

    kind: FaultKind
    victim: str
    began: float
    ended: float


class Injector:
    """Who does the damage. ``clock`` gives the seconds since the start of the run."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        self._world = world
        self._clock = clock
        self._lasting: set[asyncio.Task[None]] = set()
        self._rotating = asyncio.Lock()
        self.befell: list[Befell] = []

    async def carry_out(self, planned: list[Planned]) -> None:
        """All of it, each at its time or as soon after as the one before it allows."""
        for one in planned:
            await asyncio.sleep(max(0.0, one.at - self._clock()))
            await self._befall(one)

    async def look_after(self) -> None:
        """A supervisor: starts again what has ended by itself."""
        while True:
            await asyncio.to_thread(self._world.look_after)
            await asyncio.sleep(LOOK_AFTER_EVERY)

    async def calm(self) -> None:
        """Ends every fault, and returns when everybody runs."""
        for task in self._lasting:
            task.cancel()
        await asyncio.gather(*self._lasting, return_exceptions=True)
        try:
            await asyncio.to_thread(self._world.calm)
        except OSError:  # the provider is on its way back
            await asyncio.to_thread(self._world.calm)

    async def _befall(self, planned: Planned) -> None:
        kind = planned.kind
        if kind in PROVIDER_FAULTS:
            await self._fail_provider(planned)
            return
        began, victim = self._clock(), self._victim(planned)
        if kind in MISHAPS:
            order = Order(kind, planned.times * MISHAP_TIMES, planned.seconds)
            await asyncio.to_thread(victim.order, order)
            self._note(kind, victim.name, began, lasts=True)
            return
        match kind:
            case "kill_node" | "kill_worker":
                await asyncio.to_thread(victim.kill_and_launch)
                self._note(kind, victim.name, began)
            case "pause_node" | "pause_worker":
                await self._last(planned, victim.name, victim.pause, victim.resume)
            case "kill_provider" | "restart_fast" | "restart_immediate":
                await asyncio.to_thread(self._restart, planned)
                self._note(
                    kind, self._provider(planned).name if kind == "kill_provider" else "database", began
                )
            case "rotate_keys":
                self._lasting_task(self._rotate())
            case "migrate":
                await asyncio.to_thread(self._world.migrate)
                self._note(kind, "database", began)
            case "cut_database" | "cut_provider":
                await asyncio.to_thread(self._proxy(victim, planned).cut_all)
                self._note(kind, victim.name, began)
            case "refuse_database" | "refuse_provider":
                proxy = self._proxy(victim, planned)
                await self._last(planned, victim.name, lambda: _refuse(proxy), proxy.accept)
            case "stall_database" | "stall_provider":
                proxy = self._proxy(victim, planned)
                await self._last(planned, victim.name, proxy.stall, proxy.flow)
            case "commit_lost" | "commit_unacknowledged" | "commit_late" | "statement_lost" | "reply_lost":
                await asyncio.to_thread(self._lose, planned, self._proxy(victim, planned))
                # It waits for its statements: from here on they may come at any time.
                self._note(kind, victim.name, began, lasts=True)
            case _:
                raise AssertionError(f"no such fault: {kind}")

    def _restart(self, planned: Planned) -> None:
        try:
            if planned.kind == "kill_provider":
                self._provider(planned).restart()
            else:
                self._world.restart_database(crash=planned.kind == "restart_immediate")
        except (ProcessFailed, PostgresUnavailable, MariaDBUnavailable) as error:
            raise CouldNotRun(str(error)) from error

    @staticmethod
    def _lose(planned: Planned, proxy: FaultProxy) -> None:
        """Something is lost about the next statements of this kind."""
        times = planned.times
        match planned.kind:
            case "commit_lost":
                proxy.on_commit(cut_before, times=times)
            case "commit_unacknowledged":
                proxy.on_commit(cut_after, times=times)
            case "commit_late":
                proxy.on_commit(cut_and_delay(planned.seconds), times=times)
            case "statement_lost":
                proxy.on_statement(WRITES, cut_before, times=times)
            case _:
                proxy.on_statement(WRITES, cut_after, times=times)

    async def _fail_provider(self, planned: Planned) -> None:
        began = self._clock()
        provider = self._provider(planned)
        fail = provider.process.fail
        seconds = planned.seconds or 1.0
        with contextlib.suppress(OSError):  # it is being started again
            await asyncio.to_thread(fail, planned.kind, times=planned.times, seconds=seconds)  # type: ignore[arg-type]
            self._note(planned.kind, provider.name, began, lasts=True)

    def _victim(self, planned: Planned) -> Member:
        """Of the nodes, of the workers, or of both."""
        world = self._world
        if planned.kind.endswith("_node") or planned.kind in MISHAPS - IN_CALLS:
            among = world.nodes
        elif planned.kind.endswith("_worker"):
            among = world.workers
        else:
            among = world.members
        return among[planned.victim % len(among)]

    def _provider(self, planned: Planned) -> Outside:
        """One of those that are called. Taken from other digits of the number than the member whose way there
        is cut."""
        called = self._world.plan.calls
        among = [one for one in self._world.providers if one.name in called] or self._world.providers
        return among[planned.victim // 100 % len(among)]

    def _proxy(self, victim: Member, planned: Planned) -> FaultProxy:
        to_provider = planned.kind.endswith("_provider")
        proxy = victim.ways[self._provider(planned).name] if to_provider else victim.database_proxy
        assert proxy is not None, "a file is not reached through a proxy"
        return proxy

    async def _last(
        self, planned: Planned, victim: str, begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        """A fault that lasts while others come and go."""
        began = self._clock()
        await asyncio.to_thread(begin)

        async def over() -> None:
            try:
                await asyncio.sleep(planned.seconds)
            finally:
                await asyncio.to_thread(end)
                self._note(planned.kind, victim, began)

        self._lasting_task(over())

    def _lasting_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._lasting.add(task)
        task.add_done_callback(self._lasting.discard)

    async def _rotate(self) -> None:
        """A new key for everybody, one process after the other, as a deployment would. It can end anywhere:
        whoever encrypts with the new key, nobody runs any more who does not know it."""
        began = self._clock()
        try:
            async with self._rotating:
                for _ in self._world.rotation():
                    for member in self._world.members:
                        started = asyncio.create_task(asyncio.to_thread(member.kill_and_launch))
                        try:
                            await asyncio.shield(started)
                        finally:
                            await asyncio.wait({started})
                        await asyncio.sleep(BETWEEN_STARTS)
        finally:
            self._note("rotate_keys", "everybody", began)

    def _note(self, kind: FaultKind, victim: str, began: float, *, lasts: bool = False) -> None:
        ended = float("inf") if lasts else self._clock()
        self.befell.append(Befell(kind, victim, began, ended))


def _refuse(proxy: FaultProxy) -> None:
    """Nobody gets through, and whoever was through is cut off."""
    proxy.refuse()
    proxy.cut_all()

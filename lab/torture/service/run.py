"""One run: load and faults at once, then calm, then the verdict."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .clients import Clients, NoView
from .evidence import Comparison, Evidence, Trouble
from .faults import Injector
from .nodes import ACCOUNTS, CouldNotRun, World
from .oracle import judge
from .plan import Plan, schedule
from .report import Report

LOOK_EVERY: Final = 0.25
COMPARING_WITHIN: Final = 120.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it has come."""

    phase: str
    seconds: float
    requests: int
    operations: int
    settled: int
    faults: int
    last_fault: str


def torture_service(
    plan: Plan, show: Callable[[Progress], None] = lambda _: None, *, keep: Path | None = None
) -> Report:
    """Carries the plan out and judges. ``CouldNotRun`` if there is nothing to judge.

    ``keep``: a directory for the report; with the logs of all processes if something was found.
    """
    with World.opened(plan) as world:
        report = asyncio.run(_Run(plan, world, show).carry_out())
        if keep is not None:
            report.write(keep)
            if not report.held:
                world.keep_logs(keep)
    return report


class _Run:
    def __init__(self, plan: Plan, world: World, show: Callable[[Progress], None]) -> None:
        self._plan = plan
        self._world = world
        self._show = show
        self._began = time.monotonic()
        self._phase = "load and faults"
        self._clients = Clients(plan, [node.url for node in world.nodes], ACCOUNTS, self._clock)
        self._injector = Injector(world, self._clock)
        self._stalls: list[Trouble] = []

    def _clock(self) -> float:
        return time.monotonic() - self._began

    async def carry_out(self) -> Report:
        plan, clients, injector = self._plan, self._clients, self._injector
        before = await clients.stock()
        load = asyncio.create_task(clients.be_clients())
        faults = asyncio.create_task(injector.carry_out(schedule(plan)))
        beside = [asyncio.create_task(injector.look_after()), asyncio.create_task(self._tell())]
        everything = [load, faults, *beside]
        try:
            await self._wait(everything, plan.seconds)
            clients.stop_loading()
            await self._wait([faults], None)  # what is being done to somebody is done to its end
            loaded = self._clock()
            self._phase = "settling"
            await injector.calm()
            calm = self._clock()
            if not await self._wait([load], plan.settle_within, failing=beside):
                clients.give_up()
                await self._wait([load], None)
            settled = self._clock()
            self._phase = "judging"
            await clients.try_again()
            views, after = await clients.views(), await clients.stock()
            comparison = await asyncio.to_thread(self._compare) if plan.compare else None
        except NoView as error:
            raise CouldNotRun(str(error)) from error
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            await clients.aclose()
        ledger = self._world.entries()
        evidence = Evidence(
            histories=clients.histories,
            ledger=ledger,
            views=views,
            probes=clients.probes,
            troubles=[
                *(Trouble(one.kind, one.began, min(one.ended, calm)) for one in injector.befell),
                *self._stalls,
            ],
            stock=(before, after),
            comparison=comparison,
            settle_within=plan.settle_within,
            kept_for=plan.ttl,
            lease=plan.lease,
        )
        return Report(
            plan=plan,
            store=str(plan.store),
            histories=clients.histories,
            befell=injector.befell,
            findings=judge(evidence),
            entries=Counter(entry.kind for entry in ledger),
            recognised=self._world.recognised(),
            loaded=loaded,
            settled=settled - calm,
            seconds=self._clock(),
        )

    @staticmethod
    async def _wait(
        tasks: list[asyncio.Task[Any]],
        seconds: float | None,
        *,
        failing: list[asyncio.Task[Any]] | None = None,
    ) -> bool:
        """Until all are done (True), or the time is over (False), or one of them raises: then it raises."""
        waiting = set(tasks)
        deadline = None if seconds is None else time.monotonic() + seconds
        while waiting & set(tasks):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, _ = await asyncio.wait(
                waiting | set(failing or ()), timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            waiting -= done
            if not done:
                return False
        return True

    async def _tell(self) -> None:
        while True:
            befell, clients = self._injector.befell, self._clients
            last = f"{befell[-1].kind} ({befell[-1].victim})" if befell else ""
            self._show(
                Progress(
                    self._phase,
                    self._clock(),
                    len(clients.histories.exchanges),
                    len(clients.histories.intents),
                    clients.settled,
                    len(befell),
                    last,
                )
            )
            before = self._clock()
            await asyncio.sleep(LOOK_EVERY)
            if self._clock() - before > LOOK_EVERY + self._plan.lease / 4:
                # If we were not let run for so long, nor was whoever had a lease to renew.
                self._stalls.append(Trouble("machine_stalled", before, self._clock()))

    def _compare(self) -> Comparison:
        """The service's own comparison of ledgers, by the command that an operator would use."""
        world, target = self._world, f"{self._plan.app.partition(':')[0]}:idempotency"
        command = [sys.executable, "-m", "samekey.cli", "ledger", "run", target, "--json"]
        try:
            ran = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                timeout=COMPARING_WITHIN,
                env=world.environment(world.database_url),
            )
        except subprocess.TimeoutExpired:
            return Comparison(False, f"no answer within {COMPARING_WITHIN:g} s")
        if ran.returncode == 0:
            return Comparison(True, ran.stdout)
        return Comparison(False, ran.stdout + ran.stderr, _references(ran.stdout))


def _references(text: str) -> frozenset[str]:
    """What a comparison's JSON says is missing, extra or different."""
    try:
        value = json.loads(text)
    except ValueError:
        return frozenset()
    found: set[str] = set()

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("reference"), str):
                found.add(part["reference"])
            part = list(part.values())
        if isinstance(part, list):
            for one in part:
                collect(one)

    collect(value)
    return frozenset(found)

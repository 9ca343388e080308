"""``samekey sweep``: move records whose lease ran out, once, without a worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Annotated

import typer

from ..core.states import LEASE_END, Mode, State
from ..engine.engine import Engine
from ..workers.sweeper import BATCH, Sweeper
from .options import Schema, Timeout, Url
from .output import DryRun, Json, print_table, progress, quietly, sentences
from .speech import print_json, say
from .target import open_store


def sweep_command(
    url: Url,
    batch: Annotated[
        int, typer.Option("--batch", envvar="SAMEKEY_SWEEP_BATCH", min=1, help="Records in one transaction.")
    ] = BATCH,
    dry_run: DryRun = False,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """Move every record whose lease ran out, each by its mode. Safe while workers run."""
    with sentences(), open_store(url, schema, timeout) as store:
        waiting = Counter(store.ask(store.upkeep.to_sweep))
        if dry_run:
            _tell(waiting, as_json=as_json, dry_run=True)
            return
        engine = store.engine(url, schema, timeout)
        moved: Counter[str] = Counter()
        engine.events.subscribe(lambda event: moved.update(_modes(event.name, event.facts)))
        with quietly(), progress("sweeping", waiting.total(), quiet=as_json) as advance:
            asyncio.run(_sweep(engine, batch, advance))
        _tell(moved, as_json=as_json, dry_run=False)


def _modes(event: str, facts: dict[str, str]) -> list[str]:
    return [facts["mode"]] if event == "zombie_key" else []


async def _sweep(engine: Engine, batch: int, advance: Callable[[int], None]) -> None:
    sweeper = Sweeper(engine, batch=batch)
    try:
        while True:
            count = await sweeper.run_once()
            advance(count)
            if count < batch:
                return
    finally:
        await engine.aclose()


def _becomes(mode: str) -> State:
    # Phased work that was begun is the completer's; the sweeper's is only what never was.
    return State.FAILED_RETRYABLE if mode == Mode.PHASED else LEASE_END[Mode(mode)]


def _tell(counts: Counter[str], *, as_json: bool, dry_run: bool) -> None:
    total = counts.total()
    if as_json:
        print_json({"dry_run": dry_run, "total": total, "by_mode": dict(sorted(counts.items()))})
        return
    say(f"{total:,} {'record' if total == 1 else 'records'} {'would be moved' if dry_run else 'moved'}.")
    if counts:
        rows = ((mode, str(_becomes(mode)), f"{count:,}") for mode, count in sorted(counts.items()))
        print_table(("mode", "becomes", "records"), rows)

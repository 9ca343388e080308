"""``samekey reap``: time out what nobody started, forget what is past retention; once, without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import typer

from ..core.policy import milliseconds
from ..engine.engine import Engine
from ..workers.reaper import BATCH, Reaper
from .options import Schema, Timeout, Url, duration
from .output import DryRun, Json, print_facts, progress, quietly, sentences
from .speech import print_json
from .target import open_store


def reap_command(
    url: Url,
    batch: Annotated[
        int, typer.Option("--batch", envvar="SAMEKEY_REAP_BATCH", min=1, help="Records in one transaction.")
    ] = BATCH,
    pending_timeout: Annotated[
        str,
        typer.Option(
            "--pending-timeout",
            envvar="SAMEKEY_PENDING_TIMEOUT",
            help="How long accepted work may wait for a worker before its client is told 408.",
        ),
    ] = "24h",
    tombstones: Annotated[
        bool,
        typer.Option(
            "--tombstones",
            envvar="SAMEKEY_TOMBSTONES",
            help="Keep the fact of every record for a while and drop its answer.",
        ),
    ] = False,
    keep_tombstones: Annotated[
        str,
        typer.Option(
            "--keep-tombstones",
            envvar="SAMEKEY_KEEP_TOMBSTONES",
            help="For how long. Keys that are gone for good are always kept.",
        ),
    ] = "30d",
    dry_run: DryRun = False,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """Forget settled records past retention, in small batches; never what is in flight or unknown."""
    waits, keeps = duration(pending_timeout), duration(keep_tombstones)
    with sentences(), open_store(url, schema, timeout) as store:
        old = store.ask(store.upkeep.to_reap)
        if dry_run:
            late = store.ask(lambda: store.upkeep.to_time_out(timeout_ms=milliseconds(waits)))
            _tell(late, sum(old.values()), tombstones=tombstones, as_json=as_json, dry_run=True)
            return
        engine = store.engine(url, schema, timeout)
        reaper = Reaper(engine, batch=batch, pending_timeout=waits, tombstones=keeps, soft=tombstones)
        with quietly(), progress("reaping", sum(old.values()), quiet=as_json) as advance:
            late, gone = asyncio.run(_reap(engine, reaper, advance))
        _tell(late, gone, tombstones=tombstones, as_json=as_json, dry_run=False)


async def _reap(engine: Engine, reaper: Reaper, advance: Callable[[int], None]) -> tuple[int, int]:
    try:
        late, total = await reaper.time_out_pending(), 0
        async for gone in reaper.batches():
            advance(gone)
            total += gone
        return late, total
    finally:
        await engine.aclose()


def _tell(late: int, gone: int, *, tombstones: bool, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json({"dry_run": dry_run, "timed_out": late, "reaped": gone, "tombstones": tombstones})
        return
    would = "would be " if dry_run else ""
    print_facts(
        [
            (f"{would}timed out", f"{late:,}"),
            (f"{would}{'buried or deleted' if tombstones else 'deleted'}", f"{gone:,}"),
        ]
    )

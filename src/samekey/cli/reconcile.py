"""``samekey reconcile module:idempotency``: ask about unknown outcomes once, with your own lookups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

import typer

from ..core.states import State
from ..drivers.run import run
from ..engine.evidence.desk import LOOKUP_TIMEOUT
from ..idempotency import Idempotency
from ..workers.reconciler import BATCH, MAX_TRIES, Looked, Reconciler
from .output import DryRun, Json, print_table, progress, sentences
from .speech import print_json, say
from .target import application


def reconcile_command(
    target: Annotated[
        str, typer.Argument(envvar="SAMEKEY_APP", help="Where your Idempotency is: module:name.")
    ],
    batch: Annotated[
        int, typer.Option("--batch", envvar="SAMEKEY_RECONCILE_BATCH", min=1, help="Outcomes in one look.")
    ] = BATCH,
    max_tries: Annotated[
        int,
        typer.Option(
            "--max-tries", envvar="SAMEKEY_MAX_TRIES", min=1, help="After so many it is a dead letter."
        ),
    ] = MAX_TRIES,
    lookup_timeout: Annotated[
        float,
        typer.Option(
            "--lookup-timeout", envvar="SAMEKEY_LOOKUP_TIMEOUT", min=0.1, help="Seconds for one lookup."
        ),
    ] = LOOKUP_TIMEOUT.total_seconds(),
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Ask about every unknown outcome whose time has come, and say what was found out."""
    with sentences():
        idempotency = application(target)
        try:
            idempotency.check()
            if dry_run:
                _tell_due(idempotency, as_json=as_json)
                return
            reconciler = Reconciler(
                idempotency.engine,
                max_tries=max_tries,
                timeout=timedelta(seconds=lookup_timeout),
            )
            with progress("asking", None, quiet=as_json) as advance:
                looked = asyncio.run(_reconcile(idempotency, reconciler, batch, advance))
            _tell(looked, as_json=as_json)
        finally:
            idempotency.close()


async def _reconcile(
    idempotency: Idempotency, reconciler: Reconciler, batch: int, advance: Callable[[int], None]
) -> list[Looked]:
    looked: list[Looked] = []
    try:
        while True:
            some = await reconciler.look(batch=batch)
            advance(len(some))
            looked += some
            if len(some) < batch:
                return looked
    finally:
        await idempotency.aclose()


def _tell(looked: list[Looked], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "id": one.record.id,
                    "endpoint": one.record.endpoint,
                    "became": str(one.became),
                    "why": one.why,
                }
                for one in looked
            ]
        )
        return
    settled = sum(one.resolved for one in looked)
    say(f"{len(looked)} asked about, {settled} found out.")
    if looked:
        print_table(
            ("id", "endpoint", "is now", "why"),
            ((one.record.id, one.record.endpoint, str(one.became), one.why) for one in looked),
        )


def _tell_due(idempotency: Idempotency, *, as_json: bool) -> None:
    finding, driver = idempotency.engine.store.finding, idempotency.engine.drivers.sync
    now = run(driver, finding.overview).now
    records = run(driver, lambda: finding.find(state=str(State.UNKNOWN), limit=1000))
    due = [one for one in records if one.reconcile_after is not None and one.reconcile_after <= now]
    rows = [
        (one.id, one.endpoint, "yes" if idempotency.engine.lookup_for(one.endpoint) is not None else "no")
        for one in due
    ]
    if as_json:
        print_json([{"id": i, "endpoint": e, "lookup": has == "yes"} for i, e, has in rows])
        return
    say(f"{len(rows)} would be asked about.")
    if rows:
        print_table(("id", "endpoint", "has a lookup"), rows)

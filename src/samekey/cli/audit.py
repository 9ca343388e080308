"""``samekey audit prune``: drop old lines of the audit, in small slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from ..core.policy import milliseconds
from ..stores.protocols import Actor
from ..workers.reaper import AUDIT_BATCH
from .options import ActorName, CommandRefused, Reason, Schema, Timeout, Url, actor, duration
from .output import DryRun, Json, progress, sentences
from .speech import print_json, say
from .target import OperatorStore, open_store

audit_app = typer.Typer(
    help="The audit: every transition of every key.", no_args_is_help=True, rich_markup_mode=None
)


@audit_app.callback()
def group() -> None:
    """The audit: every transition of every key."""


@audit_app.command("prune")
def prune_command(
    url: Url,
    older_than: Annotated[
        str, typer.Option("--older-than", envvar="SAMEKEY_AUDIT_OLDER_THAN", help="What is dropped: 400d.")
    ],
    reason: Reason,
    batch: Annotated[
        int, typer.Option("--batch", envvar="SAMEKEY_AUDIT_BATCH", min=1, help="Lines in one transaction.")
    ] = AUDIT_BATCH,
    actor_name: ActorName = None,
    dry_run: DryRun = False,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """Drop lines of the audit that are older. The story of an operation that is still there stays whole."""
    who, older = actor(actor_name, reason), milliseconds(duration(older_than))
    with sentences(), open_store(url, schema, timeout) as store:
        if not store.has_tables:
            raise CommandRefused(f"{store.opened.name} keeps no audit: there is nothing to prune.")
        total = 0
        with progress("pruning", None, quiet=as_json) as advance:
            for gone in _slices(store, older, batch, count_only=dry_run):
                advance(gone)
                total += gone
        if total and not dry_run:
            noted = Actor(who.name, f"{total} lines older than {older_than} pruned: {who.reason}")
            store.act(lambda: store.upkeep_of_tables.note_pruning(noted))
        if as_json:
            print_json({"dry_run": dry_run, "pruned": total})
            return
        lines = "line" if total == 1 else "lines"
        say(f"{total:,} {lines} of the audit {'would be' if dry_run else 'were'} dropped.")


def _slices(store: OperatorStore, older: int, batch: int, *, count_only: bool) -> Iterator[int]:
    upkeep, after = store.upkeep_of_tables, -1
    while after:
        gone, after = store.act(
            lambda after=after: upkeep.prune_audit(  # type: ignore[misc]
                older_ms=older, after=after, batch=batch, count_only=count_only
            )
        )
        yield gone

"""``python -m lab.torture outbox``: kill workers for a while, then ask the provider's ledger."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from .run import CouldNotRun, Plan, Progress, Verdict, torture_outbox

HELD, VIOLATED, COULD_NOT_RUN = 0, 1, 2

LINE_EVERY = 5.0
"""Seconds between lines where there is no terminal to draw a bar on."""


def outbox_command(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="SAMEKEY_TORTURE_URL",
            help="postgresql://… (it works in a schema of its own, dropped at the end) or a new "
            "sqlite:/// file. A throwaway SQLite file if not given.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(envvar="SAMEKEY_TORTURE_JOBS", min=1, help="Orders to place and to charge.")
    ] = 10_000,
    workers: Annotated[
        int, typer.Option(envvar="SAMEKEY_TORTURE_WORKERS", min=1, help="Worker processes.")
    ] = 4,
    kill_every: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_TORTURE_KILL_EVERY", min=0, help="Seconds between SIGKILLs; 0 for none."
        ),
    ] = 1.0,
    seconds: Annotated[
        float,
        typer.Option(envvar="SAMEKEY_TORTURE_SECONDS", min=1, help="Give up after so long."),
    ] = 600,
    seed: Annotated[int, typer.Option(envvar="SAMEKEY_TORTURE_SEED", help="Chooses the victims.")] = 0,
    concurrency: Annotated[
        int, typer.Option(envvar="SAMEKEY_TORTURE_CONCURRENCY", min=1, help="Jobs at a time per worker.")
    ] = 10,
    lease: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_TORTURE_LEASE", min=0.5, help="Seconds until a dead worker's jobs come back."
        ),
    ] = 2.0,
    latency: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_TORTURE_LATENCY",
            min=0,
            help="Seconds between the provider's charge and its answer, in which a kill hurts most.",
        ),
    ] = 0.02,
    deduplication: Annotated[
        bool,
        typer.Option(
            envvar="SAMEKEY_TORTURE_DEDUPLICATION",
            help="Whether the provider knows its idempotency keys. Without, watch the verdict turn.",
        ),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SAMEKEY_TORTURE_JSON", help="The figures as JSON, nothing else.")
    ] = False,
) -> None:
    """Place orders, kill workers, and judge by the provider's ledger.

    Exits with 0 if every order was charged exactly once and completed, with 1 if not, with 2 if there is
    no verdict.
    """
    plan = Plan(
        url=url,
        jobs=jobs,
        workers=workers,
        kill_every=kill_every,
        seconds=seconds,
        seed=seed,
        concurrency=concurrency,
        lease=lease,
        latency=latency,
        deduplicate=deduplication,
    )
    try:
        verdict = asyncio.run(torture_outbox(plan)) if as_json else _watched(plan)
    except CouldNotRun as error:
        typer.echo(f"samekey: {error}", err=True)
        raise typer.Exit(COULD_NOT_RUN) from None
    typer.echo(json.dumps(verdict.as_dict(), indent=2) if as_json else figures(verdict))
    raise typer.Exit(HELD if verdict.held else VIOLATED)


def _watched(plan: Plan) -> Verdict:
    console = Console()
    if not console.is_terminal:
        return asyncio.run(torture_outbox(plan, _Lines()))
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn())
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("", total=plan.jobs, told="")

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.done, told=f"{progress.kills} kills")

        return asyncio.run(torture_outbox(plan, show))


class _Lines:
    """Progress where nobody draws: a line from time to time."""

    def __init__(self) -> None:
        self._next = LINE_EVERY

    def __call__(self, progress: Progress) -> None:
        if progress.seconds >= self._next:
            self._next = progress.seconds + LINE_EVERY
            typer.echo(
                f"{progress.seconds:4.0f} s  {progress.done:,} of {progress.jobs:,} jobs done, "
                f"{progress.kills} kills"
            )


def figures(verdict: Verdict) -> str:
    """The last words: what happened, then whether it was right."""
    rate = verdict.jobs / verdict.seconds if verdict.seconds else 0.0
    lines = [
        ("orders", f"{verdict.accepted:,} accepted of {verdict.jobs:,}, on {verdict.store}"),
        ("workers", f"{verdict.workers}, killed {verdict.kills} times (seed {verdict.seed})"),
        ("time", f"{verdict.seconds:g} s, {rate:.0f} jobs a second"),
        ("attempts", f"{verdict.attempts:,}, at most {verdict.most_attempts} of one job"),
        ("charges", f"{verdict.charges:,} in the provider's ledger"),
        ("recognised", f"{verdict.recognised:,} repeated charges that the provider knew by their key"),
        ("twice", f"{verdict.twice:,} orders charged more than once"),
        ("lost", f"{verdict.lost:,} orders never charged"),
        ("unfinished", f"{verdict.live:,} jobs still to do, {verdict.dead:,} dead letters"),
        ("answers", f"{verdict.incomplete + verdict.wrong_answers:,} missing or wrong"),
    ]
    text = [f"{name:<11} {value}" for name, value in lines]
    text += [f"  {sentence}" for sentence in verdict.examples]
    if verdict.held:
        text.append("held: every order was charged exactly once")
    else:
        text.append("VIOLATED: " + ", ".join(f"{count} {name}" for name, count in verdict.violations.items()))
    return "\n".join(text)

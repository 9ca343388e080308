"""``python -m lab.torture service``: load and faults for a while, then the verdict of an oracle."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from .plan import Plan
    from .run import Progress

HELD, BROKEN, COULD_NOT_RUN = 0, 1, 2

LINE_EVERY = 5.0
"""Seconds between lines where there is no terminal to draw on."""


def service_command(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="SAMEKEY_TORTURE_URL",
            help="postgresql: or mysql: for a throwaway server, which is also restarted; a whole URL for a "
            "server that is there (in a database of its own, dropped at the end); a SQLite file if not "
            "given.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(envvar="SAMEKEY_TORTURE_SECONDS", min=1, help="Of load with faults.")
    ] = 60,
    seed: Annotated[
        int | None,
        typer.Option(
            envvar="SAMEKEY_TORTURE_SEED", min=0, help="Chooses load and faults; random if not given."
        ),
    ] = None,
    clients: Annotated[
        int, typer.Option(envvar="SAMEKEY_TORTURE_CLIENTS", min=1, help="Operations under way at once.")
    ] = 24,
    nodes: Annotated[int, typer.Option(envvar="SAMEKEY_TORTURE_NODES", min=1, help="App processes.")] = 2,
    workers: Annotated[
        int, typer.Option(envvar="SAMEKEY_TORTURE_WORKERS", min=1, help="Worker processes.")
    ] = 2,
    fault_every: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_TORTURE_FAULT_EVERY",
            min=0,
            help="Seconds between faults, on average; 0 for none.",
        ),
    ] = 2,
    app: Annotated[
        str,
        typer.Option(
            envvar="SAMEKEY_TORTURE_APP",
            help="The service, module:app, from the current directory; its module has `idempotency` too.",
        ),
    ] = "examples.payments.app:app",
    ttl: Annotated[
        float | None,
        typer.Option(
            envvar="SAMEKEY_TORTURE_TTL",
            min=5,
            help="Keep answers for so many seconds only, and use keys again after that. Nobody is paused "
            "then.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            envvar="SAMEKEY_TORTURE_REPORT", help="Write text, JSON and a picture into this directory."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SAMEKEY_TORTURE_JSON", help="The report as JSON, nothing else.")
    ] = False,
) -> None:
    """Torture a payments service under load, and judge from outside.

    Exits with 0 if every promise held, with 1 if one was broken, with 2 if there is no verdict.
    """
    # Here, because it needs packages that no other command needs: a client and a server for HTTP.
    try:
        from .nodes import CouldNotRun
        from .plan import Plan, with_second_lives
        from .run import torture_service
    except ModuleNotFoundError as error:
        typer.echo(f"samekey: The torture needs the package {error.name}; install it first.", err=True)
        raise typer.Exit(COULD_NOT_RUN) from None
    plan = Plan(
        url=url,
        seconds=seconds,
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        clients=clients,
        nodes=nodes,
        workers=workers,
        fault_every=fault_every,
        app=app,
    )
    if ttl is not None:
        plan = with_second_lives(plan, ttl)
    try:
        if as_json:
            came = torture_service(plan, keep=report)
        else:
            typer.echo(f"seed {plan.seed}")
            with _display(plan) as show:
                came = torture_service(plan, show, keep=report)
    except CouldNotRun as error:
        typer.echo(f"samekey: {error}", err=True)
        raise typer.Exit(COULD_NOT_RUN) from None
    typer.echo(json.dumps(came.as_dict(), indent=2) if as_json else came.text())
    if report is not None and not as_json:
        typer.echo(f"report in {report}")
    raise typer.Exit(HELD if came.held else BROKEN)


@contextmanager
def _display(plan: Plan) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, a line from time to time elsewhere."""
    console = Console()
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("starting", total=plan.seconds, told="")

        def show(progress: Progress) -> None:
            told = f"{_told(progress)}  {progress.last_fault}"
            bar.update(
                task, description=progress.phase, completed=min(progress.seconds, plan.seconds), told=told
            )

        yield show


def _told(progress: Progress) -> str:
    return (
        f"{progress.requests:,} requests, {progress.faults} faults, "
        f"{progress.settled:,} of {progress.operations:,} operations settled"
    )


class _Lines:
    def __init__(self) -> None:
        self._next = LINE_EVERY

    def __call__(self, progress: Progress) -> None:
        if progress.seconds >= self._next:
            self._next = progress.seconds + LINE_EVERY
            typer.echo(f"{progress.seconds:4.0f} s  {progress.phase}: {_told(progress)}")

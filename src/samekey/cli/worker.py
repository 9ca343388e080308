"""``samekey worker module:idempotency``: do the jobs and finish what was abandoned."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from datetime import timedelta
from typing import Annotated

import typer

from ..engine.idempotency import Idempotency
from ..errors import ConfigurationError, SamekeyError
from ..workers.service import WorkerService


def worker_command(
    target: Annotated[
        str, typer.Argument(envvar="SAMEKEY_APP", help="Where your Idempotency is: module:name.")
    ],
    concurrency: Annotated[
        int, typer.Option(envvar="SAMEKEY_CONCURRENCY", min=1, help="Jobs at a time in this process.")
    ] = 10,
    lease: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_JOB_LEASE", min=0.5, help="Seconds that a silent worker keeps its jobs."
        ),
    ] = 30,
    grace: Annotated[
        float,
        typer.Option(envvar="SAMEKEY_GRACE", min=0, help="Seconds that a stopping worker lets jobs finish."),
    ] = 30,
    completer_interval: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_COMPLETER_INTERVAL",
            min=0.05,
            help="Seconds between looks for abandoned phased operations.",
        ),
    ] = 5,
    outbox: Annotated[bool, typer.Option(envvar="SAMEKEY_OUTBOX", help="Run jobs.")] = True,
    completer: Annotated[
        bool, typer.Option(envvar="SAMEKEY_COMPLETER", help="Resume phased operations.")
    ] = True,
    listen_url: Annotated[
        str | None,
        typer.Option(
            envvar="SAMEKEY_LISTEN_URL",
            help="A direct PostgreSQL URL to be notified over, where the store is reached through a pooler.",
        ),
    ] = None,
) -> None:
    """Run jobs of the outbox and resume abandoned phased operations, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        idempotency = load(target)
        asyncio.run(
            _serve(
                idempotency,
                concurrency=concurrency,
                lease=timedelta(seconds=lease),
                grace=timedelta(seconds=grace),
                completer_interval=timedelta(seconds=completer_interval),
                outbox=outbox,
                completer=completer,
                listen_url=listen_url,
            )
        )
    except SamekeyError as error:
        typer.echo(f"samekey: {error}", err=True)
        raise typer.Exit(1) from None


async def _serve(
    idempotency: Idempotency,
    *,
    concurrency: int,
    lease: timedelta,
    grace: timedelta,
    completer_interval: timedelta,
    outbox: bool,
    completer: bool,
    listen_url: str | None,
) -> None:
    service = WorkerService(
        idempotency,
        concurrency=concurrency,
        lease=lease,
        grace=grace,
        completer_interval=completer_interval,
        outbox=outbox,
        completer=completer,
        listen_url=listen_url,
    )
    logging.getLogger("samekey").info("The worker is running; stop it with SIGTERM or Ctrl-C.")
    try:
        await service.run()
    finally:
        await idempotency.aclose()
    logging.getLogger("samekey").info("The worker has stopped.")


def load(target: str) -> Idempotency:
    """The Idempotency that ``module:name`` means, with the current directory importable."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"{target!r} names nothing: write module:name, say shop.app:idempotency.")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name and not module_name.startswith(f"{error.name}."):
            raise
        raise ConfigurationError(f"There is no module {module_name!r} here.") from None
    found = getattr(module, attribute, None)
    if not isinstance(found, Idempotency):
        raise ConfigurationError(f"{target} is not an Idempotency but {type(found).__name__}.")
    return found

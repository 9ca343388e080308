"""``samekey worker module:idempotency``: do the jobs and finish what was abandoned."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Annotated

import typer

from ..core.backoff import Backoff
from ..engine.evidence.desk import LOOKUP_TIMEOUT
from ..errors import ConfigurationError, SamekeyError
from ..idempotency import Idempotency
from ..workers.reconciler import BACKOFF, CONCURRENCY, MAX_TRIES
from ..workers.service import Services, WorkerService
from .speech import complain

CLOSING = 1.0
"""Seconds for hanging up at the end. Work is over by then."""


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
    outbox: Annotated[bool, typer.Option(envvar="SAMEKEY_OUTBOX", help="Run jobs.")] = True,
    completer: Annotated[
        bool, typer.Option(envvar="SAMEKEY_COMPLETER", help="Resume phased operations.")
    ] = True,
    completer_interval: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_COMPLETER_INTERVAL",
            min=0.05,
            help="Seconds between looks for abandoned phased operations.",
        ),
    ] = 5,
    completer_concurrency: Annotated[
        int,
        typer.Option(
            envvar="SAMEKEY_COMPLETER_CONCURRENCY", min=1, help="Phased operations resumed at a time."
        ),
    ] = 10,
    sweeper: Annotated[
        bool, typer.Option(envvar="SAMEKEY_SWEEPER", help="Move records whose lease ran out.")
    ] = True,
    sweeper_interval: Annotated[
        float, typer.Option(envvar="SAMEKEY_SWEEPER_INTERVAL", min=0.05, help="Seconds between sweeps.")
    ] = 60,
    reaper: Annotated[
        bool, typer.Option(envvar="SAMEKEY_REAPER", help="Delete records past retention.")
    ] = True,
    reaper_interval: Annotated[
        float, typer.Option(envvar="SAMEKEY_REAPER_INTERVAL", min=0.05, help="Seconds between passes.")
    ] = 3600,
    pending_timeout: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_PENDING_SECONDS",
            min=1,
            help="Seconds that an accepted operation may wait for its job before it is closed with a 408.",
        ),
    ] = 86400,
    audit_retention: Annotated[
        float | None,
        typer.Option(
            envvar="SAMEKEY_AUDIT_DAYS", min=1, help="Days that lines of the audit are kept; else for good."
        ),
    ] = None,
    reconciler: Annotated[
        bool, typer.Option(envvar="SAMEKEY_RECONCILER", help="Find out unknown outcomes.")
    ] = True,
    reconciler_interval: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_RECONCILER_INTERVAL", min=0.05, help="Seconds between looks for unknown outcomes."
        ),
    ] = 30,
    reconciler_concurrency: Annotated[
        int, typer.Option(envvar="SAMEKEY_RECONCILER_CONCURRENCY", min=1, help="Lookups at a time.")
    ] = CONCURRENCY,
    reconciler_timeout: Annotated[
        float,
        typer.Option(envvar="SAMEKEY_LOOKUP_TIMEOUT", min=0.1, help="Seconds that one lookup may take."),
    ] = LOOKUP_TIMEOUT.total_seconds(),
    reconciler_tries: Annotated[
        int,
        typer.Option(
            envvar="SAMEKEY_MAX_TRIES", min=1, help="Lookups after which an outcome is a dead letter."
        ),
    ] = MAX_TRIES,
    reconciler_first_pause: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_RECONCILER_FIRST_PAUSE",
            min=0.1,
            help="Seconds between the first two lookups; each later pause may be twice as long.",
        ),
    ] = BACKOFF.first.total_seconds(),
    reconciler_longest_pause: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_RECONCILER_LONGEST_PAUSE", min=0.1, help="Seconds that no pause exceeds."
        ),
    ] = BACKOFF.longest.total_seconds(),
    ledger: Annotated[
        bool, typer.Option(envvar="SAMEKEY_COMPARE_LEDGERS", help="Compare the declared ledgers once a day.")
    ] = True,
    listen_url: Annotated[
        str | None,
        typer.Option(
            envvar="SAMEKEY_LISTEN_URL",
            help="A direct PostgreSQL URL to be notified over, where the store is reached through a pooler.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="SAMEKEY_METRICS_PORT",
            min=1,
            max=65535,
            help="Serve Prometheus metrics on this port of the loopback interface.",
        ),
    ] = None,
) -> None:
    """Run every background service: jobs, abandoned operations, sweeping, reaping, finding out."""
    services = Services(
        outbox=outbox,
        completer=completer,
        sweeper=sweeper,
        reaper=reaper,
        reconciler=reconciler,
        ledger=ledger,
        concurrency=concurrency,
        lease=timedelta(seconds=lease),
        grace=timedelta(seconds=grace),
        completer_interval=timedelta(seconds=completer_interval),
        sweeper_interval=timedelta(seconds=sweeper_interval),
        reaper_interval=timedelta(seconds=reaper_interval),
        completer_concurrency=completer_concurrency,
        reconciler_interval=timedelta(seconds=reconciler_interval),
        reconciler_concurrency=reconciler_concurrency,
        reconciler_timeout=timedelta(seconds=reconciler_timeout),
        reconciler_tries=reconciler_tries,
        reconciler_backoff=Backoff(
            timedelta(seconds=reconciler_first_pause), timedelta(seconds=reconciler_longest_pause)
        ),
        pending_timeout=timedelta(seconds=pending_timeout),
        audit_retention=None if audit_retention is None else timedelta(days=audit_retention),
        listen_url=listen_url,
    )
    try:
        idempotency = load(target)
        # After the application, which may have its own way of logging: then this does nothing.
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        with _metrics(idempotency, metrics_port):
            code = asyncio.run(serve(idempotency, services))
    except SamekeyError as error:
        complain(error)
        raise typer.Exit(1) from None
    if code:
        raise typer.Exit(code)


def _metrics(idempotency: Idempotency, port: int | None) -> AbstractContextManager[object]:
    if port is None:
        return nullcontext()
    from ..ops.prometheus import serve

    return serve(idempotency, port)


async def serve(idempotency: Idempotency, services: Services) -> int:
    """Runs the services until a signal; gives the exit code of the process."""
    log = logging.getLogger("samekey")
    log.info("The worker is running; stop it with SIGTERM or Ctrl-C.")
    code = 1
    try:
        code = await WorkerService(idempotency.engine, services).run()
    finally:
        try:
            async with asyncio.timeout(CLOSING):
                await idempotency.aclose()
        except TimeoutError:
            log.error("The store's connections could not be closed in time.")
    log.info("The worker has stopped.")
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if left or sum(not thread.daemon for thread in threading.enumerate()) > 1:
        # The interpreter would wait for them, and nothing tells for how long. They were named above.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


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

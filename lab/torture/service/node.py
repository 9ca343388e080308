"""The entry of a service's process in the torture: with a clock that is wrong, it runs a server or a worker.

    python -m lab.torture.service.node --skew 90 app examples.payments.app:app --port 8000
    python -m lab.torture.service.node --skew -90 worker examples.payments.app:idempotency --lease 2

What follows ``worker`` is the real command's own. The pauses of the reconciler are set here: they are half a
minute and more for users, and must fit into a run that takes a minute.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

from lab.processes import LOOPBACK

from .mishaps import VARIABLE, Book, spoil_calls, surround

RECONCILING = (
    *("--reconciler-timeout", "3", "--reconciler-tries", "200"),
    *("--reconciler-first-pause", "1", "--reconciler-longest-pause", "4"),
)
"""In the place of users' minutes and hours; so many tries because faults come every few seconds here."""


def shift_clock(seconds: float) -> None:
    """From here on ``time.time()`` is wrong in this process. Leases must not care: the store's rules."""
    real, real_ns = time.time, time.time_ns
    vars(time).update(time=lambda: real() + seconds, time_ns=lambda: real_ns() + int(seconds * 1e9))


def main() -> None:
    parser = argparse.ArgumentParser(description="A process of the service that is tortured.")
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("role", choices=("app", "worker"))
    parser.add_argument("target")
    options, rest = parser.parse_known_args()
    shift_clock(options.skew)
    sys.path.insert(0, os.getcwd())
    book = Book(Path(os.environ[VARIABLE])) if VARIABLE in os.environ else None
    if book is not None:
        spoil_calls(book)
    if options.role == "app":
        import uvicorn

        port = argparse.ArgumentParser()
        port.add_argument("--port", type=int, required=True)
        module, _, name = options.target.partition(":")
        application = getattr(importlib.import_module(module), name)
        if book is not None:
            application = surround(application, book)
        uvicorn.run(
            application,
            host=LOOPBACK,
            port=port.parse_args(rest).port,
            access_log=False,
            log_level="info",
            timeout_graceful_shutdown=5,
        )
    else:
        from samekey.cli import main as samekey_command

        sys.argv = ["samekey", "worker", options.target, *RECONCILING, *rest]
        samekey_command()


if __name__ == "__main__":
    main()

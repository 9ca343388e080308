"""``python -m examples.demo [STEP …]``: the tour, all of it or only these steps.

With ``CI`` set it ends after the tour, and its exit code says whether every claim that it printed held.
Otherwise everything keeps running for you to try, until Ctrl-C.

Two ways to watch the claims break: ``DEMO_NEW_KEYS=1``, a client with a new key for every attempt, and
``DEMO_FORGETFUL_PROVIDER=1``, a provider that does not recognise idempotency keys.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from . import broken, calm
from .client import Client
from .invitation import invitation
from .show import Screen
from .stage import Stage
from .tour import Step, Tour, chosen, ledgers

STEPS = (
    *calm.STEPS,
    *broken.STEPS,
    Step(
        "ledgers", "The proof: both ledgers", "What the provider did, and what the service believes.", ledgers
    ),
)

OFF = ("", "0", "false", "no")
LOOK_EVERY = 0.5


def is_on(name: str) -> bool:
    """Whether an environment variable says yes."""
    return os.environ.get(name, "").lower() not in OFF


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="A tour of samekey.")
    names = [step.name for step in STEPS]
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"only these: {', '.join(names)}")
    wanted = parser.parse_args(arguments).steps
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"there is no step {', '.join(unknown)}; there are {', '.join(names)}")
    # Either way of being stopped cleans up; a shell starts what it puts into the background with SIGINT off.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    screen = Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="samekey-demo-") as directory:
            return run(screen, Path(directory), wanted)
    except KeyboardInterrupt:
        screen.plain("\nStopped before the end.")
        return 130


def run(screen: Screen, directory: Path, wanted: Sequence[str]) -> int:
    screen.plain("Starting service, worker and provider …")
    with Stage(directory, forgetful=is_on("DEMO_FORGETFUL_PROVIDER")) as stage:
        screen.title(f"A payments service on SQLite: {stage.url}  (process {stage.service.pid})")
        screen.plain(f"its worker: process {stage.worker.pid}")
        screen.plain(f"its payment provider: {stage.provider.url}  (process {stage.provider.pid})")
        with closing(Client(screen, stage, new_keys=is_on("DEMO_NEW_KEYS"))) as client:
            Tour(screen, stage, client).run(chosen(STEPS, wanted))
        screen.plain()
        screen.title(screen.verdict())
        if not is_on("CI"):
            screen.plain(invitation(stage))
            look_after(screen, stage)
            screen.plain("\nEnding service, worker and provider …")
    return 1 if screen.broken else 0


def look_after(screen: Screen, stage: Stage) -> None:
    """Until Ctrl-C. What was killed by hand is started again, as a supervisor would."""
    try:
        while True:
            time.sleep(LOOK_EVERY)
            for started in stage.revive():
                screen.event(started)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    sys.exit(main())

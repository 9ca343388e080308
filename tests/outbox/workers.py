"""Real worker processes: ``samekey worker`` on the jobs of ``jobs_app``, replaced as a supervisor would."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from examples.provider import Provider
from lab.processes import GuardedProcess, wait_until
from tests.outbox import jobs_app
from tests.outbox.world import Outbox

ROOT = Path(__file__).parent.parent.parent


class Workers:
    """Worker processes of one store. Leaving the context ends them."""

    def __init__(self, outbox: Outbox, directory: Path, provider: Provider | None = None) -> None:
        self.outbox = outbox
        self.marks = directory / "marks"
        self.marks.mkdir()
        self._directory = directory
        self._environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            jobs_app.STORE: outbox.url,
            jobs_app.PROVIDER: "" if provider is None else provider.url,
            jobs_app.MARKS: str(self.marks),
        }
        self.processes: list[GuardedProcess] = []
        jobs_app.declare(outbox.idempotency)  # so that the test can enqueue them

    def start(self, **options: Any) -> GuardedProcess:
        """One more worker; ``lease=1`` is ``--lease 1``."""
        chosen = {"lease": 1, "concurrency": 10, "grace": 5, **options}
        arguments = [
            part for name, value in chosen.items() for part in (f"--{name.replace('_', '-')}", str(value))
        ]
        process = GuardedProcess(
            [
                *(sys.executable, "-m", "samekey.cli", "worker", "tests.outbox.jobs_app:idempotency"),
                *("--no-completer", *arguments),
            ],
            log=self._directory / f"worker-{len(self.processes)}.log",
            env=self._environment,
            cwd=ROOT,
        )
        self.processes.append(process)
        return process

    def supervise(
        self, done: Callable[[], Any], *, count: int = 1, timeout: float = 60, **options: Any
    ) -> int:
        """Keeps ``count`` workers running until it is done; gives how many it had to replace."""
        running = [self.start(**options) for _ in range(count)]
        replaced = 0

        def look() -> bool:
            nonlocal replaced
            for index, process in enumerate(running):
                if not process.running:
                    replaced += 1
                    running[index] = self.start(**options)
            return bool(done())

        wait_until(look, timeout, interval=0.02)
        return replaced

    def marked(self, name: str) -> None:
        """Waits until a job has said so."""
        wait_until((self.marks / name).exists)

    def let(self, name: str) -> None:
        (self.marks / name).touch()

    def settled(self) -> bool:
        return all(job.state != "live" for job in self.outbox.jobs())

    def output(self) -> str:
        return "\n".join(process.output() for process in self.processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.end(grace=10)

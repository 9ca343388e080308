"""The next versions of samekey's tables, as some later release might bring them: for the torture alone.

    python -m lab.torture.service.migration 2 postgresql://…

It is ``samekey migrate`` with so many versions more. Each changes the busiest table for good, and says that
older code goes on: that is what a roll-out without a pause is made of.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from samekey.cli import main as samekey_command
from samekey.core.program import Dialect
from samekey.stores.sql import migrations
from samekey.stores.sql.migrations import Migration

VERSIONS = (
    "alter table {keys} add column torture_%d bigint;",
    "create index torture_%d on {keys} (created_at);",
)
"""In turn: one rewrites what a table is, the other reads all of it while others write."""


MIGRATING_WITHIN: Final = 60.0


def migrate(times: int, url: str, log: Path, environment: Mapping[str, str]) -> None:
    """In a process of its own, as an operator would."""
    command = [sys.executable, "-m", __name__, str(times), url]
    with log.open("ab") as file, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command,
            check=False,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=MIGRATING_WITHIN,
            env=dict(environment),
        )


def with_more(times: int) -> None:
    """From here on this process knows so many versions more."""
    known = migrations.migrations

    def more(dialect: Dialect) -> tuple[Migration, ...]:
        real = known(dialect)
        first = real[-1].version + 1
        return (
            *real,
            *(
                Migration(first + n, f"torture_{n}", 1, VERSIONS[n % len(VERSIONS)] % n + "\n")
                for n in range(times)
            ),
        )

    vars(migrations)["migrations"] = more


if __name__ == "__main__":
    with_more(int(sys.argv[1]))
    sys.argv = ["samekey", "migrate", sys.argv[2]]
    samekey_command()

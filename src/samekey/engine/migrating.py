"""Migrating beside traffic: short queues for locks, and pauses between them in which everybody else goes on.

A migration that queues for a table makes all who come after it queue too. So the server itself ends each try
after a moment (``lock_timeout``), and it is tried again; a statement that has its lock runs for as long as it
takes.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from ..drivers.run import run
from ..drivers.url import drivers_for
from ..errors import SamekeyError, StoreBusy
from ..stores.sql.migrations import Migration, migrate, waits_for
from ..stores.sql.queries import Queries

logger = logging.getLogger("samekey")

WAIT = 60.0
"""Seconds for which a migration is tried: longer than transactions of a web application last."""
PAUSES = (1.0, 2.0)
"""Seconds between tries, at random: the queue that has built up is through by then."""
LONGEST_STATEMENT = 3600.0
"""Seconds for one statement, once it has its lock: an index on a large table takes minutes."""


def migrate_patiently(
    url: str,
    queries: Queries,
    *,
    wait: float = WAIT,
    tell: Callable[[str], None] = logger.warning,
) -> list[Migration]:
    """Applies what is missing; ``tell`` hears what is waited for. ``StoreBusy`` after ``wait`` seconds."""
    looking = drivers_for(url, pool_size=1).sync
    doing = drivers_for(url, pool_size=1, timeout=LONGEST_STATEMENT).sync
    until = time.monotonic() + wait
    said: str | None = None
    try:
        run(looking, lambda: waits_for(queries))  # a server that is away is said at once
        while True:
            try:
                return run(doing, lambda: migrate(queries))
            except StoreBusy as error:
                in_the_way = _in_the_way(looking, queries)
                if said is None:
                    said = in_the_way
                    tell(f"Waiting for {in_the_way}. Traffic goes on meanwhile.")
                if time.monotonic() >= until:
                    raise StoreBusy(
                        f"The tables could not be had within {wait:g} s; nothing was changed. In the way: "
                        f"{in_the_way}. End that, or try again later ({error})"
                    ) from error
            time.sleep(random.uniform(*PAUSES))  # noqa: S311
    finally:
        looking.close()
        doing.close()


def _in_the_way(driver: object, queries: Queries) -> str:
    try:
        found = run(driver, lambda: waits_for(queries))  # type: ignore[arg-type]
    except SamekeyError:
        found = []  # no right to look
    return ", ".join(found[:5]) or "another transaction that uses the tables"

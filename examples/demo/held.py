"""The payments service, with one place at which the tour can stop it: an order is written, not committed.

Everything else in the tour is stopped by the provider, which is somebody else's and may be slow. An order
has no provider, and its transaction is over in a moment; to show what two at once or a ``kill -9`` do to it,
the moment must last. Nothing of the service is changed: it is given another database object.

A file ``<reference>`` in the directory ``DEMO_HOLDS`` stops the order of that reference. ``<reference>.here``
appears once it stands there, and it goes on when the first file is gone.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from examples.payments import orders
from examples.payments.app import app
from examples.payments.database import Database, Row, Run
from examples.payments.service import settings

__all__ = ["app"]

LONGEST_HOLD = 60.0
"""Seconds. Other writers of a SQLite file wait for this transaction."""
LOOK_EVERY = 0.01


class HeldDatabase(Database):
    """The service's database, whose transactions may be stopped after an order's row was written."""

    def __init__(self, url: str, holds: Path) -> None:
        super().__init__(url)
        self._holds = holds

    def within(self, connection: Any) -> Run:
        run = super().within(connection)

        async def held(sql: str, *arguments: Any) -> list[Row]:
            rows = await run(sql, *arguments)
            if sql.startswith("insert into orders"):
                await self._hold({str(argument) for argument in arguments})
            return rows

        return held

    async def _hold(self, arguments: set[str]) -> None:
        for name in arguments.intersection(os.listdir(self._holds)):
            (self._holds / f"{name}.here").touch()
            async with asyncio.timeout(LONGEST_HOLD):
                while (self._holds / name).exists():  # noqa: ASYNC110 - another process's file
                    await asyncio.sleep(LOOK_EVERY)


holds = Path(os.environ["DEMO_HOLDS"])
orders.database = HeldDatabase(settings.database_url, holds)  # type: ignore[attr-defined]

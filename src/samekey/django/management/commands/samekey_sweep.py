"""``manage.py samekey_sweep``: moves records whose lease ran out, once, without a worker."""

from __future__ import annotations

import asyncio
from typing import Any

from django.core.management.base import BaseCommand

from samekey.django.conf import the_idempotency
from samekey.workers.sweeper import BATCH, Sweeper


class Command(BaseCommand):  # type: ignore[misc]
    """As ``samekey sweep``."""

    help = "Moves every record whose lease ran out, each by its mode. Safe while workers run."

    def handle(self, *args: Any, **options: Any) -> None:
        total = asyncio.run(_sweep())
        self.stdout.write(f"{total:,} {'record' if total == 1 else 'records'} moved.")


async def _sweep() -> int:
    sweeper, total = Sweeper(the_idempotency().engine), 0
    while True:
        count = await sweeper.run_once()
        total += count
        if count < BATCH:
            return total

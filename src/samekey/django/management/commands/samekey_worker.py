"""``manage.py samekey_worker``: the background services, with the project's own jobs and lookups."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.urls import get_resolver

from samekey.django.conf import the_idempotency
from samekey.workers.service import Services


class Command(BaseCommand):  # type: ignore[misc]
    """Thin: ``samekey worker`` has more options, and takes ``samekey.django:idempotency``."""

    help = "Runs samekey's background services: jobs, abandoned operations, sweeping, reaping, finding out."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--concurrency", type=int, default=10, help="jobs at a time")
        parser.add_argument("--grace", type=float, default=30, help="seconds that a stop waits for what runs")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            from samekey.cli.worker import serve
        except ModuleNotFoundError as error:
            raise CommandError(f"This needs {error.name}: pip install 'samekey[cli]'.") from None
        _ = get_resolver().url_patterns  # whoever declares jobs, phased views and lookups is imported
        services = Services(concurrency=options["concurrency"], grace=timedelta(seconds=options["grace"]))
        code = asyncio.run(serve(the_idempotency(), services))
        if code:
            sys.exit(code)

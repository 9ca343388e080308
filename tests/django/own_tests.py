"""The tests of a project, as its author writes them: run by Django's own runner, in a process of its own.

python -m tests.django.own_tests URL
"""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import urlsplit

from examples.shop.orm import database
from tests.django import world

URLS = "tests.django.own_urls"


def main(url: str) -> int:
    world.project({"default": database(url)})
    from django.conf import settings
    from django.db import connection
    from django.test.runner import DiscoverRunner

    settings.ROOT_URLCONF = URLS
    settings.SILENCED_SYSTEM_CHECKS = ["admin.E408", "admin.E409", "admin.E410"]  # it is not served here
    assert connection.vendor == urlsplit(url).scheme, "another database"
    runner: Any = DiscoverRunner(verbosity=1, interactive=False)
    failures: int = runner.run_tests(["tests.django.own_cases"])
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""``python -m tests.law``: looks at what every statement does, on every SQL store, and writes it down."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lab.servers import mariadb, postgres
from tests.law.test_law import OBSERVED, lines, store

if __name__ == "__main__":
    found: list[str] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        postgres.find_server() as one,
        mariadb.find_server() as other,
    ):
        urls = (f"sqlite:///{Path(directory) / 'law.db'}", one.create_database(), other.create_database())
        for url in urls:
            with store(url) as (driver, queries):
                found += lines(driver, queries)
    OBSERVED.write_text("\n".join(found) + "\n")

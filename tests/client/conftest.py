"""What the tests of outgoing calls share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from samekey import Idempotency


@pytest.fixture
def idempotency(sqlite_url: str) -> Iterator[Idempotency]:
    made = Idempotency(sqlite_url)
    yield made
    made.close()

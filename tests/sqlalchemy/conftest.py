"""The stacks that the tests of sessions run on: async and sync, on each database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chosen import whole
from tests.sqlalchemy.stacks import Stack

STACKS = [
    "async-postgres",
    "sync-sqlite",
    pytest.param("flask-postgres", marks=whole),
    pytest.param("flask-sqlite", marks=whole),
    pytest.param("sync-postgres", marks=whole),
    pytest.param("async-sqlite", marks=whole),
    pytest.param("async-mariadb", marks=whole),
    pytest.param("sync-mariadb", marks=whole),
]


@pytest.fixture(params=STACKS)
def make(request: pytest.FixtureRequest) -> Callable[..., Stack]:
    """Makes the stack; options are the sessionmaker's."""
    kind, _, store = str(request.param).partition("-")
    url = request.getfixturevalue(f"{store}_url")

    def made(**options: Any) -> Stack:
        return Stack(kind, url, **options)

    return made


@pytest.fixture
def stack(make: Callable[..., Stack]) -> Stack:
    return make()

"""Databases for the projects of these tests."""

from __future__ import annotations

import pytest

from tests.chosen import stores
from tests.django.world import project

project()  # what is imported below may look for settings


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb", first=1))
def database_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind that Django and samekey share."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb"))
def each_url(request: pytest.FixtureRequest) -> str:
    """The same where the database matters most: every run has PostgreSQL too."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url

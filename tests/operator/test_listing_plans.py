"""What an operator lists, and what the background deletes, is found by an index: each statement is run on a
large table. ``SAMEKEY_PLAN_ROWS=5000000`` makes it larger; ``python -m bench.plans`` shows the figures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from bench.plans import LISTINGS, UPKEEP, Case, explain, fill
from lab.servers.postgres import NamedServer
from tests.chosen import whole
from tests.operator.world import World

pytestmark = whole

ROWS = int(os.environ.get("SAMEKEY_PLAN_ROWS", "200000"))


@pytest.fixture(scope="module")
def table(postgres_server: NamedServer) -> Iterator[psycopg.Connection[Any]]:
    url = postgres_server.create_database()
    World(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        fill(connection, ROWS)
        yield connection
    postgres_server.drop_database(url)


@pytest.mark.parametrize("case", LISTINGS, ids=lambda case: f"{case.name}: {case.what}")
def test_what_is_listed_is_found_by_an_index(table: psycopg.Connection[Any], case: Case) -> None:
    found = explain(table, case, generic=False)
    assert not found.whole, "these tables were read from end to end"
    assert found.read <= case.allowed(ROWS)


@pytest.mark.parametrize("case", UPKEEP, ids=lambda case: f"{case.name}: {case.what}")
def test_what_the_background_changes_is_found_by_an_index(table: psycopg.Connection[Any], case: Case) -> None:
    found = explain(table, case, generic=True)
    assert not found.whole, "these tables were read from end to end"
    assert found.read <= case.allowed(ROWS)

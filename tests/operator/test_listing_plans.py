"""What an operator lists, and what the background deletes, is found by an index: each statement is run on a
large table. ``SAMEKEY_PLAN_ROWS=5000000`` makes it larger; ``python -m bench.plans`` shows the figures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from bench.plans import LISTINGS, SEVENTH, UPKEEP, Case, explain, fill
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


def test_a_tenants_keys_are_counted_up_to_its_limit_by_an_index(table: psycopg.Connection[Any]) -> None:
    """PostgreSQL counts them inside a function, whose plans nobody is shown: what was read is. The sixth
    call is the first that may be planned without the values."""
    limit = 500

    def reads() -> tuple[int, int, int]:
        """Not yet told to others, and perhaps of statements before this one."""
        return table.execute(
            "select seq_scan, idx_scan, idx_tup_fetch from pg_stat_xact_user_tables"
            " where schemaname = 'samekey' and relname = 'keys'"
        ).fetchone() or (0, 0, 0)

    for _ in range(7):
        with table.transaction(force_rollback=True):
            before = reads()
            (counted,) = table.execute(
                "select samekey.keep_place('all', %(first_scope)s, %(last_scope)s, 'one', %(limit)s, 0, 0)",
                {**SEVENTH, "limit": limit},
            ).fetchone() or (0,)
            whole_scans, found, read = (now - then for now, then in zip(reads(), before, strict=True))
        assert counted == limit
        assert whole_scans == 0 and found >= 1 and read <= 4 * limit

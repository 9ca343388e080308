"""Every statement that names a key is in one of the cache's lists: a new one must be thought about."""

from __future__ import annotations

from typing import get_args

import pytest

from samekey.core.program import Dialect
from samekey.core.record import COLUMNS
from samekey.drivers.wrappers.copies import ENDING, EVICTING, HARMLESS, READING, REPLACING
from samekey.stores.cached import identity
from samekey.stores.sql.queries import queries_for

SQL = [dialect for dialect in get_args(Dialect) if dialect in ("postgres", "sqlite", "mysql")]


def parameters(dialect: Dialect, name: str) -> set[str]:
    query = queries_for(dialect)[name]
    parts = [query, *getattr(query, "then", ())]
    return {parameter for part in parts for _, names in part.rendered.values() for parameter in names}


@pytest.mark.parametrize("dialect", SQL)
def test_every_statement_on_a_key_has_its_list(dialect: Dialect) -> None:
    known = READING | EVICTING | REPLACING | ENDING | HARMLESS
    found = {name for name in queries_for(dialect) if {"scope", "key"} <= parameters(dialect, name)}
    # What stands for many of another name is made below the cache, of statements that have passed it.
    found = {name for name in found if name.removesuffix("_many") not in READING}
    assert found <= known, "does it change a completed record? (drivers/wrappers/copies.py)"


def test_the_lists_do_not_overlap() -> None:
    lists = [READING, EVICTING, REPLACING, ENDING, HARMLESS]
    assert sum(map(len, lists)) == len(frozenset().union(*lists))


@pytest.mark.parametrize("dialect", SQL)
def test_what_evicts_tells_whom(dialect: Dialect) -> None:
    """The cache learns the key from the rows, so they must hold it."""
    for name in EVICTING:
        query = queries_for(dialect)[name]
        last = [query, *getattr(query, "then", ())][-1]
        assert "scope" in last.sql
        assert COLUMNS[-1] in last.sql


@pytest.mark.parametrize("dialect", SQL)
def test_a_database_can_be_asked_which_it_is(dialect: Dialect) -> None:
    assert identity(queries_for(dialect)).name == "identity"

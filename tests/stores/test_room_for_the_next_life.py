"""Whatever takes a former life of a key away, to make room for the next one, keeps what was made for it."""

from __future__ import annotations

import pytest

from samekey.core.program import Dialect, Query
from samekey.stores.sql.queries import queries_for

FORMER = "delete from"
AFTER_ITS_TIME = "after_expiry <> 'gone'"  # how a statement says that a record's retention is over


def _text(query: Query) -> str:
    return " ".join([query.sql, *(one.sql for one in query.then)])


@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_no_statement_forgets_what_a_former_life_has_made(dialect: Dialect) -> None:
    """On SQLite a trigger sees to it, whatever the statement."""
    queries = queries_for(dialect)
    takes_away = {
        name: text
        for name in queries
        if ":id" in (text := _text(queries[name])) and FORMER in text and AFTER_ITS_TIME in text
    }
    assert takes_away, "at least the reuse of a key"
    assert [name for name, text in takes_away.items() if "'past'" not in text] == []

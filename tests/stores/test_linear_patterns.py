"""What looks at a text that may hold what a client sent takes time in proportion to it: each of these took
longer than anybody waits when a pattern tried every way to split it."""

from __future__ import annotations

import pytest

from samekey.django.outside import writes
from samekey.drivers.mysql.text import ends_transaction, is_plain
from samekey.drivers.sqltext import effect_of, may_change_role

MANY = 40
TEXTS = [
    "select E'x'" + " -- -" * MANY + " 'y'",
    "set E'x'" + "-- " * MANY + "\n" + "-- \n" * MANY + "z",
    "/* route='a' */" * MANY + "1",
    "/*" * MANY + "*/" * MANY,
    "-- " * MANY + "\n" + "(;" * MANY,
    "insert into t values ('" + "\\'" * MANY + "')" * MANY,
    "select " + "a." * MANY + '""' * MANY + " (",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_looked_at_once(text: str) -> None:
    """Two to the power of forty would be hours; the time limit of the test run is what would end it."""
    effect_of(f"vacuum; {text}")
    may_change_role(text)
    ends_transaction(text)
    is_plain(text)
    writes(text, None)

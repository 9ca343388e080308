"""The way of a request: it may become shorter, never longer."""

from __future__ import annotations

import asyncio

from lab.walk import table, walk

LONGEST = {
    "atomic, new key": (58, 320),
    "atomic, replay": (46, 197),
    "leased, new key": (52, 251),
    "leased, replay": (44, 191),
}
"""Files and functions. Whoever shortens the way lowers these."""


def test_the_way_of_a_request_does_not_grow() -> None:
    walks = asyncio.run(walk())
    longer = {
        name: (one.files, one.functions)
        for name, one in walks.items()
        if one.files > LONGEST[name][0] or one.functions > LONGEST[name][1]
    }
    assert not longer, table(walks)
    assert walks.keys() == LONGEST.keys()
    assert all(one.files > 5 and one.functions > 10 for one in walks.values()), "something was traced"

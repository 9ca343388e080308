"""The way of a request: it may become shorter, never longer."""

from __future__ import annotations

import asyncio

from lab.walk import table, walk

LONGEST = {
    "atomic, new key": (63, 343),
    "atomic, replay": (47, 204),
    "leased, new key": (56, 269),
    "leased, replay": (47, 204),
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

"""The way of a request: it may become shorter, never longer."""

from __future__ import annotations

import json
import subprocess
import sys

from lab import environment

LONGEST = {
    "atomic, new key": (65, 354),
    "atomic, replay": (48, 206),
    "leased, new key": (57, 276),
    "leased, replay": (48, 206),
}
"""Files and functions. Whoever shortens the way lowers these."""


def test_the_way_of_a_request_does_not_grow() -> None:
    """In a process of its own: what other tests have loaded is no part of the way."""
    ran = subprocess.run(
        [sys.executable, "-m", "lab.walk", "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    walks = {name: tuple(one) for name, one in json.loads(ran.stdout).items()}
    assert walks.keys() == LONGEST.keys()
    longer = {
        name: one for name, one in walks.items() if one[0] > LONGEST[name][0] or one[1] > LONGEST[name][1]
    }
    assert not longer, "python -m lab.walk --verbose tells where a request goes"
    assert all(files > 5 and functions > 10 for files, functions in walks.values()), "something was traced"

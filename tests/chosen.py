"""What ``make test`` runs, and what it leaves to ``make test-all``.

``make test`` takes some minutes: every rule once, on SQLite and, where the store matters, on PostgreSQL. What
costs whole processes, long walks or another server is marked ``whole``, and runs with ``SAMEKEY_TESTS=all``
before a release. CI runs ``make test`` and then the rest, ``SAMEKEY_TESTS=rest``: everything, each test once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

WANTED = os.environ.get("SAMEKEY_TESTS", "")
if WANTED not in {"", "all", "rest"}:
    raise pytest.UsageError(f"SAMEKEY_TESTS is {WANTED!r}: say all, or rest, or leave it out.")

whole = pytest.mark.whole
"""Part of the whole matrix only."""


def stores(*names: str, first: int = 2) -> list[Any]:
    """Parameters: the first ones always, the rest in the whole matrix."""
    return [name if place < first else pytest.param(name, marks=whole) for place, name in enumerate(names)]


def some(cases: Iterable[tuple[Any, ...]], always: Callable[..., bool]) -> list[Any]:
    """Cases of several parameters: always those that ``always`` says yes to, the rest in the whole matrix."""
    return [pytest.param(*case, marks=() if always(*case) else whole) for case in cases]


without = pytest.mark.without
"""Of a story that costs whole processes, the cases in which every named parameter has the value given are
left out. The story is about the code around a store; the store's own part is in the conformance suite, the
crash enumerator and the races, which run on all of them."""

every_pair = pytest.mark.every_pair
"""Of three choices with two values each, the four combinations in which every pair still meets: for stories
that cost several processes each, where the third choice hardly ever matters to the other two."""

_SECOND = frozenset({"postgresql", "wsgi", "leased", "behind a server"})


def thin_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes out what ``without`` and ``every_pair`` say, from every run."""
    left = [item for item in items if isinstance(item, pytest.Function) and _is_left_out(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def _is_left_out(item: pytest.Function) -> bool:
    marks = list(item.iter_markers("without"))
    paired = item.get_closest_marker("every_pair") is not None
    if not marks and not paired:
        return False
    chosen = item.callspec.params
    if any(chosen.items() >= mark.kwargs.items() for mark in marks):
        return True
    # Whether the second value was chosen an even number of times; so PostgreSQL, ASGI and atomic stay.
    return paired and sum(value in _SECOND for value in chosen.values() if isinstance(value, str)) % 2 == 0


def leave_to_the_whole(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes out of the run what is left to the whole matrix; or, for the rest, what has run already."""
    marked = [item for item in items if item.get_closest_marker("whole") is not None]
    others = [item for item in items if item.get_closest_marker("whole") is None]
    out = {"": marked, "rest": others, "all": []}[WANTED]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = others if WANTED == "" else marked
    config.stash[LEFT] = len(marked) if WANTED == "" else 0


LEFT = pytest.StashKey[int]()


def summary(skipped: Sequence[Any], left: int) -> list[str]:
    """One line for each reason why something did not run."""
    reasons: dict[str, int] = {}
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] = reasons.get(reason.removeprefix("Skipped: "), 0) + 1
    lines = [f"{count} could not run: {reason}" for reason, count in sorted(reasons.items())]
    if left:
        lines.append(f"{left} belong to the whole matrix: make test-all runs them.")
    return lines

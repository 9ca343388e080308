"""Stories that cost whole processes are told on some stores only.

They are about the code around a store, which is the same for all of them. The store's own part in them is in
the tests that stay: one conformance suite, one crash enumerator, one race.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import pytest


def leave_out(config: pytest.Config, items: list[pytest.Item], folder: Path, names: Container[str]) -> None:
    """Takes tests of a folder out of the run: by their name, or by name and parameters."""
    left = [
        item
        for item in items
        if folder in item.path.parents
        and isinstance(item, pytest.Function)
        and any(mark in item.name for mark in ("mysql", "mariadb"))
        and (item.originalname in names or item.name in names)
    ]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def every_pair(config: pytest.Config, items: list[pytest.Item], names: Container[str]) -> None:
    """Of three choices with two values each, the four combinations in which every pair still meets.

    For stories that cost several processes each; the third choice hardly ever matters to the other two.
    """
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        thinned = isinstance(item, pytest.Function) and item.originalname in names
        (left if thinned and _even(item) else kept).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def _even(item: pytest.Item) -> bool:
    """Whether the second value was chosen an even number of times; so PostgreSQL, ASGI and atomic stay."""
    assert isinstance(item, pytest.Function)
    chosen = [value for value in item.callspec.params.values() if isinstance(value, str)]
    return sum(value in _SECOND for value in chosen) % 2 == 0


_SECOND = frozenset({"postgresql", "wsgi", "leased", "behind a server"})

"""docs/stores/cached.md cannot rot: its code is run, its figures are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from samekey.drivers.wrappers import copies, redis_cache
from samekey.engine import breaker
from tests.chosen import whole

pytestmark = whole


PAGE = (Path(__file__).parent.parent.parent / "docs" / "stores" / "cached.md").read_text()
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_runs(shared_postgres: str, cache_url: str) -> None:
    names: dict[str, Any] = {}
    for code in _FENCE.findall(PAGE):
        there = code.replace("postgresql://app@db/app", shared_postgres)
        exec(there.replace("redis://cache:6379/0", cache_url), names)
        found = [names["idempotency"].once(tenant="docs", key=code[-9:], run=lambda: 1) for _ in range(3)]
        names["idempotency"].close()
        assert found == [1, 1, 1]


@pytest.mark.parametrize(
    "figure",
    [
        f"longer than {copies.LIFE // 1000} seconds",
        f"within {copies.LIFE // 1000} seconds the last copy is gone",
        f"Answers above {copies.LARGEST // 1024} KiB",
        f"first {copies.MARKER_LIFE // 1000} seconds",
        f"given {redis_cache.PATIENCE * 1000:.0f} ms",
        f"| `timeout` | `{redis_cache.PATIENCE}` |",
        f"left alone for {breaker.FIRST_PAUSE} s to {breaker.LONGEST_PAUSE:.0f} s",
    ],
)
def test_the_figures_are_those_of_the_code(figure: str) -> None:
    assert figure in " ".join(PAGE.split())

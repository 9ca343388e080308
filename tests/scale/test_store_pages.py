"""What the stores' pages say that a request costs is what is counted, in both frameworks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from tests.chosen import whole
from tests.edges import conftest as edges
from tests.edges import test_counts as counts
from tests.edges.apps import Kind
from tests.edges.test_counts import Log, Meter

pytestmark = whole


# The fixtures that count there count here.
log = counts.log
meter = counts.meter
builder = edges.builder

PAGES = Path(__file__).parents[2] / "docs" / "stores"
KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind in ("fastapi", "flask"))


def written(page: str) -> dict[str, tuple[int, int]]:
    """Statements and commits of each row of the page's table of costs."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|", (PAGES / page).read_text(), re.MULTILINE)
    return {name: (int(statements), int(commits)) for name, statements, commits in rows}


def cost(log: Log) -> tuple[int, int]:
    """What was sent beside the handler's own write, and how many commits that were."""
    ours = [sql.lower() for sql in log.sent if not sql.lower().startswith("insert into effects")]
    inside, commits = False, 0
    for sql in ours:
        if sql.startswith("begin"):
            inside = True
        elif sql.startswith(("commit", "rollback")):
            inside = False
            commits += sql.startswith("commit")
        elif not inside and re.match(r"insert|update|delete|with found as", sql):
            commits += 1  # it commits by itself
    return len(ours), commits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", ["postgresql", "sqlite"])
def test_the_page_says_what_a_request_costs(
    store: str, kind: Kind, meter: Callable[[str, Kind, str], Meter], postgres_url: str, tmp_path: Path
) -> None:
    url = postgres_url if store == "postgresql" else f"sqlite:///{tmp_path / 'counts.db'}"
    counted: dict[str, tuple[int, int]] = {}
    for mode in ("leased", "atomic"):
        metered = meter(url, kind, mode)
        counted[mode] = cost(metered.cost(keys=(f"new-{mode}".encode(),)))
        replayed = metered.cost(keys=(f"new-{mode}".encode(),))
        assert (len(replayed.sent), replayed.transactions) == (1, (0, 0, 0))
    counted["replay"] = (1, 0)
    assert counted == written(f"{store}.md")

"""docs/stores/redis.md: its code runs, and its tables say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from samekey.drivers.redis import url as redis_url
from samekey.drivers.redis.errors import _ACL
from samekey.stores.redis.finding import INDEXES
from samekey.stores.redis.scripts import RedisStatements
from tests.chosen import whole

pytestmark = whole


PAGE = Path(__file__).parent.parent.parent / "docs/stores/redis.md"
TEXT = PAGE.read_text()


def test_the_code_runs(redis_url: str) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(code.replace("redis://127.0.0.1:6379/0", redis_url), names)
    idempotency = names["idempotency"]
    assert idempotency.once(tenant="t", key="k", run=lambda: 1) == 1  # type: ignore[attr-defined]
    idempotency.close()  # type: ignore[attr-defined]


def test_every_option_is_there_with_its_default() -> None:
    assert set(re.findall(r"`\?(\w+)=", TEXT)) == set(redis_url._OPTIONS)
    defaults = dict(re.findall(r"`\?(prefix|partitions|wait_timeout)=(\w+)`", TEXT))
    assert defaults == {
        "prefix": redis_url.PREFIX,
        "partitions": str(redis_url.PARTITIONS),
        "wait_timeout": f"{redis_url.WAIT_SECONDS:g}",
    }


def test_every_kind_of_key_is_there() -> None:
    named = set(re.findall(r"^\| `samekey:\{p\d+\}:(\w+)", TEXT, re.MULTILINE))
    assert named == {*INDEXES, "provider", "layout", "identity"}
    prelude = RedisStatements()["find"].rendered["lua"][0]
    assert "local MARGIN = 24 * 3600 * 1000" in prelude and "24 hours after its retention" in TEXT


def test_the_rights_are_those_of_the_advice() -> None:
    (listed,) = re.findall(r"^ACL SETUSER app on >password (.*)$", TEXT, re.MULTILINE)
    assert set(re.findall(r"[~+][@\w:*|]+", _ACL)) == set(listed.split())


def test_the_tests_that_it_names_are_there() -> None:
    for name in re.findall(r"`(tests/[\w/.]+)`", TEXT):
        assert (PAGE.parent.parent.parent / name).is_file(), name


@pytest.mark.parametrize(("page", "anchor"), re.findall(r"\]\(([\w.]*)#([\w-]+)\)", TEXT))
def test_links_lead_somewhere(page: str, anchor: str) -> None:
    target = (PAGE.parent / page).read_text() if page else TEXT
    headings = re.findall(r"^#+ (.+)$", target, re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}

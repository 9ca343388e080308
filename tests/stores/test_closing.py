"""A driver that is closed while somebody still has a connection: it is closed when it comes back."""

from __future__ import annotations

from typing import Any

import pytest

from samekey.drivers.url import drivers_for
from tests.chosen import stores


def pools_of(driver: Any) -> list[Any]:
    return [
        getattr(driver, name) for name in ("_statements", "_operations", "_pool") if _is_pool(driver, name)
    ]


def _is_pool(driver: Any, name: str) -> bool:
    return hasattr(getattr(driver, name, None), "drop_idle")


@pytest.mark.parametrize("store", stores("sqlite", "postgres", "mariadb"))
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_what_is_in_use_at_the_close_is_closed_when_it_comes_back(
    request: pytest.FixtureRequest, store: str, end: str
) -> None:
    drivers = drivers_for(request.getfixturevalue(f"{store}_url"))
    driver: Any = drivers.sync
    session = driver.open()
    driver.close()
    getattr(session, end)()
    pools = pools_of(driver)
    assert len(pools) == 2
    assert [idle for pool in pools for idle in pool._idle] == [], "nobody would ever close it"
    again = driver.open()  # and it can be used again
    again.rollback()
    driver.close()

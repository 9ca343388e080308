"""A provider's id that no store could keep is refused where the handler sets it, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from samekey import ConfigurationError, Idempotency, current_operation
from tests.chosen import stores
from tests.stores.crash_scenarios import execute


@pytest.mark.parametrize("store", stores("sqlite", "postgres", "mariadb"))
@pytest.mark.parametrize("mode", ["atomic", "leased"])
def test_a_number_is_refused_at_once_and_does_not_make_the_work_impossible(
    request: pytest.FixtureRequest, store: str, mode: Any
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    idempotency = Idempotency(url, pool_size=1)
    idempotency.migrate()
    execute(url, "create table effects (n int)")

    def run(found: Any) -> int:
        operation = current_operation()
        if mode == "atomic":
            operation.connection.cursor().execute("insert into effects values (1)")
        with operation.before_effect():
            operation.provider_id = found
        return 1

    with pytest.raises(ConfigurationError, match="provider_id must"):
        idempotency.once(tenant="t", key="k", run=lambda: run(4711), mode=mode)
    assert idempotency.once(tenant="t", key="k", run=lambda: run("4711"), mode=mode) == 1
    assert execute(url, "select count(*) from effects")[0][0] == (mode == "atomic")
    idempotency.close()

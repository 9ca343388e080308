"""Tables made from the application's own code, as ``samekey migrate`` makes them."""

from __future__ import annotations

import pytest

from samekey import Idempotency
from samekey.errors import SchemaMismatch
from tests.chosen import stores


@pytest.mark.parametrize("fixture", stores("postgres_url", "mariadb_url", first=1))
def test_the_tables_are_made_once(fixture: str, request: pytest.FixtureRequest) -> None:
    idempotency = Idempotency(request.getfixturevalue(fixture))
    with pytest.raises(SchemaMismatch, match="samekey migrate"):
        idempotency.check()
    idempotency.migrate()
    idempotency.migrate()
    idempotency.check()
    assert idempotency.once(tenant="t", key="k", run=lambda: 7) == 7
    idempotency.close()


def test_on_sqlite_they_are_there_already(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    idempotency.check()
    idempotency.migrate()
    idempotency.close()

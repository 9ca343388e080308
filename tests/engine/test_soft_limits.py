"""A soft time limit (an Exception that a signal handler raises, as task queues do) while a claim is on its
way: nothing has run, so the key is free again as soon as the claim can be given back."""

from __future__ import annotations

import time
from typing import Any

import pytest

from samekey import Idempotency
from samekey.errors import StillRunning
from tests.chosen import stores


class SoftTimeLimitExceeded(Exception):
    """Comes out of whatever line the process is at."""


@pytest.mark.parametrize("store", stores("sqlite", "postgres", "mariadb"))
def test_a_claim_whose_reply_was_not_heard_is_given_back(
    store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    idempotency = Idempotency(request.getfixturevalue(f"{store}_url"))
    idempotency.migrate()
    assert idempotency.once(tenant="t", key="warm", run=lambda: 1) == 1
    driver: Any = idempotency.engine.drivers.sync
    execute = driver.execute

    def interrupted(statement: Any) -> Any:
        rows = execute(statement)
        if statement.query.name == "reserve":
            raise SoftTimeLimitExceeded
        return rows

    ran: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(driver, "execute", interrupted)
        with pytest.raises(SoftTimeLimitExceeded):
            idempotency.once(tenant="t", key="k", run=lambda: ran.append(1))
    for _ in range(500):  # a thread gives it back
        try:
            idempotency.once(tenant="t", key="k", run=lambda: ran.append(1))
            break
        except StillRunning:
            time.sleep(0.02)
    assert ran == [1]
    idempotency.close()

"""A claim that landed while its reply was lost is given back: nothing ran under it, so nothing is unknown."""

from __future__ import annotations

import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy, cut_after
from samekey import Idempotency, StoreUnavailable
from samekey.core.claim import call_part, scope_of
from samekey.drivers.run import ATTEMPTS, run
from samekey.stores.sql.migrations import migrate

RESERVE = r"[\s\S]*insert into [\s\S]*on conflict \(scope, key\) do nothing[\s\S]*"


def test_a_claim_whose_reply_was_lost_does_not_keep_its_key(postgres_url: str) -> None:
    direct = Idempotency(postgres_url)
    run(direct.engine.drivers.sync, lambda: migrate(direct.engine.queries))
    scope = scope_of(call_part("t"))

    def is_free() -> bool:
        return run(direct.engine.drivers.sync, lambda: direct.engine.keys.read(scope, "k")) is None

    with FaultProxy.before(postgres_url) as proxy:
        idempotency = Idempotency(proxy.url_for(postgres_url))
        idempotency.check()
        rule = proxy.on_statement(RESERVE, cut_after, times=ATTEMPTS)
        with pytest.raises(StoreUnavailable):
            idempotency.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"))
        assert rule.count == ATTEMPTS, "every try lost its reply"
        # Long before its lease of a minute: the keeper takes it back as soon as the store answers.
        wait_until(is_free, timeout=30)
        assert idempotency.once(tenant="t", key="k", run=lambda: "now") == "now"
        idempotency.close()
    direct.close()

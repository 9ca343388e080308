"""Services of one PostgreSQL database, each with a schema of its own, do not stand in each other's way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from samekey import Idempotency


@pytest.mark.filterwarnings("ignore:The atomic handler answered")
def test_one_key_of_two_services_is_two_locks(postgres_url: str) -> None:
    orders, mail = (Idempotency(postgres_url, schema=name) for name in ("orders", "mail"))
    for service in (orders, mail):
        service.migrate()
    inside, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        inside.set()
        may_end.wait(60)
        return "ordered"

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(orders.once, tenant="acme", key="k", run=slow, mode="atomic")
        try:
            assert inside.wait(30)
            assert mail.once(tenant="acme", key="k", run=lambda: "sent", mode="atomic") == "sent"
        finally:
            may_end.set()
        assert first.result(60) == "ordered"
    for service in (orders, mail):
        service.close()

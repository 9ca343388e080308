"""A word that somebody must see to is noted while the key's next life, or the reaper, waits for the record:
it is not deleted unseen with the former life."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from lab.processes import wait_until
from samekey import Declined, Executed, OutcomeUnknown, Resolution, current_operation
from samekey.drivers.run import run_in
from samekey.engine.evidence.said import Said
from samekey.errors import CallDeclined
from samekey.stores.protocols import Actor
from tests.evidence.conftest import Node

pytestmark = pytest.mark.filterwarnings("ignore:ttl=.* is under an hour")


def _waits(url: str) -> bool:
    asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    with psycopg.connect(url) as other:
        row = other.execute(f"{asked} and datname = current_database()".encode()).fetchone()
    return row is not None and row[0] > 0


@pytest.mark.parametrize("who", ["a retry", "the reaper"])
def test_a_conflict_that_is_noted_meanwhile_keeps_its_operation(postgres_url: str, who: str) -> None:
    node = Node(postgres_url)
    sent: list[str] = []
    ran: list[int] = []

    def call(run: Callable[[], Any]) -> Any:
        return node.idempotency.once(tenant="acme", key="k", run=run, name="pay", ttl=timedelta(seconds=1))

    def lost() -> None:
        sent.append(current_operation().downstream_key())
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        call(lost)
    record = node.record("k")
    assert node.run(lambda: node.resolver.apply(record, Declined("no"), Actor("ann", "seen")))
    wait_until(lambda: node.clock() > node.record("k").expires_at)
    session = node.idempotency.engine.drivers.sync.open()
    said = Said(Executed("paid", "ch_1"), "cards", "e1", int(time.time() * 1000), about=sent[0])
    assert run_in(session, node.resolver.receive(said, record.id)) is Resolution.TOO_LATE

    def other() -> None:
        if who == "the reaper":
            node.run(lambda: node.upkeep.reap(batch=10, soft=False))
        else:
            with pytest.raises(CallDeclined):  # as before
                call(lambda: ran.append(1))

    waiting = threading.Thread(target=other)
    waiting.start()
    if who == "a retry":
        wait_until(lambda: _waits(postgres_url))
    else:
        waiting.join(30)  # it passes by what is locked
    session.commit()
    waiting.join(30)
    assert not ran and node.record("k").id == record.id
    assert node.shown("k") == ["conflict"]
    node.close()

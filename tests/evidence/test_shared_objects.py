"""An object of the provider's that several operations have noted: a customer, a subscription. An event
about it is news to those alone that have no end yet."""

from __future__ import annotations

import pytest

from samekey import Executed, Resolution, current_operation
from samekey.core.states import State
from samekey.stores.protocols import Actor
from tests.evidence.conftest import HOUR, Node


def order(node: Node, key: str, *, answered: bool = True) -> None:
    def run() -> str:
        current_operation().source = "cards"
        current_operation().downstream_key()
        current_operation().provider_id = "cus_42"
        if not answered:
            raise TimeoutError
        return key

    node.idempotency.once(tenant="acme", key=key, run=run)


def lose(node: Node, key: str) -> None:
    with pytest.raises(TimeoutError):
        order(node, key, answered=False)


def updated(node: Node, event_id: str = "e1") -> Resolution:
    return node.tell(Executed("done", "cus_42"), event_id, provider_id="cus_42", tenant="acme")


def test_what_all_of_them_know_is_no_news(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    for key in ("k1", "k2", "k3"):
        order(node, key)
    assert [updated(node, "e1"), updated(node, "e2")] == [Resolution.TOO_LATE] * 2
    assert not [one for one in caplog.records if one.name.startswith("samekey")]
    assert not node.is_sql or node.shown("k1") == []
    if node.is_sql:
        later = node.clock() + 400 * 24 * HOUR
        assert node.run(lambda: node.upkeep.reap(batch=10, now=later)), "their keys end as any others"


def test_the_one_that_is_open_is_in_doubt(node: Node) -> None:
    order(node, "k1")
    lose(node, "k2")
    assert updated(node) is Resolution.AMBIGUOUS
    assert node.state("k2") is State.UNKNOWN, "the other one may be meant"
    if node.is_sql:
        assert (node.shown("k1"), node.shown("k2")) == ([], ["ambiguous"])


def test_the_open_ones_are_found_among_however_many(lite: Node) -> None:
    for number in range(101):
        order(lite, f"k{number}")
    lose(lite, "open")
    assert updated(lite) is Resolution.AMBIGUOUS
    assert lite.shown("open") == ["ambiguous"]


def test_once_its_own_end_is_known_the_event_tells_nothing_more(sql_node: Node) -> None:
    for key in ("k1", "k2"):
        lose(sql_node, key)
    assert updated(sql_node) is Resolution.AMBIGUOUS
    record = sql_node.record("k1")
    found = Executed("done", "cus_42")
    assert sql_node.run(lambda: sql_node.resolver.apply(record, found, Actor("ann", "seen there")))
    sql_node.run(lambda: sql_node.resolver.apply_waiting(record.id))
    assert (sql_node.shown("k1"), sql_node.shown("k2")) == ([], ["ambiguous"])

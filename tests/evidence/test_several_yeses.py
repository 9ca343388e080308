"""A key store keeps each event that says that it happened: each has to be set aside by itself."""

from __future__ import annotations

import pytest

from samekey import Declined, Executed, NotExecuted, OutcomeUnknown, Resolution, current_operation
from samekey.core.disputes import MORE, MOST_DISPUTES
from samekey.core.record import Record
from samekey.core.states import State
from samekey.errors import Contradicted
from samekey.stores.protocols import Actor
from tests.evidence.conftest import Node
from tests.operator.command import samekey

ANN = Actor("ann", "looked at the dashboard")


def two_steps(node: Node) -> Record:
    def lost() -> None:
        current_operation().downstream_key("a")
        current_operation().downstream_key("b")
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key="k1", run=lost)
    return node.record("k1")


@pytest.mark.parametrize("says", [NotExecuted, Declined("no")], ids=["not executed", "declined"])
def test_the_second_does_not_replace_the_first(key_node: Node, says: type[NotExecuted] | Declined) -> None:
    record = two_steps(key_node)
    for event, step in (("e1", "a"), ("e2", "b"), ("e2", "b")):
        told = key_node.tell(Executed(1), event, downstream_key=record.downstream_key(step))
        assert told is Resolution.UNPLACED
    resolver = key_node.idempotency.engine.resolver
    for despite, left in (([], 2), (["cards:e1"], 1), (["cards:e2"], 1), (["e1", "e2"], 2)):
        with pytest.raises(Contradicted) as contradicted:
            key_node.run(lambda despite=despite: resolver.apply(record, says, ANN, despite=despite))  # type: ignore[misc]
        assert len(contradicted.value.events) == left
        assert key_node.state("k1") is State.UNKNOWN
    both = ["cards:e1", "cards:e2"]
    assert key_node.run(lambda: resolver.apply(record, says, ANN, despite=both))


def test_a_yes_that_comes_between_the_look_and_the_no_is_not_passed_over(key_node: Node) -> None:
    record = two_steps(key_node)
    key_node.tell(Executed(1), "e1", downstream_key=record.downstream_key("a"))
    seen = key_node.run(lambda: key_node.finding.disputed_by(record.id))
    key_node.tell(Executed(1), "e2", downstream_key=record.downstream_key("b"))
    finding = key_node.finding
    assert not key_node.run(lambda: finding.not_executed(record.id, ANN, despite=seen))
    assert not key_node.run(lambda: finding.executed(record.id, None, ANN, despite=seen))
    assert key_node.state("k1") is State.UNKNOWN


def test_a_record_stays_small_and_tells_that_there_were_more(key_node: Node) -> None:
    record = two_steps(key_node)
    for number in range(MOST_DISPUTES + 3):
        key_node.tell(Executed(1), f"e{number}", downstream_key=record.downstream_key("a"))
    kept = key_node.run(lambda: key_node.finding.disputed_by(record.id))
    assert len(kept) == MOST_DISPUTES + 1 and kept[-1] == MORE


def test_an_operator_is_shown_them_and_a_dead_letter_is_not_given_up_against_them(key_node: Node) -> None:
    record = two_steps(key_node)
    key_node.tell(Executed(1), "e1", downstream_key=record.downstream_key("a"))
    key_node.run(lambda: key_node.finding.give_up(record.id, ANN))
    env = {"SAMEKEY_URL": key_node.url, "SAMEKEY_REASON": "seen"}
    for words in (["dead", "show"], ["keys", "show"]):
        assert "cards:e1" in samekey(*words, record.id, env=env).out
    for dry in ([], ["--dry-run"]):
        refused = samekey("dead", "discard", record.id, *dry, env=env)
        assert refused.code != 0 and "'cards:e1'" in refused.sentence
    assert key_node.state("k1") is State.DEAD_LETTER
    assert samekey("dead", "discard", record.id, "--despite", "cards:e1", env=env).code == 0
    assert key_node.state("k1") is State.COMPLETED

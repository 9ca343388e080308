"""What a handler notes beside its answer never costs it the answer."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from starlette.responses import JSONResponse

from samekey import ConfigurationError, OutcomeUnknown, current_operation
from samekey.core.states import State
from tests.evidence.conftest import Node
from tests.evidence.test_settled_by_others import Shop

TEXTS = {"NUL": "a\0b", "half a character": "a\ud800", "a line's end": "a\nb", "long": "x" * 256, "none": 5}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_no_store_can_keep_is_refused_before_anything_is_sent(node: Node, text: Any) -> None:
    def noting() -> str:
        operation = current_operation()
        with pytest.raises(ConfigurationError):
            operation.source = text
        with pytest.raises(ConfigurationError):
            operation.downstream_key(text)
        with pytest.raises(ConfigurationError):
            operation.provider_id = text
        assert operation.sent().steps == ()
        return "paid"

    assert node.idempotency.once(tenant="acme", key="k", run=noting) == "paid"
    assert node.state("k") is State.COMPLETED


def test_the_longest_that_is_taken_can_be_kept(node: Node) -> None:
    longest = "\N{GRINNING FACE}" * 255

    def noting() -> str:
        operation = current_operation()
        operation.source = longest
        operation.downstream_key(longest)
        operation.provider_id = longest
        return "paid"

    assert node.idempotency.once(tenant="acme", key="k", run=noting) == "paid"
    record = node.record("k")
    assert record.state is State.COMPLETED
    (effect,) = node.run(lambda: node.finding.effects(record.id))
    assert (effect.step, effect.source, effect.provider_id) == (longest, longest, longest)


def test_names_of_phases_jobs_and_their_providers_are_checked(lite: Node) -> None:
    with pytest.raises(ConfigurationError):
        lite.idempotency.job("settle", source="a\0b")(lambda job: None)
    with pytest.raises(ConfigurationError):
        lite.idempotency.job("set\0tle")(lambda job: None)


@pytest.mark.parametrize("outcome", ["paid", "lost"])
def test_an_outcome_is_recorded_without_its_notes_if_those_are_refused(lite: Node, outcome: str) -> None:
    def ends() -> Any:
        current_operation().provider_id = "ch_1"
        lite_sql(lite, "alter table samekey_effects rename to hidden_effects")
        if outcome == "lost":
            raise OutcomeUnknown
        return JSONResponse({"paid": 1}, 201)

    shop = Shop(lite.idempotency, ends)
    shop.go_on.set()
    status, _ = shop.post()
    record = lite.record("k1")
    if outcome == "paid":
        assert status == 201
        assert record.answer is not None and record.answer.body == b'{"paid":1}'
    else:
        assert record.error_code == "not_noted" and record.state is State.UNKNOWN


def lite_sql(node: Node, statement: str) -> None:
    with sqlite3.connect(node.url.removeprefix("sqlite:///")) as connection:
        connection.execute(statement)

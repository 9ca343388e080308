"""How many requests each thing takes, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest

from samekey.core.claim import Claim
from samekey.core.decide import Unreadable
from samekey.core.program import Program
from samekey.core.record import Lease
from samekey.core.states import Mode, State, StateEvent, sources
from samekey.drivers.run import run
from samekey.errors import CorruptRecord
from samekey.stores.dynamodb.finding import DynamoFinding
from samekey.stores.dynamodb.items import encode_item, pk_of
from samekey.stores.dynamodb.requests import PlannedQuery, Request
from samekey.stores.dynamodb.statements import DynamoStatements
from samekey.stores.keys import claim_values
from samekey.stores.protocols import Actor
from samekey.testing.conformance import new_claim, retry_of
from samekey.testing.conformance_claims import ANSWER, POLICY, claim_at, hold
from samekey.testing.conformance_subject import NOW, must_read
from tests.chosen import whole
from tests.dynamodb.subjects import SyncDynamoSubject

pytestmark = whole


T = TypeVar("T")
STATEMENTS = DynamoStatements()


class Counted(SyncDynamoSubject):
    """Notes the requests that are made."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.made: list[str] = []
        driver: Any = self.drivers.sync
        as_it_is = driver._ask

        def ask(request: Request) -> Any:
            self.made.append(request.operation)
            return as_it_is(request)

        driver._ask = ask

    def of(self, factory: Callable[[], Program[object]]) -> list[str]:
        self.made.clear()
        run(self.drivers.sync, factory)
        return list(self.made)


@pytest.fixture
def store(dynamodb_session_url: str) -> Iterator[Counted]:
    subject = Counted(dynamodb_session_url)
    yield subject
    subject.close()


def test_a_new_key_and_a_replay_are_one_request_each(store: Counted) -> None:
    claim, keys = new_claim(), store.keys
    lease = lease_of(claim)
    assert store.of(lambda: keys.claim(claim, POLICY, now=NOW)) == ["PutItem"]
    assert store.of(lambda: keys.claim(retry_of(claim), POLICY, now=NOW)) == ["PutItem"], "in progress"
    assert store.of(lambda: keys.renew([lease], now=NOW)) == ["UpdateItem"]
    assert store.of(lambda: keys.complete(lease, ANSWER, now=NOW)) == ["UpdateItem"]
    assert store.of(lambda: keys.claim(retry_of(claim), POLICY, now=NOW)) == ["PutItem"], "a replay"
    assert store.of(lambda: keys.read_by_id(claim.id)) == ["GetItem"], "the status resource"
    assert store.of(lambda: keys.read_by_downstream(pk_of(claim.scope, claim.key))) == ["GetItem"]


def lease_of(claim: Claim) -> Lease:
    return Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms)


def test_a_lease_that_ran_out_is_two(store: Counted) -> None:
    for mode, retried in ((Mode.LEASED, 0), (Mode.REPEATABLE, 1)):
        claim = new_claim(mode=mode)
        hold(store, claim)
        again, late = retry_of(claim), NOW + claim.lease_ms
        made = store.of(partial(store.keys.claim, again, POLICY, now=late))
        assert made == ["PutItem"] + ["UpdateItem"] * (1 + retried)


@pytest.mark.parametrize("mode", [Mode.LEASED, Mode.PHASED])
def test_a_retry_that_declares_another_mode_asks_once_more(store: Counted, mode: Mode) -> None:
    claim = new_claim(mode=Mode.REPEATABLE)
    hold(store, claim)
    again = retry_of(claim, mode=mode)
    made = store.of(lambda: store.keys.claim(again, POLICY, now=NOW + claim.lease_ms))
    assert made == ["PutItem"] + ["UpdateItem"] * 3


def test_the_first_statement_of_a_process_asks_for_the_time(store: Counted) -> None:
    claim = new_claim()
    assert store.of(lambda: store.keys.claim(claim, POLICY)) == ["GetItem", "PutItem"]
    assert store.of(lambda: store.keys.claim(retry_of(claim), POLICY)) == ["PutItem"]


def test_what_cannot_be_an_id_is_not_asked_for(store: Counted) -> None:
    for text in ("", "x" * 32, "a" * 64 + "b", "é" * 64, "F" * 64, "a" * 5_000):
        assert store.of(partial(store.keys.read_by_id, text, now=NOW)) == []


def test_a_record_in_the_wrong_place_is_never_taken_for_this_keys(store: Counted) -> None:
    claim = new_claim()
    hold(store, claim)
    before = must_read(store, claim)
    store.change(claim.scope, claim.key, {"key": "another"})
    assert isinstance(claim_at(store, retry_of(claim)), Unreadable)
    with pytest.raises(CorruptRecord, match="the record of another key"):
        must_read(store, claim)
    store.change(claim.scope, claim.key, {"key": claim.key})
    assert must_read(store, claim) == before


def test_a_server_that_does_not_show_what_is_there_is_asked_for_it(store: Counted) -> None:
    """DynamoDB has done so since 2023; some emulators still do not."""
    claim = new_claim()
    hold(store, claim)
    driver: Any = store.drivers.sync
    as_it_is = driver._ask

    def ask(request: Request) -> Any:
        reply = as_it_is(request)
        return {
            name: value for name, value in reply.items() if name != "Item" or request.operation == "GetItem"
        }

    driver._ask = ask
    decision = claim_at(store, retry_of(claim))
    assert type(decision).__name__ == "Outstanding"
    late = claim_at(store, retry_of(claim, mode=Mode.REPEATABLE), NOW + claim.lease_ms)
    assert type(late).__name__ == "Uncertain"


def test_a_scan_is_only_for_what_no_index_knows(store: Counted) -> None:
    finding = DynamoFinding(STATEMENTS)
    assert "Scan" not in store.of(lambda: finding.find(state="unknown", limit=5))
    assert store.of(lambda: finding.find(tenant="=nobody", limit=5))[-1] == "Scan"


# ------------------------------------------------------------------ what is in them


def requests_of(name: str, **values: Any) -> list[Request]:
    """The first requests of a statement."""
    query = STATEMENTS.statement(name, NOW, **values).query
    assert isinstance(query, PlannedQuery)
    plan = query.plan(values, NOW)
    made = list(next(plan))
    plan.close()
    return made


HELD = {"scope": "s", "key": "k", "attempt": "a", "step_list": None, "made_list": None, "source": None}
OUTCOMES: dict[str, tuple[StateEvent, dict[str, Any]]] = {
    "fail": (StateEvent.FAIL, {"error_code": "e"}),
    "lose": (StateEvent.LOSE, {"error_code": "e", "provider_id": None}),
    "release": (StateEvent.RELEASE, {}),
    "complete": (
        StateEvent.COMPLETE,
        {
            "provider_id": None,
            "answer_version": 1,
            "answer_status": 200,
            "answer_headers": b"[]",
            "answer_body": b"",
            "happened": 1,
            "heeded": None,
        },
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_outcome_compares_the_attempt_and_the_states_that_the_table_allows(name: str) -> None:
    event, more = OUTCOMES[name]
    [request] = requests_of(name, **HELD, **more)
    values = request.arguments["ExpressionAttributeValues"]
    condition = request.arguments["ConditionExpression"]
    for placeholder in sorted(values, reverse=True):  # :v10 before :v1
        condition = condition.replace(placeholder, str(next(iter(values[placeholder].values()))))
    allowed = ", ".join(str(state) for state in sources(event))
    assert condition.startswith(f"#attempt = a AND #state IN ({allowed})")


def test_a_claim_is_insert_or_nothing() -> None:
    claim = new_claim()
    values = {
        name: getattr(claim, name)
        for name in ("scope", "key", "id", "tenant", "endpoint", "fingerprint", "fingerprint_version")
    }
    [request] = requests_of(
        "reserve",
        **values,
        mode="leased",
        attempt="a",
        lease_ms=1,
        ttl_ms=1,
        ttl_from="completion",
        after_expiry="new",
        downstream=None,
    )
    assert request.arguments["ConditionExpression"] == "attribute_not_exists(pk)"
    assert request.arguments["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"


def test_reads_are_consistent() -> None:
    assert [one.arguments["ConsistentRead"] for one in requests_of("find", scope="s", key="k")] == [True]


def test_no_name_is_written_out() -> None:
    """DynamoDB reserves hundreds of words, ``state`` and ``key`` among them."""
    for name, (_, more) in OUTCOMES.items():
        [request] = requests_of(name, **HELD, **more)
        names = set(request.arguments["ExpressionAttributeNames"])
        text = request.arguments["ConditionExpression"] + " " + request.arguments.get("UpdateExpression", "")
        words = {word.strip("(),") for word in text.replace("attribute_not_exists(", " ").split()}
        plain = {word for word in words if word.isidentifier()} - {"SET", "REMOVE", "AND", "OR", "IN"}
        assert not plain, (name, plain)
        assert {word for word in words if word.startswith("#")} == names


def test_what_an_item_cannot_hold_is_an_error() -> None:
    with pytest.raises(TypeError, match="not list"):
        encode_item({"a": ["b"]})
    assert json.dumps(encode_item({"a": "b", "n": 1, "gone": None})) == '{"a": {"S": "b"}, "n": {"N": "1"}}'


def test_who_settled_it_stays_in_the_record(store: Counted) -> None:
    claim = new_claim()
    hold(store, claim)
    lease = lease_of(claim)
    run(store.drivers.sync, lambda: store.keys.lose(lease, "timeout", now=NOW))
    finding = DynamoFinding(STATEMENTS)
    actor = Actor("operator", "asked the provider")
    assert run(store.drivers.sync, lambda: finding.not_executed(claim.id, actor, now=NOW))
    item = store.item(claim.scope, claim.key)
    assert item is not None
    assert (item["actor"]["S"], item["reason"]["S"]) == ("operator", "asked the provider")


# ------------------------------------------------------------------ each condition by itself

MOVES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "retry": (
        {"state": "failed_retryable", "locked_until": None},
        [{"state": str(state)} for state in State if state not in sources(StateEvent.RETRY)],
    ),
    "resume": (
        {"mode": "phased", "locked_until": NOW},
        [
            *({"state": str(state)} for state in State if state not in sources(StateEvent.RESUME)),
            {"mode": "leased"},
            {"locked_until": NOW + 1},
        ],
    ),
    "reuse": (
        {"state": "completed", "expires_at": NOW},
        [
            {"expires_at": NOW + 1},
            *({"state": state} for state in ("in_progress", "unknown", "pending", "dead_letter")),
        ],
    ),
    "end_lease": (
        {"locked_until": NOW},
        [
            *({"state": str(state)} for state in State if state not in sources(StateEvent.LEASE_END)),
            {"mode": "phased"},
            {"locked_until": NOW + 1},
        ],
    ),
}
"""(what a record must be like, what it must not be like), beside the attempt that was seen"""


@pytest.mark.parametrize("name", MOVES)
def test_a_move_is_refused_if_any_one_of_its_conditions_fails(store: Counted, name: str) -> None:
    fits, wrongs = MOVES[name]
    changes = [({**fits, **wrong}, False) for wrong in ({"attempt": "of another"}, *wrongs)]
    for columns, accepted in ((fits, True), *changes):
        claim = new_claim()
        hold(store, claim)
        store.change(claim.scope, claim.key, columns)
        before = store.item(claim.scope, claim.key)
        again = claim_values(retry_of(claim))
        rows = store.drivers.sync.execute(STATEMENTS.statement(name, NOW, seen=claim.attempt, **again))
        assert bool(rows) is accepted, columns
        assert (store.item(claim.scope, claim.key) != before) is accepted, columns

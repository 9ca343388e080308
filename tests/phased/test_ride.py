"""The ride that everyone knows: a local row, a card charge and a receipt, with nothing going wrong."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from samekey import Backoff, Response
from samekey.core.claim import downstream_key
from tests.phased.conftest import ON_POSTGRES_TOO
from tests.phased.provider import Provider, ProviderClient
from tests.phased.world import World, column, count, execute, kept, now, ride_body, state_of

pytestmark = ON_POSTGRES_TOO


def test_a_ride_and_its_replay(world: World, provider: Provider, client: ProviderClient) -> None:
    world.define(ride_body(world, client, provider_window=3600))
    first = world.post("k1")
    assert (first.status, first.json()) == (201, {"ride": "k1", "charge": "ch_1"})
    assert not first.replayed and first.header("idempotency-key-expires")
    again = world.post("k1")
    assert again.replayed
    assert (again.status, again.body) == (first.status, first.body)
    assert (count(world.url, "rides", "k1"), count(world.url, "receipts", "k1")) == (1, 1)
    assert len(provider.journal()) == provider.calls == 1
    # What the completer would have needed has gone with the end, and so have the recovery points.
    assert kept(world.url) == {"inputs": 0, "phases": 0}
    assert state_of(world.url, "k1") == "completed"


def test_cookies_are_sent_once_and_never_kept(world: World, client: ProviderClient) -> None:
    world.define(ride_body(world, client, provider_window=3600))
    assert world.post("k1").header("set-cookie") == "a=b"
    assert world.post("k1").header("set-cookie") is None


def test_another_ride_under_the_same_key_is_refused(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    world.define(ride_body(world, client, provider_window=3600))
    world.post("k1")
    other = world.post("k1", {"ride": "another"})
    assert (other.status, other.code) == (422, "reused")
    assert len(provider.journal()) == 1


def test_without_a_key_nothing_runs(world: World, provider: Provider, client: ProviderClient) -> None:
    from tests.edges.callers import Request

    world.define(ride_body(world, client))
    refused = world.send(Request(path="/rides", body=b"{}"))
    assert (refused.status, refused.code) == (400, "missing")
    assert provider.calls == 0


def test_the_provider_gets_the_downstream_key_and_its_id_leads_back(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    world.define(ride_body(world, client, provider_window=3600))
    world.post("k1")
    sent = provider.journal()[0][0]
    record = world.engine.engine.find_by_provider_id("ch_1", tenant="acme")
    assert record is not None and record == world.engine.engine.find_by_downstream_key(sent)
    assert sent == downstream_key(record.scope, "k1", "charge_created")


def test_the_status_resource_shows_it_to_its_tenant_only(world: World, client: ProviderClient) -> None:
    world.define(ride_body(world, client, provider_window=3600))
    world.post("k1")
    operation = column(world.url, "k1", "id")
    shown = world.status(operation)
    assert (shown.status, shown.json()["state"]) == (200, "completed")
    assert json.loads(shown.json()["answer"]["body"]) == {"ride": "k1", "charge": "ch_1"}
    assert world.status(operation, tenant="evil").status == 404


def test_two_tenants_may_use_one_key(world: World, provider: Provider, client: ProviderClient) -> None:
    world.define(ride_body(world, client, provider_window=3600))
    assert world.post("k1").status == world.post("k1", tenant="other").status == 201
    keys = {key for key, _ in provider.journal()}
    assert len(keys) == 2


def test_the_function_sees_tenant_route_parameters_and_the_request(world: World) -> None:
    async def look(op: Any, input: Any) -> Response:
        seen = await now(op.transaction("looked", lambda _connection: op.tenant))
        return Response(
            200,
            {
                "tenant": seen,
                "id": op.id,
                "attempts": op.attempts,
                "params": dict(op.params),
                "of_input": dict(input.params),
                "query": input.query,
                "type": input.content_type,
                "body": input.json(),
            },
        )

    world.define(look, path="/cities/{city}/rides")
    got = world.post("k1", {"a": 1}, path="/cities/bern/rides", tenant="Zoë")
    assert got.json() == {
        "tenant": "Zoë",
        "id": column(world.url, "k1", "id"),
        "attempts": 1,
        "params": {"city": "bern"},
        "of_input": {"city": "bern"},
        "query": "",
        "type": "application/json",
        "body": {"a": 1},
    }


def test_a_declined_card_is_an_answer_like_any_other(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    provider.next.append("decline")
    world.define(ride_body(world, client, provider_window=3600))
    first = world.post("k1")
    assert (first.status, first.json()["reason"]) == (402, "stolen")
    again = world.post("k1")
    assert again.replayed and again.status == 402
    assert provider.calls == 1 and count(world.url, "receipts", "k1") == 0


def test_an_answer_without_a_response_is_json(world: World) -> None:
    async def plain(op: Any, _input: Any) -> dict[str, int]:
        return {"n": await now(op.transaction("counted", lambda _connection: 7))}

    world.define(plain)
    assert [world.post("k1").json() for _ in range(2)] == [{"n": 7}, {"n": 7}]


def test_an_answer_that_is_too_large_is_sent_once_and_then_withheld(world: World) -> None:
    async def large(op: Any, _input: Any) -> Response:
        await now(op.transaction("done", lambda _connection: None))
        return Response(200, "x" * 100)

    world.define(large, max_answer=10)
    assert world.post("k1").body == b"x" * 100
    again = world.post("k1")
    assert (again.status, again.code) == (409, "result_unavailable")


def test_an_answer_that_is_not_remembered_frees_the_key_and_the_input(world: World) -> None:
    async def busy(_op: Any, _input: Any) -> Response:
        return Response(429, "later")

    world.define(busy)
    assert [world.post("k1").status for _ in range(2)] == [429, 429]
    assert state_of(world.url, "k1") is None
    assert kept(world.url) == {"inputs": 0, "phases": 0}


@pytest.mark.parametrize("status", [408, 425, 429])
def test_not_now_is_never_the_answer_of_what_is_half_done(world: World, status: int) -> None:
    """The courier is over its limit after the charge: the client is told so, and the work goes on."""
    busy = [True]

    async def ride(op: Any, _input: Any) -> Response:
        paid = await now(op.transaction("charged", lambda _connection: "ch_1"))
        if busy.pop():
            return Response(status, {"busy": True}, {"Retry-After": "1"})
        return Response(201, {"charge": paid})

    world.define(ride, backoff=Backoff(first=timedelta(0)))
    first = world.post("k1")
    assert (first.status, first.header("retry-after")) == (status, "1")
    busy.append(False)
    assert world.post("k1").json() == {"charge": "ch_1"}
    assert world.post("k1").replayed


def test_a_key_that_is_used_again_after_its_retention_begins_from_nothing(world: World) -> None:
    """Also where the former life had left an input and phases behind."""
    seen: list[str] = []

    async def once_failed(op: Any, input: Any) -> Response:
        label = input.json()["ride"]
        seen.append(await now(op.transaction("step", lambda _connection: label)))
        if label == "old":
            return Response(503)
        return Response(200, {"ride": label})

    world.define(once_failed)
    assert world.post("k1", {"ride": "old"}).status == 503
    assert kept(world.url) == {"inputs": 1, "phases": 1}
    # An operator found that nothing had come of it; much later the key is used for something else.
    execute(
        world.url,
        "update samekey.keys set state = 'failed_retryable', expires_at = 1, created_at = 1 where key = 'k1'",
    )
    execute(world.url, "update samekey.inputs set created_at = 1")
    execute(world.url, "update samekey.phases set intent_at = 1")
    assert world.post("k1", {"ride": "new"}).json() == {"ride": "new"}
    assert seen == ["old", "new"]
    assert kept(world.url) == {"inputs": 0, "phases": 0}

"""Leased work end to end: a service in a process of its own, its status resource, webhooks and reconciler."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from lab.processes import ServedApp, serve_asgi
from lab.servers.dynamodb import NamedServer
from samekey import Executed, Idempotency, Response
from samekey.core.record import Record
from samekey.engine.evidence.said import Resolution
from samekey.errors import ConfigurationError
from samekey.workers.reconciler import Reconciler
from samekey.workers.sweeper import Sweeper
from tests.chosen import whole
from tests.dynamodb.conftest import migrated
from tests.operator.command import samekey

pytestmark = whole


@pytest.fixture(scope="module")
def url(dynamodb_server: NamedServer) -> str:
    return migrated(dynamodb_server.url())


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[ServedApp]:
    with serve_asgi("tests.dynamodb.app:app", {"SAMEKEY_URL": url}) as served:
        yield served


@pytest.fixture(scope="module")
def client(service: ServedApp) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client:
        yield client


@pytest.fixture
def idempotency(url: str) -> Iterator[Idempotency]:
    """Another node."""
    node = Idempotency(url)
    yield node
    node.close()


def pay(client: httpx2.Client, key: str, charge: str = "fine") -> httpx2.Response:
    return client.post("/payments", json={"charge": charge}, headers={"Idempotency-Key": key})


def new_key() -> str:
    return secrets.token_hex(16)


def runs(client: httpx2.Client) -> int:
    return len(client.get("/runs").json())


def test_a_payment_runs_once(client: httpx2.Client) -> None:
    before, key = runs(client), new_key()
    first, second = pay(client, key), pay(client, key)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.content == second.content
    assert second.headers["idempotent-replayed"] == "true"
    assert runs(client) == before + 1
    assert pay(client, key, "another").status_code == 422
    assert runs(client) == before + 1


def test_of_many_at_once_one_runs(client: httpx2.Client) -> None:
    before, key = runs(client), new_key()
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: pay(client, key), range(8)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert runs(client) == before + 1
    assert pay(client, key).status_code == 201


def test_what_was_not_executed_is_retried(client: httpx2.Client) -> None:
    key = new_key()
    assert pay(client, key, "refused").status_code == 503
    assert pay(client, key, "refused").status_code == 201


def test_an_answer_that_does_not_fit_is_withheld(client: httpx2.Client) -> None:
    before, key = runs(client), new_key()
    assert len(pay(client, key, "huge").content) > 500_000
    again = pay(client, key, "huge")
    assert (again.status_code, again.json()["code"]) == (409, "result_unavailable")
    assert runs(client) == before + 1


def _lost(client: httpx2.Client, idempotency: Idempotency) -> tuple[str, Record]:
    key = new_key()
    answer = pay(client, key, "lost")
    assert (answer.status_code, answer.json()["code"]) == (409, "outcome_unknown")
    sent = client.get("/runs").json()[-1]
    record = idempotency.engine.find_by_downstream_key(sent)
    assert record is not None and record.state == "unknown"
    return key, record


def test_the_status_of_an_operation_is_found_by_its_id(
    client: httpx2.Client, idempotency: Idempotency
) -> None:
    _, record = _lost(client, idempotency)
    assert idempotency.engine.status(record.id, "shop").status == 200
    assert idempotency.engine.status(record.id, "another shop").status == 404
    status = client.get(f"/idempotency/{record.id}")
    assert (status.status_code, status.json()["state"]) == (200, "unknown")
    for other in ("0" * 64, record.id[:-1], "x" * 3000):
        assert client.get(f"/idempotency/{other}").status_code == 404


def test_a_webhook_settles_an_unknown_outcome(client: httpx2.Client, idempotency: Idempotency) -> None:
    before = runs(client)
    key, record = _lost(client, idempotency)
    evidence = Executed(Response(201, {"paid": "after all"}), provider_id="ch_9")

    def resolve(**how: Any) -> Resolution:
        given = {"source": "bank", "tenant": "shop", **how}
        return idempotency.resolve(
            evidence, event_id="evt_1", occurred_at=datetime.now(UTC), verify=lambda: True, **given
        )

    assert resolve(downstream_key=record.downstream_key()) is Resolution.RESOLVED
    assert resolve(operation_id=record.id) is Resolution.TOO_LATE
    assert resolve(provider_id="ch_9") is Resolution.TOO_LATE
    assert resolve(provider_id="ch_unheard_of") is Resolution.NOT_FOUND
    answer = pay(client, key, "lost")
    assert (answer.status_code, answer.json()) == (201, {"paid": "after all"})
    assert runs(client) == before + 1


def test_the_reconciler_asks_and_settles(client: httpx2.Client, url: str, idempotency: Idempotency) -> None:
    key, record = _lost(client, idempotency)

    async def reconcile() -> int:
        node = Idempotency(url)
        node.lookup()(lambda found: Executed(Response(201, {"paid": found.id})))
        try:
            await Sweeper(node.engine).run_once()
            return await Reconciler(node.engine).run_once()
        finally:
            await node.aclose()

    assert asyncio.run(reconcile()) >= 1
    answer = pay(client, key, "lost")
    assert (answer.status_code, answer.json()) == (201, {"paid": record.id})


def test_the_operators_commands_know_it(client: httpx2.Client, url: str, idempotency: Idempotency) -> None:
    key, record = _lost(client, idempotency)
    for arguments in (
        ["keys", "list", "--state", "unknown"],
        ["keys", "show", record.id],
        ["doctor"],
        ["sweep"],
    ):
        ran = samekey(*arguments, "--url", url)
        assert ran.code == 0, ran
    why = ["--actor", "alice", "--reason", "the provider says so"]
    ran = samekey("keys", "resolve", record.id, "--not-executed", *why, "--url", url)
    assert ran.code == 0 and "failed_retryable now" in ran.out
    assert pay(client, key, "lost").json()["code"] == "outcome_unknown", "it was run again"


def test_modes_that_need_a_transaction_are_refused_when_they_are_declared(idempotency: Idempotency) -> None:
    async def handler(request: Any) -> None: ...

    for declare in (idempotency.atomic, idempotency.deferred):
        with pytest.raises(ConfigurationError, match="DynamoDB keeps keys only"):
            declare(handler)

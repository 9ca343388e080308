"""Whoever settles an operation in its holder's place takes its attempt id: the late holder frees nothing,
takes no answer for its own doing, and tells its client what is stored. Where nothing is, its own counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import (
    AsyncPhasedOperation,
    Declined,
    Effect,
    Executed,
    Idempotency,
    Input,
    NotExecuted,
    OutcomeUnknown,
    Resolution,
    Response,
    current_operation,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Program
from samekey.core.record import Answer, Lease
from samekey.core.states import State
from samekey.drivers.run import run
from samekey.errors import StoreUnavailable
from samekey.stores.protocols import Actor
from samekey.tenants import single_tenant
from samekey.workers.completer import Completer
from tests.evidence.conftest import Node
from tests.operator.command import samekey

SOMEBODY = Actor("somebody", "a test")


class Shop:
    """One route whose handler waits until the test lets it go on."""

    def __init__(self, idempotency: Idempotency, ends: Callable[[], Any]) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

        @idempotency.leased
        def pay(request: Request) -> JSONResponse:
            current_operation().source = "cards"
            current_operation().downstream_key()
            self.entered.set()
            assert self.go_on.wait(60)
            answer: JSONResponse = ends()
            return answer

        self.app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
        self.app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())

    def post(self) -> tuple[int, bytes]:
        with TestClient(self.app, raise_server_exceptions=False) as client:
            sent = client.post("/pay", json={}, headers={"Idempotency-Key": "k1"})
            return sent.status_code, sent.content


def _raises(error: Exception) -> Callable[[], Any]:
    def end() -> Any:
        raise error

    return end


@pytest.mark.parametrize(
    "ends",
    [
        lambda: JSONResponse({"paid": 1}, 201),
        _raises(NotExecuted("it never left")),
        _raises(TimeoutError("who knows")),
        lambda: JSONResponse({}, 429),
    ],
    ids=["paid", "not executed", "unknown", "released"],
)
def test_the_client_of_a_late_holder_is_told_what_is_stored(node: Node, ends: Callable[[], Any]) -> None:
    shop = Shop(node.idempotency, ends)
    told: list[tuple[int, bytes]] = []
    client = threading.Thread(target=lambda: told.append(shop.post()))
    client.start()
    assert shop.entered.wait(60)
    node.end_leases()
    said = Declined(Response(402, {"error": "no funds"}))
    assert node.tell(said, operation_id=node.record("k1").id, step="") is Resolution.RESOLVED
    shop.go_on.set()
    client.join(60)
    assert [status for status, _ in told] == [402]
    assert shop.post() == told[0]


def test_no_act_of_a_late_holder_is_taken_for_the_settled_one(node: Node) -> None:
    def lost() -> None:
        current_operation().downstream_key()
        raise OutcomeUnknown

    acts: dict[str, Callable[[Any], Program[bool]]] = {
        "executed": lambda r: node.finding.executed(r.id, Answer(201), SOMEBODY, attempt=r.attempt),
        "not executed": lambda r: node.finding.not_executed(r.id, SOMEBODY, attempt=r.attempt),
        "given up": lambda r: node.finding.give_up(r.id, SOMEBODY, attempt=r.attempt),
    }
    for name, act in acts.items():
        with pytest.raises(OutcomeUnknown):
            node.idempotency.once(tenant="acme", key=name, run=lost)
        record = node.record(name)
        assert node.run(lambda act=act, record=record: act(record))  # type: ignore[misc]
        settled = node.record(name)
        assert settled.attempt != record.attempt and settled.run == record.run
        lease = record.lease(60_000)
        for late in (
            lambda lease=lease: node.keys.fail(lease, "late"),
            lambda lease=lease: node.keys.lose(lease, "late"),
            lambda lease=lease: node.keys.release(lease),
            lambda lease=lease, record=record: node.keys.give_back(lease, record.id),
        ):
            assert not node.run(late), name
            assert node.record(name) == settled, name
        expires_at = node.run(lambda lease=lease: node.keys.complete(lease, Answer(200)))  # type: ignore[misc]
        assert (expires_at is None) is (name == "executed")
        answer = node.record(name).answer
        assert answer is not None and answer.status == (201 if name == "executed" else 200)


def test_what_an_attempt_noted_counts_after_others_have_moved_it(node: Node) -> None:
    """A word about a step of the last attempt still finds that step noted, though that has another id."""
    keys: list[str] = []

    def lost() -> None:
        current_operation().source = "cards"
        keys.append(current_operation().downstream_key("charge"))
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        node.idempotency.once(tenant="acme", key="k", run=lost)
    record = node.record("k")
    assert node.run(lambda: node.finding.give_up(record.id, SOMEBODY, attempt=record.attempt))
    assert node.tell(Executed({"id": 7}), downstream_key=keys[0]) is Resolution.RESOLVED
    assert node.idempotency.once(tenant="acme", key="k", run=lost) == {"id": 7}


class Booking:
    """Phased work whose charge has no certain end, and a receipt after it."""

    def __init__(self, idempotency: Idempotency) -> None:
        self.did: list[str] = []
        self.sent: list[str] = []
        self.idempotency = idempotency

        async def charge(effect: Effect) -> None:
            self.did.append("charge")
            self.sent.append(effect.key)
            raise TimeoutError("who knows")

        async def receipt(_: Effect) -> None:
            self.did.append("receipt")

        @idempotency.phased("book", version=1)
        async def book(op: AsyncPhasedOperation, _: Input) -> Response:
            await op.effect("charge", charge, source="cards")
            await op.effect("receipt", receipt, source="post")
            return Response(201, {})

        self.app = Starlette(routes=[Route("/book", book, methods=["POST"])])
        self.app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())

    def post(self) -> int:
        with TestClient(self.app, raise_server_exceptions=False) as client:
            return client.post("/book", json={}, headers={"Idempotency-Key": "k1"}).status_code

    def complete(self) -> int:
        async def work() -> int:
            try:
                return await Completer(self.idempotency.engine).run_once()
            finally:
                await self.idempotency.engine.drivers.aio.close()

        return asyncio.run(work())


def test_a_second_try_to_record_the_loss_takes_nothing_back(
    sql_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = sql_node
    booking = Booking(node.idempotency)
    keys, kept = node.idempotency.engine.phases.keys, []
    real = keys.lose

    def cut(lease: Lease, code: str, **options: Any) -> Program[int | None]:
        """Committed, and its acknowledgement is lost: the keeper is to try again."""
        monkeypatch.setattr(keys, "lose", real)
        run(node.idempotency.engine.drivers.sync, lambda: real(lease, code, **options))
        raise StoreUnavailable("the connection was cut")

    monkeypatch.setattr(keys, "lose", cut)
    monkeypatch.setattr(
        node.idempotency.engine.keeper, "record_later", lambda _, factory: kept.append(factory)
    )
    assert booking.post() == 409
    assert node.state("k1") is State.UNKNOWN and len(kept) == 1
    assert node.tell(Executed({"id": "ch_1"}), downstream_key=booking.sent[0]) is Resolution.RESOLVED
    node.run(kept[0])
    assert node.state("k1") is State.IN_PROGRESS
    assert booking.complete() == 1
    assert booking.post() == 201 and booking.did == ["charge", "receipt"]


def test_phased_work_without_an_open_effect_goes_on_when_it_is_resolved(lite: Node) -> None:
    """An operator says that what stopped it is seen to: the phases that are left run."""
    did: list[str] = []
    first = [True]

    @lite.idempotency.phased("book", version=1)
    async def book(op: AsyncPhasedOperation, _: Input) -> Response:
        async def step(effect: Effect) -> None:
            did.append(effect.key)

        await op.effect("charge", step, source="cards")
        if first.pop() if first else False:
            raise AssertionError("stopped between two phases")
        await op.effect("receipt", step, source="post")
        return Response(201, {})

    app = Starlette(routes=[Route("/book", book, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=lite.idempotency, tenant=single_tenant())

    def post() -> int:
        with TestClient(app, raise_server_exceptions=False) as client:
            return client.post("/book", json={}, headers={"Idempotency-Key": "k1"}).status_code

    post()
    record = lite.record("k1")
    lease = record.lease(60_000)
    assert lite.run(lambda: lite.keys.lose(lease, "an accident"))

    def resolve(*words: str) -> Any:
        return samekey(
            "keys", "resolve", record.id, *words, "--reason", "seen to", env={"SAMEKEY_URL": lite.url}
        )

    ended = resolve("--executed", "--status", "201")
    assert ended.code == 2 and "goes on from" in ended.err
    assert resolve("--declined", "--result", "{}").code == 2
    gone_on = resolve("--executed")
    assert gone_on.code == 0 and "the run goes on from its recovery point" in gone_on.out
    assert lite.state("k1") is State.IN_PROGRESS

    async def work() -> int:
        try:
            return await Completer(lite.idempotency.engine).run_once()
        finally:
            await lite.idempotency.engine.drivers.aio.close()

    assert asyncio.run(work()) == 1
    assert post() == 201 and len(did) == 2

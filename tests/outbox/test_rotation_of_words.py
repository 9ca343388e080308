"""A provider's word that waits, encrypted with a key that this process lacks (keys rolled out in the wrong
order): nothing is counted or given up for it, nobody is held up, and it is used once the key is there."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Executed, NotExecuted, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.encryption import fernet
from samekey.workers.completer import Completer
from samekey.workers.reconciler import Reconciler
from tests.chosen import stores
from tests.edges.callers import AsgiClient, LoopThread
from tests.outbox.world import NO_PAUSE, Outbox, order, tenant_of

OLD, NEW = Fernet.generate_key(), Fernet.generate_key()
PAID = Executed(Response(201, {"charge": "ch_1"}), "ch_1")


class Service:
    """A node that has the old key only, and one with both, which hears of the provider's events."""

    def __init__(self, old: Outbox, both: Outbox) -> None:
        self.old, self.both = old, both
        self.charges: list[str] = []
        self.lookups: list[str] = []
        self.client = AsgiClient(self._served(old), old.loop)
        self._served(both)

    def _served(self, node: Outbox) -> Starlette:
        idempotency = node.idempotency

        @idempotency.phased("ride", version=1, backoff=NO_PAUSE, max_attempts=2)
        async def ride(op: Any, input: Any) -> Response:
            async def charge(effect: Any) -> str:
                self.charges.append(op.id)
                if len(self.charges) == 1:
                    await self._tell_early(op.id, Executed("ch_1", "ch_1"), step="charged")
                raise ConnectionError("the reply is lost")

            rules = {"source": "acme", "provider_window": timedelta(hours=1)}
            return Response(201, {"charge": await op.effect("charged", charge, **rules)})

        @idempotency.leased
        async def pay(request: Request) -> JSONResponse:
            operation = current_operation()
            operation.downstream_key()
            await self._tell_early(operation.id, PAID)
            raise ConnectionError("the reply is lost")

        routes = [Route("/rides", ride, methods=["POST"]), Route("/payments", pay, methods=["POST"])]
        app = Starlette(routes=routes)
        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=tenant_of)
        return app

    async def _tell_early(self, operation: str, evidence: Any, **how: Any) -> None:
        telling = self.both.loop.start(self.tell(self.both, operation, evidence, "early", **how))
        assert await asyncio.wrap_future(telling) == "kept"

    async def tell(self, node: Outbox, operation: str, evidence: Any, event_id: str, **how: Any) -> str:
        return await node.idempotency.resolve_async(
            evidence,
            source="acme",
            event_id=event_id,
            tenant="ann",
            occurred_at=datetime.now(UTC),
            verify=lambda: True,
            operation_id=operation,
            **how,
        )

    def post(self, path: str) -> Any:
        return self.client.send(replace(order("k"), path=path))

    def look(self, node: Outbox, times: int = 1) -> None:
        """What the workers of this node do, as often as that."""
        for _ in range(times):
            node.ask("update {keys} set locked_until = 1 where state = 'in_progress'")
            node.run(Completer(node.idempotency.engine).run_once())
            node.ask("update {keys} set reconcile_after = 1 where state = 'unknown'")
            node.run(Reconciler(node.idempotency.engine, max_tries=2).run_once())

    def state(self) -> tuple[str, str]:
        ((state, identifier),) = self.old.ask("select state, id from {keys}")
        return _text(state), _text(identifier)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb", first=1))
def service(request: pytest.FixtureRequest, loop: LoopThread, threads: ThreadPoolExecutor) -> Any:
    url = request.getfixturevalue(f"{request.param}_url")
    with (
        closing(LoopThread()) as another,
        closing(Outbox(url, loop, threads, {"encryption": fernet(OLD)})) as old,
        closing(Outbox(url, another, threads, {"encryption": fernet(NEW, OLD)})) as both,
    ):
        yield Service(old, both)


def test_phased_work_waits_for_a_process_that_can_read_it(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.post("/rides")
    service.look(service.old, times=4)
    assert service.state()[0] == "in_progress", "no attempt is counted"
    assert len(service.charges) == 1, "the provider says that it happened"
    assert "cannot be decrypted here" in caplog.text
    service.look(service.both)
    assert service.state()[0] == "completed" and len(service.charges) == 1


def test_a_call_whose_word_cannot_be_read_is_not_given_up(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.post("/payments")
    service.look(service.old, times=4)
    assert service.state()[0] == "unknown"
    assert "cannot be decrypted here" in caplog.text
    service.look(service.both)
    assert service.state()[0] == "completed"


def test_the_lookup_is_asked_all_the_same(service: Service) -> None:
    @service.old.idempotency.lookup("POST /payments")
    def look_up(_record: Any) -> Executed:
        return PAID

    service.post("/payments")
    service.look(service.old)
    assert service.state()[0] == "completed"


def test_a_no_of_the_lookup_does_not_outweigh_a_yes_that_cannot_be_read(service: Service) -> None:
    service.old.idempotency.lookup("POST /payments")(lambda _record: NotExecuted)
    service.post("/payments")
    service.look(service.old)
    assert service.state()[0] == "dead_letter", "one of the two is wrong"


@pytest.mark.parametrize(
    ("path", "evidence", "how"),
    [("/rides", Executed("ch_1", "ch_1"), {"step": "charged"}), ("/payments", PAID, {})],
)
def test_another_event_settles_it_all_the_same(
    service: Service, path: str, evidence: Any, how: dict[str, str]
) -> None:
    service.post(path)
    service.look(service.old)
    _, identifier = service.state()
    told = service.old.run(service.tell(service.old, identifier, evidence, "another", **how))
    assert told in ("resolved", "kept")
    service.look(service.old)
    assert service.state()[0] == "completed"

"""An operation that has ended gives no more keys: whatever it has started may go on with a copy of its
context, and serve other requests under its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import flask
import pytest
from fastapi import BackgroundTasks, FastAPI
from starlette.responses import StreamingResponse

from samekey import Operation, current_operation
from samekey.errors import OperationOver
from tests.edges.shop import Shop


def given(ask: Callable[[], object]) -> object:
    """What was given; the error where nothing was."""
    try:
        return ask()
    except OperationOver as error:
        return type(error)


class Consumer:
    """A consumer of a queue that the first request starts, within its own context."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[asyncio.Future[object]] | None = None
        self.task: asyncio.Task[None] | None = None

    async def consume(self) -> None:
        assert self.asked is not None
        while True:
            answer = await self.asked.get()
            answer.set_result(given(lambda: current_operation().downstream_key("mail")))

    async def ask(self) -> object:
        if self.asked is None:
            self.asked = asyncio.Queue()
            self.task = asyncio.create_task(self.consume())
        answer = asyncio.get_running_loop().create_future()
        await self.asked.put(answer)
        return await answer

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()


@pytest.mark.parametrize(
    ("declared", "keys"),
    [
        ("leased", True),
        ("undecorated", True),
        ("optional", False),
        ("undecorated", False),
        ("exempt", False),
    ],
)
def test_a_worker_that_a_request_started_gets_no_key_of_it_later(
    shop: Shop, declared: str, keys: bool
) -> None:
    consumer, seen = Consumer(), list[object]()

    async def pay() -> dict[str, str]:
        seen.append(await consumer.ask())
        return {"mine": current_operation().downstream_key("mail")}

    leased = shop.idempotency.leased
    handlers: dict[str, Any] = {"leased": leased, "undecorated": lambda handler: handler}
    handlers |= {"optional": leased(required=False), "exempt": shop.idempotency.exempt}
    app = FastAPI()
    app.post("/pay")(handlers[declared](pay))
    guarded = shop.guard(app)
    mine = []
    for key in (b"A", b"B", b"C"):
        (got,) = shop.send(guarded, times=1, keys=(key,) if keys else ())
        assert got.status == 200
        mine.append(got.json()["mine"])
    shop.loop.run(consumer.stop())
    assert seen == [mine[0], OperationOver, OperationOver] and len(set(mine)) == 3


@pytest.mark.parametrize("mode", ["leased", "atomic", "deferred"])
def test_background_work_may_read_and_nothing_else(shop: Shop, mode: str) -> None:
    app, seen, mail = FastAPI(), list[object](), f"mail-{shop.world.name}"
    shop.idempotency.job(mail)(lambda job: None)

    def note(operation: Operation) -> None:
        operation.provider_id = "ch_late"

    async def later(operation: Operation, id: str) -> None:
        assert operation.id == id and operation.provider_id == "ch_1" and operation.mode == mode
        seen.append(given(lambda: note(operation)))
        seen.append(given(operation.downstream_key))
        seen.append(given(lambda: operation.downstream_key("another")))
        seen.append(given(lambda: operation.enqueue(mail)))
        assert operation.provider_id == "ch_1"

    async def pay(background: BackgroundTasks) -> dict[str, int]:
        operation = current_operation()
        operation.downstream_key()
        operation.provider_id = "ch_1"
        if mode == "deferred":
            await operation.enqueue(mail)
        if mode == "atomic":
            await operation.connection.execute(shop.store.insert, (shop.world.name, 1))
        background.add_task(later, operation, operation.id)
        return {}

    app.post("/pay")(getattr(shop.idempotency, mode)(pay))
    got = shop.send(shop.guard(app))
    assert [one.status for one in got] == [202 if mode == "deferred" else 200] * 2
    assert seen == [OperationOver] * 4


def test_sync_code(shop: Shop) -> None:
    operations: list[Operation] = []

    def pay() -> dict[str, int]:
        operations.append(current_operation())
        operations[-1].downstream_key()
        return {}

    shop.idempotency.once(tenant=shop.world.name, key="once", run=pay)
    app = flask.Flask(__name__)
    app.post("/pay")(shop.idempotency.leased(pay))
    assert [one.status for one in shop.send(shop.guard_wsgi(app.wsgi_app))] == [200, 200]
    assert len(operations) == 2
    for one in operations:
        with pytest.raises(OperationOver, match="has ended"):
            one.downstream_key()


@pytest.mark.parametrize("declared", ["leased", "undecorated", "generator"])
@pytest.mark.parametrize("endless", [False, True])
def test_a_stream_asks_until_it_has_ended(shop: Shop, declared: str, endless: bool) -> None:
    """Also where the fact was recorded with its first piece."""
    app, operations = FastAPI(), list[Operation]()

    async def pieces() -> AsyncIterator[str]:
        operations.append(current_operation())
        for step in ("one", "two", "three"):
            yield f"data: {operations[-1].downstream_key(step)}\n\n"

    async def streams() -> StreamingResponse:
        operation = current_operation()
        operations.append(operation)

        async def body() -> AsyncIterator[str]:
            for step in ("one", "two", "three"):
                yield f"data: {operation.downstream_key(step)}\n\n"

        return StreamingResponse(body(), media_type=kind)

    kind = "text/event-stream" if endless else "text/plain"
    if declared == "generator":

        class Streams(StreamingResponse):
            media_type = kind

        app.post("/pay", response_class=Streams)(pieces)
    else:
        app.post("/pay")(shop.idempotency.leased(streams) if declared == "leased" else streams)
    got = shop.send(shop.guard(app))
    assert got[0].status == 200 and got[0].body.count(b"data: ") == 3 and got[0].error is None
    assert (got[1].code == "result_unavailable") if endless else got[1].replayed
    (operation,) = operations
    assert given(operation.downstream_key) is OperationOver

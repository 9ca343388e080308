"""An answer that breaks off on its way is no success, whoever ends it: Starlette's BaseHTTPMiddleware sends
the last message of a stream that has failed, and raises afterwards."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from samekey import current_operation
from tests.edges.shop import Shop
from tests.edges.test_hidden import function


class Broken(Exception):
    """What a body fails with."""


async def passes_on(request: Request, call_next: Callable[[Request], Any]) -> Any:
    return await call_next(request)


class Swallows:
    """Keeps errors from whoever is further out, as some loggers do."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
        except Broken:
            if scope["type"] != "http":
                raise


def behind_middleware(swallows: bool = False) -> FastAPI:
    app = FastAPI()
    app.middleware("http")(passes_on)
    if swallows:
        app.add_middleware(Swallows)
    return app


@pytest.mark.parametrize("swallows", [False, True])
def test_a_debit_is_not_committed_without_its_credit(shop: Shop, swallows: bool) -> None:
    app = behind_middleware(swallows)

    @app.post("/pay")
    @shop.idempotency.atomic
    async def transfer() -> StreamingResponse:
        connection = current_operation().connection

        async def body() -> AsyncIterator[bytes]:
            await connection.execute(shop.store.insert, (shop.world.name, 1))
            yield b'{"debit": 1, '
            raise Broken

        return StreamingResponse(body(), 201)

    got = shop.send(shop.guard(app), times=3)
    assert [one.status for one in got] == [500] * 3 and not any(one.replayed for one in got)
    assert shop.store.effects(shop.world) == 0 and "completed" not in shop.states()


def fail() -> bool:
    raise Broken


def fails_at_once() -> Iterator[bytes]:
    yield from (piece for piece in [b""] if fail())


def fails_later() -> Iterator[bytes]:
    yield b"[1, "
    yield b"2, "
    raise Broken


def fails_after_its_last_piece() -> Iterator[bytes]:
    yield b"[1]"
    raise Broken


async def in_the_loop(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("pieces", [fails_at_once, fails_later, fails_after_its_last_piece])
def test_a_truncated_answer_is_never_replayed(
    shop: Shop, pieces: Callable[[], Iterator[bytes]], decorated: bool, is_async: bool, swallows: bool
) -> None:
    app = behind_middleware(swallows)

    def pay() -> StreamingResponse:
        shop.charge()
        return StreamingResponse(in_the_loop(pieces()) if is_async else pieces(), 201)

    app.post("/pay")(shop.idempotency.leased(pay) if decorated else pay)
    got = shop.send(shop.guard(app), times=3)
    assert [one.code for one in got] == ["outcome_unknown"] * 3
    assert shop.charges == 1 and shop.states() == ["unknown"]


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_that_breaks_off(shop: Shop, is_async: bool, swallows: bool) -> None:
    app = behind_middleware(swallows)

    async def later() -> AsyncIterator[dict[str, int]]:
        shop.charge()
        yield {"one": 1}
        raise Broken

    def in_threads() -> Iterator[dict[str, int]]:
        shop.charge()
        yield {"one": 1}
        raise Broken

    app.post("/pay")(later if is_async else in_threads)
    got = shop.send(shop.guard(app), times=3)
    assert [one.code for one in got] == ["outcome_unknown"] * 3
    assert shop.charges == 1 and shop.states() == ["unknown"]


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_that_cannot_be_opened(shop: Shop, tmp_path: Path, announced: bool) -> None:
    """It was there when the answer began."""
    receipt = tmp_path / "receipt"
    receipt.write_bytes(b"x" * 10)
    app = behind_middleware()

    class Lost(FileResponse):
        def _open_file(self) -> Any:
            raise Broken

    @app.post("/pay")
    def pay() -> FileResponse:
        shop.charge()
        answer = Lost(receipt, 201, stat_result=receipt.stat())
        if not announced:
            del answer.headers["content-length"]
        return answer

    got = shop.send(shop.guard(app), times=3)
    assert [one.code for one in got] == ["outcome_unknown"] * 3 and shop.charges == 1


@pytest.mark.parametrize("decorated", [False, True])
def test_behind_a_middleware_that_hides_the_framework(shop: Shop, decorated: bool) -> None:
    app = behind_middleware()

    async def pay() -> StreamingResponse:
        shop.charge()
        return StreamingResponse(fails_later(), 201)

    app.post("/pay")(shop.idempotency.leased(pay) if decorated else pay)
    outer = FastAPI()
    outer.mount("/", function(app))
    got = shop.send(shop.guard(outer, undecorated="guard"), times=3)
    assert [one.code for one in got] == ["outcome_unknown"] * 3 and shop.charges == 1


@pytest.mark.parametrize("decorated", [False, True])
def test_a_mounted_flask_application(shop: Shop, decorated: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from starlette.middleware.wsgi import WSGIMiddleware

    inner = flask.Flask(__name__)

    def pay() -> flask.Response:
        shop.charge()
        return flask.Response(fails_later(), 201)

    inner.post("/pay")(shop.idempotency.leased(pay) if decorated else pay)
    app = behind_middleware()
    app.mount("/", WSGIMiddleware(inner.wsgi_app))
    got = shop.send(shop.guard(app), times=3)
    assert [one.code for one in got] == ["outcome_unknown"] * 3 and shop.charges == 1


def test_a_stream_that_somebody_else_reads_is_whole_once_it_has_ended(shop: Shop) -> None:
    app = FastAPI()

    @app.middleware("http")
    async def replace(request: Request, call_next: Callable[[Request], Any]) -> Any:
        await call_next(request)
        return JSONResponse({"wrapped": True}, 201)

    @app.post("/pay")
    async def pay() -> StreamingResponse:
        shop.charge()
        return StreamingResponse(iter([b"1", b"2", b"3"]), 201)

    got = shop.send(shop.guard(app), times=3)
    assert [one.body for one in got] == [b'{"wrapped":true}'] * 3 and got[2].replayed and shop.charges == 1


@pytest.mark.parametrize("seen", [True, False])
def test_a_whole_stream_is_remembered_and_does_not_wait_for_background_work(shop: Shop, seen: bool) -> None:
    """Where its end is seen. Where it is not, the application's end tells; the answer is kept as well."""
    app = behind_middleware()
    recorded: list[list[str]] = []

    async def later() -> None:
        recorded.append(shop.states())

    @app.post("/pay")
    async def pay() -> StreamingResponse:
        shop.charge()
        return StreamingResponse(iter([b"1", b"2", b"3"]), 201, background=BackgroundTask(later))

    guarded: Any = app
    if not seen:
        guarded = FastAPI()
        guarded.mount("/", function(app))
    got = shop.send(shop.guard(guarded, undecorated="guard"), times=3)
    assert [one.body for one in got] == [b"123"] * 3 and got[2].replayed and shop.charges == 1
    assert recorded == [["completed"] if seen else ["in_progress"]]


@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_less_than_was_announced_is_not_the_whole_answer_of_flask(shop: Shop, mode: str) -> None:
    """A middleware inside may end a body that broke off, and say nothing."""
    app, ran = flask.Flask(__name__), []

    def pay() -> flask.Response:
        ran.append(mode)
        if mode == "atomic":
            current_operation().connection.execute(shop.store.insert, (shop.world.name, 1))
        return flask.Response(iter([b"abc"]), 200, {"Content-Length": "10"})

    app.post("/pay")(getattr(shop.idempotency, mode)(pay))
    got = shop.send(shop.guard_wsgi(app.wsgi_app))
    if mode == "leased":
        assert [one.code for one in got] == ["outcome_unknown"] * 2 and len(ran) == 1
    else:
        assert [one.status for one in got] == [500, 500] and len(ran) == 2


@pytest.mark.parametrize("name", ["X-Sendfile", "X-Accel-Redirect", "X-LIGHTTPD-send-file"])
@pytest.mark.parametrize("framework", ["flask", "starlette"])
def test_a_file_that_the_server_in_front_sends(shop: Shop, name: str, framework: str) -> None:
    """Its length is announced, and its body is not ours."""
    headers, ran = {name: "/p/receipt.pdf", "Content-Length": "100"}, []

    @shop.idempotency.leased
    def pay() -> Any:
        ran.append(name)
        return flask.Response(b"", 201, headers) if framework == "flask" else Response(b"", 201, headers)

    app: Any = flask.Flask(__name__) if framework == "flask" else FastAPI()
    app.post("/pay")(pay)
    got = shop.send(shop.guard_wsgi(app.wsgi_app) if framework == "flask" else shop.guard(app))
    assert [(one.status, one.header(name)) for one in got] == [(201, "/p/receipt.pdf")] * 2
    assert (len(ran), got[1].replayed) == (1, True)

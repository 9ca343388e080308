"""Flask: what an answer holds open is closed, and what was to follow an answer follows it or does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask, Response, request

from samekey import Idempotency, current_operation
from samekey.wsgi import IdempotencyMiddleware


class Rows:
    """A cursor: an iterator with a close of its own."""

    def __init__(self, count: int, *, breaks: bool = False) -> None:
        self.left, self.breaks, self.closed = count, breaks, 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if not self.left:
            raise StopIteration
        self.left -= 1
        if self.breaks and not self.left:
            raise RuntimeError("The storage is away.")
        return b"row" * 100

    def close(self) -> None:
        self.closed += 1


def served(idempotency: Idempotency, view: Callable[[], Any]) -> Any:
    app = Flask("rows")
    app.post("/")(view)
    app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=idempotency, tenant=lambda _: "t"
    )
    return app.test_client()


ANSWERS: dict[str, tuple[Rows, Callable[[Rows], Any]]] = {
    "a response": (Rows(3), Response),
    "a tuple": (Rows(3), lambda rows: (rows, 201)),
    "of which nobody asks a piece": (Rows(3), lambda rows: Response(rows, 204)),
    "that breaks": (Rows(3, breaks=True), Response),
    "that is too long to be kept": (Rows(5000), Response),
}


@pytest.mark.parametrize("how", ANSWERS)
def test_an_iterator_that_a_view_returns_is_closed_once(sqlite_url: str, how: str) -> None:
    idempotency = Idempotency(sqlite_url)
    rows, answer = ANSWERS[how]

    @idempotency.leased
    def view() -> Any:
        return answer(rows)

    served(idempotency, view).post("/", headers={"Idempotency-Key": "k"}).close()
    assert rows.closed == 1
    idempotency.close()


def _breaks() -> Iterator[bytes]:
    yield b"a piece"
    raise RuntimeError("The storage is away.")


@pytest.mark.parametrize(
    ("body", "headers"),
    [(_breaks, {}), (lambda: iter(["short"]), {"Content-Length": "50"})],
    ids=["broken", "short"],
)
def test_no_receipt_follows_an_answer_that_failed_after_its_view(
    sqlite_url: str, body: Callable[[], Any], headers: dict[str, str]
) -> None:
    idempotency = Idempotency(sqlite_url)
    receipts: list[str] = []

    @idempotency.atomic
    def view() -> Any:
        current_operation().connection.execute("create table orders (id integer)")
        response = Response(body(), 201, headers)
        response.call_on_close(lambda: receipts.append("sent"))
        return response

    client = served(idempotency, view)
    for _ in range(2):  # it was rolled back: a retry runs
        with pytest.raises(RuntimeError):
            client.post("/", headers={"Idempotency-Key": "k"}).close()
    assert receipts == []
    idempotency.close()


def test_what_follows_the_answer_of_an_inner_application_is_done_too(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    receipts: list[str] = []

    def answered(name: str, response: Any) -> Any:
        response.call_on_close(lambda: receipts.append(name))
        return response

    inner = Flask("inner")
    inner.post("/")(lambda: answered("inner", Response("made")))

    @idempotency.leased
    def view() -> Any:
        return answered("outer", Response.from_app(inner, request.environ))

    served(idempotency, view).post("/", headers={"Idempotency-Key": "k"}).close()
    assert sorted(receipts) == ["inner", "outer"]
    idempotency.close()

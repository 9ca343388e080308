"""What the torture does inside a process of the service: orders, and what becomes of requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from lab.torture.service.mishaps import Book, Inside, Order, Outside

GUARDED = {"type": "http", "headers": [(b"idempotency-key", b"k")]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def test_an_order_is_for_the_next_requests_and_for_no_later_process(path: Path) -> None:
    writer, reader = Book(path), Book(path)
    assert reader.take("cancel_inside") is None
    writer.write(Order("cancel_inside", 2, 0.5))
    assert reader.take("cancel_outside") is None
    assert [reader.take("cancel_inside") is not None for _ in range(3)] == [True, True, False]
    writer.write(Order("cancel_inside", 2, 0.5))
    assert Book(path).take("cancel_inside") is None


def test_calm_takes_back_what_is_open(path: Path) -> None:
    writer, reader = Book(path), Book(path)
    writer.write(Order("cancel_inside", 2, 0.5))
    writer.write(None)
    writer.write(Order("answer_broken", 1, 0))
    assert reader.take("cancel_inside") is None
    assert reader.take("answer_broken") is not None


async def _application(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def _waiting(_scope: Any, _receive: Any, _send: Any) -> None:
    await asyncio.Event().wait()


async def _nothing() -> MutableMapping[str, Any]:
    raise AssertionError("nobody reads")


def _statuses(around: Outside | Inside, scope: dict[str, Any]) -> list[int]:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(around(scope, _nothing, send))
    return [message["status"] for message in sent if message["type"] == "http.response.start"]


@pytest.mark.parametrize("side", [Inside, Outside])
def test_a_deadline_is_answered_and_a_cancelled_request_is_not(
    side: type[Inside] | type[Outside], path: Path
) -> None:
    where = side.__name__.lower()
    book = Book(path)
    around = side(_waiting, book)
    book.write(Order(f"cancel_{where}", 1, 0.01))
    assert _statuses(around, GUARDED) == []
    # Half of the deadlines begin with the answer, and this application never gives one.
    book.write(Order(f"deadline_{where}", 1, 0.01))
    aimed = side(_slow_to_send, book)
    assert _statuses(aimed, GUARDED)[-1] == 504


async def _slow_to_send(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    await asyncio.Event().wait()


def test_only_requests_with_a_key_have_bad_luck(path: Path) -> None:
    book = Book(path)
    book.write(Order("answer_broken", 1, 0))
    around = Inside(_application, book)
    assert _statuses(around, {"type": "http", "headers": []}) == [201]
    try:
        seen = _statuses(around, GUARDED)
    except TypeError:
        seen = []
    assert seen != [201]
    assert _statuses(around, GUARDED) == [201]
    assert json.loads(path.read_text()) == {"kind": "answer_broken", "times": 1, "seconds": 0}

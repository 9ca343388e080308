"""``with_key`` and ``pending``, for what has no module of its own: sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lab.processes import free_port
from samekey.client import (
    Answer,
    FileJournal,
    Finished,
    Keyed,
    OperationGone,
    Request,
    Unsettled,
    pending,
    pending_async,
    with_key,
    with_key_async,
)

from .scripted import Cut, Say, Scripted, problem, scripted
from .test_transports import keyed
from .wires import Plain

HEADERS = (("Content-Type", "application/json"), ("Authorization", "Bearer old"))
NEW = (("Authorization", "Bearer new"),)


async def _send_async(request: Request, seconds: float) -> Answer:
    return await asyncio.to_thread(Plain._send, request, seconds)


def _sync(request: Request, keyed: Keyed, name: str | None) -> Finished:
    return with_key(Plain._send, request, keyed=keyed, name=name)


def _async(request: Request, keyed: Keyed, name: str | None) -> Finished:
    return asyncio.run(with_key_async(_send_async, request, keyed=keyed, name=name))


def _finish_sync(keyed: Keyed) -> list[Finished]:
    return [one.finish(headers=NEW) for one in pending(Plain._send, keyed=keyed)]


def _finish_async(keyed: Keyed) -> list[Finished]:
    async def one_by_one() -> list[Finished]:
        waiting: list[Awaitable[Finished]]
        waiting = [one.finish(headers=NEW) for one in pending_async(_send_async, keyed=keyed)]
        return [await one for one in waiting]

    return asyncio.run(one_by_one())


Post = Callable[[Request, Keyed, str | None], Finished]
Finish = Callable[[Keyed], list[Finished]]


@pytest.fixture(params=[(_sync, _finish_sync), (_async, _finish_async)], ids=["sync", "async"])
def ways(request: pytest.FixtureRequest) -> tuple[Post, Finish]:
    found: tuple[Post, Finish] = request.param
    return found


def payment(server: Scripted) -> Request:
    return Request("POST", f"{server.url}/payments", HEADERS, b'{"cents": 450}')


@pytest.mark.parametrize(
    "first", [Cut(), Say(503), problem(409, "in_progress"), Say(409)], ids=["cut", "503", "busy", "409"]
)
def test_one_key_until_there_is_an_answer(ways: tuple[Post, Finish], first: Any) -> None:
    settings = keyed()
    with scripted(Cut(), first, Say()) as server:
        finished = ways[0](payment(server), settings, None)
    assert (finished.answer.status, finished.told.attempts) == (201, 3)
    assert server.keys == {f'"{finished.told.key}"'} and settings.journal.pending() == []


def test_what_never_left_is_not_kept(ways: tuple[Post, Finish]) -> None:
    settings = keyed(attempts=2)
    request = Request("POST", f"http://127.0.0.1:{free_port()}/payments", HEADERS, b"{}")
    with pytest.raises(OSError, match="refused"):
        ways[0](request, settings, "order 17")
    assert settings.journal.pending() == []


@pytest.mark.parametrize("name", ["order 17", None], ids=["named", "without a name"])
def test_what_was_begun_is_listed_and_finished(
    ways: tuple[Post, Finish], name: str | None, tmp_path: Path
) -> None:
    post, finish = ways
    settings = keyed(attempts=1, journal=FileJournal(tmp_path))
    with scripted(Cut(), Say()) as server:
        with pytest.raises(Unsettled):
            post(payment(server), settings, name)
        (finished,) = finish(keyed(journal=FileJournal(tmp_path)))
        assert finish(settings) == []
    assert finished.answer.status == 201 and len(server.keys) == 1
    assert len({one.body for one in server.seen}) == 1
    assert [one.headers["authorization"] for one in server.seen] == ["Bearer old", "Bearer new"]


def test_what_somebody_else_has_finished_is_not_sent_again() -> None:
    settings = keyed(attempts=1)
    with scripted(Cut(), Say()) as server:
        with pytest.raises(Unsettled):
            _sync(payment(server), settings, None)
        (one,) = pending(Plain._send, keyed=settings)
        one.finish()
        with pytest.raises(OperationGone):
            one.finish()
    assert len(server.seen) == 2

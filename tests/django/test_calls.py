"""What one call of a worker leaves in a thread of Django's is not the next call's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created

from lab import environment
from lab.processes import wait_until
from samekey.django import calls
from samekey.django.driver import USERS
from samekey.workers.apart import Apart, NotBegun, TooLong
from tests.django.world import World, world


@pytest.fixture(autouse=True)
def threads_of_its_own() -> Iterator[None]:
    """Those that others have left know another project's databases."""
    wait_until(_none_is_left, 60)
    yield
    wait_until(_none_is_left, 60)


def _none_is_left() -> bool:
    """Also those that are only about to be given back are ended, with their connections."""
    while calls._idle:
        thread = calls._idle.pop()
        thread.submit(connections.close_all)
        thread.shutdown()
    return not any(thread.name == "samekey-django" for thread in threading.enumerate())


@contextmanager
def project(url: str) -> Iterator[tuple[World, Any]]:
    engines: list[Any] = []

    def urls(idempotency: Any) -> list[Any]:
        engines.append(idempotency.engine)
        return []

    with world(url, urls) as shop:
        yield shop, engines[0]


async def write_in_a_call(text: str) -> None:
    from tests.django.ledger.models import Entry

    async with calls.DjangosSurroundings().task():
        await Entry.objects.acreate(text=text)


async def until_given_back(threads: int) -> None:
    """The thread's last work is done, whether it was kept or not."""
    mine = [thread for thread in threading.enumerate() if thread.name == "samekey-django"]
    assert len(mine) == threads

    def is_back() -> bool:
        return bool(calls._idle) or not any(thread.is_alive() for thread in mine)

    await asyncio.to_thread(wait_until, is_back, 30)


def test_a_transaction_that_was_given_up_while_it_was_opened_is_ended(each_url: str) -> None:
    """The database answers when nobody waits any more; the thread then has a transaction for nobody."""
    connecting, answers = threading.Event(), threading.Event()

    def stall(**_: Any) -> None:
        if threading.current_thread().name == "samekey-django" and not connecting.is_set():
            connecting.set()
            assert answers.wait(60)

    with project(each_url) as (shop, engine):

        async def give_up() -> None:
            async with calls.DjangosSurroundings().task():
                await engine.drivers.aio.open(USERS)

        async def story() -> bool:
            opening = asyncio.ensure_future(give_up())
            assert await asyncio.to_thread(connecting.wait, 60)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            answers.set()
            await until_given_back(1)
            was_kept = bool(calls._idle)
            for number in range(2):
                await write_in_a_call(f"{number}")
            return was_kept

        connection_created.connect(stall)
        try:
            assert asyncio.run(asyncio.wait_for(story(), 120))
        finally:
            answers.set()
            connection_created.disconnect(stall)
        connection.close()
        assert shop.entries() == ["0", "1"]


def test_a_block_that_a_call_has_left_open_ends_with_it(each_url: str) -> None:
    """What it wrote there is not committed by others, and what others write is not in it."""
    with project(each_url) as (shop, _):

        def leave_open() -> None:
            from tests.django.ledger.models import Entry

            transaction.atomic().__enter__()
            Entry.objects.create(text="in a block that nobody ends")

        async def story() -> None:
            async with calls.DjangosSurroundings().task():
                await sync_to_async(leave_open)()
            await until_given_back(1)
            for number in range(2):
                await write_in_a_call(f"{number}")

        asyncio.run(asyncio.wait_for(story(), 120))
        connection.close()
        assert shop.entries() == ["0", "1"]


def test_what_hangs_in_djangos_thread_is_counted_until_it_ends(sqlite_url: str) -> None:
    answers = threading.Event()

    async def story() -> None:
        ended = asyncio.Event()
        apart = Apart(ended.set)

        async def ask() -> None:
            await sync_to_async(answers.wait)(60)

        with pytest.raises(TooLong):
            await apart.at_most(timedelta(seconds=0.05), "job", ask())
        assert apart.hanging == {"job": 1}
        ended.clear()
        answers.set()
        await ended.wait()
        assert not apart.hanging
        await apart.at_most(timedelta(seconds=60), "job", ask())  # and what ends in time does not count
        assert not apart.going_on

    with project(sqlite_url):
        try:
            asyncio.run(asyncio.wait_for(story(), 60))
        finally:
            answers.set()


def test_a_call_for_which_django_has_no_thread_is_not_begun(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, began = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "samekey-django":
            raise RuntimeError("can't start new thread")
        start(thread)

    async def work() -> None:
        began.append(1)

    with project(sqlite_url):
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(NotBegun):
            asyncio.run(Apart().at_most(timedelta(seconds=60), "job", work()))
        assert not began


def test_where_there_is_no_fork_the_app_is_imported_all_the_same() -> None:
    code = "import asgiref.sync, django.db, os, random; del os.register_at_fork; import samekey.django.calls"
    subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60, check=True)

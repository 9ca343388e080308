"""LISTEN on PostgreSQL: tells a worker that there may be work, as soon as it is committed.

Behind a pooler in transaction mode LISTEN succeeds and nothing ever arrives; nor does anything on another
database. The listener asks for proof, and until it has one it says that it is not listening.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any

import asyncpg

from ...core.program import Query
from ..protocol import AsyncDriver

logger = logging.getLogger("samekey")

CHANNEL = "samekey_jobs"
NOTIFY = Query(
    "notify",
    "select pg_notify(:channel, '')::text",
    {
        "numeric": ("select pg_notify($1, '')::text", ("channel",)),
        "format": ("select pg_notify(%s, '')::text", ("channel",)),
    },
)
PROOF_SECONDS = 2.0
"""How long the listener waits for the notification that proves that notifications arrive."""
PROOF_EVERY = 30.0
"""Seconds between proofs. A connection can die without a word, and a pooler can be put in between."""
SOONEST_RECONNECT, LATEST_RECONNECT = 0.5, 60.0
"""Seconds before a listener that hears nothing tries again. A restarted server is back within seconds; a
pooler stays, and each attempt costs it a connection."""


class PostgresListener:
    """LISTEN on a connection of its own, made again when it is lost. It never holds the worker up."""

    def __init__(self, url: str, store: AsyncDriver) -> None:
        """``store``: where jobs are written, and so from where notifications come."""
        self._url = url
        self._store = store
        self._proof = f"samekey_proof_{secrets.token_hex(8)}"
        self._task: asyncio.Task[None] | None = None
        self.listening = False

    async def start(self, woken: asyncio.Event) -> None:
        """Listens in the background from now on, and sets ``woken`` for every notification."""
        self._task = asyncio.create_task(self._keep_listening(woken), name="samekey listener")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _keep_listening(self, woken: asyncio.Event) -> None:
        pause = SOONEST_RECONNECT
        while True:
            try:
                await self._listen(woken)
            except Exception as error:  # whatever it is, polling goes on and a later attempt may do better
                was, self.listening = self.listening, False
                woken.set()  # what the notification would have said, a look finds out
                if was:
                    pause = SOONEST_RECONNECT
                    logger.warning("samekey polls for jobs until it can listen again: %s", error)
                elif pause == SOONEST_RECONNECT:
                    logger.info("samekey polls for jobs: notifications do not arrive (%s)", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LATEST_RECONNECT)

    async def _listen(self, woken: asyncio.Event) -> None:
        """Until the connection is lost, or notifications no longer arrive: always ends with an error."""
        heard, lost = asyncio.Event(), asyncio.Event()

        def terminated(_: object) -> None:
            lost.set()
            heard.set()

        connection = await asyncpg.connect(self._url, timeout=5)
        try:
            connection.add_termination_listener(terminated)
            await connection.add_listener(CHANNEL, lambda *_: woken.set())
            await connection.add_listener(self._proof, lambda *_: heard.set())
            while not lost.is_set():
                await self._prove(heard)
                if not self.listening:
                    self.listening = True
                    woken.set()  # for what was written before anybody listened
                try:
                    async with asyncio.timeout(PROOF_EVERY):
                        await lost.wait()
                except TimeoutError:
                    pass
            raise ConnectionError("the connection was lost")
        finally:
            await _close(connection)

    async def _prove(self, heard: asyncio.Event) -> None:
        """Has a notification sent where jobs send theirs, and waits for it to arrive.

        Not over this connection: a pooler may lend its session for a moment, hand its own notification back,
        and never deliver anybody else's; and this one may be to another database.
        """
        heard.clear()
        await self._store.execute(NOTIFY(channel=self._proof))
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                await heard.wait()
        except TimeoutError:
            raise TimeoutError(
                f"none came within {PROOF_SECONDS:g} s; is listen_url the store's database, and no pooler?"
            ) from None


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=1)
    except Exception:
        connection.terminate()

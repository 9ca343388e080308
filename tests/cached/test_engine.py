"""``Idempotency(url, cache=…)``: what users write, and what they are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest
import redis
from cryptography.fernet import Fernet

from lab.proxy import FaultProxy
from samekey import ConfigurationError, Idempotency, current_operation
from samekey.encryption import fernet
from samekey.errors import StillRunning
from tests.chosen import whole

pytestmark = whole


SECRET = "4242-4242-4242-4242"


def raw(cache_url: str) -> bytes:
    """Everything that lies in the cache."""
    with redis.Redis.from_url(cache_url.partition("?")[0]) as client:
        return b"\n".join(client.get(name) or b"" for name in client.scan_iter("samekey:*"))


def remember(idempotency: Idempotency, key: str) -> object:
    result: object = idempotency.once(tenant="t", key=key, run=lambda: {"card": SECRET})
    return result


@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_a_replay_needs_no_database(
    shared_postgres: str, cache_url: str, mode: Literal["leased", "atomic"]
) -> None:
    ran: list[int] = []

    def work() -> int:
        ran.append(1)
        if mode == "atomic":
            current_operation().connection.execute("create temporary table written (n int)")
        return len(ran)

    with FaultProxy.before(shared_postgres) as proxy:
        idempotency = Idempotency(proxy.url_for(shared_postgres), cache=cache_url)
        key = f"needs no database, {mode}"

        def ask() -> object:
            result: object = idempotency.once(tenant="t", key=key, run=work, mode=mode)
            return result

        first = [ask(), ask()]
        proxy.stall()
        assert ask() == first[0]
        proxy.flow()
        idempotency.close()
    assert ran == [1]


def test_event_loops_come_and_go(shared_postgres: str, cache_url: str) -> None:
    idempotency = Idempotency(shared_postgres, cache=cache_url)

    async def ask() -> list[object]:
        async def work() -> str:
            return "done"

        found = [await idempotency.once_async(tenant="t", key="loops", run=work) for _ in range(3)]
        await idempotency.engine.drivers.aio.close()
        return found

    for _ in range(3):
        assert asyncio.run(ask()) == ["done"] * 3
    idempotency.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_is_encrypted_at_rest_is_so_in_the_cache(
    shared_postgres: str, cache_url: str, encrypted: bool
) -> None:
    cipher = fernet(Fernet.generate_key()) if encrypted else None
    idempotency = Idempotency(shared_postgres, cache=cache_url, encryption=cipher)
    key = f"a secret, {encrypted}"
    assert [remember(idempotency, key) for _ in range(3)] == [{"card": SECRET}] * 3
    idempotency.close()
    assert (SECRET.encode() in raw(cache_url)) is not encrypted
    assert b"samekey-copy-1:" in raw(cache_url)


def test_sqlite_underneath(tmp_path: Path, cache_url: str) -> None:
    idempotency = Idempotency(f"sqlite:///{tmp_path / 'app.db'}", cache=cache_url)
    assert [remember(idempotency, "k") for _ in range(3)] == [{"card": SECRET}] * 3
    idempotency.close()
    assert b"samekey-copy-1:" in raw(cache_url)
    other = Idempotency(f"sqlite:///{tmp_path / 'other.db'}", cache=cache_url)
    assert other.once(tenant="t", key="k", run=lambda: "another database") == "another database"
    other.close()


def test_in_progress_is_told_from_the_cache(shared_postgres: str, cache_url: str) -> None:
    with FaultProxy.before(shared_postgres) as proxy:
        idempotency = Idempotency(
            proxy.url_for(shared_postgres), cache=cache_url, cache_in_progress=True, timeout=30
        )

        def run() -> str:
            proxy.stall()
            try:
                with pytest.raises(StillRunning):
                    idempotency.once(tenant="t", key="a storm", run=lambda: "again")
            finally:
                proxy.flow()
            return "done"

        assert idempotency.once(tenant="t", key="a storm", run=run) == "done"
        assert idempotency.once(tenant="t", key="a storm", run=lambda: "again") == "done"
        idempotency.close()


@pytest.mark.parametrize(
    ("cache", "sentence"),
    [
        ("memcached://localhost", "does not know the cache 'memcached'. Use redis://"),
        ("redis://localhost:port/0", "cannot be read"),
        ("redis://localhost/0?no_such_option=1", "cannot be read"),
        ("redis://localhost/0?timeout=soon", "cannot be read"),
        ("redis://localhost/0?timeout=60", "a part of a second"),
        ("redis://localhost/0?timeout=0", "a part of a second"),
        ("", "does not know the cache ''"),
        ("redis://[half/0", "cannot be read"),
    ],
)
def test_a_url_that_cannot_work_fails_at_start_up(cache: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence.replace("?", r"\?")):
        Idempotency("sqlite:///:memory:", cache=cache)


@pytest.mark.parametrize(
    "cache", ["redis://localhost/0", "rediss://u:p@localhost:1/0", "valkey://h", "unix:///x"]
)
def test_urls_that_can(cache: str) -> None:
    Idempotency("sqlite:///:memory:", cache=cache).close()


def test_the_marker_needs_a_cache() -> None:
    with pytest.raises(ConfigurationError, match="cache_in_progress needs a cache"):
        Idempotency("sqlite:///:memory:", cache_in_progress=True)


def test_a_cache_that_is_not_there_yet_is_no_reason_not_to_start(
    shared_postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    idempotency = Idempotency(shared_postgres, cache="redis://127.0.0.1:1/0")
    assert [remember(idempotency, "no cache") for _ in range(3)] == [{"card": SECRET}] * 3
    idempotency.close()
    assert [r.message for r in caplog.records if "cache cannot be used" in r.message]

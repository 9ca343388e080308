"""What a server must be like, found out before the first claim: refused or said aloud, with a sentence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from lab.servers.redis import RedisCluster, RedisServer, connect
from samekey import ConfigurationError, Idempotency
from samekey.drivers.run import run
from samekey.errors import SchemaMismatch
from samekey.stores.redis.check import check
from samekey.stores.redis.scripts import SERVER_FACTS, RedisStatements

SOUND = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always", "save": ""}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer.start() as server:
        yield server


@pytest.fixture(autouse=True)
def sound(server: RedisServer) -> Iterator[None]:
    yield
    configure(server, **SOUND)


def configure(server: RedisServer, **settings: str) -> None:
    with connect(server.url) as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


def start(url: str) -> None:
    """As an application does."""
    idempotency = Idempotency(url)
    try:
        idempotency.check()
    finally:
        idempotency.close()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_sound_server_is_used_without_a_word(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    start(server.url)
    assert said(caplog) == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused_unless_the_url_says_otherwise(
    server: RedisServer, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    configure(server, maxmemory_policy=policy)
    for url in (server.url, f"{server.url}?unsafe=refuse"):
        with pytest.raises(ConfigurationError, match=rf"policy {policy}\).*noeviction"):
            start(url)
    start(f"{server.url}?unsafe=warn")
    assert ["may evict keys" in line for line in said(caplog)] == [True]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"appendonly": "no"}, "writes nothing to disk"),
        ({"appendonly": "no", "save": "900 1"}, "keeps snapshots only"),
        ({"appendfsync": "everysec"}, "loses the last second"),
        ({"appendfsync": "no"}, "loses some seconds"),
    ],
)
def test_weak_persistence_is_said_aloud_or_refused_by_setting(
    server: RedisServer, caplog: pytest.LogCaptureFixture, settings: dict[str, str], words: str
) -> None:
    configure(server, **settings)
    start(server.url)
    (line,) = said(caplog)
    assert words in line and "Set append" in line
    with pytest.raises(ConfigurationError, match=words):
        start(f"{server.url}?unsafe=refuse")
    start(f"{server.url}?unsafe=warn")


def test_the_first_claim_checks_too(server: RedisServer) -> None:
    configure(server, maxmemory_policy="allkeys-lru")
    idempotency = Idempotency(server.url)
    with pytest.raises(ConfigurationError, match="may evict keys"):
        idempotency.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"))

    async def use() -> None:
        with pytest.raises(ConfigurationError, match="may evict keys"):
            await idempotency.once_async(tenant="t", key="k", run=lambda: pytest.fail("it ran"))
        await idempotency.aclose()

    asyncio.run(use())


def test_settings_that_may_not_be_read_are_said_once(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Managed services forbid CONFIG. Eviction can be seen all the same."""
    with connect(server.url) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-config")
    url = f"redis://app:pw@127.0.0.1:{server.port}/0"
    idempotency = Idempotency(url)
    for key in ("a", "b"):
        assert idempotency.once(tenant="t", key=key, run=lambda: 1) == 1
    idempotency.close()
    (line,) = said(caplog)
    assert "does not let us read its settings" in line
    start(f"{url}?unsafe=refuse")
    configure(server, maxmemory_policy="allkeys-lru")
    with pytest.raises(ConfigurationError, match="may evict keys"):
        start(url)


def test_every_master_of_a_cluster_is_looked_at(
    redis_cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{redis_cluster.url}?prefix=startup"
    start(url)
    assert said(caplog) == []
    configure(redis_cluster.nodes[2], appendfsync="everysec")
    try:
        start(url)
    finally:
        configure(redis_cluster.nodes[2], appendfsync="always")
    (line,) = said(caplog)
    assert f":{redis_cluster.nodes[2].port} " in line


@pytest.mark.parametrize("version", ["6.2.14", "5.0.7", ""])
def test_an_old_server_is_refused(version: str) -> None:
    program = check(RedisStatements())
    statement = next(program)
    assert statement.name == SERVER_FACTS.name
    rows = [["", "partitions", "128"], ["", "unsafe", "warn"], ["h:1", "redis_version", version]]
    with pytest.raises(ConfigurationError, match=r"samekey needs Redis 7\.0 or newer"):
        program.send(rows)


def test_the_number_of_partitions_cannot_change(server: RedisServer) -> None:
    start(f"{server.url}?prefix=fixed&partitions=16")
    start(f"{server.url}?prefix=fixed&partitions=16")
    with pytest.raises(SchemaMismatch, match=r"lie in 16 partitions.*says 128.*partitions=16"):
        start(f"{server.url}?prefix=fixed")
    start(f"{server.url}?prefix=another")
    with connect(server.url) as client:
        client.set("fixed:{p000}:layout", "9 16")
    with pytest.raises(SchemaMismatch, match="have layout 9"):
        start(f"{server.url}?prefix=fixed&partitions=16")


def test_the_check_is_a_program_like_any_other(server: RedisServer) -> None:
    idempotency = Idempotency(server.url)
    assert run(idempotency.engine.drivers.sync, idempotency.engine.store.check) is None
    idempotency.close()

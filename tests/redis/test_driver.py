"""The Redis drivers: what goes wrong on the way to a server, and who may share a connection."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import pytest
import redis.exceptions
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lab.processes import free_port, wait_until
from lab.proxy import FaultProxy
from lab.servers.redis import RedisServer, RedisUnavailable, connect
from samekey.drivers.places import NoPlace
from samekey.drivers.redis.driver import AsyncRedisDriver, RedisDriver
from samekey.drivers.redis.errors import translate
from samekey.drivers.redis.url import RedisURL, read_url
from samekey.drivers.run import run, run_async
from samekey.errors import (
    ConfigurationError,
    ConnectionLost,
    ReadOnlyStore,
    SamekeyError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from tests.chosen import whole
from tests.redis.asking import KEYS, STYLES, asking, claim, read

pytestmark = whole


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """A server that these tests may stop, flush and reconfigure."""
    with RedisServer.start() as server:
        yield server


# ------------------------------------------------------------------ URLs


def test_urls_are_read() -> None:
    plain = read_url("redis://h")
    assert plain == RedisURL((("h", 6379),), False, {"username": None, "password": None, "db": 0})
    full = read_url(
        "rediss://ann:s%40fe@h:7000/3?prefix=app&wait=2&wait_timeout=0.5&unsafe=refuse&ssl_ca_certs=ca.pem"
    )
    assert full.servers == (("h", 7000),)
    assert dict(full.login) == {
        "username": "ann",
        "password": "s@fe",
        "db": 3,
        "ssl": True,
        "ssl_ca_certs": "ca.pem",
    }
    assert (full.prefix, full.wait, full.wait_seconds, full.unsafe) == ("app", 2, 0.5, "refuse")
    many = read_url("valkey+cluster://one:7000,two,[::1]:7001?partitions=64")
    assert many.servers == (("one", 7000), ("two", 6379), ("::1", 7001))
    assert (many.cluster, many.partitions) == (True, 64)
    assert read_url("valkeys+cluster://one").login["ssl"] is True
    assert "s@fe" not in repr(full)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://", "names no server"),
        ("redis://one,two", "redis+cluster"),
        ("redis://h:99999", "cannot be one"),
        ("redis://h/app", "is a number"),
        ("redis+cluster://h/1", "database 0 only"),
        ("redis://h?colour=red", "does not know: colour"),
        ("redis://h?prefix={a}", "cannot be used"),
        ("redis://h?prefix=", "cannot be used"),
        ("redis://h?partitions=0", "from 1 to 1000"),
        ("redis://h?wait=many", "from 0 to 100"),
        ("redis://h?wait_timeout=never", "must be seconds"),
        ("redis://h?unsafe=yes", "warn or refuse"),
        ("redis://h?ssl_ca_certs=x", "rediss://"),
        ("redis://h?prefix", "cannot be read"),
    ],
)
def test_a_wrong_url_is_refused_with_a_sentence(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        read_url(url)


# ------------------------------------------------------------------ servers that fail


@pytest.mark.parametrize("style", STYLES)
def test_a_server_that_is_not_there(style: str) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    refused = pytest.raises(StoreUnavailable, match=r"cannot be reached.*Is it running there")
    with asking(url, style) as store, refused:
        store.ask(read)


@pytest.mark.parametrize("style", STYLES)
def test_a_server_that_forgot_the_scripts_is_given_them_again(own_server: RedisServer, style: str) -> None:
    with asking(own_server.url, style) as store:
        assert store.ask(read) is None
        with connect(own_server.url) as client:
            client.script_flush()
        assert store.ask(read) is None
        with connect(own_server.url) as client:
            client.script_flush()
        assert store.ask(lambda: KEYS.read_by_provider_id("ch_1", tenant="=t", source=None)) == [], (
            "in every partition"
        )


@pytest.mark.parametrize("style", STYLES)
def test_a_restarted_server_is_found_again(own_server: RedisServer, style: str) -> None:
    with asking(own_server.url, style) as store:
        wanted = claim()
        first = store.ask(wanted)
        own_server.kill()
        with pytest.raises(StoreUnavailable):
            store.ask(wanted)
        own_server.start_again()
        assert store.ask(wanted) == first, "what was claimed was written down"


@pytest.mark.parametrize("style", STYLES)
def test_a_silent_server_is_not_waited_for_longer_than_the_timeout(style: str) -> None:
    with RedisServer.start() as server, asking(server.url, style, timeout=1) as store:
        assert store.ask(read) is None
        server.pause()
        try:
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                store.ask(read)
        finally:
            server.resume()
        assert store.ask(read) is None


@pytest.mark.parametrize("style", STYLES)
def test_cut_connections_are_replaced(redis_url: str, style: str) -> None:
    with FaultProxy.before(redis_url) as proxy, asking(proxy.url_for(redis_url), style) as store:
        wanted = claim()
        first = store.ask(wanted)
        for _ in range(3):
            proxy.cut_all()
            assert store.ask(wanted) == first
        proxy.refuse()
        proxy.cut_all()
        with pytest.raises(StoreUnavailable):
            store.ask(wanted)


@pytest.mark.parametrize("style", STYLES)
def test_a_lost_reply_is_not_hidden(style: str) -> None:
    """redis-py must not send a script again by itself: the program has to see it and decide."""
    with RedisServer.start() as server, asking(server.url, style, timeout=1) as store:
        store.ask(claim())
        server.pause()
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            store.ask(claim())
        server.resume()

        def landed() -> bool:
            with connect(server.url) as client:
                return len(list(client.scan_iter(match="samekey:*:" + "?" * 32))) == 2

        wait_until(landed)
        with connect(server.url) as client:
            assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 2, "the first had no script yet"


@pytest.mark.parametrize("style", STYLES)
def test_a_full_server_refuses_and_nothing_is_claimed(style: str) -> None:
    with RedisServer.start() as server, asking(server.url, style) as store:
        store.ask(read)
        with connect(server.url) as client:
            client.config_set("maxmemory", "1")
            with pytest.raises(StoreBusy, match="no memory left"):
                store.ask(claim())
            client.config_set("maxmemory", "0")
            assert client.dbsize() == 0


@pytest.mark.parametrize("style", STYLES)
def test_a_replica_refuses_to_be_written_to(own_server: RedisServer, style: str) -> None:
    settings = {"replicaof": f"127.0.0.1 {own_server.port}"}
    refused = pytest.raises(ReadOnlyStore, match="is a replica")
    with RedisServer.start(settings=settings) as replica, asking(replica.url, style) as store, refused:
        store.ask(claim())


@pytest.mark.parametrize("style", STYLES)
def test_a_wrong_password_and_a_missing_right_are_said(own_server: RedisServer, style: str) -> None:
    with connect(own_server.url) as client:
        client.execute_command("ACL", "SETUSER", "ann", "on", ">right", "~*", "+@connection", "+info")
    host = f"127.0.0.1:{own_server.port}"
    stranger = pytest.raises(StoreUnavailable, match="Check user and password")
    with asking(f"redis://ann:wrong@{host}", style) as store, stranger:
        store.ask(read)
    refused = pytest.raises(ConfigurationError, match="ACL SETUSER")
    with asking(f"redis://ann:right@{host}", style) as store, refused:
        store.ask(read)


def test_the_advice_on_rights_is_enough(own_server: RedisServer) -> None:
    with connect(own_server.url) as client:
        advice = str(translate(redis.exceptions.NoPermissionError("no")))
        rights = advice.partition("ACL SETUSER name ")[2].partition(",")[0].split()
        client.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "resetkeys", "-@all", *rights)
        client.script_flush()
    with asking(f"redis://bob:pw@127.0.0.1:{own_server.port}", "sync") as store:
        store.ask(claim())
        store.ask(lambda: KEYS.read_by_provider_id("ch_1", tenant="=t", source=None))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.exceptions.BusyLoadingError("loading"), StoreBusy),
        (redis.exceptions.ClusterDownError("The cluster is down"), StoreBusy),
        (redis.exceptions.TryAgainError("again"), StoreBusy),
        (redis.exceptions.MasterDownError("down"), StoreBusy),
        (redis.exceptions.ResponseError("BUSY Redis is busy running a script"), StoreBusy),
        (redis.exceptions.ResponseError("MISCONF cannot persist"), StoreUnavailable),
        (redis.exceptions.ResponseError("NOREPLICAS Not enough good replicas"), StoreUnavailable),
        (redis.exceptions.ResponseError("WRONGTYPE Operation against a key"), StoreError),
        (redis.exceptions.ConnectionError("Connection closed by server."), ConnectionLost),
        (ConnectionResetError("reset"), ConnectionLost),
        (redis.exceptions.TimeoutError("Timeout reading from socket"), StoreUnavailable),
        (redis.exceptions.MaxConnectionsError("Too many connections"), NoPlace),
    ],
)
def test_errors_are_ours(error: Exception, expected: type[SamekeyError]) -> None:
    assert type(translate(error)) is expected
    assert type(translate(ValueError("mine"))) is ValueError


@pytest.mark.parametrize("style", STYLES)
def test_no_connection_is_waited_for_longer_than_the_timeout(redis_url: str, style: str) -> None:
    with asking(redis_url, style, pool_size=1, timeout=1) as store:
        store.ask(read)
        if style == "sync":
            client = cast(Any, store.sync._client(read_url(redis_url).servers[0]))
            client.connection_pool.get_connection()
        else:
            server = read_url(redis_url).servers[0]

            async def take() -> Any:
                return await cast(Any, store.aio._client(server)).connection_pool.get_connection()

            store._runner.run(take())
        with pytest.raises(StoreBusy, match="No connection to Redis was free"):
            store.ask(read)


@pytest.mark.parametrize("style", STYLES)
def test_connections_can_be_encrypted(tmp_path: Path, style: str) -> None:
    certificate, key = self_signed(tmp_path)
    port = free_port()
    settings = {
        "tls-port": str(port),
        "tls-cert-file": str(certificate),
        "tls-key-file": str(key),
        "tls-auth-clients": "no",
    }
    try:
        server = RedisServer.start(settings=settings)
    except RedisUnavailable as error:
        pytest.skip(f"This server was built without TLS: {str(error).splitlines()[0]}")
    with server:
        with asking(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}", style) as store:
            assert store.ask(read) is None
        refused = pytest.raises(StoreUnavailable)
        with asking(f"rediss://127.0.0.1:{port}", style) as store, refused:
            store.ask(read)  # nobody vouches for this certificate


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that vouches for itself, and its key."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(private, hashes.SHA256())
    )
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


# ------------------------------------------------------------------ threads, forks, loops


def test_threads_share_a_driver(redis_url: str) -> None:
    driver = RedisDriver(read_url(redis_url), pool_size=3)
    wanted = claim()
    barrier = threading.Barrier(8, timeout=30)
    results = []

    def ask() -> None:
        barrier.wait()
        for _ in range(20):
            results.append(run(driver, wanted))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 160 and len({result.record.attempt for result in results}) == 1
    driver.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_connections_of_its_own(redis_url: str) -> None:
    driver = RedisDriver(read_url(redis_url))
    assert run(driver, read) is None
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(driver, claim("of the child"))
            driver.close()
            status = 0
        finally:
            os._exit(status)
    for _ in range(50):
        assert run(driver, read) is None
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(driver, read) is None
    driver.close()


def test_each_event_loop_has_connections_of_its_own(redis_url: str) -> None:
    driver = AsyncRedisDriver(read_url(redis_url))
    for _ in range(2):

        async def use() -> None:
            assert await run_async(driver, read) is None
            await driver.close()

        asyncio.run(use())


async def _cancelled(driver: AsyncRedisDriver, server: RedisServer) -> None:
    await run_async(driver, read)
    server.pause()
    task = asyncio.create_task(run_async(driver, claim("cancelled")))
    await asyncio.sleep(0.05)  # most likely it is sent by now; what follows must hold in any case
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    server.resume()
    # The late reply of the first must not be taken for that of the next.
    for key in ("a", "b", "c"):
        decision = await run_async(driver, claim(key))
        assert decision.record.key == key
    await driver.close()


def test_a_cancelled_statement_does_not_confuse_the_next(own_server: RedisServer) -> None:
    asyncio.run(_cancelled(AsyncRedisDriver(read_url(own_server.url), pool_size=1), own_server))


def test_there_are_no_transactions(redis_url: str) -> None:
    with pytest.raises(ConfigurationError, match="no transaction"):
        RedisDriver(read_url(redis_url)).open()
    with pytest.raises(ConfigurationError, match="no transaction"):
        asyncio.run(AsyncRedisDriver(read_url(redis_url)).open())

"""A cache that is down, slow, emptied or lying makes samekey slower, never wrong."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy
from lab.servers.redis import RedisServer
from samekey.core.decide import Execute, Replay
from samekey.engine.breaker import THRESHOLD
from samekey.errors import StoreUnavailable
from samekey.testing.conformance_subject import new_claim, retry_of
from tests.cached.world import ANSWER, World
from tests.chosen import whole

pytestmark = whole


def assert_right(world: World, times: int = 1) -> None:
    """New keys run, replays are what they were."""
    for _ in range(times):
        claim = world.completed()
        for _ in range(2):
            decision, _ = world.replay(claim)
            assert isinstance(decision, Replay)
            assert decision.record.answer == ANSWER


def hits(world: World) -> bool:
    """Whether the cache answers replays."""
    claim = world.completed()
    world.replay(claim)
    return world.replay(claim)[1] == []


def test_killed_in_the_middle_and_back_again(
    shared_postgres: str, own_cache_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with World(shared_postgres, f"{own_cache_server.url}?timeout=5") as world:
        claim = world.completed()
        assert hits(world)
        world.replay(claim)
        own_cache_server.kill()
        for _ in range(THRESHOLD + 3):
            decision, cost = world.replay(claim)
            assert isinstance(decision, Replay)
            assert cost == ["reserve"]
        assert world.breaker.is_open, "it is left alone"
        assert_right(world, 3)
        own_cache_server.start_again()
        wait_until(lambda: hits(world) and not world.breaker.is_open)
    lines = [record.message for record in caplog.records if "cache" in record.message]
    assert [line.partition(":")[0] for line in lines] == [
        "The cache cannot be used, so the database answers alone",
        "The cache answers again.",
    ], "one line for each turn, not for each request"


@pytest.mark.parametrize("way", ["pause", "proxy"])
def test_silent(shared_postgres: str, own_cache_server: RedisServer, way: str) -> None:
    with FaultProxy("127.0.0.1", own_cache_server.port) as proxy:
        url = proxy.url_for(own_cache_server.url) if way == "proxy" else own_cache_server.url
        with World(shared_postgres, url) as world:
            claim = world.completed()
            world.replay(claim)
            stop, go = {
                "pause": (own_cache_server.pause, own_cache_server.resume),
                "proxy": (proxy.stall, proxy.flow),
            }[way]
            stop()
            try:
                for _ in range(THRESHOLD):
                    assert isinstance(world.replay(claim)[0], Replay)
                assert world.breaker.is_open
                assert_right(world)
            finally:
                go()
            wait_until(lambda: hits(world))


def test_a_silent_cache_does_not_stop_async_code(shared_postgres: str, own_cache_server: RedisServer) -> None:
    with World(shared_postgres, own_cache_server.url) as world:
        claims = [world.completed() for _ in range(3)]
        own_cache_server.pause()
        try:
            read = [lambda claim=claim: world.keys.read(claim.scope, claim.key) for claim in claims * 3]
            records = world.run_async(*read)
        finally:
            own_cache_server.resume()
        assert {record.answer for record in records if record is not None} == {ANSWER}
        assert len(records) == 9


def test_emptied(world: World) -> None:
    claim = world.completed()
    for _ in range(3):
        world.redis.flushdb()
        decision, cost = world.replay(claim)
        assert isinstance(decision, Replay)
        assert cost == ["reserve"]
        assert world.replay(claim)[1] == [], "filled anew"


def test_scripts_that_were_flushed_are_sent_again(world: World) -> None:
    claim = world.completed()
    world.replay(claim)
    world.redis.script_flush()
    assert world.replay(claim)[1] == []


RUBBISH = [b"", b"rubbish", b"samekey-copy-1:", b"samekey-copy-1:" + b"x" * 300, b"null", b"\x00" * 64]


@pytest.mark.parametrize("rubbish", RUBBISH, ids=lambda rubbish: repr(rubbish[:24]))
def test_rubbish_under_our_name(world: World, rubbish: bytes) -> None:
    claim = world.completed()
    world.replay(claim)
    [name] = world.cached()
    world.redis.set(name, rubbish)
    decision, cost = world.replay(claim)
    assert isinstance(decision, Replay)
    assert decision.record.answer == ANSWER
    assert cost == ["reserve"]
    wait_until(lambda: world.replay(claim)[1] == [])  # it makes room for a copy by itself


def test_every_bit_counts(world: World) -> None:
    claim = world.completed()
    first, _ = world.replay(claim)
    [(name, value)] = world.cached().items()
    places = [*range(0, 60, 7), len(value) // 2, len(value) - 1]
    damaged = [value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] for at in places]
    for wrong in [*damaged, value[:-1], value + b"x"]:
        world.redis.set(name, wrong)
        assert world.replay(claim) == (first, ["reserve"])


def test_something_else_under_our_names(world: World) -> None:
    claim = world.completed()
    world.replay(claim)
    [name] = world.cached()
    epoch = f"{name.rpartition(':')[0]}:epoch"
    for other in (name, epoch):
        world.redis.delete(other)
        world.redis.rpush(other, "a list")
    assert isinstance(world.replay(claim)[0], Replay)
    assert world.replay(claim)[1] == []
    assert not world.breaker.is_open


def test_another_tenant_s_copy_under_our_name(world: World) -> None:
    """As if two names were one, or somebody had put it there."""
    ours, theirs = world.completed(), world.completed(answer=None)
    world.replay(theirs)
    [(_, their_copy)] = world.cached().items()
    world.redis.flushdb()
    world.replay(ours)
    [name] = world.cached()
    world.redis.set(name, their_copy)
    decision, cost = world.replay(ours)
    assert isinstance(decision, Replay)
    assert (decision.record.scope, decision.record.answer) == (ours.scope, ANSWER)
    assert cost == ["reserve"]


def test_a_cache_that_may_not_be_written_to(shared_postgres: str, own_cache_server: RedisServer) -> None:
    with World(shared_postgres, own_cache_server.url) as world:
        world.redis.config_set("maxmemory-policy", "noeviction")
        world.redis.config_set("maxmemory", "1")
        assert_right(world, 3)


@contextmanager
def liar(reply: bytes) -> Iterator[str]:
    """A server that gives one reply to everything."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(connection: socket.socket) -> None:
            with connection:
                try:
                    while connection.recv(65536):
                        connection.sendall(reply)
                except OSError:
                    pass

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(30)


TRUE_TO_THE_LETTER = b":1\r\n"
"""What an eviction wants to hear."""
HALF = b"\xff\xfe\x00"
"""The rest of it never comes; an operator would wait for that."""
LIES = [
    b"+OK\r\n",
    b"$5\r\nhello\r\n",
    b"$20\r\nsamekey-copy-1:hello\r\n",
    TRUE_TO_THE_LETTER,
    b"$-1\r\n",
    b"*3\r\n$-1\r\n$1\r\nx\r\n$1\r\ny\r\n",
    b"*3\r\n:1\r\n:2\r\n:3\r\n",
    b"*0\r\n",
    b"-ERR no\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    HALF,
]


@pytest.mark.parametrize("lie", LIES, ids=repr)
def test_a_server_that_says_anything(shared_postgres: str, lie: bytes) -> None:
    with liar(lie) as url, World(shared_postgres, url) as world:
        assert isinstance(world.claim(new_claim()), Execute)
        assert_right(world)


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie not in (TRUE_TO_THE_LETTER, HALF)], ids=repr)
def test_a_server_that_says_anything_is_not_believed_about_an_eviction(
    shared_postgres: str, lie: bytes
) -> None:
    with liar(lie) as url, World(shared_postgres, url) as world:
        claim = world.completed()
        with pytest.raises(StoreUnavailable, match="could not be told"):
            world.evict(claim)
        assert isinstance(world.replay(claim)[0], Replay), "nothing was changed"


def test_threads(world: World) -> None:
    claim = world.completed()
    first, _ = world.replay(claim)
    found: list[object] = []

    def replay() -> None:
        for _ in range(20):
            found.append(world.claim(retry_of(claim)) == first)

    threads = [threading.Thread(target=replay) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found.count(True) == 160
    assert world.database.take() == []


FORK = """
import json, os, sys
from samekey import Idempotency

idempotency = Idempotency(sys.argv[1], cache=sys.argv[2])
ask = lambda: idempotency.once(tenant="t", key="forked", run=lambda: {"n": os.getpid()})
first = [ask(), ask(), ask()]
child = os.fork()
if child == 0:
    ok = [ask(), ask()] == first[:2]
    idempotency.close()
    os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
last = ask()
idempotency.close()
print(json.dumps([status, first[0], *first, last]))
"""


def test_after_a_fork_each_has_connections_of_its_own(shared_postgres: str, cache_url: str) -> None:
    command = [sys.executable, "-c", FORK, shared_postgres, cache_url]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert shown.returncode == 0, shown.stderr
    status, first, *rest = json.loads(shown.stdout)
    assert status == 0
    assert all(answer == first for answer in rest)

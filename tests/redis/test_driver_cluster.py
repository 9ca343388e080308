"""The Redis drivers on a Cluster: slots that move, nodes that are gone; and waiting for replicas."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lab.processes import free_port, wait_until
from lab.servers.redis import NamedServer, RedisCluster, RedisServer, connect
from samekey.core.claim import Claim
from samekey.core.decide import Execute
from samekey.drivers.redis.driver import RedisDriver
from samekey.drivers.redis.plan import INDEXES, Layout
from samekey.drivers.redis.url import read_url
from samekey.drivers.run import run
from samekey.errors import (
    ConfigurationError,
    StoreBusy,
    StoreUnavailable,
)
from samekey.testing.conformance import new_claim
from samekey.testing.conformance_claims import POLICY
from tests.chosen import whole
from tests.redis.asking import KEYS, STYLES, asking, claim, read
from tests.redis.subjects import plain_client

pytestmark = whole


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """A server that these tests may stop, flush and reconfigure."""
    with RedisServer.start() as server:
        yield server


@pytest.mark.parametrize("style", STYLES)
def test_the_wrong_kind_of_url_is_said(
    redis_server: NamedServer, redis_cluster: RedisCluster, style: str
) -> None:
    refused = pytest.raises(ConfigurationError, match=r"without \+cluster")
    with asking(redis_server.url.replace("redis:", "redis+cluster:"), style) as store, refused:
        store.ask(read)
    refused = pytest.raises(ConfigurationError, match=r"write redis\+cluster://")
    with asking(redis_cluster.nodes[0].url, style) as store, refused:
        store.ask(lambda: KEYS.read_by_provider_id("ch_1", tenant="=t", source=None))  # it may be on any node


@pytest.mark.parametrize("style", STYLES)
def test_any_node_leads_to_the_cluster(redis_cluster: RedisCluster, style: str) -> None:
    dead = f"127.0.0.1:{free_port()}"
    for node in redis_cluster.nodes:
        with asking(f"redis+cluster://{dead},127.0.0.1:{node.port}?prefix=any", style) as store:
            for n in range(8):
                assert store.ask(lambda n=n: read(str(n))) is None  # type: ignore[misc]
    refused = pytest.raises(StoreUnavailable, match="No node of the Redis Cluster")
    with asking(f"redis+cluster://{dead}", style) as store, refused:
        store.ask(read)


@pytest.mark.parametrize("style", STYLES)
def test_a_slot_that_moves_is_refused_meanwhile_and_followed_then(
    redis_cluster: RedisCluster, style: str
) -> None:
    """In a partition that no other test has, so that nobody else's keys are in the way."""
    url = f"{redis_cluster.url}?prefix=moving&partitions=1000"
    with asking(url, style) as store:
        layout = store.sync.planner.layout
        wanted, other = _two_of_one_partition(layout)
        name = layout.record(wanted.id[32:])
        home = name.removesuffix(wanted.id[32:])
        move = _Move(redis_cluster, plain_client(url).keyslot(name))
        with connect(move.source.url) as client:
            for index in INDEXES:  # else a missing one would keep the slot closed to the end
                client.zadd(home + index, {"somebody": 1})
        first = store.ask(lambda: KEYS.claim(wanted, POLICY))
        move.begin()
        with pytest.raises(StoreBusy, match="is moving this slot"):
            store.ask(lambda: KEYS.claim(other, POLICY))
        move.keys()
        assert store.ask(lambda: KEYS.claim(wanted, POLICY)) == first, "asked for where it goes to"
        assert store.owner(name) == ("127.0.0.1", move.source.port), "for that time only"
        move.end()
        assert store.ask(lambda: KEYS.claim(wanted, POLICY)) == first, "found where it is"
        assert store.owner(name) == ("127.0.0.1", move.target.port), "for good"
        assert isinstance(store.ask(lambda: KEYS.claim(other, POLICY)), Execute)
        move.back()


def _two_of_one_partition(layout: Layout) -> tuple[Claim, Claim]:
    found: dict[int, Claim] = {}
    while True:
        claim = new_claim()
        partition = layout.partition(claim.id[32:])
        if partition >= 200:
            if partition in found:
                return found[partition], claim
            found[partition] = claim


class _Move:
    """A slot on its way from one master to the next."""

    def __init__(self, cluster: RedisCluster, slot: int) -> None:
        self._cluster, self._slot = cluster, slot
        nodes = cluster.nodes
        self.source = cluster.master(slot)
        self.target = nodes[(nodes.index(self.source) + 1) % len(nodes)]
        self._ids = {}
        for node in (self.source, self.target):
            with connect(node.url) as client:
                self._ids[node] = client.execute_command("CLUSTER", "MYID").decode()

    def _set(self, node: RedisServer, *words: str) -> None:
        with connect(node.url) as client:
            client.execute_command("CLUSTER", "SETSLOT", self._slot, *words)

    def begin(self) -> None:
        self._set(self.target, "IMPORTING", self._ids[self.source])
        self._set(self.source, "MIGRATING", self._ids[self.target])

    def keys(self) -> None:
        with connect(self.source.url) as client:
            for key in client.execute_command("CLUSTER", "GETKEYSINSLOT", self._slot, 1000):
                client.execute_command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)

    def end(self) -> None:
        for node in (self.target, self.source):
            self._set(node, "NODE", self._ids[self.target])

    def back(self) -> None:
        """As it was before, for whoever comes next: moved again, or the nodes would not agree about it."""
        with connect(self.target.url) as client:
            for key in client.execute_command("CLUSTER", "GETKEYSINSLOT", self._slot, 1000):
                client.delete(key)
        self.source, self.target = self.target, self.source
        self.begin()
        self.end()
        wait_until(self._cluster._settled)


def test_a_map_that_is_forgotten_under_way_is_learnt_again(redis_cluster_url: str) -> None:
    driver = RedisDriver(read_url(redis_cluster_url))
    stop = threading.Event()

    def forget() -> None:
        while not stop.is_set():
            driver.planner.router.forget()

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        for n in range(100):
            assert run(driver, lambda n=n: read(str(n))) is None  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
    driver.close()


# ------------------------------------------------------------------ waiting for replicas


@pytest.mark.parametrize("style", STYLES)
def test_a_write_that_no_replica_confirms_does_not_count(redis_url: str, style: str) -> None:
    with asking(f"{redis_url}?wait=1&wait_timeout=0.05", style) as store:
        assert store.ask(read) is None, "reading needs no replica"
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed"):
            store.ask(claim())


@pytest.mark.parametrize("style", STYLES)
def test_a_confirmed_write_is_on_the_replica(own_server: RedisServer, style: str) -> None:
    settings = {"replicaof": f"127.0.0.1 {own_server.port}"}
    with RedisServer.start(settings=settings) as replica, connect(replica.url) as client:
        wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        with asking(f"{own_server.url}?wait=1&wait_timeout=30", style, timeout=30) as store:
            for _ in range(20):
                record = store.ask(claim()).record
                layout = store.sync.planner.layout
                assert client.hget(layout.record(record.downstream), "attempt").decode() == record.attempt

"""Redis Cluster under a crowd, and under failover: what it loses, and what protects the effect all the same.

Replication is asynchronous. A master that dies takes along what its replica has not seen:
docs/stores/redis.md names what follows, and these tests show each of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from examples.provider import Provider, ProviderClient
from lab.processes import Racers, spawn, wait_until
from lab.servers.redis import NamedServer, RedisCluster, RedisServer, RedisUnavailable, connect
from samekey import Idempotency, OutcomeUnknown, StillRunning, StoreUnavailable, current_operation
from samekey.core.claim import downstream_base
from samekey.drivers.redis.plan import Layout
from samekey.drivers.redis.url import PARTITIONS
from samekey.drivers.run import run
from tests.chosen import whole
from tests.redis.conftest import unavailable
from tests.redis.load import SCOPE, find_out, race_once, send_all

pytestmark = whole


ROUNDS = 100
LAYOUT = Layout("samekey", PARTITIONS)


def test_ten_processes_on_one_key_run_it_once(redis_server: NamedServer, redis_cluster: RedisCluster) -> None:
    journal = redis_server.create_database()
    url = f"{redis_cluster.url}?prefix=race"
    with Racers(10, timeout=120) as racers, connect(journal) as client:
        for number in range(ROUNDS):
            key = f"round-{number}"
            told = Counter(racers.race(race_once, url, journal, key))
            (winner,) = client.lrange(f"runs:{key}", 0, -1)
            assert set(told) <= {f"racer {winner.decode()}", "outstanding"}, told


# ------------------------------------------------------------------ failover


@pytest.fixture(scope="module")
def pairs() -> Iterator[RedisCluster]:
    """Three masters with a replica each; each test kills another master."""
    try:
        cluster = RedisCluster.start(masters=3, replicas=1)
    except RedisUnavailable as error:
        unavailable(error)
    with cluster:
        yield cluster


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    with Provider.start(tmp_path) as provider:
        yield provider


def slot_of(key: str) -> int:
    return key_slot(LAYOUT.record(downstream_base(SCOPE, key)).encode())


def key_on(cluster: RedisCluster, number: int, name: str) -> tuple[str, RedisServer]:
    """A key whose record lies on that master."""
    master = cluster.nodes[number]
    for n in range(1000):
        key = f"{name}-{n}"
        if cluster.master(slot_of(key)) is master:
            return key, master
    raise AssertionError("no key lies there")


def stop_replication(cluster: RedisCluster, master: RedisServer) -> RedisServer:
    """From here on the replica sees nothing of what its master does."""
    (replica,) = cluster.replicas_of(master)
    replica.pause()
    with connect(master.url) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "REPLICA")
        wait_until(lambda: client.info("replication")["connected_slaves"] == 0)
    return replica


def fail_over(cluster: RedisCluster, master: RedisServer, replica: RedisServer) -> None:
    master.kill()
    replica.resume()
    cluster.promote(replica)


def forgotten(idempotency: Idempotency, key: str) -> bool:
    """Whether the store says, once the Cluster has found its new master, that it knows nothing of the key."""

    def told() -> str | None:
        try:
            record = run(idempotency.engine.drivers.sync, lambda: idempotency.engine.keys.read(SCOPE, key))
        except StoreUnavailable:
            return None
        return "nothing" if record is None else "something"

    return wait_until(told, interval=0.05) == "nothing"


def test_a_claim_that_the_replica_never_saw_runs_again_and_the_downstream_key_protects_the_effect(
    pairs: RedisCluster, provider: Provider
) -> None:
    key, master = key_on(pairs, 0, "lost")
    idempotency, client = Idempotency(pairs.url), ProviderClient(provider.url)
    runs = []

    def charge() -> str:
        runs.append(key)
        return client.charge(100, key=current_operation().downstream_key(), reference=key).id

    idempotency.check()
    replica = stop_replication(pairs, master)
    careful = Idempotency(f"{pairs.url}?wait=1&wait_timeout=0.05")
    with pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed"):
        careful.once(tenant="t", key=key, run=lambda: pytest.fail("it ran"))
    wait_until(lambda: forgotten(idempotency, key))  # the claim was given back
    careful.close()

    first = idempotency.once(tenant="t", key=key, run=charge)
    fail_over(pairs, master, replica)
    assert forgotten(idempotency, key)
    again = idempotency.once(tenant="t", key=key, run=charge)
    assert len(runs) == 2, "the key was lost, so the handler ran again: the docs say so"
    assert again == first, "and the provider gave the first charge"
    assert [entry.reference for entry in provider.charges()] == [key], "money moved once"
    idempotency.close()


def test_an_answer_that_the_replica_never_saw_becomes_unknown_and_is_found_out(
    pairs: RedisCluster, provider: Provider
) -> None:
    key, master = key_on(pairs, 1, "half")
    idempotency, client = Idempotency(pairs.url), ProviderClient(provider.url)
    runs, replicas = [], []

    def charge() -> str:
        runs.append(key)
        with connect(master.url) as server:
            assert server.wait(1, 30_000) == 1, "the replica has the claim"
        replicas.append(stop_replication(pairs, master))
        return client.charge(100, key=current_operation().downstream_key(), reference=key).id

    first = idempotency.once(tenant="t", key=key, run=charge, lease=1.0)
    fail_over(pairs, master, replicas[0])

    def told() -> str:
        try:
            return str(idempotency.once(tenant="t", key=key, run=charge, lease=1.0))
        except (StillRunning, StoreUnavailable):
            return ""
        except OutcomeUnknown:
            find_out(idempotency, client, key)
            return ""

    assert wait_until(told, interval=0.05) == first, "the same answer, from the provider's own book"
    assert (len(runs), len(provider.charges())) == (1, 1), "it did not run again"
    idempotency.close()


def test_no_effect_happens_twice_when_a_master_dies_under_load(
    pairs: RedisCluster, provider: Provider
) -> None:
    keys = [f"load-{n}" for n in range(90)]
    master = pairs.nodes[2]
    (replica,) = pairs.replicas_of(master)
    # Each key is sent by two processes, in opposite orders.
    orders = [keys[:45], keys[45:], keys[44::-1], keys[:44:-1]]
    with spawn(send_all, pairs.url, provider.url, orders[0]) as one:
        others = [spawn(send_all, pairs.url, provider.url, order) for order in orders[1:]]
        wait_until(lambda: len(provider.charges()) >= 15, timeout=120)
        master.kill()
        pairs.promote(replica)
        stories = [process.result(240) for process in (one, *others)]
    for process in others:
        process.close()
    charged = Counter(entry.reference for entry in provider.charges())
    assert charged == dict.fromkeys(keys, 1), "each key moved money once"
    ids = {entry.reference: entry.id for entry in provider.charges()}
    for story in stories:
        assert story.answers == {key: ids[key] for key in story.answers}, "and everybody was told the same"
    ran = Counter[str]()
    for story in stories:
        ran.update(story.runs)
    twice = [key for key, times in ran.items() if times > 1]
    lost = [key for key in twice if pairs.master(slot_of(key)) is not master]
    assert lost == [], "only keys of the dead master can have run again"

"""Leased work on Redis from end to end: both edges, the status resource, webhooks, once(), encryption."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.fernet import Fernet

from lab.processes import wait_until
from lab.servers.redis import NamedServer, RedisServer
from samekey import (
    ConfigurationError,
    Evidence,
    Executed,
    Idempotency,
    NotExecuted,
    OutcomeUnknown,
    StoreUnavailable,
    current_operation,
    ietf,
)
from samekey.core.claim import call_part, downstream_key, scope_of
from samekey.core.states import State
from samekey.drivers.redis.driver import RedisDriver
from samekey.drivers.redis.plan import Batch
from samekey.drivers.run import run, run_async
from samekey.encryption import fernet
from samekey.engine.evidence.said import Resolution
from samekey.workers.reaper import Reaper
from samekey.workers.reconciler import Reconciler
from samekey.workers.sweeper import Sweeper
from tests.chosen import whole
from tests.edges.apps import BARE, Kind, Setup, build
from tests.edges.callers import LoopThread, Request
from tests.edges.scenarios import SCENARIOS, Ask, Scenario
from tests.edges.world import PROFILES, Raise, Store, World
from tests.redis.looking import assert_in_order, records
from tests.redis.subjects import plain_client

pytestmark = whole


SCOPE = scope_of(call_part("t"))


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


Opened = Callable[..., Idempotency]


@pytest.fixture(scope="module")
def opened(redis_server: NamedServer, loop: LoopThread) -> Iterator[Opened]:
    """An ``Idempotency`` for each policy, all on one database."""
    url = redis_server.create_database()
    known: dict[str, Idempotency] = {}

    def get(profile: str = "ietf", **overrides: Any) -> Idempotency:
        name = f"{profile} {overrides!r}"
        if name not in known:
            known[name] = Idempotency(url, policy=PROFILES[profile](**overrides))
        return known[name]

    yield get
    for idempotency in known.values():
        loop.run(idempotency.aclose())


@pytest.fixture
def idempotency(redis_url: str) -> Iterator[Idempotency]:
    made = Idempotency(redis_url)
    yield made
    made.close()


# ------------------------------------------------------------------ the decision table, through both edges

ROWS = [
    pytest.param(kind, scenario, id=f"{scenario.name}-{kind}")
    for scenario in SCENARIOS
    if "edge" in scenario.modes and scenario.bare
    for kind in BARE
]


@pytest.mark.parametrize(("kind", "scenario"), ROWS)
def test_the_scenario_table(
    kind: Kind, scenario: Scenario, opened: Opened, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    store = Store(opened(scenario.profile, **scenario.policy), "redis", "")
    world = World(*scenario.script)
    options: Any = dict(scenario.options)
    setup = Setup(leased=options, routes=dict(scenario.routes))
    client = build(kind, store, world, loop, threads, setup)
    for ask, expect in scenario.steps:
        expect.check(client.send(ask.request("/edge", world.name)))
    assert world.runs == scenario.runs


@pytest.mark.parametrize("kind", BARE)
def test_the_status_resource(
    kind: Kind, opened: Opened, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    world = World()
    client = build(kind, Store(opened(), "redis", ""), world, loop, threads, Setup())
    client.send(Ask().request("/edge", world.name))
    record = run(
        opened().engine.drivers.sync,
        lambda: opened().engine.store.finding.find(tenant=f"={world.name}-alice"),
    )[0]

    def look(operation: str, tenant: str) -> Request:
        ask = Ask(keys=(), method="GET", path=f"/idempotency/{operation}", body=b"", tenant=tenant)
        return ask.request("", world.name)

    shown = client.send(look(record.id, "alice"))
    assert (shown.status, shown.json()["state"]) == (200, "completed")
    assert shown.json()["answer"]["body"] == '{"run":1}'
    for operation, tenant in ((record.id, "bob"), (record.id[::-1], "alice"), ("f" * 64, "alice")):
        assert client.send(look(operation, tenant)).status == 404


@pytest.mark.parametrize("kind", BARE)
def test_an_unknown_outcome_is_not_run_again(
    kind: Kind, opened: Opened, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    world = World(Raise(lambda: OutcomeUnknown("the provider was silent")))
    client = build(kind, Store(opened(), "redis", ""), world, loop, threads, Setup())
    ask = Ask().request("/edge", world.name)
    assert [client.send(ask).code for _ in range(3)] == ["outcome_unknown"] * 3
    assert world.runs == 1


# ------------------------------------------------------------------ what it cannot carry


def test_what_needs_a_transaction_is_refused_where_it_is_declared(idempotency: Idempotency) -> None:
    async def handler() -> None: ...

    sentence = "Redis keeps keys only and has no transaction for {} work. Declare the handler"
    with pytest.raises(ConfigurationError, match=sentence.format("atomic")):
        idempotency.atomic(handler)
    with pytest.raises(ConfigurationError, match=sentence.format("deferred")):
        idempotency.deferred(handler)
    with pytest.raises(ConfigurationError, match=sentence.format("phased")):
        idempotency.phased("ride")(lambda op, given: None)
    with pytest.raises(ConfigurationError, match=sentence.format("atomic")):
        idempotency.once(tenant="t", key="k", run=lambda: 1, mode="atomic")
    with pytest.raises(ConfigurationError, match="there are no tables"):
        _ = idempotency.engine.queries


def test_limits_are_refused(redis_url: str) -> None:
    with pytest.raises(ConfigurationError, match="Redis cannot count a tenant's keys"):
        Idempotency(redis_url, policy=ietf(new_keys_per_minute=5))


# ------------------------------------------------------------------ plain functions


def test_once(idempotency: Idempotency) -> None:
    runs = []

    def pay() -> dict[str, int]:
        runs.append(current_operation().downstream_key("charge"))
        return {"paid": 5}

    for _ in range(3):
        assert idempotency.once(tenant="t", key="k", run=pay, payload=[5]) == {"paid": 5}
    assert runs == [downstream_key(SCOPE, "k", "charge")]


def test_once_async(redis_url: str) -> None:
    async def use() -> None:
        idempotency = Idempotency(redis_url)
        runs = []

        async def pay() -> int:
            runs.append(1)
            return 5

        results = [await idempotency.once_async(tenant="t", key="k", run=pay) for _ in range(3)]
        assert (results, len(runs)) == ([5, 5, 5], 1)
        await idempotency.aclose()

    asyncio.run(use())


def test_many_leases_are_kept_alive_at_once(redis_cluster_url: str) -> None:
    """In whatever partitions their keys lie."""
    idempotency = Idempotency(redis_cluster_url)
    done = threading.Event()

    def ends() -> dict[str, int | None]:
        found = run(
            idempotency.engine.drivers.sync,
            lambda: idempotency.engine.store.finding.find(state="in_progress"),
        )
        return {record.key: record.locked_until for record in found}

    with ThreadPoolExecutor(12) as pool:
        calls = [
            pool.submit(
                idempotency.once, tenant="t", key=f"k{n}", run=lambda: done.wait(120), lease=3, max_run=600
            )
            for n in range(12)
        ]
        wait_until(lambda: len(ends()) == 12)
        first = ends()
        wait_until(lambda: all((ends()[key] or 0) > (until or 0) for key, until in first.items()))
        done.set()
        assert [call.result() for call in calls] == [True] * 12
    idempotency.close()


# ------------------------------------------------------------------ evidence and background work


def unknown(idempotency: Idempotency, key: str, provider_id: str | None = None) -> str:
    """An operation that nobody knows the outcome of: its id."""
    found = []

    def lost() -> None:
        found.append(current_operation().id)
        current_operation().source = "bank"
        current_operation().provider_id = provider_id
        raise OutcomeUnknown

    with pytest.raises(OutcomeUnknown):
        idempotency.once(tenant="t", key=key, run=lost)
    return found[0]


def tell(idempotency: Idempotency, evidence: Evidence, **how: Any) -> Resolution:
    given = {"source": "bank", "tenant": "t", "occurred_at": datetime.now(UTC), **how}
    return idempotency.resolve(evidence, event_id="e", verify=lambda: True, **given)


def test_a_webhook_settles_it_by_any_of_three_ids(idempotency: Idempotency) -> None:
    by_id = unknown(idempotency, "a")
    unknown(idempotency, "b")
    unknown(idempotency, "c", "ch_3")
    ways: list[dict[str, Any]] = [
        {"operation_id": by_id},
        {"downstream_key": downstream_key(SCOPE, "b", "")},
        {"provider_id": "ch_3"},
    ]
    for way in ways:
        evidence = Executed({"late": True})
        assert tell(idempotency, evidence, **way) is Resolution.RESOLVED
        assert tell(idempotency, evidence, **way) is Resolution.TOO_LATE
    assert tell(idempotency, evidence, provider_id="ch_9") is Resolution.NOT_FOUND
    assert tell(idempotency, evidence, provider_id="ch_3", source="another") is Resolution.NOT_FOUND
    assert tell(idempotency, evidence, provider_id="ch_3", tenant="mallory") is Resolution.NOT_FOUND
    for key in "abc":
        assert idempotency.once(tenant="t", key=key, run=lambda: pytest.fail("it ran")) == {"late": True}


def test_sweeper_reconciler_and_reaper(redis_url: str) -> None:
    idempotency = Idempotency(redis_url)
    asked = []

    @idempotency.lookup()
    def look(record: Any) -> object:
        asked.append(record.key)
        return NotExecuted if record.key == "never" else Executed({"found": True})

    unknown(idempotency, "never")
    unknown(idempotency, "done")

    async def work() -> tuple[int, int, int]:
        swept = await Sweeper(idempotency.engine).run_once()
        found = await Reconciler(idempotency.engine).run_once()
        reaped = await Reaper(idempotency.engine).run_once()
        again = await Reconciler(idempotency.engine).run_once()
        found_states = {}
        for record in await run_async(idempotency.engine.drivers.aio, idempotency.engine.store.finding.find):
            found_states[record.key] = record.state
        assert found_states == {"never": State.FAILED_RETRYABLE, "done": State.COMPLETED}
        await idempotency.aclose()
        assert again == 0
        return swept, found, reaped

    assert asyncio.run(work()) == (0, 2, 0)
    assert sorted(asked) == ["done", "never"]
    assert assert_in_order(plain_client(redis_url)) == 2


# ------------------------------------------------------------------ secrets, and a store that is away


def test_answers_can_be_encrypted_at_rest(redis_url: str) -> None:
    secret = Fernet.generate_key()
    idempotency = Idempotency(redis_url, encryption=fernet(secret))
    for _ in range(2):
        assert idempotency.once(tenant="t", key="k", run=lambda: "a private thing") == "a private thing"
    idempotency.close()
    (columns,) = records(plain_client(redis_url)).values()
    assert b"private" not in b"".join(columns.values())
    blind = Idempotency(redis_url)
    with pytest.raises(Exception, match="cannot be"):
        blind.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"))
    blind.close()


def test_a_store_that_is_away_runs_nothing_and_comes_back() -> None:
    with RedisServer.start() as server:
        idempotency = Idempotency(server.url, timeout=1)
        assert idempotency.once(tenant="t", key="a", run=lambda: 1) == 1
        server.kill()
        with pytest.raises(StoreUnavailable):
            idempotency.once(tenant="t", key="b", run=lambda: pytest.fail("it ran"))
        server.start_again()
        assert idempotency.once(tenant="t", key="a", run=lambda: pytest.fail("it ran")) == 1

        def dies_meanwhile() -> int:
            server.kill()
            return 7

        assert idempotency.once(tenant="t", key="c", run=dies_meanwhile) == 7, "done is done"
        server.start_again()

        def recorded() -> bool:
            try:
                record = run(
                    idempotency.engine.drivers.sync, lambda: idempotency.engine.keys.read(SCOPE, "c")
                )
            except StoreUnavailable:
                return False
            return record is not None and record.state is State.COMPLETED

        wait_until(recorded)
        idempotency.close()


def test_a_claim_that_no_replica_confirmed_is_given_back(redis_url: str) -> None:
    careful = Idempotency(f"{redis_url}?wait=1&wait_timeout=0.05")
    plain_client(redis_url).script_flush()  # a server that has to be given the scripts first
    with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
        careful.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"))
    plain = Idempotency(redis_url)
    wait_until(lambda: run(plain.engine.drivers.sync, lambda: plain.engine.keys.read(SCOPE, "k")) is None)
    assert plain.once(tenant="t", key="k", run=lambda: 1) == 1
    for idempotency in (careful, plain):
        idempotency.close()


# ------------------------------------------------------------------ round trips, as docs/stores/redis.md says


@pytest.mark.parametrize("wait", ["", "?wait=1"])
def test_a_new_key_takes_two_round_trips_and_a_replay_one(wait: str) -> None:
    with RedisServer.start() as server:
        replica = RedisServer.start(settings={"replicaof": f"127.0.0.1 {server.port}"})
        client = plain_client(server.url)
        wait_until(lambda: client.info("replication")["connected_slaves"] == 1)
        wait_until(lambda: client.wait(1, 100) == 1)
        idempotency = Idempotency(server.url + wait)
        idempotency.once(tenant="t", key="warm", run=lambda: 1)

        sent: list[Batch] = []
        driver = idempotency.engine.drivers.sync
        assert isinstance(driver, RedisDriver)
        send = driver._send
        driver._send = lambda batch: (sent.append(batch), send(batch))[1]  # type: ignore[method-assign, func-returns-value]

        def cost(key: str) -> int:
            """Pipelines that were sent, each one round trip; and what of them were scripts."""
            sent.clear()
            before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
            idempotency.once(tenant="t", key=key, run=lambda: 1)
            assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + len(sent)
            return len(sent)

        assert (cost("k"), cost("k"), cost("k")) == (2, 1, 1)
        idempotency.close()
        replica.stop()

"""Every metric moves when its event really happens, a scrape can be parsed, and nothing fails a request."""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry import metrics as otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from lab.processes import wait_until
from lab.proxy import FaultProxy
from samekey import Idempotency, NotExecuted, OutcomeUnknown, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.core.ledger import Entry
from samekey.core.program import Row, Statement
from samekey.drivers.protocol import Driver, Session
from samekey.drivers.run import run
from samekey.drivers.url import Drivers
from samekey.engine.breaker import Breaker
from samekey.engine.events import NAMES
from samekey.errors import ConfigurationError
from samekey.evidence import Executed, StillUnknown
from samekey.ops import readings
from samekey.ops.metrics import BUCKETS, COUNTERS, INSTRUMENTS, instrument
from samekey.ops.prometheus import metrics_app, metrics_wsgi_app, serve
from samekey.ops.readings import FRESH, Readings
from samekey.outgoing import STRIPE, KeylessCall, Outgoing
from samekey.outgoing.httpx2 import ProviderTransport
from samekey.stores.sql.migrations import migrate
from samekey.workers.ledger import LedgerCheck
from samekey.workers.reaper import Reaper
from samekey.workers.reconciler import Reconciler
from samekey.workers.service import WorkerService
from samekey.workers.sweeper import Sweeper

KEY = "raw-key-that-must-not-leak"
O1 = {
    "api.idempotency.reserve.created.count",
    "api.idempotency.reserve.replay.count",
    "api.idempotency.reserve.in_progress.count",
    "api.idempotency.reserve.key_misuse.count",
    "api.idempotency.reserve.failed_retry.count",
    "api.idempotency.reserve.unknown.count",
    "api.idempotency.store.error.count",
    "api.idempotency.zombie_key.count",
    "api.idempotency.ttl_pruned.count",
    "api.idempotency.reconcile.scheduled.count",
    "api.idempotency.reconcile.resolved.count",
    "api.idempotency.reconcile.failed.count",
}


class Samples:
    """A scrape, parsed by the real parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        self.all = [sample for family in self.families for sample in family.samples]
        series = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in self.all]
        assert len(series) == len(set(series)), "no series twice"

    def get(self, name: str, **labels: str) -> float | None:
        found = [
            sample.value
            for sample in self.all
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None

    def count(self, event: str, **labels: str) -> float:
        return self.get(COUNTERS[event].prometheus, **labels) or 0.0


@dataclass
class Service:
    """A real application on a real store, with its metrics endpoint."""

    idempotency: Idempotency
    client: TestClient
    path: Path
    during: Callable[[], Any] = lambda: None
    """What happens while the handler runs."""

    def post(self, path: str = "/leased", key: str = KEY, body: Any = 1, tenant: str = "acme") -> int:
        headers = {"Idempotency-Key": key, "X-Tenant": tenant}
        return self.client.post(path, headers=headers, json=body).status_code

    def scrape(self, path: str = "/metrics") -> Samples:
        got = self.client.get(path)
        assert got.status_code == 200
        return Samples(got.text)

    def sql(self, statement: str) -> None:
        """Changes the store behind samekey's back: time has passed."""
        connection = sqlite3.connect(self.path, timeout=10)
        try:
            with connection:
                connection.execute(statement)
        finally:
            connection.close()


def raising(error: type[Exception]) -> Callable[[], None]:
    def raise_it() -> None:
        raise error("as the test wants it")

    return raise_it


def application(idempotency: Idempotency, made: list[Service], extra: Sequence[Any] = ()) -> Starlette:
    @idempotency.leased
    def leased(request: Request) -> JSONResponse:
        made[0].during()
        return JSONResponse({"done": True}, 201)

    @idempotency.atomic
    async def atomic(request: Request) -> JSONResponse:
        await current_operation().connection.execute("insert into effects values (1)", ())
        return JSONResponse({"done": True}, 201)

    @idempotency.deferred
    async def deferred(request: Request) -> JSONResponse:
        await current_operation().enqueue("later", {})
        return JSONResponse({"accepted": True}, 202)

    @idempotency.job("later")
    def later(job: Any, payload: Any) -> None: ...

    app = Starlette(
        routes=[
            Route("/leased", leased, methods=["POST"]),
            Route("/leased/{name}", leased, methods=["POST"]),
            Route("/atomic", atomic, methods=["POST"]),
            Route("/deferred", deferred, methods=["POST"]),
            *extra,
        ]
    )
    app.add_middleware(
        IdempotencyMiddleware,
        idempotency=idempotency,
        tenant=lambda scope: dict(scope["headers"]).get(b"x-tenant", b"").decode(),
    )
    return app


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(readings, "FRESH", 0.0)  # every scrape reads the store
    monkeypatch.setattr(readings, "PATIENCE", 30.0)  # and waits for it
    path = tmp_path / "store" / "app.db"
    path.parent.mkdir()
    idempotency = Idempotency(f"sqlite:///{path}", timeout=0.2)
    made: list[Service] = []
    by_tenant = Mount("/by-tenant", metrics_app(idempotency, by_tenant=True, max_tenants=2))
    app = application(idempotency, made, [Mount("/metrics", metrics_app(idempotency)), by_tenant])
    service = Service(idempotency, TestClient(app, raise_server_exceptions=False), path)
    made.append(service)
    service.sql("create table effects (run int)")
    yield service
    asyncio.run(idempotency.aclose())


# ------------------------------------------------------------------ events that really happen


def created(service: Service) -> None:
    assert service.post() == 201


def replay(service: Service) -> None:
    assert [service.post("/atomic"), service.post("/atomic")] == [201, 201]


def in_progress(service: Service) -> None:
    seen = []
    service.during = lambda: seen.append(service.post())
    assert service.post() == 201
    assert seen == [409]


def key_misuse(service: Service) -> None:
    assert [service.post(body=1), service.post(body=2)] == [201, 422]


def failed_retry(service: Service) -> None:
    service.during = raising(NotExecuted)
    assert service.post() == 503
    service.during = lambda: None
    assert service.post() == 201


def reused(service: Service) -> None:
    assert service.post() == 201
    service.sql("update samekey_keys set expires_at = 1")
    assert service.post() == 201


def become_unknown(service: Service) -> None:
    service.during = raising(OutcomeUnknown)
    assert service.post() == 409
    service.during = lambda: None


def unknown(service: Service) -> None:
    become_unknown(service)
    assert service.post() == 409


def store_error(service: Service) -> None:
    other = sqlite3.connect(service.path, isolation_level=None)
    other.execute("begin immediate")
    try:
        assert service.post() == 503
    finally:
        other.close()


def zombie(service: Service) -> None:
    def sleep_through_the_lease() -> None:
        service.sql("update samekey_keys set locked_until = 1")
        assert asyncio.run(Sweeper(service.idempotency.engine).run_once()) == 1

    service.during = sleep_through_the_lease
    service.post()


def pruned(service: Service) -> None:
    assert [service.post(key=f"{KEY}-{number}") for number in range(3)] == [201] * 3
    service.sql("update samekey_keys set expires_at = 1")
    assert asyncio.run(Reaper(service.idempotency.engine).run_once()) == 3


def reconcile(service: Service, finding: Any, **options: Any) -> None:
    service.idempotency.lookup()(lambda record: finding)
    become_unknown(service)
    service.sql("update samekey_keys set reconcile_after = 1")
    asyncio.run(Reconciler(service.idempotency.engine, **options).run_once())


def resolved(service: Service) -> None:
    reconcile(service, Executed(Response(200, {"done": True})))
    assert service.post() == 200


def not_resolved(service: Service) -> None:
    reconcile(service, StillUnknown)


def given_up(service: Service) -> None:
    reconcile(service, StillUnknown, max_tries=1)


def differ(service: Service) -> None:
    ours, theirs = [Entry("a", 1, "EUR"), Entry("b", 1, "EUR")], [Entry("c", 1, "EUR")]
    asyncio.run(LedgerCheck(service.idempotency.engine, lambda: ours, lambda: theirs).run_once())


def troubled(service: Service) -> None:
    WorkerService(service.idempotency.engine)._note("sweeper", RuntimeError("no"))


def hangs(service: Service) -> None:
    become_unknown(service)
    release = threading.Event()
    service.idempotency.lookup()(lambda record: release.wait(30))
    try:
        asyncio.run(Reconciler(service.idempotency.engine, timeout=timedelta(seconds=0.05)).run_once())
    finally:
        release.set()


def keyless(service: Service) -> None:
    outgoing = Outgoing(STRIPE, strict=True, events=service.idempotency.events)
    with httpx2.Client(transport=ProviderTransport(outgoing)) as client, pytest.raises(KeylessCall):
        client.post("http://127.0.0.1:9/charges")


HAPPENINGS: dict[str, tuple[Callable[[Service], None], int, dict[str, str]]] = {
    "request": (created, 1, {"key": "sent"}),
    "reserve.created": (created, 1, {"mode": "leased"}),
    "reserve.replay": (replay, 1, {"mode": "atomic"}),
    "reserve.in_progress": (in_progress, 1, {"mode": "leased"}),
    "reserve.key_misuse": (key_misuse, 1, {"mode": "leased"}),
    "reserve.failed_retry": (failed_retry, 1, {"mode": "leased"}),
    "reserve.reused": (reused, 1, {"mode": "leased"}),
    "reserve.unknown": (unknown, 1, {"mode": "leased"}),
    "store.error": (store_error, 1, {"kind": "StoreBusy"}),
    "zombie_key": (zombie, 1, {"mode": "leased"}),
    "ttl_pruned": (pruned, 3, {}),
    "reconcile.scheduled": (become_unknown, 1, {"mode": "leased"}),
    "reconcile.resolved": (resolved, 1, {"mode": "leased"}),
    "reconcile.failed": (not_resolved, 1, {"mode": "leased"}),
    "dead_letter": (given_up, 1, {"mode": "leased"}),
    "ledger.difference": (differ, 3, {}),
    "worker.trouble": (troubled, 1, {"service": "sweeper"}),
    "worker.hanging": (hangs, 1, {"service": "reconciler"}),
    "outgoing.keyless": (keyless, 1, {"reason": "no_operation"}),
}


def test_all_of_o1_is_there_and_every_event_is_measured() -> None:
    names = [made.name for made in INSTRUMENTS]
    assert len(names) == len(set(names))
    assert set(names) >= O1
    assert COUNTERS.keys() == NAMES - {"operation.finished"}
    for event in COUNTERS:
        assert event in HAPPENINGS, f"make {event} happen here, and give it a line in docs/metrics.md"


@pytest.mark.parametrize("event", HAPPENINGS)
def test_it_moves_when_it_happens(event: str, service: Service) -> None:
    happen, times, labels = HAPPENINGS[event]
    before = service.scrape()
    assert before.count(event, **labels) == 0
    assert before.get(COUNTERS[event].prometheus) == 0, "it starts at 0, so that the first is an increase"
    happen(service)
    after = service.scrape()
    assert after.count(event, **labels) == times
    assert after.count(event) == times
    assert KEY not in after.text
    assert KEY not in service.scrape("/by-tenant").text


def test_the_sweeper_schedules_too(service: Service) -> None:
    zombie(service)
    assert service.scrape().count("reconcile.scheduled", mode="leased") == 1


def test_durations_are_in_seconds(service: Service) -> None:
    service.during = lambda: time.sleep(0.06)
    assert service.post() == 201
    seen = service.scrape()
    name = "api_idempotency_operation_duration_seconds"
    labels = {"mode": "leased", "outcome": "remember"}
    assert seen.get(f"{name}_count", **labels) == 1
    assert 0.06 <= (seen.get(f"{name}_sum", **labels) or 0) < 5
    bounds = [float(s.labels["le"]) for s in seen.all if s.name == f"{name}_bucket"]
    assert bounds == [*BUCKETS, float("inf")]
    assert seen.get(f"{name}_bucket", le="0.05", **labels) == 0


def test_the_gauges(service: Service) -> None:
    nothing = service.scrape()
    depth, lag, oldest = (
        "api_idempotency_dead_letter_depth",
        "api_idempotency_outbox_lag_seconds",
        "api_idempotency_unknown_oldest_seconds",
    )
    assert [nothing.get(name) for name in (depth, lag, oldest)] == [0, 0, 0]

    assert service.post("/deferred", key="job") == 202
    service.sql("update samekey_jobs set due_at = due_at - 600000")
    become_unknown(service)
    service.sql("update samekey_keys set last_run_at = last_run_at - 7200000 where state = 'unknown'")
    waiting = service.scrape()
    assert 600 <= (waiting.get(lag) or 0) < 700
    assert 7200 <= (waiting.get(oldest) or 0) < 7300

    service.idempotency.lookup()(lambda record: StillUnknown)
    service.sql("update samekey_keys set reconcile_after = 1 where state = 'unknown'")
    asyncio.run(Reconciler(service.idempotency.engine, max_tries=1).run_once())
    service.sql("update samekey_jobs set state = 'dead'")
    dead = service.scrape()
    assert (dead.get(depth, kind="operation"), dead.get(depth, kind="job")) == (1, 1)
    assert (dead.get(lag), dead.get(oldest)) == (0, 0)


def test_the_breaker(service: Service) -> None:
    now = [0.0]
    service.idempotency.engine.breaker = Breaker(lambda: now[0])
    assert service.scrape().get("api_idempotency_breaker_open") == 0
    gone = service.path.parent.rename(service.path.parent.with_name("gone"))
    service.idempotency.engine.drivers.sync.close()  # no connection that still holds the file
    assert {service.post() for _ in range(5)} == {503}
    down = service.scrape()
    assert down.get("api_idempotency_breaker_open") == 1
    assert down.get("api_idempotency_dead_letter_depth") is None, "what cannot be read is absent"
    assert down.count("store.error", kind="StoreUnavailable") == 5
    gone.rename(service.path.parent)
    now[0] = 60.0
    assert service.post() == 201
    back = service.scrape()
    assert back.get("api_idempotency_breaker_open") == 0
    assert back.get("api_idempotency_dead_letter_depth") == 0


# ------------------------------------------------------------------ tenants


def test_tenants_are_told_apart_up_to_the_cap(service: Service) -> None:
    for tenant in ("acme", "acme", "globex", "initech", "umbrella"):
        assert service.post(tenant=tenant) == 201
    assert service.post(tenant="acme", body=2) == 422
    seen = service.scrape("/by-tenant")
    assert seen.count("reserve.created", tenant="acme") == 1
    assert seen.count("reserve.replay", tenant="acme") == 1
    assert seen.count("reserve.key_misuse", tenant="acme") == 1
    assert seen.count("reserve.created", tenant="globex") == 1
    assert seen.get(COUNTERS["reserve.replay"].prometheus, tenant="globex") == 0, "a rate needs a start"
    assert seen.count("reserve.created", tenant="other") == 2
    assert "initech" not in seen.text
    plain = service.scrape()
    assert "acme" not in plain.text
    assert plain.count("reserve.created") == 4


def test_tenants_as_digests_and_as_odd_text(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    odd = 'a "quoted"\nline \ud800'
    with (
        serve(idempotency, 0, by_tenant="digest") as digests,
        serve(idempotency, 0, by_tenant=True) as plain,
    ):
        idempotency.once(tenant="jo@example.com", key=KEY, run=lambda: 1)
        idempotency.once(tenant=odd, key=KEY, run=lambda: 1)
        seen = Samples(httpx2.get(digests.url).text)
        assert "jo@example.com" not in seen.text
        expected = idempotency.engine.digest("jo@example.com", "")
        assert seen.count("reserve.created", tenant=expected) == 1
        shown = Samples(httpx2.get(plain.url).text)
        assert shown.count("reserve.created", tenant=odd.replace("\ud800", "?")) == 1
    idempotency.close()


# ------------------------------------------------------------------ the endpoint


def test_every_metric_has_its_documented_name(service: Service) -> None:
    created(service)
    seen = service.scrape()
    documented = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = {sample.name for sample in seen.all}
    kinds = {family.name: family.type for family in seen.families}
    for made in INSTRUMENTS:
        sample = f"{made.prometheus}_count" if made.kind == "histogram" else made.prometheus
        assert sample in names
        assert kinds[made.prometheus.removesuffix("_total")] == made.kind
        attributes = ", ".join(made.attributes)
        row = f"| `{made.name}` | `{made.prometheus}` | {made.kind} | {attributes}".rstrip()
        assert row in documented, f"docs/metrics.md lacks: {row}"
    assert all(name.startswith("api_idempotency_") for name in names)


def test_a_path_is_never_an_attribute(service: Service) -> None:
    assert service.post(f"/leased/{KEY}", key="k1") == 201
    assert service.post("/leased/template", key="k2") == 201
    text = service.scrape().text
    assert KEY not in text
    assert "/leased/template" not in text
    assert 'endpoint="POST /leased/{name}"' in text, "a template is the application's own word"


def test_openmetrics_is_spoken_too(service: Service) -> None:
    created(service)
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    got = service.client.get("/metrics", headers={"Accept": accept})
    assert got.headers["content-type"].startswith("application/openmetrics-text")
    families = {family.name: family for family in parse_openmetrics(got.text)}  # type: ignore[no-untyped-call]
    assert "api_idempotency_reserve_created_count" in families
    plain = service.client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_only_reading_is_answered(service: Service) -> None:
    assert service.client.head("/metrics").content == b""
    refused = service.client.put("/metrics")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_it_can_be_served_by_itself(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    with TestClient(metrics_app(idempotency)) as client:  # with its lifespan
        assert Samples(client.get("/").text).get("api_idempotency_breaker_open") == 0
    idempotency.close()


def test_wsgi(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    app = metrics_wsgi_app(idempotency)
    idempotency.once(tenant="acme", key=KEY, run=lambda: 1)
    started: list[Any] = []
    body = b"".join(app({"REQUEST_METHOD": "GET"}, lambda *given: started.append(given)))
    assert started[0][0] == "200 OK"
    assert Samples(body.decode()).count("reserve.created") == 1
    idempotency.close()


def test_a_worker_serves_and_stops(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    server = serve(idempotency, 0)
    assert server.host == "127.0.0.1"
    idempotency.once(tenant="acme", key=KEY, run=lambda: 1)
    assert Samples(httpx2.get(server.url).text).count("reserve.created") == 1
    with pytest.raises(ConfigurationError, match="Choose another port"):
        serve(idempotency, server.port)
    server.close()
    server.close()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(server.url)
    with serve(idempotency, server.port) as again:  # the port is free, and nothing is counted twice
        assert Samples(httpx2.get(again.url).text).count("reserve.created") == 1
    idempotency.close()


def test_scrapes_at_once_do_not_mix(service: Service) -> None:
    created(service)
    app = metrics_wsgi_app(service.idempotency)
    barrier = threading.Barrier(8)
    texts: list[str] = []

    def scrape() -> None:
        barrier.wait()
        for _ in range(5):
            texts.append(b"".join(app({"REQUEST_METHOD": "GET"}, lambda *given: None)).decode())

    threads = [threading.Thread(target=scrape) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 40
    assert all(Samples(text).count("reserve.created") == 1 for text in texts)


# ------------------------------------------------------------------ the application's own provider


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_twice_is_once_and_stores_are_told_apart(sqlite_url: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    one, other = Idempotency(sqlite_url), Idempotency(sqlite_url + "-2")
    for engine, name in ((one, "one"), (one, "one"), (other, "other")):
        instrument(engine, provider, attributes={"store": name})
    one.once(tenant="acme", key=KEY, run=lambda: 1)
    found = points(reader)
    values = {
        point.attributes["store"]: point.value
        for point in found["api.idempotency.reserve.created.count"]
        if point.attributes.get("mode") == "leased"
    }
    assert values == {"one": 1, "other": 0}
    stores = {point.attributes["store"] for point in found["api.idempotency.outbox.lag"]}
    assert stores == {"one", "other"}
    other.close()
    del engine, other
    gc.collect()
    left = {point.attributes["store"] for point in points(reader)["api.idempotency.breaker.open"]}
    assert left == {"one"}, "metrics keep no engine alive"
    one.close()
    provider.shutdown()


def test_the_global_provider_may_come_later(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    instrument(idempotency)  # whatever it is, and even if it records nothing
    assert idempotency.once(tenant="acme", key=KEY, run=lambda: 1) == 1
    idempotency.close()


def test_misconfiguration_is_said_at_start_up(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    idempotency = Idempotency(sqlite_url)
    with pytest.raises(ConfigurationError, match="by_tenant"):
        instrument(idempotency, by_tenant="hashed")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    with pytest.raises(ConfigurationError, match=r"samekey\[prometheus\]"):
        metrics_app(idempotency)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"samekey\[metrics\]"):
        instrument(idempotency)
    idempotency.close()


# ------------------------------------------------------------------ failures


class BrokenInstrument:
    def add(self, *_: Any) -> None:
        raise RuntimeError("broken")

    record = add


class BrokenMeter(otel.NoOpMeter):
    def create_counter(self, *_: Any, **__: Any) -> Any:
        return BrokenInstrument()

    create_histogram = create_counter


class BrokenProvider(otel.MeterProvider):
    def get_meter(self, name: str, *_: Any, **__: Any) -> otel.Meter:
        return BrokenMeter(name)


class BrokenExporter(MetricExporter):
    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def export(self, *_: Any, **__: Any) -> MetricExportResult:
        self.asked.set()
        raise RuntimeError("broken")

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None: ...


def test_a_broken_meter_fails_no_request(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    instrument(service.idempotency, BrokenProvider())
    assert [service.post(), service.post(), service.post(body=2)] == [201, 201, 422]
    assert caplog.text.count("A metric could not be recorded") == 1, "said once, not per request"
    assert service.scrape().count("reserve.replay") == 1, "other observers go on"


def test_a_broken_exporter_fails_no_request(service: Service) -> None:
    exporter = BrokenExporter()
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=100)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instrument(service.idempotency, provider)
    assert [service.post(), service.post()] == [201, 201]
    assert exporter.asked.wait(10)
    assert service.post() == 201
    provider.shutdown()


class Watched:
    """A driver that counts, and waits or fails where the test says so."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.statements = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def execute(self, statement: Statement) -> Sequence[Row]:
        self.statements += 1
        assert self.gate.wait(20)
        if self.error is not None:
            raise self.error
        return self._driver.execute(statement)

    def open(self, connection: Any = None) -> Session:
        return self._driver.open(connection)

    def close(self) -> None:
        self._driver.close()


@pytest.fixture
def watched(sqlite_url: str) -> Iterator[tuple[Idempotency, Watched]]:
    idempotency = Idempotency(sqlite_url)
    driver = Watched(idempotency.engine.drivers.sync)
    idempotency.engine.drivers = Drivers("sqlite", driver, idempotency.engine.drivers.aio)
    yield idempotency, driver
    driver.gate.set()
    idempotency.close()


def test_the_store_is_asked_seldom(
    watched: tuple[Idempotency, Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "PATIENCE", 30.0)
    idempotency, driver = watched
    now = [100.0]
    figures = Readings(idempotency.engine, lambda: now[0])
    assert [figures.read() is None for _ in range(20)] == [False] * 20
    assert driver.statements == 1
    now[0] += FRESH
    assert figures.read() is not None
    assert driver.statements == 2
    # An outage: absent, said once, and there again when it is over.
    driver.error = RuntimeError("no figures today")
    now[0] += FRESH
    assert figures.read() is None
    driver.error = None
    assert figures.read() is None, "not asked again so soon"
    now[0] += FRESH
    assert figures.read() is not None


def test_a_scrape_never_waits_long(
    watched: tuple[Idempotency, Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "FRESH", 0.0)
    idempotency, driver = watched
    app = metrics_wsgi_app(idempotency)

    def scrape() -> Samples:
        return Samples(b"".join(app({"REQUEST_METHOD": "GET"}, lambda *given: None)).decode())

    wait_until(lambda: scrape().get("api_idempotency_outbox_lag_seconds") == 0)
    monkeypatch.setattr(readings, "PATIENCE", 0.2)
    driver.gate.clear()
    began, asked = time.monotonic(), driver.statements
    assert scrape().get("api_idempotency_outbox_lag_seconds") == 0, "figures that are not old yet"
    monkeypatch.setattr(readings, "STALE", 0.0)
    assert scrape().get("api_idempotency_outbox_lag_seconds") is None
    assert time.monotonic() - began < 10
    wait_until(lambda: driver.statements > asked)
    assert driver.statements == asked + 1, "nobody asks again while one waits"
    driver.gate.set()


def test_postgresql_and_a_black_hole(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "FRESH", 0.0)
    monkeypatch.setattr(readings, "STALE", 0.0)
    with FaultProxy.before(postgres_url) as proxy:
        idempotency = Idempotency(proxy.url_for(postgres_url), timeout=1.0)
        run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
        with serve(idempotency, 0) as server:
            idempotency.once(tenant="acme", key=KEY, run=lambda: 1)
            monkeypatch.setattr(readings, "STALE", timedelta(minutes=1).total_seconds())
            depth = "api_idempotency_dead_letter_depth"
            wait_until(lambda: Samples(httpx2.get(server.url).text).get(depth) == 0)
            assert Samples(httpx2.get(server.url).text).count("reserve.created") == 1
            monkeypatch.setattr(readings, "STALE", 0.0)
            proxy.stall()
            began = time.monotonic()
            hidden = Samples(httpx2.get(server.url, timeout=30).text)
            assert time.monotonic() - began < 20
            assert hidden.get(depth) is None
            assert hidden.count("reserve.created") == 1
            proxy.flow()
        idempotency.close()


# ------------------------------------------------------------------ the page


def test_the_examples_of_the_page_run(sqlite_url: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    idempotency = Idempotency(sqlite_url)
    names: dict[str, Any] = {"idempotency": idempotency, "app": Starlette()}
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for code in blocks:
        exec(compile(code, "docs/metrics.md", "exec"), names)
    assert TestClient(names["app"]).get("/metrics").status_code == 200
    idempotency.close()

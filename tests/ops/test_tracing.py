"""Spans around claims and ends: the decision and the digest are there, the key never is."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import StatusCode, Tracer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency, OutcomeUnknown, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import KeyReused, StoreUnavailable
from samekey.ops import tracing
from samekey.ops.tracing import instrument_tracing
from samekey.tenants import single_tenant

KEY = "raw-key-that-must-not-leak"
HEADERS = {"Idempotency-Key": KEY}


@dataclass
class Traced:
    """An application whose spans are kept."""

    idempotency: Idempotency
    client: TestClient
    path: Path
    exporter: InMemorySpanExporter
    tracer: Tracer

    def post(self, path: str, body: Any = 1) -> int:
        return self.client.post(path, headers=HEADERS, json=body).status_code

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        found = list(self.exporter.get_finished_spans())
        for span in found:
            assert KEY not in span.to_json(), "the key is in no attribute, event or status"
        return [span for span in found if name in (None, span.name)]

    def facts(self, name: str) -> list[dict[str, Any]]:
        return [
            {key.removeprefix("samekey."): value for key, value in (span.attributes or {}).items()}
            for span in self.spans(name)
        ]


def application(idempotency: Idempotency) -> Starlette:
    @idempotency.leased
    def sync(request: Request) -> JSONResponse:
        return JSONResponse({"done": True}, 201)

    @idempotency.atomic
    async def atomic(request: Request) -> JSONResponse:
        await current_operation().connection.execute("insert into effects values (1)", ())
        return JSONResponse({"done": True}, 201)

    @idempotency.leased
    async def lost(request: Request) -> JSONResponse:
        raise OutcomeUnknown(f"no answer about {KEY}")

    @idempotency.leased
    async def broken(request: Request) -> JSONResponse:
        raise RuntimeError(f"could not do {KEY}")

    @idempotency.phased("ride")
    async def ride(op: Any, given: Any) -> Response:
        await op.transaction("noted", _note)
        return Response(201, {"done": True})

    @idempotency.phased("slow_ride")
    def slow_ride(op: Any, given: Any) -> Response:
        op.transaction("noted", _note_sync)
        return Response(201, {"done": True})

    handlers: dict[str, Any] = {"sync": sync, "atomic": atomic, "lost": lost, "broken": broken}
    phased = {"ride": ride, "slow-ride": slow_ride}
    app = Starlette(
        routes=[Route(f"/{name}", made, methods=["POST"]) for name, made in {**handlers, **phased}.items()]
    )
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant("acme"))
    return app


async def _note(connection: Any) -> None:
    await connection.execute("insert into effects values (2)", ())


def _note_sync(connection: Any) -> None:
    connection.execute("insert into effects values (2)")


def make(path: Path) -> tuple[Idempotency, TestClient]:
    idempotency = Idempotency(f"sqlite:///{path}", timeout=0.2)
    connection = sqlite3.connect(path)
    connection.execute("create table effects (run int)")
    connection.commit()
    connection.close()
    return idempotency, TestClient(application(idempotency), raise_server_exceptions=False)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    path = tmp_path / "app.db"
    idempotency, client = make(path)
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrument_tracing(idempotency, provider)
    instrument_tracing(idempotency, provider)  # twice is once
    yield Traced(idempotency, client, path, exporter, provider.get_tracer("the application's"))
    asyncio.run(idempotency.aclose())


@pytest.mark.parametrize(("path", "mode"), [("/sync", "leased"), ("/atomic", "atomic")])
def test_a_request_and_its_retries(traced: Traced, path: str, mode: str) -> None:
    assert [traced.post(path), traced.post(path), traced.post(path, body=2)] == [201, 201, 422]
    digest = traced.idempotency.engine.digest("acme", KEY)
    claims = traced.facts(tracing.CLAIM)
    assert [claim["decision"] for claim in claims] == ["execute", "replay", "mismatch"]
    assert {(claim["mode"], claim["key_digest"]) for claim in claims} == {(mode, digest)}
    (finish,) = traced.facts(tracing.FINISH)
    assert finish == {
        "mode": mode,
        "key_digest": digest,
        "operation_id": claims[0]["operation_id"],
        "attempts": 1,
        "outcome": "remember",
        "status": 201,
    }


def test_an_unknown_outcome(traced: Traced) -> None:
    assert [traced.post("/lost"), traced.post("/lost")] == [409, 409]
    assert [claim["decision"] for claim in traced.facts(tracing.CLAIM)] == ["execute", "unknown"]
    assert [finish["outcome"] for finish in traced.facts(tracing.FINISH)] == ["unknown"]


def test_what_a_handler_raised_is_not_quoted(traced: Traced) -> None:
    assert [traced.post("/broken"), traced.post("/broken")] == [409, 409]
    assert [claim["decision"] for claim in traced.facts(tracing.CLAIM)] == ["execute", "unknown"]
    assert [finish["outcome"] for finish in traced.facts(tracing.FINISH)] == ["unknown"]


def test_what_the_store_raised_is_named_only(traced: Traced) -> None:
    assert traced.post("/atomic") == 201  # the schema has been checked
    other = sqlite3.connect(traced.path, isolation_level=None)
    other.execute("begin immediate")
    headers = {"Idempotency-Key": "another"}
    assert traced.client.post("/sync", headers=headers, json=1).status_code == 503
    other.close()
    claim = traced.spans(tracing.CLAIM)[-1]
    assert (claim.status.status_code, claim.status.description) == (StatusCode.ERROR, "StoreBusy")
    assert (claim.attributes or {})["error.type"] == "StoreBusy"
    assert not claim.events, "no exception with its text"


@pytest.mark.parametrize("path", ["/ride", "/slow-ride"])
def test_phased_work(traced: Traced, path: str) -> None:
    assert [traced.post(path), traced.post(path)] == [201, 201]
    assert [claim["decision"] for claim in traced.facts(tracing.CLAIM)] == ["execute", "replay"]
    (run,) = traced.facts(tracing.PHASES)
    assert run["key_digest"] == traced.idempotency.engine.digest("acme", KEY)
    assert (run["definition"], run["status"]) == (f"{path[1:].replace('-', '_')}/1", 201)


def test_plain_functions(traced: Traced) -> None:
    engine = traced.idempotency
    assert engine.once(tenant="acme", key=KEY, run=lambda: 1) == 1

    async def work() -> int:
        return 2

    async def later() -> list[int]:
        first = await engine.once_async(tenant="globex", key=KEY, run=work)
        return [first, await engine.once_async(tenant="globex", key=KEY, run=work)]

    assert asyncio.run(later()) == [2, 2]
    with pytest.raises(KeyReused):
        engine.once(tenant="acme", key=KEY, payload=2, run=lambda: 1)
    decisions = [(claim["decision"], claim["key_digest"]) for claim in traced.facts(tracing.CLAIM)]
    acme, globex = engine.engine.digest("acme", KEY), engine.engine.digest("globex", KEY)
    assert decisions == [("execute", acme), ("execute", globex), ("replay", globex), ("mismatch", acme)]


def test_spans_are_children_of_the_callers(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("request") as outer:
        with traced.tracer.start_as_current_span("inner") as inner:
            traced.idempotency.once(tenant="acme", key=KEY, run=lambda: 1)
        traced.tracer.start_span("after").end()
    parents = {span.name: span.parent.span_id for span in traced.spans() if span.parent is not None}
    inside, outside = inner.get_span_context().span_id, outer.get_span_context().span_id
    assert parents == {
        tracing.CLAIM: inside,
        tracing.FINISH: inside,
        "inner": outside,
        "after": outside,  # whatever was made current is no longer
    }


# ------------------------------------------------------------------ failures


class BrokenProcessor(SpanProcessor):
    def on_start(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    on_end = on_start


class BrokenEnd(SpanProcessor):
    def on_end(self, *_: Any) -> None:
        raise RuntimeError("broken")


class BrokenExporter(SpanExporter):
    def export(self, *_: Any) -> Any:
        raise RuntimeError("broken")


class BrokenSampler(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    def get_description(self) -> str:
        return "broken"


@pytest.mark.parametrize("what", ["processor", "end", "exporter", "sampler"])
def test_broken_tracing_fails_no_request(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_complained", False)
    idempotency, client = make(tmp_path / "app.db")
    sampler = BrokenSampler() if what == "sampler" else None
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    if what != "sampler":
        processors: dict[str, SpanProcessor] = {
            "processor": BrokenProcessor(),
            "end": BrokenEnd(),
            "exporter": SimpleSpanProcessor(BrokenExporter()),
        }
        provider.add_span_processor(processors[what])
    instrument_tracing(idempotency, provider)
    for path in ("/sync", "/atomic", "/ride", "/slow-ride"):
        headers = {"Idempotency-Key": f"{KEY}{path}"}
        answers = [client.post(path, headers=headers, json=body).status_code for body in (1, 1, 2)]
        assert answers == [201, 201, 422]
    with pytest.raises(StoreUnavailable):  # errors of the engine still come through
        idempotency.once(tenant="acme", key=KEY, run=_unavailable)
    asyncio.run(idempotency.aclose())


def _unavailable() -> None:
    raise StoreUnavailable("as the test wants it")


def test_a_broken_digest_fails_no_request(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_finished", lambda finished: 1 / 0)
    monkeypatch.setattr(tracing, "_claimed", lambda begun: 1 / 0)
    assert [traced.post("/sync"), traced.post("/sync")] == [201, 201]


def test_without_opentelemetry_nothing_happens(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    idempotency = Idempotency(sqlite_url)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    before = dict(vars(idempotency))
    instrument_tracing(idempotency)
    assert vars(idempotency) == before
    assert "no tracing without opentelemetry-api" in caplog.text
    assert idempotency.once(tenant="acme", key=KEY, run=lambda: 1) == 1
    idempotency.close()

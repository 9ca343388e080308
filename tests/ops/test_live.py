"""Who sends keys and who does not, as a roll-out sees it; clients are told before they are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import flask
import pytest
from litestar import Litestar
from litestar import post as litestar_post
from litestar.params import FromPath
from litestar.testing import TestClient as LitestarClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from samekey import ConfigurationError, Idempotency, current_operation, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.engine.events import Event
from samekey.flask import Samekey
from samekey.litestar import SamekeyPlugin
from samekey.ops.coverage import coverage
from samekey.ops.live import read_live
from samekey.ops.metrics import MAX_CALLERS, instrument
from samekey.ops.prometheus import serve
from samekey.ops.spec_openapi import openapi
from samekey.ops.spec_page import markdown
from tests.ops.test_ledger_cli import run

Declare = Callable[[Any], Any]
Post = Callable[..., Any]
"""Sends a request to ``/pay/{id}``: headers in, answer out."""
SOON = datetime.now(UTC) + timedelta(days=30)
PAST = datetime.now(UTC) - timedelta(seconds=1)


def by_header(context: Any) -> str | None:
    if "wsgi.input" in context:
        found = context.get("HTTP_ACCOUNT")
        return None if found is None else str(found)
    return next((value.decode() for name, value in context["headers"] if name == b"account"), None)


def starlette(idempotency: Idempotency, declare: Declare, **options: Any) -> tuple[Any, Post]:
    async def pay(request: Request) -> Response:
        return JSONResponse({"operation": current_operation().id}, 201)

    routes = [Route("/pay/{id}", declare(pay), methods=["POST"])]
    app = IdempotencyMiddleware(
        Starlette(routes=routes), idempotency=idempotency, tenant=by_header, **options
    )
    client = TestClient(app)
    return app, lambda **headers: client.post("/pay/1", headers=headers)


def mounted(idempotency: Idempotency, declare: Declare, **options: Any) -> tuple[Any, Post]:
    inner, _ = starlette(idempotency, declare, **options)
    app = Starlette(routes=[Mount("/v1", inner)])
    return app, lambda **headers: TestClient(app).post("/v1/pay/1", headers=headers)


def in_flask(idempotency: Idempotency, declare: Declare, **options: Any) -> tuple[Any, Post]:
    app = flask.Flask("shop")

    def pay(id: str) -> Any:
        return {"operation": current_operation().id}, 201

    app.post("/pay/<id>")(declare(pay))
    Samekey(idempotency, app, tenant=by_header, **options)
    return app, lambda **headers: app.test_client().post("/pay/1", headers=headers)


def in_litestar(idempotency: Idempotency, declare: Declare, **options: Any) -> tuple[Any, Post]:
    async def pay(id: FromPath[str]) -> dict[str, str]:
        return {"operation": current_operation().id}

    plugin = SamekeyPlugin(idempotency, tenant=by_header, **options)
    app = Litestar(
        [litestar_post("/pay/{id:str}", status_code=201)(declare(pay))], plugins=[plugin], logging_config=None
    )
    return app, lambda **headers: LitestarClient(app).post("/pay/1", headers=headers)


FRAMEWORKS = {"starlette": starlette, "mounted": mounted, "flask": in_flask, "litestar": in_litestar}
frameworks = pytest.mark.parametrize("framework", FRAMEWORKS)
DECLARED: dict[str, Callable[[Idempotency], Declare]] = {
    "leased": lambda idempotency: idempotency.leased(required=False),
    "atomic": lambda idempotency: idempotency.atomic(required=False),
    "undecorated": lambda idempotency: lambda handler: handler,
}


@pytest.mark.parametrize("declared", DECLARED)
@frameworks
@pytest.mark.filterwarnings("ignore:The atomic handler answered 201 but wrote nothing")
def test_every_request_is_told_by_its_route_its_key_and_its_caller(
    samekey_url: str, framework: str, declared: str
) -> None:
    idempotency, seen = Idempotency(samekey_url), []

    def observe(event: Event) -> None:
        if event.name == "request":
            seen.append((event.facts["endpoint"], event.facts["key"], event.tenant))

    idempotency.events.subscribe(observe)
    app, post = FRAMEWORKS[framework](idempotency, DECLARED[declared](idempotency))
    assert post(account="alice", **{"Idempotency-Key": "k-1"}).status_code == 201
    assert post(account="alice").status_code == 201
    assert post().status_code == 201, "who cannot be told is served as before"
    assert post(account="bob", **{"Idempotency-Key": "a, b"}).status_code == 400
    assert {endpoint for endpoint, _, _ in seen} <= {
        f"POST {template}" for template in ("/pay/{id}", "/pay/<id>", "/pay/{id:str}")
    }, "the template, and never the path"
    assert [(key, tenant) for _, key, tenant in seen] == [
        ("sent", "alice"),
        ("absent", "alice"),
        ("absent", None),
        ("malformed", "bob"),
    ]
    assert coverage(app)
    idempotency.close()


@pytest.mark.parametrize("mode", ["leased", "atomic"])
@frameworks
@pytest.mark.filterwarnings("ignore:The atomic handler answered 201 but wrote nothing")
def test_a_key_that_is_required_from_a_day_on_is_asked_for_before(
    samekey_url: str, framework: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    idempotency, seen = Idempotency(samekey_url), []
    idempotency.events.subscribe(lambda event: seen.append(event.facts.get("key")))
    declare = getattr(idempotency, mode)
    _, post = FRAMEWORKS[framework](idempotency, declare(required_from=SOON))
    with caplog.at_level(logging.WARNING, "samekey"):
        first, second = post(account="a"), post(account="a")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.headers["Idempotency-Key-Required"] == f"{SOON:%a, %d %b %Y %H:%M:%S} GMT"
    assert len([one for one in caplog.messages if "without a key" in one]) == 1
    with_key = post(account="a", **{"Idempotency-Key": "k"})
    assert "Idempotency-Key-Required" not in with_key.headers
    assert [key for key in seen if key is not None] == ["warned", "warned", "sent"]
    _, post = FRAMEWORKS[framework](idempotency, declare(required_from=PAST))
    assert (post(account="a").status_code, seen[-1]) == (400, "missing")
    idempotency.close()


def test_the_middleware_can_say_the_day_for_undecorated_routes(samekey_url: str) -> None:
    idempotency = Idempotency(samekey_url, policy=ietf(required_from=SOON, required_at_edge=True))
    _, post = starlette(idempotency, lambda handler: handler)
    answer = post(account="a")
    assert answer.status_code == 201 and "Idempotency-Key-Required" in answer.headers
    # What cannot do without a key is required at once, whatever the policy says.
    definition: Any = idempotency.phased("pay")(lambda op, given: {})
    assert definition.__samekey_guard__.rules.refuses_without_key
    idempotency.close()


@pytest.mark.parametrize(
    ("sentence", "declare"),
    [
        ("has no effect", lambda one: one.leased(required=False, required_from=SOON)),
        ("cannot do without a key", lambda one: one.deferred(required_from=SOON)),
        ("cannot do without a key", lambda one: one.phased("x", required_from=SOON)),
        ("must have a time zone", lambda one: one.leased(required_from=datetime(2027, 3, 1))),
        ("a datetime with a time zone or None", lambda one: one.leased(required_from="2027-03-01")),
    ],
)
def test_a_day_that_would_have_no_effect_is_refused(
    samekey_url: str, sentence: str, declare: Callable[[Idempotency], Any]
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        declare(Idempotency(samekey_url))


def test_the_day_is_published(samekey_url: str) -> None:
    idempotency = Idempotency(samekey_url)
    day = datetime(2999, 3, 1, tzinfo=timezone(timedelta(hours=1)))
    app, _ = starlette(idempotency, idempotency.leased(required_from=day))
    (route,) = coverage(app)
    assert route.describe() == "leased, required from 2999-03-01"
    assert "| required from 2999-03-01 |" in markdown(app)
    described = openapi(app)["paths"]["/pay/{id}"]["post"]
    assert described["x-idempotency"]["required_from"] == day.isoformat()
    assert described["parameters"][0]["$ref"].endswith("IdempotencyKeyOptional")


APPLICATION = """
from datetime import UTC, datetime

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from tests.ops.test_live import by_header

idempotency = Idempotency("sqlite:///:memory:")

@idempotency.leased(required=False)
async def pay(request):
    return Response(status_code=201)

@idempotency.leased(required_from=datetime(2999, 3, 1, tzinfo=UTC))
async def refund(request):
    return Response(status_code=201)

app = IdempotencyMiddleware(
    Starlette(routes=[Route("/pay", pay, methods=["POST"]), Route("/refund/{id}", refund, methods=["POST"])]),
    idempotency=idempotency,
    tenant=by_header,
)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "live_shop.py").write_text(APPLICATION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib
    import sys

    sys.modules.pop("live_shop", None)
    yield importlib.import_module("live_shop")
    sys.modules.pop("live_shop", None)


def test_the_command_shows_what_a_running_application_has_counted(shop: Any) -> None:
    with serve(shop.idempotency, 0, by_tenant=True) as metrics, TestClient(shop.app) as client:
        for account, path, key in [
            ("alice", "/pay", "a"),
            ("alice", "/pay", "b"),
            ("alice", "/pay", None),
            ("bob", "/pay", None),
            ("bob", "/pay", None),
            ("bob", "/refund/7", None),
        ]:
            headers = {"account": account} | ({} if key is None else {"Idempotency-Key": key})
            assert client.post(path, headers=headers).status_code == 201
        told = run("coverage", "live_shop:app", "--live", metrics.url)
        twice = run("coverage", "live_shop:app", "--live", metrics.url, "--live", metrics.url, "--json")
    assert told.output == (
        "method  path          guarded                           with key  without   who sends none\n"
        "POST    /pay          leased, optional                  2         3 (60%)   bob (2), alice (1)\n"
        "POST    /refund/{id}  leased, required from 2999-03-01  0         1 (100%)  bob (1)\n"
        "\nAll 2 state-changing routes are accounted for.\n"
    )
    pay, refund = json.loads(twice.output)["routes"]
    assert pay["live"] == {
        **{"sent": 4, "malformed": 0, "absent": 6, "warned": 0, "missing": 0},
        "keyless_by_tenant": {"alice": 2, "bob": 4},
    }
    assert (refund["live"]["warned"], refund["required_from"]) == (2, "2999-03-01T00:00:00+00:00")
    assert run("coverage", "live_shop:app", "--required").exit_code == 1, "both still run without a key"


def test_a_file_of_metrics_is_read_and_what_belongs_elsewhere_is_said(shop: Any, tmp_path: Path) -> None:
    name = "api_idempotency_request_count_total"
    (tmp_path / "scraped").write_text(
        f'{name} 0\n{name}{{endpoint="POST /other",key="absent",instance="a"}} 2\n'
        f'{name}{{endpoint="POST /pay",key="sent",instance="a"}} 3\n'
        f'{name}{{endpoint="POST /pay",key="sent",instance="b"}} 4\n'
    )
    told = run("coverage", "live_shop:app", "--live", "scraped").output
    assert "POST    /pay          leased, optional                  7         0 (0%)" in told
    assert "POST /other is no route of this application: 0 with a key, 2 (100%) without." in told


def test_a_path_below_a_mount_finds_its_route(samekey_url: str) -> None:
    from samekey.cli.coverage import placed
    from samekey.ops.live import LiveUse

    idempotency = Idempotency(samekey_url)
    app, _ = mounted(idempotency, idempotency.leased)
    (route,) = coverage(app)
    use = LiveUse()
    found = placed([route], {"POST /pay/{id}": use})
    assert route.path == "/v1/pay/{id}" and found.of(route) is use and not found.elsewhere
    idempotency.close()


def test_what_shows_no_metrics_of_ours_is_refused_with_a_sentence(shop: Any, tmp_path: Path) -> None:
    (tmp_path / "scraped").write_text("up 1\n")
    (tmp_path / "page").write_text("<html>no</html>\n")
    for source, sentence in {
        "scraped": "does not show the metrics",
        "page": "text format",
        "nowhere": "cannot be read",
        "http://127.0.0.1:1/metrics": "cannot be read",
    }.items():
        result = run("coverage", "live_shop:app", "--live", source)
        assert result.exit_code == 2 and sentence in result.output, source
        with pytest.raises(ConfigurationError, match=sentence):
            read_live([source])


def test_callers_are_told_apart_only_as_far_as_a_meter_can(samekey_url: str) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    idempotency, reader = Idempotency(samekey_url), InMemoryMetricReader()
    instrument(idempotency, MeterProvider([reader]), by_tenant=True, max_tenants=10_000)
    for number in range(MAX_CALLERS + 5):
        idempotency.events.emit("request", tenant=f"t{number}", endpoint="POST /pay", key="absent")
    data: Any = reader.get_metrics_data()
    points = {
        point.attributes.get("tenant"): point.value
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "api.idempotency.request.count"
        for point in metric.data.data_points
    }
    assert len(points) == MAX_CALLERS + 2 and points["other"] == 5
    idempotency.close()

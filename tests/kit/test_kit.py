"""The kit that users test their own applications with, on applications as users write them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from importlib.resources import files
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware as Asgi
from samekey.testing.kit import AsyncKit, Kit
from samekey.testing.kit_store import TIMES
from samekey.wsgi import IdempotencyMiddleware as Wsgi

OpenKit = Callable[..., Kit]
charged: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _nothing_charged() -> None:
    charged.clear()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.whole)])
def url(request: pytest.FixtureRequest, samekey_url: str) -> str:
    if request.param == "sqlite":
        return samekey_url
    found: str = request.getfixturevalue("postgres_url")
    return found


class Shop:
    """A small application, ASGI or WSGI, with a handler of every mode."""

    def __init__(self, url: str) -> None:
        self.idempotency = Idempotency(url)
        self.idempotency.migrate()
        self.reach: Callable[[str], None] = lambda _name: None
        self.shipped: list[str] = []

        @self.idempotency.job("ship")
        def ship(_job: Any, payload: Any) -> None:
            self.shipped.append(payload["sku"])

    def charge(self) -> dict[str, Any]:
        charged[str(current_operation().downstream_key())] += 1
        self.reach("charged")
        return {"charges": sum(charged.values())}

    def asgi(self) -> Any:
        app = FastAPI()
        leased = self.idempotency.leased(self._leased_async)
        app.add_api_route("/pay", leased, methods=["POST"], status_code=201)
        app.add_api_route("/ship", self.idempotency.deferred(self._ship_async), methods=["POST"])
        app.add_middleware(Asgi, idempotency=self.idempotency, tenant=lambda _request: "alice")
        return app

    async def _leased_async(self, request: Request) -> JSONResponse:
        return JSONResponse(self.charge(), 201)

    async def _ship_async(self, request: Request) -> JSONResponse:
        await current_operation().enqueue("ship", await request.json())
        return JSONResponse({"accepted": True}, 202)

    def wsgi(self) -> Any:
        app = flask.Flask("shop")

        @app.post("/pay")
        @self.idempotency.leased
        def pay() -> tuple[dict[str, Any], int]:
            return self.charge(), 201

        @app.post("/ship")
        @self.idempotency.deferred
        def ship() -> tuple[dict[str, Any], int]:
            current_operation().enqueue("ship", flask.request.get_json())
            return {"accepted": True}, 202

        guarded = Wsgi(app.wsgi_app, idempotency=self.idempotency, tenant=lambda _request: "alice")
        app.wsgi_app = guarded  # type: ignore[method-assign]
        return app


@pytest.fixture(params=["asgi", "wsgi"])
def shop(request: pytest.FixtureRequest, url: str, samekey_kit: OpenKit) -> tuple[Shop, Kit]:
    made = Shop(url)
    kit = samekey_kit(getattr(made, request.param)(), made.idempotency)
    made.reach = kit.reach
    kit.reset()
    return made, kit


def test_a_retry_is_replayed_byte_for_byte(shop: tuple[Shop, Kit]) -> None:
    _, kit = shop
    first = kit.post("/pay", json={"amount": 1})
    again = kit.retry(first)
    assert (first.status, first.replayed) == (201, False), first.body
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert sum(charged.values()) == 1


def test_without_a_key_the_handler_asks_for_one(shop: tuple[Shop, Kit]) -> None:
    assert shop[1].post("/pay", json={}, key="").status == 400
    assert not charged


def test_duplicates_at_once_make_one_charge(shop: tuple[Shop, Kit]) -> None:
    _, kit = shop
    answers = kit.duplicates(kit.request("POST", "/pay", json={}), count=5)
    assert {answer.status for answer in answers} <= {201, 409}
    assert sum(charged.values()) == 1


def test_a_crash_after_the_charge_is_not_charged_again(shop: tuple[Shop, Kit]) -> None:
    _, kit = shop
    request = kit.request("POST", "/pay", json={})
    kit.crash(request, at="charged")
    assert kit.retry(request).json()["code"] == "in_progress"
    kit.move_on(timedelta(hours=1))
    kit.work()
    again = kit.retry(request)
    assert (again.status, again.json()["code"]) == (409, "outcome_unknown")
    assert sum(charged.values()) == 1


def test_a_crash_before_the_claim_leaves_nothing(shop: tuple[Shop, Kit]) -> None:
    _, kit = shop
    points = kit.points(kit.request("POST", "/pay", json={}))
    assert "charged" in points
    charged.clear()
    request = kit.request("POST", "/pay", json={})
    kit.crash(request, at=points[0])
    assert not charged
    assert kit.retry(request).status == 201


def test_a_point_that_is_never_reached_is_told(shop: tuple[Shop, Kit]) -> None:
    _, kit = shop
    with pytest.raises(AssertionError, match=r"never came to 'the moon'\. It passed: .*charged"):
        kit.crash(kit.request("POST", "/pay", json={}), at="the moon")


def test_the_worker_runs_once(shop: tuple[Shop, Kit]) -> None:
    made, kit = shop
    accepted = kit.post("/ship", json={"sku": "book"})
    assert (accepted.status, made.shipped) == (202, [])
    assert kit.work() == 1
    assert made.shipped == ["book"]
    assert kit.work() == 0


def test_an_answer_expires_when_time_has_moved_on(shop: tuple[Shop, Kit]) -> None:
    _, kit = shop
    first = kit.post("/pay", json={})
    kit.move_on(timedelta(days=2))
    assert kit.reap() == 1
    assert not kit.retry(first).replayed
    assert sum(charged.values()) == 2


def test_reset_forgets_every_key(shop: tuple[Shop, Kit]) -> None:
    _, kit = shop
    first = kit.post("/pay", json={})
    kit.reset()
    assert not kit.retry(first).replayed


async def _the_same_with_await(url: str) -> None:
    made = Shop(url)
    async with AsyncKit(made.asgi(), made.idempotency) as kit:
        await kit.reset()
        first = await kit.post("/pay", json={})
        assert (await kit.retry(first)).replayed
        request = kit.request("POST", "/pay", json={})
        answers = await kit.duplicates(request, 3)
        assert sum(answer.status == 201 and not answer.replayed for answer in answers) == 1


def test_async_tests(url: str) -> None:
    asyncio.run(_the_same_with_await(url))


@pytest.mark.parametrize("dialect", ["sqlite", "postgres", "mysql"])
def test_every_moment_that_is_kept_moves(dialect: Any) -> None:
    text = files("samekey.stores.sql").joinpath(dialect, "migrations", "0001_samekey.sql").read_text("utf-8")
    kept: dict[str, list[str]] = {}
    tables = re.findall(
        r"create table (?:if not exists )?(?:samekey_|\{schema\}\.)(\w+) \((.*?)\n\)", text, re.DOTALL
    )
    for table, columns in tables:
        moments = re.findall(r"^    (at|\w+_at|\w+_until)\s+(?:bigint|integer)", columns, re.MULTILINE)
        if moments:
            kept[table] = sorted(moments)
    assert kept == {table: sorted(columns) for table, columns in TIMES.items()}

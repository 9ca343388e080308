"""What a framework makes of a handler's answer, and gives to a handler, is the same in every mode."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from flask import Blueprint, Flask, abort, request
from flask.views import MethodView
from litestar import Controller, Litestar, Router
from litestar import post as litestar_post
from litestar.di import NamedDependency, Provide
from litestar.dto import DataclassDTO, DTOConfig
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.testing import TestClient as LitestarClient
from pydantic import BaseModel
from starlette.testclient import TestClient

from samekey import Idempotency, PhasedOperation, Response, current_operation
from samekey.fastapi import guarded, install, operation
from samekey.flask import Samekey
from samekey.litestar import SamekeyPlugin
from samekey.ops.coverage import coverage
from samekey.ops.spec_openapi import openapi
from samekey.tenants import single_tenant

MODES = ["atomic", "leased", "deferred", "phased"]
PATH = "/shops/7/orders?gift=true"
MADE = {"sku": "tea", "shop": 7, "gift": True, "clerk": "clerk"}


class Wanted(BaseModel):
    sku: str


class Order(BaseModel):
    sku: str
    shop: int
    gift: bool
    clerk: str


def clerk() -> str:
    return "clerk"


Clerk = Annotated[str, Depends(clerk)]


@dataclass
class Sent:
    sku: str


@dataclass
class Given:
    sku: str
    shop: int
    gift: bool
    clerk: str
    secret: str


class Shown(DataclassDTO[Given]):
    config = DTOConfig(exclude={"secret"})


@pytest.fixture
def idempotency(tmp_path: Path) -> Iterator[Idempotency]:
    with sqlite3.connect(tmp_path / "modes.db") as setup:
        setup.execute("create table orders (sku text)")
    setup.close()
    made = Idempotency(f"sqlite:///{tmp_path / 'modes.db'}")
    made.job("ship")(lambda job, order: Response(201, MADE))
    yield made
    made.close()


def guard(idempotency: Idempotency, mode: str) -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = (
        idempotency.phased("order") if mode == "phased" else getattr(idempotency, mode)
    )
    return found


def done(mode: str, **given: Any) -> dict[str, Any]:
    """What every handler does. ``secret`` is no part of what is declared."""
    if mode == "atomic":
        current_operation().connection.execute("insert into orders values (?)", (given["sku"],))
    if mode == "deferred":
        current_operation().enqueue("ship", {})
    return {**given, "secret": "for nobody"}


def status_of(mode: str) -> int:
    return 202 if mode == "deferred" else 201


def check(send: Callable[..., Any], mode: str, refused: int) -> None:
    """``send`` gives status, document and whether it is a replay."""
    assert send("k", {}) == (refused, False), "what is not valid is refused before the claim"
    first, again = send("k", {"sku": "tea"}, whole=True), send("k", {"sku": "tea"}, whole=True)
    assert first == (status_of(mode), MADE, False)
    if mode == "deferred":
        assert (again[0], again[1]["state"]) == (202, "pending"), "its job is still to be done"
    else:
        assert again == (first[0], first[1], True)
    assert send("k", {"sku": "milk"}) == (422, False)


def sender(post: Callable[..., Any]) -> Callable[..., Any]:
    def send(key: str, document: Any, *, whole: bool = False) -> Any:
        got = post(PATH, json=document, headers={"Idempotency-Key": key})
        replayed = got.headers.get("Idempotent-Replayed") == "true"
        body = got.get_json() if hasattr(got, "get_json") else got.json()
        return (got.status_code, body, replayed) if whole else (got.status_code, replayed)

    return send


def _but(phased: str, *others: str) -> list[tuple[str, str]]:
    """Each mode in each style. A phased function has a name of its own, so it has one style: the decorator
    of a function."""
    both = [(mode, style) for mode in MODES for style in (phased, *others)]
    return [(mode, style) for mode, style in both if mode != "phased" or style == phased]


@pytest.mark.parametrize(("mode", "style"), _but("decorator", "dependency", "router"))
def test_fastapi(mode: str, style: str, idempotency: Idempotency) -> None:
    """``response_model``, ``status_code``, ``Depends``, path and query, in a router that is included."""
    app = FastAPI()
    install(app, idempotency, tenant=single_tenant())
    options: dict[str, Any] = {"status_code": status_of(mode), "response_model": Order}
    if mode == "phased":
        router = APIRouter(prefix="/shops/{shop}")

        @router.post("/orders", **options)
        @idempotency.phased("order")
        def phased(op: PhasedOperation, wanted: Wanted, shop: int, gift: bool, clerk: Clerk) -> Any:
            return done(mode, sku=wanted.sku, shop=shop, gift=gift, clerk=clerk)

    else:
        given: Any = {}
        if style == "dependency":
            given = {"dependencies": [Depends(operation(idempotency, mode))]}  # type: ignore[arg-type]
        elif style == "router":
            given = {"route_class": guarded(idempotency, mode)}  # type: ignore[arg-type]
        router = APIRouter(prefix="/shops/{shop}", **given)

        def place(wanted: Wanted, shop: int, gift: bool, clerk: Clerk) -> Any:
            return done(mode, sku=wanted.sku, shop=shop, gift=gift, clerk=clerk)

        router.post("/orders", **options)(guard(idempotency, mode)(place) if style == "decorator" else place)
    app.include_router(router)
    with TestClient(app) as client:
        check(sender(client.post), mode, 422)
    assert [str(one) for one in coverage(app)] == [f"POST /shops/{{shop}}/orders: {mode}, required"]


@pytest.mark.parametrize("mode", MODES)
def test_litestar(mode: str, idempotency: Idempotency) -> None:
    """A DTO, ``status_code``, a dependency, path and query, in a controller of a router. (What a phased
    function returns is plain; Litestar's own status for a POST counts.)"""

    handler: Any
    if mode == "phased":

        @litestar_post("/orders", sync_to_thread=True)
        @idempotency.phased("order")
        def phased(
            op: PhasedOperation,
            data: JSONBody[Wanted],
            shop: FromPath[int],
            gift: FromQuery[bool],
            clerk: NamedDependency[str],
        ) -> Any:
            return {"sku": data.sku, "shop": shop, "gift": gift, "clerk": clerk}

        handler = phased
    else:

        class Orders(Controller):
            @litestar_post("/orders", status_code=status_of(mode), return_dto=Shown, sync_to_thread=True)
            @guard(idempotency, mode)
            def place(
                self,
                data: JSONBody[Sent],
                shop: FromPath[int],
                gift: FromQuery[bool],
                clerk: NamedDependency[str],
            ) -> Given:
                return Given(**done(mode, sku=data.sku, shop=shop, gift=gift, clerk=clerk))

        handler = Orders
    provided = {"clerk": Provide(clerk, sync_to_thread=False)}
    shops = Router("/shops/{shop:int}", route_handlers=[handler], dependencies=provided)
    app = Litestar([shops], plugins=[SamekeyPlugin(idempotency, tenant=single_tenant())])
    with LitestarClient(app) as client:
        check(sender(client.post), mode, 400)
    assert [str(one) for one in coverage(app)] == [f"POST /shops/{{shop}}/orders: {mode}, required"]
    assert "/shops/{shop}/orders" in openapi(app)["paths"]


@pytest.mark.parametrize(("mode", "style"), _but("function", "class"))
def test_flask(mode: str, style: str, idempotency: Idempotency) -> None:
    """A tuple with its status, path and query, in a blueprint of an application factory."""
    samekey = Samekey(idempotency, tenant=single_tenant())
    shops = Blueprint("shops", __name__, url_prefix="/shops/<int:shop>")

    @shops.before_request
    def validate() -> None:
        if "sku" not in (request.get_json() or {}):
            abort(400)

    def work(document: Any, shop: int, gift: bool) -> Any:
        made = done(mode, sku=document["sku"], shop=shop, gift=gift, clerk=clerk())
        return {name: made[name] for name in made if name != "secret"}, status_of(mode)

    def phased(op: PhasedOperation, input: Any, shop: int) -> Any:
        return work(input.json(), shop, "gift=true" in PATH)

    def view(shop: int) -> Any:
        return work(request.get_json(), shop, request.args["gift"] == "true")

    class Orders(MethodView):
        def post(self, shop: int) -> Any:
            return view(shop)

    if style == "function":
        shops.post("/orders")(guard(idempotency, mode)(phased if mode == "phased" else view))
    else:
        Orders.post = guard(idempotency, mode)(Orders.post)  # type: ignore[method-assign]
        shops.add_url_rule("/orders", view_func=Orders.as_view("orders"))

    def create_app() -> Flask:
        app = Flask("shop")
        samekey.init_app(app)
        app.register_blueprint(shops)
        return app

    app = create_app()
    check(sender(app.test_client().post), mode, 400)
    assert [str(one) for one in coverage(app)] == [f"POST /shops/<int:shop>/orders: {mode}, required"]
    assert "/shops/{shop}/orders" in openapi(app)["paths"]

"""A handler speaks the language of its own framework, whichever one the middleware stands around; and what
others have said before it ran is not its word."""

from __future__ import annotations

import warnings
from typing import Any

import flask
import pytest
from fastapi import Depends, FastAPI, Response
from werkzeug.exceptions import TooManyRequests

from samekey import current_operation
from tests.edges.shop import Shop

Run = dict[str, int]


def mounted(shop: Shop, app: flask.Flask) -> Any:
    """Flask below FastAPI, behind an adapter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from starlette.middleware.wsgi import WSGIMiddleware
    outer = FastAPI()
    outer.mount("/shop", WSGIMiddleware(app))
    return shop.guard(outer)


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize(
    ("answer", "runs", "last"),
    [
        (lambda: flask.abort(409), 1, 409),
        (lambda: flask.abort(429), 3, 429),
        (lambda: ({"paid": True}, 201), 1, 201),
        (lambda: ({"busy": True}, 429), 3, 429),
    ],
)
def test_a_view_of_flask_below_fastapi(
    shop: Shop, answer: Any, runs: int, last: int, decorated: bool
) -> None:
    app = flask.Flask(__name__)

    def pay() -> Any:
        shop.charge()
        return answer()

    app.post("/pay")(shop.idempotency.leased(pay) if decorated else pay)
    got = shop.send(mounted(shop, app), times=3, path="/shop/pay")
    assert [one.status for one in got] == [last] * 3, got
    assert all(one.code is None for one in got) and shop.charges == runs


def test_a_503_that_a_view_of_flask_returns_below_fastapi_is_its_own_word(shop: Shop) -> None:
    app = flask.Flask(__name__)

    @app.post("/pay")
    @shop.idempotency.leased
    def pay() -> Any:
        shop.charge()
        return ({"busy": True}, 503) if shop.charges == 1 else {"run": shop.charges}

    got = shop.send(mounted(shop, app), times=3, path="/shop/pay")
    assert [one.status for one in got] == [503, 200, 200] and got[2].replayed and shop.charges == 2


def test_atomic_work_of_flask_below_fastapi(shop: Shop) -> None:
    """The view has its request from Flask, so it is the handler, and not something in the middle."""
    app = flask.Flask(__name__)

    @app.post("/pay")
    @shop.idempotency.atomic
    def pay() -> Any:
        shop.charge()
        current_operation().connection.execute(shop.store.insert, (shop.world.name, 1))
        return {"run": shop.charges}

    got = shop.send(mounted(shop, app), times=3, path="/shop/pay")
    assert [one.json() for one in got] == [{"run": 1}] * 3 and got[2].replayed
    assert shop.store.effects(shop.world) == 1


def test_an_exception_of_another_framework_is_any_other_error(shop: Shop) -> None:
    """Starlette makes a 500 of it: what raised it may have acted before."""
    app = FastAPI()

    @app.post("/pay")
    async def pay() -> None:
        shop.charge()
        raise TooManyRequests

    got = shop.send(shop.guard(app), times=3)
    assert [one.status for one in got] == [409] * 3 and shop.charges == 1
    assert got[2].code == "outcome_unknown"


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("sync", [False, True])
def test_a_status_that_a_dependency_has_set_is_not_the_handlers_word(
    shop: Shop, sync: bool, decorated: bool
) -> None:
    """A limiter that only warns: the handler acts all the same."""
    app = FastAPI()

    async def limited(response: Response) -> None:
        response.status_code = 429

    async def pay(response: Response, _: None = Depends(limited)) -> Run:
        shop.charge()
        return {"run": shop.charges}

    def sync_pay(response: Response, _: None = Depends(limited)) -> Run:
        shop.charge()
        return {"run": shop.charges}

    handler: Any = sync_pay if sync else pay
    app.post("/pay")(shop.idempotency.leased(handler) if decorated else handler)
    got = shop.send(shop.guard(app), times=3)
    assert [one.status for one in got] == [409] * 3 and shop.charges == 1
    assert got[2].code == "outcome_unknown"


@pytest.mark.parametrize("before", [None, 201])
def test_a_status_that_the_handler_sets_is_its_word(shop: Shop, before: int | None) -> None:
    app = FastAPI()

    async def prepared(response: Response) -> None:
        if before is not None:
            response.status_code = before

    @app.post("/pay")
    @shop.idempotency.leased
    async def pay(response: Response, _: None = Depends(prepared)) -> Run:
        shop.charge()
        response.status_code = 429 if shop.charges < 3 else 202
        return {"run": shop.charges}

    got = shop.send(shop.guard(app), times=4)
    assert [one.status for one in got] == [429, 429, 202, 202] and got[3].replayed and shop.charges == 3

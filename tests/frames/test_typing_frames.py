"""Type checkers see through every integration: handlers keep their types, a misspelt option is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chosen import whole
from tests.test_typing import _errors

RIGHT = """\
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request
from flask import Flask
from litestar import Litestar, post
from starlette.applications import Starlette

from samekey import Idempotency, Operation
from samekey.asgi import IdempotencyMiddleware
from samekey.fastapi import guarded, install, operation
from samekey.flask import Samekey
from samekey.litestar import SamekeyPlugin
from samekey.openapi import describe, described
from samekey.tenants import by_state, by_user
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware

idempotency = Idempotency("sqlite:///:memory:")


def account(request: Request) -> str:
    return ""


# Starlette

stars = Starlette()
stars.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=by_user)

# FastAPI

app = FastAPI()
install(app, idempotency, tenant=by_state("account"), authentication=[Depends(account)])
Atomic = Annotated[Operation, Depends(operation(idempotency, "atomic", strict=True))]
router = APIRouter(route_class=guarded(idempotency, "leased", ttl=4000))


@app.post("/orders")
@idempotency.atomic(required_from=datetime(2999, 1, 1, tzinfo=UTC))
async def decorated(sku: str, request: Request) -> int:
    return 1


@router.post("/gifts")
async def depended(sku: str, gift: Atomic) -> str:
    return gift.id


async def use(request: Request) -> None:
    (await decorated("tea", request)).bit_length()


describe(app, idempotency)
described({}, app).keys()

# Flask

views = Flask("shop")
extension = Samekey(idempotency, tenant=lambda: "ann", undecorated="pass")
extension.init_app(views)
views.wsgi_app = WsgiMiddleware(views.wsgi_app, idempotency=idempotency, tenant=by_user)  # type: ignore


@views.post("/orders")
@idempotency.leased
def view(sku: str) -> dict[str, int]:
    return {"id": 1}


view("tea")["id"].bit_length()

# Litestar


@idempotency.leased
async def function(sku: str) -> dict[str, str]:
    return {"sku": sku}


async def use_function() -> None:
    (await function("tea"))["sku"].upper()


plugin = SamekeyPlugin(idempotency, tenant=by_user, decorators="around")
star = Litestar([post("/orders")(function)], plugins=[plugin])

# Django: its decorators are those of an Idempotency


class View:
    @idempotency.atomic
    def post(self, request: object, number: int) -> str:
        return ""


View().post(object(), 1).upper()
"""
WRONG = [
    "install(app, idempotency, tenat=by_user)",
    "install(app, idempotency)",
    "install(app, idempotency, tenant=by_user, undecorated='maybe')",
    "operation(idempotency, 'phased')",
    "guarded(idempotency, 'phased')",
    "Samekey(idempotency, undecorated='maybe')",
    "Samekey('sqlite:///a.db', tenant=by_user)",
    "SamekeyPlugin(idempotency, tenat=by_user)",
    "SamekeyPlugin(idempotency)",
    "view(1)",
    "view('tea')['id'].upper()",
    "View().post(object(), 'one')",
    "describe(app, 'idempotency')",
    "idempotency.atomic(required_from='2999-01-01')",
]


@whole
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_see_through_the_integrations(checker: str, tmp_path: Path) -> None:
    page = tmp_path / "right.py"
    page.write_text(RIGHT)
    code, said = _errors(checker, page)
    assert code == 0, said
    wrong = tmp_path / "wrong.py"
    wrong.write_text(RIGHT + "\n" + "\n".join(WRONG) + "\n")
    _, said = _errors(checker, wrong)
    passed = [
        line for number, line in enumerate(WRONG, RIGHT.count("\n") + 2) if f"wrong.py:{number}:" not in said
    ]
    assert passed == [], said

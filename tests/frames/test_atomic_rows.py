"""Atomic work in every framework: a service commits, the handler fails, and the row is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import flask
import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse as FastJSON
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.session import Session as FlaskSession
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import Response as LitestarResponse
from litestar import post as litestar_post
from litestar.testing import TestClient as LitestarClient
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.fastapi import install
from samekey.flask import Samekey
from samekey.litestar import SamekeyPlugin
from samekey.sqlalchemy import AsyncSession, Session
from samekey.tenants import single_tenant

Post = Callable[[str, str], int]
"""Sends a key and what becomes of the handler; gives the status."""
HOW = {"returns": 201, "refuses": 409, "fails": 503, "raises": 500}
INSERT = text("insert into orders (name) values (:name)")


async def place_async(session: AsyncSession, name: str) -> None:
    """A service of the application's own, which knows nothing of samekey."""
    await session.execute(INSERT, {"name": name})
    await session.commit()


def place(session: Session, name: str) -> None:
    """The same for sync code."""
    session.execute(INSERT, {"name": name})
    session.commit()


def becomes(how: str) -> int:
    if how == "raises":
        raise RuntimeError("after the service had committed")
    return HOW[how]


def asked(client: Any) -> Post:
    return lambda key, how: int(
        client.post(f"/orders?how={how}", headers={"Idempotency-Key": key}).status_code
    )


@contextmanager
def starlette(url: str) -> Iterator[Post]:
    engine = create_async_engine(url.replace("sqlite://", "sqlite+aiosqlite://"))
    sessions, idempotency = async_sessionmaker(engine, class_=AsyncSession), Idempotency(engine)

    @idempotency.atomic
    async def create(request: Request) -> JSONResponse:
        async with sessions() as session:
            await place_async(session, request.query_params["how"])
        return JSONResponse({}, becomes(request.query_params["how"]))

    app = Starlette(routes=[Route("/orders", create, methods=["POST"])])
    guarded = IdempotencyMiddleware(app, idempotency=idempotency, tenant=single_tenant())
    with TestClient(guarded, raise_server_exceptions=False) as client:
        yield asked(client)


@contextmanager
def fastapi(url: str) -> Iterator[Post]:
    engine = create_engine(url)
    sessions, idempotency, app = sessionmaker(engine, class_=Session), Idempotency(engine), FastAPI()
    install(app, idempotency, tenant=single_tenant())

    def get_session() -> Iterator[Session]:
        with sessions() as session:
            yield session

    @app.post("/orders")
    @idempotency.atomic
    def create(how: str, session: Any = Depends(get_session)) -> Any:  # noqa: B008 - as users write it
        place(session, how)
        return FastJSON({}, becomes(how))

    with TestClient(app, raise_server_exceptions=False) as client:
        yield asked(client)


class Joined(Session, FlaskSession):  # type: ignore[misc]  # both find a bind
    """Flask-SQLAlchemy's own session, which finds its bind by the model, and ours."""


@contextmanager
def in_flask(url: str) -> Iterator[Post]:
    app = flask.Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    database = SQLAlchemy(app, session_options={"class_": Joined})
    with app.app_context():
        idempotency = Idempotency(database.engine)
    Samekey(idempotency, app, tenant=single_tenant())

    @app.post("/orders")
    @idempotency.atomic
    def create() -> Any:
        place(cast(Session, database.session), flask.request.args["how"])
        return {}, becomes(flask.request.args["how"])

    yield asked(app.test_client())
    idempotency.close()


@contextmanager
def litestar(url: str) -> Iterator[Post]:
    engine = create_async_engine(url.replace("sqlite://", "sqlite+aiosqlite://"))
    sessions, idempotency = async_sessionmaker(engine, class_=AsyncSession), Idempotency(engine)

    @litestar_post("/orders")
    @idempotency.atomic
    async def create(request: LitestarRequest[Any, Any, Any]) -> LitestarResponse[Any]:
        async with sessions() as session:
            await place_async(session, request.query_params["how"])
        return LitestarResponse({}, status_code=becomes(request.query_params["how"]))

    app = Litestar([create], plugins=[SamekeyPlugin(idempotency, tenant=single_tenant())])
    with LitestarClient(app, raise_server_exceptions=False) as client:
        yield asked(client)


@contextmanager
def django(url: str, kind: str = "django") -> Iterator[Post]:
    from tests.django.world import project, world

    project()
    from django.db import connection, transaction
    from django.http import JsonResponse
    from django.urls import path
    from rest_framework.decorators import api_view

    def service(name: str) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("insert into orders (name) values (%s)", [name])

    def urls(idempotency: Idempotency) -> list[Any]:
        def create(request: Any) -> Any:
            service(request.GET["how"])
            return JsonResponse({}, status=becomes(request.GET["how"]))

        view = idempotency.atomic(create)
        return [path("orders", api_view(["POST"])(view) if kind == "drf" else view)]

    with world(url, urls) as made:
        yield lambda key, how: int(made.post(f"/orders?how={how}", key).status_code)


@contextmanager
def drf(url: str) -> Iterator[Post]:
    with django(url, "drf") as post:
        yield post


FRAMEWORKS = {
    **{"starlette": starlette, "fastapi": fastapi, "flask": in_flask, "litestar": litestar},
    **{"django": django, "drf": drf},
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_service_has_committed_is_gone_with_the_operation(framework: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    books = create_engine(url)
    with books.begin() as connection:
        connection.execute(text("create table orders (name text)"))

    def rows() -> list[str]:
        with books.connect() as connection:
            return [row.name for row in connection.execute(text("select name from orders"))]

    with FRAMEWORKS[framework](url) as post:
        for how, status in HOW.items():
            answers = [post(f"key-{how}", how) for _ in range(2)]
            assert answers == [status, status], how
            assert rows() == ["returns"], how
        assert post("key-raises", "raises") == 500
        assert rows() == ["returns"]
    books.dispose()

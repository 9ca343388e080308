"""Whose key is this? (K6): a stable principal, never the credential, and nobody where nobody is known."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from flask import Request as FlaskRequest
from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    BaseUser,
    SimpleUser,
    UnauthenticatedUser,
)
from starlette.datastructures import State
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import ConfigurationError
from samekey.tenants import Tenant, by_api_key, by_state, by_user, single_tenant
from samekey.wsgi import IdempotencyMiddleware as WSGIMiddleware

SOME_UUID = uuid.UUID("0b9e2f5c-7d31-4c8e-9a44-5f0d6f1f2a77")


def asgi(**scope: Any) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/x", "headers": [], "client": ("127.0.0.1", 1)} | scope


def wsgi(**environ: Any) -> dict[str, Any]:
    return {"wsgi.input": None, "REQUEST_METHOD": "POST", "PATH_INFO": "/x"} | environ


class Account:
    """A user without a text of its own."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Nameless(BaseUser):
    """Starlette's own base class raises NotImplementedError for what is not there."""

    is_authenticated = True
    display_name = "John Smith"


# --- by_user -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "tenant"),
    [
        (SimpleUser("alice"), "alice"),
        (UnauthenticatedUser(), None),
        ("acct_42", "acct_42"),
        (42, "42"),
        (0, "0"),
        (SOME_UUID, str(SOME_UUID)),
        ("", None),
        (None, None),
        (False, None),
        (Account(id=7), "7"),
        (Account(id=SOME_UUID), str(SOME_UUID)),
        (Account(pk=7, username="alice"), "7"),
        (Account(identity="i", id="d"), "i"),
        (Account(user_id="u-1"), "u-1"),
        (Account(username="alice"), "alice"),
        (Account(id=None, username="alice"), "alice"),
        (Account(id="", username="alice"), "alice"),
        (Account(id=0), "0"),
        (Account(id=7, is_authenticated=True), "7"),
        (Account(id=7, is_authenticated=False), None),
        (Account(id=None, is_authenticated=False), None),
        (Account(id=lambda: 7, username="alice"), "alice"),
        (Account(id=Account(), username="alice"), "alice"),
    ],
)
def test_by_user_gives_the_stable_id_of_the_authenticated_user(user: object, tenant: str | None) -> None:
    assert by_user(asgi(user=user)) == tenant
    assert by_user(asgi(state={"user": user})) == tenant
    assert by_user(asgi(state=State({"user": user}))) == tenant


@pytest.mark.parametrize(
    "user",
    [
        Nameless(),
        Account(),
        Account(display_name="John Smith"),
        Account(id=Account()),
        Account(id=lambda: 7),
        Account(id=True),
        True,
        {"sub": "alice"},
        b"alice",
        3.5,
    ],
    ids=lambda user: type(user).__name__,
)
def test_by_user_refuses_a_user_without_a_stable_id(user: object) -> None:
    """A display name may be shared, and the text of a bare object is another one in every process."""
    with pytest.raises(ConfigurationError, match="resolver of your own"):
        by_user(asgi(user=user))


def test_by_user_prefers_the_scope_then_the_state() -> None:
    assert by_user(asgi(user="first", state={"user": "second"})) == "first"
    assert by_user(asgi(user=None, state={"user": "second"})) == "second"


def test_by_user_does_not_look_behind_an_anonymous_user() -> None:
    assert by_user(asgi(user=UnauthenticatedUser(), state={"user": "other"})) is None


@pytest.mark.parametrize(
    ("environ", "tenant"), [({"REMOTE_USER": "alice"}, "alice"), ({"REMOTE_USER": ""}, None)]
)
def test_by_user_under_wsgi_is_remote_user(environ: dict[str, str], tenant: str | None) -> None:
    assert by_user(wsgi(**environ)) == tenant


def test_by_user_is_nobody_where_nobody_is_known() -> None:
    assert by_user(asgi()) is None
    assert by_user(wsgi()) is None
    assert by_user(asgi(state={})) is None
    assert by_user(asgi(state=SimpleNamespace())) is None


def test_no_header_can_set_the_user() -> None:
    headers = [(b"user", b"mallory"), (b"remote-user", b"mallory"), (b"remote_user", b"mallory")]
    assert by_user(asgi(headers=headers)) is None
    assert by_user(wsgi(HTTP_USER="mallory", HTTP_REMOTE_USER="mallory")) is None


class ByHeader(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("x-login")
        return None if name is None else (AuthCredentials(), SimpleUser(name))


def test_by_user_reads_what_starlettes_authentication_left() -> None:
    async def who(request: Request) -> PlainTextResponse:
        return PlainTextResponse(repr(by_user(request.scope)))

    middleware = [Middleware(AuthenticationMiddleware, backend=ByHeader())]
    with TestClient(Starlette(routes=[Route("/", who)], middleware=middleware)) as client:
        assert client.get("/", headers={"x-login": "alice"}).text == "'alice'"
        assert client.get("/").text == "None"


# --- by_state ------------------------------------------------------------------------------------


def test_by_state_reads_the_named_value() -> None:
    resolve = by_state("account")
    assert resolve(asgi(state={"account": "a-1"})) == "a-1"
    assert resolve(asgi(state=State({"account": 5}))) == "5"
    assert resolve(asgi(state={"account": Account(id=SOME_UUID)})) == str(SOME_UUID)
    assert resolve(wsgi(account="a-1")) == "a-1"
    assert by_state("myapp.account")(wsgi(**{"myapp.account": "a-1"})) == "a-1"


@pytest.mark.parametrize(
    "context", [asgi(), asgi(state={}), asgi(state={"other": "x"}), wsgi(), wsgi(account="")]
)
def test_by_state_is_nobody_where_the_value_is_missing(context: dict[str, Any]) -> None:
    assert by_state("account")(context) is None


@pytest.mark.parametrize("name", ["type", "method", "path", "client", "headers"])
def test_by_state_never_takes_a_part_of_the_request_for_a_caller(name: str) -> None:
    """They are there for everybody, so everybody would share one scope."""
    assert by_state(name)(asgi()) is None


def test_by_state_reads_what_a_handler_left_in_request_state() -> None:
    async def who(request: Request) -> PlainTextResponse:
        request.state.account = SOME_UUID
        return PlainTextResponse(repr(by_state("account")(request.scope)))

    with TestClient(Starlette(routes=[Route("/", who)])) as client:
        assert client.get("/").text == repr(str(SOME_UUID))


# --- by_api_key ----------------------------------------------------------------------------------

KEYS = {"sk_live_one": "acct_1", "sk_live_two": "acct_2"}


def under_asgi(value: bytes, header: bytes = b"Authorization") -> dict[str, Any]:
    return asgi(headers=[(b"accept", b"*/*"), (header, value)])


def under_wsgi(value: bytes, header: str = "HTTP_AUTHORIZATION") -> dict[str, Any]:
    return wsgi(**{header: value.decode("latin-1")})


@pytest.mark.parametrize("context", [under_asgi, under_wsgi])
@pytest.mark.parametrize("spelling", [b"%s", b"Bearer %s", b"bearer %s", b"BEARER   %s "])
def test_by_api_key_knows_a_key_however_it_is_sent(context: Any, spelling: bytes) -> None:
    resolve = by_api_key(KEYS)
    tenants = {resolve(context(spelling % key.encode())) for key in KEYS}
    assert None not in tenants
    assert len(tenants) == len(KEYS)
    assert tenants == {resolve(under_asgi(key.encode())) for key in KEYS}


@pytest.mark.parametrize("context", [under_asgi, under_wsgi])
@pytest.mark.parametrize(
    "value", [b"", b"Bearer", b"Bearer ", b"sk_live_three", b"Basic sk_live_one", b"sk_live_on", b"\xff"]
)
def test_by_api_key_is_nobody_for_any_other_key(context: Any, value: bytes) -> None:
    assert by_api_key(KEYS)(context(value)) is None


def test_by_api_key_is_nobody_without_the_header() -> None:
    resolve = by_api_key(KEYS)
    assert resolve(asgi()) is None
    assert resolve(wsgi()) is None
    assert resolve({"type": "http"}) is None


def test_by_api_key_reads_the_header_that_it_was_told() -> None:
    resolve = by_api_key(KEYS, header="X-Api-Key")
    assert resolve(under_asgi(b"sk_live_one", b"x-api-key"))
    assert resolve(under_wsgi(b"sk_live_one", "HTTP_X_API_KEY"))
    assert resolve(under_asgi(b"sk_live_one")) is None
    assert resolve(under_wsgi(b"sk_live_one")) is None


def test_by_api_key_gives_the_account_so_that_a_rotated_key_is_the_same_caller() -> None:
    resolve = by_api_key({"sk_old": "acct_1", "sk_new": "acct_1", "sk_other": "acct_2"})
    assert resolve(under_asgi(b"sk_old")) == resolve(under_asgi(b"Bearer sk_new")) == "acct_1"
    assert resolve(under_wsgi(b"sk_other")) == "acct_2"


@pytest.mark.parametrize(
    "keys", [{}, ["sk_live_one"], "sk_live_one", {"": "a"}, {"good": " "}, {b"bytes": "a"}, {"a": None}, None]
)
def test_by_api_key_needs_the_account_of_each_key(keys: Any) -> None:
    """A list would make the credential the tenant; an empty key is sent by everybody who sends none."""
    with pytest.raises(ConfigurationError, match="account of each key"):
        by_api_key(keys)


# --- async resolvers, and the framework's own request --------------------------------------------


def by_request(request: Request) -> str | None:
    return request.headers.get("x-account")


async def by_request_later(request: Request) -> str | None:
    await asyncio.sleep(0)
    if request.headers.get("x-account") == "raise":
        raise LookupError("the directory is down")
    return request.headers.get("x-account")


async def by_scope_later(scope: dict[str, Any]) -> str | None:
    await asyncio.sleep(0)
    return next((value.decode() for name, value in scope["headers"] if name == b"x-account"), None)


def served(sqlite_url: str, tenant: Tenant, *, sync: bool) -> tuple[TestClient, list[str]]:
    idempotency, ran = Idempotency(sqlite_url), []

    @idempotency.leased
    async def pay(request: Request) -> PlainTextResponse:
        ran.append("async")
        return PlainTextResponse("paid")

    api = FastAPI()

    @api.post("/sync")
    @idempotency.leased
    def pay_in_a_thread() -> dict[str, str]:
        ran.append("sync")
        return {"paid": "yes"}

    app: Any = api if sync else Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=tenant)
    return TestClient(app, raise_server_exceptions=False), ran


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("tenant", [by_request, by_request_later, by_scope_later])
def test_a_resolver_may_be_async_and_take_the_frameworks_own_request(
    sqlite_url: str, tenant: Tenant, sync: bool
) -> None:
    client, ran = served(sqlite_url, tenant, sync=sync)

    def pay(account: str | None) -> Any:
        headers = {"Idempotency-Key": "k", **({} if account is None else {"X-Account": account})}
        return client.post("/sync" if sync else "/pay", headers=headers)

    with client:
        assert pay("ann").status_code == pay("ann").status_code == 200
        assert pay("bob").status_code == 200
        assert len(ran) == 2, "one for each account"
        assert pay(None).status_code == 401
        if tenant is by_request_later:
            assert pay("raise").status_code == 500
        assert client.get("/idempotency/" + "0" * 32, headers={"X-Account": "ann"}).status_code == 404
        assert len(ran) == 2


def test_an_async_resolver_is_refused_under_wsgi(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="Under WSGI"):
        WSGIMiddleware(
            Flask("shop").wsgi_app,
            idempotency=Idempotency(sqlite_url),
            tenant=by_scope_later,
            undecorated="pass",
        )


def test_flasks_own_request(sqlite_url: str) -> None:
    idempotency, app = Idempotency(sqlite_url), Flask("shop")

    def account(request: FlaskRequest) -> str | None:
        return request.headers.get("X-Account")

    @app.post("/pay")
    @idempotency.leased
    def pay() -> str:
        return "paid"

    app.wsgi_app = WSGIMiddleware(app.wsgi_app, idempotency=idempotency, tenant=account)  # type: ignore[method-assign]
    client = app.test_client()
    assert client.post("/pay", headers={"Idempotency-Key": "k", "X-Account": "ann"}).status_code == 200
    assert client.post("/pay", headers={"Idempotency-Key": "k"}).status_code == 401


# --- single_tenant -------------------------------------------------------------------------------


def test_single_tenant_is_one_for_everybody() -> None:
    resolve: Tenant = single_tenant()
    assert resolve(asgi(user="alice")) == resolve(wsgi()) == "single"
    assert single_tenant("batch")(asgi()) == "batch"


def test_single_tenant_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="needs a name"):
        single_tenant("")


@pytest.mark.parametrize("name", ["HTTP_X_USER", "QUERY_STRING", "CONTENT_TYPE", "PATH_INFO", "REQUEST_URI"])
def test_by_state_does_not_take_the_clients_own_word(name: str) -> None:
    with pytest.raises(ConfigurationError, match="the client's own word"):
        by_state(name)
    assert by_state("REMOTE_USER")({"wsgi.input": None, "REMOTE_USER": "alice"}) == "alice"

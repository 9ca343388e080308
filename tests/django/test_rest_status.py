"""The status of an operation behind REST framework's own authentication, permissions and throttles."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.test import AsyncClient, Client
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.response import Response
from rest_framework.views import APIView

from samekey import Idempotency, current_operation
from samekey.errors import ConfigurationError
from tests.django.test_atomic import write
from tests.django.world import world

TENANT = "samekey.django.by_user"
allowed: list[bool] = []


class Person:
    is_authenticated = True

    def __init__(self, pk: str) -> None:
        self.pk = pk


class Tokens(BaseAuthentication):  # type: ignore[misc]
    """As REST framework's ``TokenAuthentication``, without a table."""

    def authenticate(self, request: Any) -> Any:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Token":
            return None
        if token == "revoked":
            raise AuthenticationFailed
        return Person(token), token

    def authenticate_header(self, request: Any) -> str:
        return "Token"


class Allowed(BasePermission):  # type: ignore[misc]
    def has_permission(self, request: Any, view: Any) -> bool:
        return not allowed


def orders(idempotency: Idempotency) -> Any:
    @idempotency.job("ship")
    def ship(job: Any, order: Any) -> None: ...

    class Orders(APIView):  # type: ignore[misc]
        authentication_classes = (Tokens,)
        permission_classes = (IsAuthenticated,)

        @idempotency.deferred
        def post(self, request: Any) -> Response:
            write("ordered")
            current_operation().enqueue("ship", {"order": 7})
            return Response(status=202)

    return Orders.as_view()


def behind_tokens(idempotency: Idempotency) -> list[Any]:
    from samekey.django.rest import OperationStatus

    class Status(OperationStatus):
        authentication_classes = (Tokens,)
        permission_classes = (IsAuthenticated, Allowed)

    return [path("orders", orders(idempotency)), path("idempotency/<operation>", Status.as_view())]


def test_whoever_rest_framework_knows_sees_his_own_operation(each_url: str) -> None:
    with world(each_url, behind_tokens, tenant=TENANT) as shop:
        placed = shop.post("/orders", "k", Authorization="Token ann")
        assert (placed.status_code, shop.entries()) == (202, ["ordered"])
        where = placed["Location"]

        def status(token: str, client: Any = shop.client, method: str = "get") -> Any:
            return getattr(client, method)(
                where, headers={"Authorization": f"Token {token}"} if token else {}
            )

        own = status("ann")
        assert (own.status_code, own.json()["state"]) == (200, "pending")
        assert status("ann", method="head").status_code == 200
        assert status("bob").status_code == 404
        nobody = status("")
        assert (nobody.status_code, nobody["WWW-Authenticate"]) == (401, "Token")
        assert status("revoked").status_code == 401
        assert shop.client.get("/idempotency/" + "0" * 32).status_code == 401
        allowed.append(True)
        try:
            assert status("ann").status_code == 403
        finally:
            allowed.clear()
        assert status("ann", method="post").status_code == 405


def test_the_same_in_an_async_stack(sqlite_url: str) -> None:
    async def ask() -> None:
        client, sent = AsyncClient(), {"Authorization": "Token ann"}
        placed = await client.post("/orders", headers={**sent, "Idempotency-Key": "k"})
        assert placed.status_code == 202
        assert (await client.get(placed["Location"], headers=sent)).json()["state"] == "pending"
        assert (await client.get(placed["Location"])).status_code == 401

    with world(sqlite_url, behind_tokens, tenant=TENANT):
        asyncio.run(ask())


def test_without_that_view_the_log_says_what_to_do(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is known to the middleware, so nobody is shown anything."""
    with world(sqlite_url, lambda made: [path("orders", orders(made))], tenant=TENANT) as shop:
        placed = shop.post("/orders", "k", Authorization="Token ann")
        for _ in range(2):
            refused = shop.client.get(placed["Location"], headers={"Authorization": "Token ann"})
            assert refused.status_code == 401
    assert caplog.text.count("samekey.django.rest.OperationStatus") == 1


def test_a_place_at_which_nobody_looks_is_said(sqlite_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        from samekey.django.rest import OperationStatus

        view = OperationStatus.as_view(authentication_classes=[])
        right, wrong = "idempotency/<str:operation>", "status/<operation>"
        return [path("orders", orders(idempotency)), path(wrong, view), path(right, view)]

    with world(sqlite_url, urls, tenant=TENANT):
        from samekey.django.checks import check_views

        said = [str(one.msg) for one in check_views() if one.id == "samekey.E015"]
        assert len(said) == 1
        assert said[0].startswith("/status/<operation> leads to OperationStatus")
        with pytest.raises(ConfigurationError, match="leads to OperationStatus"):
            Client().get("/status/7")

"""``manage.py check``, the coverage audit and the commands: what is wrong is said before a request comes."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import include, path
from django.views import View

from samekey import Idempotency
from samekey.django.checks import MIDDLEWARE, check, check_views
from samekey.ops.coverage import coverage
from samekey.ops.spec import openapi_path, sections
from tests.django.world import world

AUTH = "django.contrib.auth.middleware.AuthenticationMiddleware"


def none(idempotency: Idempotency) -> list[Any]:
    return []


@pytest.mark.parametrize(
    ("settings", "of_database", "said"),
    [
        ({}, {}, {}),
        ({"MIDDLEWARE": []}, {}, {"samekey.E002": "middleware is missing"}),
        ({"MIDDLEWARE": [MIDDLEWARE] * 2}, {}, {"samekey.E003": "stands twice"}),
        ({"MIDDLEWARE": [MIDDLEWARE, AUTH]}, {}, {"samekey.E004": "nobody is known when samekey asks"}),
        ({"tenant": None}, {}, {"samekey.E005": "TENANT'] is missing"}),
        ({"tenant": "tests.nowhere.at_all"}, {}, {"samekey.E005": "cannot be imported"}),
        ({}, {"OPTIONS": {"isolation_level": 3}}, {}),
    ],
)
def test_settings(
    sqlite_url: str, settings: dict[str, Any], of_database: dict[str, Any], said: dict[str, str]
) -> None:
    with world(sqlite_url, none, **settings):
        found = {message.id: message.msg for message in check()}
        assert found.keys() == said.keys()
        assert all(said[name] in found[name] for name in said)


def test_settings_that_mean_nothing(sqlite_url: str) -> None:
    with world(sqlite_url, none) as _, pytest.MonkeyPatch.context() as patch:
        from django.conf import settings

        from samekey.django import conf

        for wrong, sentence in (
            ({"TENNANT": "x"}, "TENNANT, which mean nothing"),
            ({"DATABASE": "nowhere"}, "which DATABASES does not have. It has: default."),
            ({"PROFILE": "paypal"}, "must be one of ietf, stripe, stripe_v2"),
        ):
            conf.made.clear()
            patch.setattr(settings, "SAMEKEY", wrong)
            assert [message.id for message in check()] == ["samekey.E001"]
            assert sentence in check()[0].msg


def test_autocommit_and_isolation(postgres_url: str) -> None:
    from django.db import connection

    with world(postgres_url, none):
        connection.settings_dict["AUTOCOMMIT"] = False
        connection.settings_dict["OPTIONS"] = {"isolation_level": 3, "assume_role": "clerk"}
        assert {message.id for message in check()} == {"samekey.E006", "samekey.E007", "samekey.E008"}


def test_views_and_their_coverage(sqlite_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        class Orders(View):  # type: ignore[misc]
            @idempotency.atomic
            def post(self, request: Any) -> HttpResponse:
                raise AssertionError("it was run")

            @idempotency.leased
            def delete(self, request: Any) -> HttpResponse:
                raise AssertionError("it was run")

        @login_required  # type: ignore[untyped-decorator]
        def wrapped(request: Any) -> HttpResponse:
            raise AssertionError("it was run")

        def plain(request: Any) -> HttpResponse:
            raise AssertionError("it was run")

        left_alone = idempotency.exempt(plain)
        return [
            path("orders", Orders.as_view()),
            path("wrapped", wrapped),
            path("plain/<int:number>", plain),
            path("alone", left_alone),
        ]

    with world(sqlite_url, urls):
        found = {message.id: message.msg for message in check_views()}
        assert "DELETE is not guarded" in found["samekey.E010"]
        assert "POST /wrapped: a request with a key is refused" in found["samekey.W011"]
        seen = {f"{one.method} {one.path}": one.describe() for one in coverage(get_wsgi_application())}
        assert seen["POST /orders"] == "atomic, required"
        assert seen["DELETE /orders"].startswith("BROKEN")
        assert seen["POST /plain/<int:number>"] == "at the edge (leased), optional"
        assert seen["POST /wrapped"].startswith("BROKEN")
        assert seen["POST /alone"] == "exempt"
        assert any(one.path == "/orders" for part in sections(get_wsgi_application()) for one in part.routes)


def test_commands(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with world(sqlite_url, none):
        told = io.StringIO()
        call_command("samekey_sweep", stdout=told)
        assert told.getvalue() == "0 records moved.\n"
        call_command("samekey_doctor", "--json")
        assert json.loads(capsys.readouterr().out)["healthy"]


def test_a_route_of_rest_frameworks_router_is_named_as_people_write_it(sqlite_url: str) -> None:
    """In the coverage, the specification and the metrics, as in ``SAMEKEY['ROUTES']``."""
    from tests.django.test_rest import viewset

    def urls(idempotency: Idempotency) -> list[Any]:
        return [path("v1/", include(viewset(idempotency, "perform_create")))]

    with world(sqlite_url, urls, routes={"/v1/entries/<pk>/": "required"}) as shop:
        found = coverage(get_wsgi_application())
        required = {f"{one.method} {openapi_path(one.path)}" for one in found if one.required}
        sent = shop.client.patch("/v1/entries/7/", "{}", content_type="application/json")
    assert required == {"POST /v1/entries/", "PATCH /v1/entries/{pk}/", "POST /v1/entries/{pk}/shout/"}
    assert (sent.status_code, sent.json()["code"]) == (400, "missing")

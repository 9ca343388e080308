"""The service of ``tests/edges/apps.py`` in Django: sync views, async views, and views of REST framework."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from asgiref.local import Local
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import sync_and_async_middleware
from django.views import View

from examples.shop.orm import database
from samekey.django import conf
from tests.django.world import project
from tests.edges.apps import BrokenResolver, Setup, methods_of
from tests.edges.world import Reply, Store, World, end

KINDS = ("django", "django-async", "drf")
_numbers = itertools.count()


def tenant(request: Any) -> str | None:
    name = request.headers.get("X-Tenant")
    if name is not None and name.endswith("broken"):
        raise BrokenResolver
    return None if name is None or name.endswith("nobody") else str(name)


@sync_and_async_middleware  # type: ignore[untyped-decorator]
def keep_urlconf(get_response: Any) -> Any:
    """Several projects in one process: each request is given the URLs of its own."""
    urlconf = settings.ROOT_URLCONF
    if iscoroutinefunction(get_response):

        async def named_async(request: Any) -> Any:
            request.urlconf = urlconf
            return await get_response(request)

        return named_async

    def named(request: Any) -> Any:
        request.urlconf = urlconf
        return get_response(request)

    return named


@contextmanager
def of_database(url: str) -> Iterator[None]:
    """Django's settings for that database, with samekey's tables and the ledger in it."""
    project()
    from django.core.management import call_command

    from tests.django.ledger.models import Entry

    before = connections.settings, connections._connections
    connections.settings = connections.configure_settings({"default": database(url)})
    connections._connections = Local(connections.thread_critical)
    try:
        with override_settings(ROOT_URLCONF="tests.django.own_urls"):
            call_command("migrate", "samekey", verbosity=0)
            with connections["default"].schema_editor() as editor:
                editor.create_model(Entry)
            yield
    finally:
        connections.close_all()
        connections.settings, connections._connections = before


def open_store(url: str, profile: str, policy: dict[str, Any]) -> Store:
    said = {"TENANT": tenant, "PROFILE": profile, "POLICY": policy}
    return Store(conf._make(conf.Settings(said)), "sqlite", url.removeprefix("sqlite:///"))


def make(kind: str, store: Store, world: World, setup: Setup, client: Any = None) -> Any:
    """A WSGI or ASGI application of its own; or Django's own test client, told of it."""
    module = ModuleType(f"tests.frames.urls_{next(_numbers)}")
    sys.modules[module.__name__] = module
    handlers = _handlers(kind, store, world, setup)
    module.urlpatterns = [  # type: ignore[attr-defined]
        path(where.removeprefix("/"), _view(kind, handler, methods_of(store, where)))
        for where, handler in handlers.items()
    ]
    said = {"TENANT": tenant, "ROUTES": setup.routes, "UNDECORATED": setup.undecorated}
    middleware = ["tests.frames.django_service.keep_urlconf", "samekey.django.IdempotencyMiddleware"]
    conf.made[:] = [store.idempotency]
    try:
        with override_settings(SAMEKEY=said, ROOT_URLCONF=module.__name__, MIDDLEWARE=middleware):
            if client is not None:
                client.handler.load_middleware(is_async=kind == "django-async")
                return client
            return ASGIHandler() if kind == "django-async" else WSGIHandler()
    finally:
        conf.made.clear()


def client(kind: str) -> Any:
    """The framework's own for tests."""
    from rest_framework.test import APIClient

    kinds = {"django": Client, "django-async": AsyncClient, "drf": APIClient}
    return kinds[kind](raise_request_exception=False)


def _view(kind: str, handler: Any, methods: list[str]) -> Any:
    from rest_framework.views import APIView

    base: Any = APIView if kind == "drf" else View
    made: Any = type("Service", (base,), {name.lower(): handler for name in methods})
    return made.as_view()


def _handlers(kind: str, store: Store, world: World, setup: Setup) -> dict[str, Any]:
    idempotency = store.idempotency
    plain, atomic = (_act_async if kind == "django-async" else _act)(world)
    edges = ("/edge", "/other", "/required", "/exempt-by-path")
    return {
        "/leased": idempotency.leased(**setup.leased)(plain(True)),
        "/atomic": idempotency.atomic(**setup.atomic)(atomic),
        "/optional": idempotency.leased(**setup.optional)(plain(False)),
        "/exempt": idempotency.exempt(plain(False)),
        **{where: plain(False) for where in edges},
    }


def _act(world: World) -> Any:
    from tests.django.ledger.models import Entry

    def plain(guarded: bool) -> Any:
        def view(self: Any, request: Any) -> Any:
            number, act = world.begin(guarded=guarded)
            return _response(end(act, number))

        return view

    def atomic(self: Any, request: Any) -> Any:
        number, act = world.begin()
        Entry.objects.create(text=f"{world.name} {number}")
        return _response(end(act, number))

    return plain, atomic


def _act_async(world: World) -> Any:
    from tests.django.ledger.models import Entry

    def plain(guarded: bool) -> Any:
        async def view(self: Any, request: Any) -> Any:
            number, act = world.begin(guarded=guarded)
            return _response(end(act, number))

        return view

    async def atomic(self: Any, request: Any) -> Any:
        number, act = world.begin()
        await Entry.objects.acreate(text=f"{world.name} {number}")
        return _response(end(act, number))

    return plain, atomic


def _response(reply: Reply) -> HttpResponse:
    response = HttpResponse(reply.body, status=reply.status)
    del response["Content-Type"]
    for name, value in reply.headers:
        response[name.decode("latin-1")] = value.decode("latin-1")
    return response

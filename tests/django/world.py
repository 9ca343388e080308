"""A Django project for each test: its own database, its own URLconf, its own ``SAMEKEY``.

Django's settings are one for the process, so they are configured once; what differs is put in their place for
one test, and taken out again.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import django
import pymysql  # type: ignore[import-untyped]
from asgiref.local import Local
from django.conf import settings
from django.db import connections
from django.test import AsyncClient, Client, override_settings

from examples.shop.orm import database

_numbers = itertools.count()

MIDDLEWARE = ["tests.django.world.who", "samekey.django.IdempotencyMiddleware"]


def project(databases: dict[str, Any] | None = None) -> None:
    """Once in a process. Models have the table names of the databases that it is first told of."""
    if not settings.configured:
        pymysql.install_as_MySQLdb()  # how Django reaches MariaDB without mysqlclient
        for name in [name for name in sys.modules if name.startswith("pymysql.")]:
            # Or they are loaded twice, and ``pymysql.err`` is not what the other tests of this process meet
            # (tests/stores/test_mysql_as_mysqldb.py is about that).
            sys.modules[name.replace("pymysql", "MySQLdb", 1)] = sys.modules[name]
        settings.configure(
            DATABASES=databases or {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
            INSTALLED_APPS=[
                *("django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"),
                *("django.contrib.messages", "django.contrib.admin", "rest_framework"),
                *("samekey.django", "tests.django.ledger"),
            ],
            MIDDLEWARE=MIDDLEWARE,
            SAMEKEY={"TENANT": "tests.django.world.account"},
            ALLOWED_HOSTS=["*"],
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            SECRET_KEY="for tests",
            REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []},
            TEMPLATES=[
                {
                    "BACKEND": "django.template.backends.django.DjangoTemplates",
                    "APP_DIRS": True,
                    "OPTIONS": {
                        "context_processors": [
                            "django.template.context_processors.request",
                            "django.contrib.auth.context_processors.auth",
                            "django.contrib.messages.context_processors.messages",
                        ]
                    },
                }
            ],
            STATIC_URL="static/",
            USE_TZ=True,
        )
        django.setup()


def account(request: Any) -> str | None:
    return request.headers.get("X-Account", "ann") or None


def who(get_response: Any) -> Any:
    """A middleware of the project's own, before samekey's."""
    return get_response


class World:
    """A project, and clients of it."""

    def __init__(self) -> None:
        self.client = Client(raise_request_exception=False)
        self.keys = (f"key-{number}" for number in itertools.count())

    def post(self, path: str, key: str | None = None, body: Any = None, **headers: str) -> Any:
        return self.client.post(
            path, json.dumps(body), content_type="application/json", headers=_headers(key, headers)
        )

    async def post_async(self, path: str, key: str | None = None, body: Any = None) -> Any:
        client = AsyncClient(raise_request_exception=False)
        return await client.post(
            path, json.dumps(body), content_type="application/json", headers=_headers(key, {})
        )

    def entries(self) -> list[str]:
        from tests.django.ledger.models import Entry

        return list(Entry.objects.order_by("id").values_list("text", flat=True))


def _headers(key: str | None, headers: dict[str, str]) -> dict[str, str]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return sent if key is None else {"Idempotency-Key": key, **sent}


@contextmanager
def world(
    url: str,
    urls: Callable[[Any], list[Any]],
    *,
    of_database: dict[str, Any] | None = None,
    aliases: Mapping[str, str] | None = None,
    **changed: Any,
) -> Iterator[World]:
    """``urls`` is given the project's ``idempotency`` and gives its URL patterns. ``aliases``: URLs of more
    databases. ``changed``: settings; those in lower case are of ``SAMEKEY``."""
    project()
    from samekey.django import conf

    samekey = {name.upper(): value for name, value in changed.items() if name.islower()}
    others = {name: value for name, value in changed.items() if name.isupper()}
    databases = {"default": {**database(url), **(of_database or {})}}
    databases |= {alias: database(other) for alias, other in (aliases or {}).items()}
    module = ModuleType(f"tests.django.urls_{next(_numbers)}")
    sys.modules[module.__name__] = module
    before = connections.settings, connections._connections
    connections.settings = connections.configure_settings(databases)
    connections._connections = Local(connections.thread_critical)
    conf.made.clear()
    said = {**settings.SAMEKEY, **samekey}
    try:
        with override_settings(SAMEKEY=said, ROOT_URLCONF=module.__name__, **others):
            idempotency = conf.the_idempotency()
            module.urlpatterns = urls(idempotency)  # type: ignore[attr-defined]
            _migrate(*databases)
            try:
                yield World()
            finally:
                idempotency.close()
    finally:
        connections.close_all()
        connections.settings, connections._connections = before
        conf.made.clear()
        del sys.modules[module.__name__]


def _migrate(*aliases: str) -> None:
    from django.core.management import call_command

    from tests.django.ledger.models import Entry

    for alias in aliases:
        call_command("migrate", "samekey", database=alias, verbosity=0)
        with connections[alias].schema_editor() as editor:
            editor.create_model(Entry)

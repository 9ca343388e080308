"""``manage.py check``: what would not work, or would have no effect, is said before the first request."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from django.urls import get_resolver
from django.utils.module_loading import import_string

from ..core.states import Mode
from ..edges.calls import IN_TRANSACTION
from ..edges.startup import look
from ..edges.walk import RoutePlace, plain, walk
from ..engine.engine import Engine
from ..engine.handler.around import REFUSED
from ..engine.handler.marks import Mark, mark_of, own_handler
from ..errors import ConfigurationError, SamekeyError
from .address import dialect_of, in_memory, url_of
from .conf import Settings, read, the_idempotency
from .middleware import NO_TENANT
from .routes import Urlconf, handler_of, methods_of, patterns, two_guards
from .status import misplaced

MIDDLEWARE: Final = "samekey.django.IdempotencyMiddleware"
_BEFORE: Final = (
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.RemoteUserMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.middleware.locale.LocaleMiddleware",
)
"""What refuses or identifies a caller comes first, at every retry."""


def check(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Of the settings. Every message says what to change."""
    try:
        said = read()
        idempotency = the_idempotency()
    except (SamekeyError, ImportError) as error:
        return [Error(str(error), id="samekey.E001")]
    return [*_middleware(), *_tenant(said), *_database(said), *_modes(said, idempotency.engine)]


def check_views(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Of the URLconf."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    try:
        said, engine = read(), the_idempotency().engine
    except (SamekeyError, ImportError):
        return []  # said above
    guards = said.given.get("UNDECORATED"), said.given.get("DECORATORS", "refuse")
    routes = dict(said.given.get("ROUTES", {}))
    wrong = look(Urlconf(), engine, routes, undecorated=guards[0], decorators="around")
    found: list[CheckMessage] = [Error(sentence, id="samekey.E010") for sentence in wrong]
    exempt = [path for path, how in routes.items() if how == "exempt"]
    found += [Error(one, id="samekey.E013") for _, one in two_guards(None, engine, guards[0], exempt)]
    found += [Error(one, id="samekey.E015") for one in misplaced(engine.policy.status_path)]
    if _sync_below():
        found += [Error(sentence, id="samekey.E014") for sentence in async_in_transactions()]
    if guards[0] != "pass" and guards[1] == "refuse":
        found += _refused(engine, routes)
    return [*found, *_before_claim(said)]


def _before_claim(said: Settings) -> Iterator[CheckMessage]:
    """Code of the project's own that ``ATOMIC_REQUESTS`` would wrap, and samekey's transaction does not."""
    if said.alias is None or not connections[said.alias].settings_dict["ATOMIC_REQUESTS"]:
        return
    for template, pattern in patterns(get_resolver()):
        known: Any = getattr(own_handler(pattern.callback), "_non_atomic_requests", ())
        for method in sorted(methods_of(pattern.callback) or {"POST"}):
            handler = handler_of(pattern.callback, method)
            mark = None if handler is None else handler.mark
            if handler is None or not isinstance(mark, Mark) or mark.rules.mode not in IN_TRANSACTION:
                continue
            for name in handler.before_claim() if said.alias not in set(known) else ():
                yield Warning(
                    f"{method} {template}: {name} runs before the guarded {mark.function.__name__}, and so "
                    "in no transaction: in the place of ATOMIC_REQUESTS this view has samekey's, begun "
                    "there. What is written or locked before is refused.",
                    hint="Guard what writes. If nothing is written there, or shall stand in any case, put "
                    "transaction.non_atomic_requests on the view.",
                    id="samekey.W012",
                )


def _middleware() -> Iterator[CheckMessage]:
    listed = list(settings.MIDDLEWARE)
    if MIDDLEWARE not in listed:
        yield Error(
            "samekey's middleware is missing, so every guarded view refuses to run.",
            hint=f"Put {MIDDLEWARE!r} into MIDDLEWARE, after authentication.",
            id="samekey.E002",
        )
        return
    if listed.count(MIDDLEWARE) > 1:
        yield Error(f"{MIDDLEWARE} stands twice in MIDDLEWARE.", hint="Keep one.", id="samekey.E003")
    for late in [name for name in _BEFORE if name in listed[listed.index(MIDDLEWARE) :]]:
        yield Error(
            f"{late} stands after samekey's middleware, so nobody is known when samekey asks who it is.",
            hint=f"Put {MIDDLEWARE!r} below it.",
            id="samekey.E004",
        )


def _tenant(said: Settings) -> Iterator[CheckMessage]:
    try:
        if said.function("TENANT") is None:
            yield Error(NO_TENANT, id="samekey.E005")
        said.function("BINDING")
    except ConfigurationError as error:
        yield Error(str(error), id="samekey.E005")


def _database(said: Settings) -> Iterator[CheckMessage]:
    alias = said.alias
    if alias is None:
        return
    dialect_of(alias)
    wrapper = connections[alias]
    of: dict[str, Any] = wrapper.settings_dict
    if not of["AUTOCOMMIT"]:
        yield Error(
            f"DATABASES[{alias!r}] has AUTOCOMMIT=False: a transaction is always open that is not samekey's.",
            hint="Leave it at True.",
            id="samekey.E006",
        )
    level = (of.get("OPTIONS") or {}).get("isolation_level")
    if wrapper.vendor == "postgresql" and level not in (None, 2) and "COMMITTED" not in str(level):
        yield Error(
            f"DATABASES[{alias!r}] has an isolation level of its own: under REPEATABLE READ and SERIALIZABLE "
            "a duplicate cannot see what the first request has committed.",
            hint="Leave READ COMMITTED, or set the level for single transactions.",
            id="samekey.E007",
        )
    if said.url is None and not in_memory(alias):
        try:
            url_of(alias)
        except ConfigurationError as error:
            yield Error(str(error), id="samekey.E008")


def _modes(said: Settings, engine: Engine) -> Iterator[CheckMessage]:
    """Which modes cannot be had, by the driver that Django uses; asked of whoever declares them."""
    if said.alias is None:
        return
    wrapper = connections[said.alias]
    driver = wrapper.Database.__name__
    good = {"postgresql": "psycopg", "mysql": "pymysql"}.get(wrapper.vendor)
    wanting = sorted(
        {str(mark.rules.mode) for mark in engine.marks} & {Mode.ATOMIC, Mode.DEFERRED, Mode.PHASED}
    )
    if good is not None and driver != good and wanting:
        wanted = "psycopg 3" if good == "psycopg" else "PyMySQL (pymysql.install_as_MySQLdb())"
        yield Error(
            f"Django reaches {said.alias!r} through {driver}, whose transactions samekey cannot end safely: "
            f"{', '.join(wanting)} views would be refused.",
            hint=f"Use {wanted}, or declare them leased.",
            id="samekey.E009",
        )


def _refused(engine: Engine, routes: dict[str, Any]) -> Iterator[CheckMessage]:
    """Views of the project's own that would refuse a key."""
    for one in walk(Urlconf(), RoutePlace()):
        handler = plain(one.handler)
        own = not str(getattr(handler, "__module__", "")).startswith(("django.", "rest_framework."))
        guarded = one.method in engine.policy.methods and mark_of(handler) is None
        if own and guarded and one.wrapped and routes.get(one.path) != "exempt":
            yield Warning(
                f"{one.method} {one.path}: a request with a key is refused: {REFUSED}", id="samekey.W011"
            )


def async_in_transactions() -> Iterator[str]:
    """Async views whose transaction can only end under ASGI, as sentences."""
    sync = _sync_below()
    for one in walk(Urlconf(), RoutePlace()):
        mark = mark_of(one.handler)
        if not isinstance(mark, Mark) or mark.rules.mode not in (Mode.ATOMIC, Mode.DEFERRED):
            continue
        if inspect.iscoroutinefunction(inspect.unwrap(mark.function)):
            by = f"Below {', '.join(sync)}, which cannot be async," if sync else "Under WSGI"
            what = f"Put {MIDDLEWARE!r} below it" if sync else "Serve the project by ASGI"
            yield (
                f"{one.method} {one.path} is async and {mark.rules.mode}. {by} it has an event loop of its "
                f"own, which is gone before the transaction can end, so it is refused. {what}, or declare "
                "the view with def."
            )


def _sync_below() -> list[str]:
    """Middleware below ours that cannot be async: Django calls ours as a sync one then, under ASGI too."""
    listed = list(settings.MIDDLEWARE)
    below = listed[listed.index(MIDDLEWARE) + 1 :] if MIDDLEWARE in listed else []
    return [name for name in below if not getattr(import_string(name), "async_capable", False)]

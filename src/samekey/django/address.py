"""A ``DATABASES`` alias as samekey's own drivers need it: its dialect, and a URL.

Short statements of ours (looks, claims, renewals) run on connections of our own, beside the request's
transaction: inside it they would be undone with it, and nobody else could see them.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import connections
from django.db.utils import ConnectionDoesNotExist

from ..core.program import Dialect
from ..errors import ConfigurationError

_DIALECTS: Final[dict[str, Dialect]] = {"postgresql": "postgres", "sqlite": "sqlite", "mysql": "mysql"}
_PASSED_ON: Final = frozenset(
    {"sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "passfile", "target_session_attrs"}
)
"""Options of libpq that say how to reach the server; the others are of the session, or Django's own."""
_CANNOT: Final = {
    "service": "a service file",
    "assume_role": "assume_role",
    "read_default_file": "read_default_file",
}


def dialect_of(alias: str) -> Dialect:
    """Which SQL the alias speaks. ``ConfigurationError`` with a sentence for what cannot be used."""
    try:
        vendor = connections[alias].vendor
    except ConnectionDoesNotExist:
        known = ", ".join(sorted(settings.DATABASES))
        raise ConfigurationError(
            f"SAMEKEY['DATABASE'] is {alias!r}, which DATABASES does not have. It has: {known}."
        ) from None
    if vendor not in _DIALECTS:
        raise ConfigurationError(
            f"DATABASES[{alias!r}] is {vendor}: samekey keeps its records on PostgreSQL, MySQL/MariaDB or "
            "SQLite. Name such an alias in SAMEKEY['DATABASE'], or give SAMEKEY['URL'] a store of its own."
        )
    return _DIALECTS[vendor]


def in_memory(alias: str) -> bool:
    """Whether it is SQLite's database in memory, which only Django's own connections can see."""
    wrapper = connections[alias]
    return wrapper.vendor == "sqlite" and bool(wrapper.is_in_memory_db())


def url_of(alias: str) -> str:
    """The URL of the database, as it is named now: a test runner changes the name."""
    of = connections[alias].settings_dict
    options: dict[str, Any] = of.get("OPTIONS") or {}
    for name, said in _CANNOT.items():
        if options.get(name):
            raise ConfigurationError(
                f"DATABASES[{alias!r}] uses {said}, which samekey's own connections cannot follow. Give "
                "SAMEKEY['URL'] the same database as a URL."
            )
    match dialect_of(alias):
        case "sqlite":
            return f"sqlite:///{quote(_path(alias, str(of['NAME'])))}"
        case "postgres":
            passed = {name: str(options[name]) for name in sorted(_PASSED_ON & options.keys())}
            passed |= {name: str(of[key]) for name, key in (("host", "HOST"), ("port", "PORT")) if of[key]}
            return f"postgresql://{_who(of)}/{_quoted(of['NAME'])}?{urlencode(passed)}"
        case "mysql":
            host, socket = str(of["HOST"] or "localhost"), options.get("unix_socket", "")
            if host.startswith("/"):
                host, socket = "localhost", host
            port = f":{of['PORT']}" if of["PORT"] else ""
            more = f"?{urlencode({'unix_socket': socket})}" if socket else ""
            return f"mysql://{_who(of)}{host}{port}/{_quoted(of['NAME'])}{more}"
        case other:
            raise AssertionError(other)


def _path(alias: str, name: str) -> str:
    if name.startswith("file:"):
        raise ConfigurationError(
            f"DATABASES[{alias!r}]['NAME'] is a URI ({name}). Write it as a path, so that samekey opens the "
            "same file."
        )
    return name


def _who(of: dict[str, Any]) -> str:
    if not of["USER"]:
        return ""
    password = f":{_quoted(of['PASSWORD'])}" if of["PASSWORD"] else ""
    return f"{_quoted(of['USER'])}{password}@"


def _quoted(text: object) -> str:
    return quote(str(text), safe="")

"""A plan: several endpoints in a TOML file, with credentials, two tenants, slow and failing requests."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from .endpoint import ABSENT, Endpoint, Headers, Place, Variation, body_of, header_of, over

_TENANTS = frozenset({"headers", "other_headers"})
_ENDPOINT = _TENANTS | {"name", "url", "method", "body", "count_url", "same", "slow", "failing", "retention"}
_TOP = _TENANTS | {"profile", "strict", "endpoint"}
_VARIATION = frozenset({"body", "headers", "times"})
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a file asks for."""

    endpoints: tuple[Endpoint, ...]
    profile: str | None = None
    strict: bool = False


def read_plan(path: Path, environment: Mapping[str, str] = os.environ) -> Plan:
    """The plan in a file; a :class:`~samekey.errors.ConfigurationError` says what is wrong with it."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"The plan {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The plan {path} is no TOML: {error}.") from None
    _known("the plan", found, _TOP)
    used = frozenset(environment[name] for name in _VARIABLE.findall(str(found)) if name in environment)
    rows = found.get("endpoint")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(f"The plan {path} has no endpoint: write [[endpoint]] and its url.")
    shared = {name: _headers(name, found.get(name, {}), environment) for name in _TENANTS}
    endpoints = [replace(_endpoint(row, shared, environment), secret_values=used) for row in rows]
    return Plan(
        tuple(replace(endpoint, elsewhere=_beside(endpoint, endpoints)) for endpoint in endpoints),
        _typed("profile", found.get("profile"), str),
        _typed("strict", found.get("strict"), bool) or False,
    )


def _endpoint(
    row: Mapping[str, Any], shared: Mapping[str, Headers], environment: Mapping[str, str]
) -> Endpoint:
    _known("an endpoint", row, _ENDPOINT)
    url = _typed("url", row.get("url"), str)
    if url is None:
        raise ConfigurationError("An endpoint of the plan has no url.")
    retention = row.get("retention")
    if retention is not None and (
        isinstance(retention, bool) or not isinstance(retention, int | float) or not 0 < retention < 1e6
    ):
        raise ConfigurationError("The plan's retention must be seconds, more than none.")

    def headers(name: str) -> Headers:
        return over(shared[name], _headers(name, row.get(name, {}), environment))

    return Endpoint(
        _filled(url, environment),
        _body(row),
        (_typed("method", row.get("method"), str) or "POST").upper(),
        headers("headers"),
        headers("other_headers"),
        _optional(_typed("count_url", row.get("count_url"), str), environment),
        _typed("same", row.get("same"), str),
        _variation("slow", row.get("slow"), environment),
        _variation("failing", row.get("failing"), environment),
        retention,
        _typed("name", row.get("name"), str) or "",
    )


def _beside(endpoint: Endpoint, endpoints: Sequence[Endpoint]) -> tuple[Place, ...]:
    """The other endpoints of the plan on the same server."""

    def server(url: str) -> tuple[str, str]:
        return urlsplit(url)[:2]

    return tuple(
        Place(other.url, other.method, other.body)
        for other in endpoints
        if urlsplit(other.url).path != urlsplit(endpoint.url).path
        and server(other.url) == server(endpoint.url)
    )


def _variation(name: str, row: Any, environment: Mapping[str, str]) -> Variation | None:
    if row is None:
        return None
    if not isinstance(row, dict):
        raise ConfigurationError(f"The plan's {name} must be a table, with a body or headers.")
    _known(name, row, _VARIATION)
    return Variation(
        _body(row),
        _headers("headers", row.get("headers", {}), environment),
        _typed("times", row.get("times"), int),
    )


def _body(row: Mapping[str, Any]) -> Any:
    """A table, or JSON in a string."""
    body = row.get("body", ABSENT)
    if isinstance(body, str):
        return body_of(body)
    try:
        json.dumps(None if body is ABSENT else body, allow_nan=False)
    except (TypeError, ValueError):
        raise ConfigurationError("The plan's body is no JSON: write dates as texts, and numbers.") from None
    return body


def _headers(name: str, row: Any, environment: Mapping[str, str]) -> Headers:
    if not isinstance(row, dict) or not all(isinstance(value, str) for value in row.values()):
        raise ConfigurationError(
            f'The plan\'s {name} must be a table of texts: {{Authorization = "Bearer …"}}.'
        )
    return tuple(header_of(f"{key}: {_filled(value, environment)}") for key, value in row.items())


def _filled(text: str, environment: Mapping[str, str]) -> str:
    """With ``${NAME}`` replaced by the environment's: secrets do not belong into a file."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigurationError(f"The plan needs {match[1]} in the environment, and it is not set.")
        return environment[match[1]]

    return _VARIABLE.sub(value, text)


def _optional(text: str | None, environment: Mapping[str, str]) -> str | None:
    return None if text is None else _filled(text, environment)


def _known(what: str, row: Mapping[str, Any], names: frozenset[str]) -> None:
    unknown = sorted(set(row) - names)
    if unknown:
        raise ConfigurationError(
            f"{what} cannot have {', '.join(unknown)}: it may have {', '.join(sorted(names))}."
        )


def _typed(name: str, value: Any, kind: type[Any]) -> Any:
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"The plan's {name} must be {_CALLED[kind]}.")
    return value


_CALLED = {str: "a text", bool: "true or false", int: "a whole number"}

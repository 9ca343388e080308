"""The specification that an API publishes of its idempotency, generated from what is really configured.

``spec_page`` writes it for people, ``spec_openapi`` for tools. Routes whose clients see the same rules share
one section; a handler with settings of its own gets another. Error bodies in it are made by the code that
makes them for clients.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ..core.policy import Policy
from ..core.problem import Refusal, refuse
from ..core.states import Mode
from ..errors import ConfigurationError
from .coverage import RouteCoverage, coverage

_SEEN_BY_CLIENTS: Final = (
    *("key", "scope", "fingerprint", "on_mismatch", "mismatch_status", "on_in_progress", "wait"),
    *("retry_after", "unknown_retry_after", "remember", "max_answer", "errors", "expires_header"),
    *("replayed_header", "documentation", "ttl_from", "after_expiry", "gone_status"),
    *("new_keys_per_minute", "active_keys", "attempts_per_key", "max_age", "timestamp_header"),
)
"""Settings that change what a client sees. Not the retention: that is said of each route by itself."""
_READ_AT_THE_EDGE: Final = ("header", "max_body", "status_path")


@dataclass(slots=True)
class Section:
    """Routes whose clients see the same rules."""

    policy: Policy
    edge: Policy
    deferred: bool
    classified: bool
    """The handlers have rules of their own about what is remembered."""
    routes: list[RouteCoverage] = field(default_factory=list)
    number: int = 1


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that may come of a request."""

    situation: str
    outcome: str
    status: int | None = None
    """None where the handler's own answer is given."""
    code: str | None = None
    retry_after: int | None = None


def sections(app: Any) -> list[Section]:
    """The guarded routes of an application by what their clients see."""
    found: dict[tuple[Any, ...], Section] = {}
    for route in coverage(app):
        if not route.guarded:
            continue
        assert route.rules is not None and route.edge is not None
        policy, edge, mode = route.rules.policy, route.edge, route.rules.mode
        deferred, classified = mode is Mode.DEFERRED, route.rules.classify is not None
        key = (
            *(getattr(policy, name) for name in _SEEN_BY_CLIENTS),
            *(getattr(edge, name) for name in _READ_AT_THE_EDGE),
            *(deferred, classified),
        )
        found.setdefault(key, Section(policy, edge, deferred, classified)).routes.append(route)
    if not found:
        raise ConfigurationError("No route of this application is guarded, so there is nothing to publish.")
    for number, section in enumerate(found.values(), 1):
        section.number = number
    return list(found.values())


def lines(section: Section) -> Iterator[Line]:
    """What a request may get, in the order in which it is decided."""
    policy = section.policy
    yield Line(f"The body is larger than {size(section.edge.max_body)}", "Nothing is done", 413, "too_large")
    if any(route.required for route in section.routes):
        yield Line("There is no key where one is required", "Nothing is done", 400, "missing")
    yield Line("The key is malformed, or sent more than once", "Nothing is done", 400, "malformed")
    if policy.key.personal:
        yield Line(f"The key looks like {personal(policy)}", "Nothing is done", 400, "personal")
    if policy.max_age is not None:
        old = f"`{policy.timestamp_header}` is missing, or older than {span(policy.max_age)}"
        yield Line(old, "Nothing is done", 400, "stale")
    yield Line("The caller is not known", "Nothing is done", 401)
    if (policy.new_keys_per_minute, policy.active_keys) != (None, None):
        yield Line(
            "The caller has too many new keys", "Nothing is done; retry with the same key", 429, "limited"
        )
    if policy.attempts_per_key is not None:
        tried = f"The key was tried {policy.attempts_per_key:,} times, and failed each time"
        yield Line(tried, "Nothing is done; retry when it has expired", 429, "limited")
    yield Line(
        "The keys cannot be looked up at the moment",
        "Nothing is done; retry with the same key",
        503,
        "store_unavailable",
        policy.retry_after,
    )
    first = "The operation is accepted and carried out later" if section.deferred else "It is carried out"
    yield Line("The key is new", first, 202 if section.deferred else None)
    match policy.on_mismatch:
        case "reject":
            yield Line(
                "The key was used with a different request",
                "Nothing is done; a new operation needs a new key",
                policy.mismatch_status,
                "reused",
            )
        case "replay":
            yield Line("The key was used with a different request", "The first answer again")
        case "execute":
            yield Line("The key was used with a different request", "It is an operation of its own")
    yield from _unfinished(section)
    yield Line("The first request is done", "Its answer again, marked as a replay")
    yield Line("The first request failed, and nothing was done", "One retry is carried out")
    yield Line(
        "It is not known whether the first request was carried out",
        "Nothing is done; the outcome is being found out. Retry with the same key",
        409,
        "outcome_unknown",
        policy.unknown_retry_after,
    )
    yield Line(
        "The first request is done, but its answer was not kept",
        "Nothing is done; look at the resource",
        409,
        "result_unavailable",
    )
    if policy.after_expiry == "gone":
        yield Line("The key has expired", "Nothing is done", policy.gone_status, "expired")
    else:
        yield Line("The key has expired", "It is a new key")


def _unfinished(section: Section) -> Iterator[Line]:
    policy = section.policy
    if section.deferred:
        yield Line(
            "The operation waits for its turn, or runs", "See the status", 202, None, policy.retry_after
        )
    refused = Line(
        "The first request is still running",
        "Nothing is done; retry with the same key",
        409,
        "in_progress",
        policy.retry_after,
    )
    match policy.on_in_progress:
        case "reject":
            yield refused
        case "accept":
            yield Line(refused.situation, "See the status", 202, None, policy.retry_after)
        case "wait":
            waits = f"Up to {span(policy.wait)} of waiting for its answer; then nothing is done, retry"
            yield Line(refused.situation, waits, 409, "in_progress", policy.retry_after)


def body_of(line: Line, policy: Policy) -> dict[str, Any]:
    """The error body that a client gets, from the code that makes it."""
    assert line.status is not None
    detail = f"{line.situation}. {line.outcome}."
    differs = ("body",) if line.code == "reused" else ()
    refusal = Refusal(line.status, detail, line.code, differs=differs)
    content: dict[str, Any] = json.loads(refuse(refusal, policy).body)
    return content


def shown_code(line: Line, policy: Policy) -> str | None:
    """The machine-readable code as the profile spells it."""
    if line.code is None or line.status is None:
        return None
    body = body_of(line, policy)
    return str(body["error"]["code"] if policy.errors == "stripe" else body["code"])


def span(duration: timedelta) -> str:
    """A duration in words."""
    seconds = duration.total_seconds()
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size and seconds % size == 0 and not (unit == "day" and seconds < 2 * size):
            number = int(seconds // size)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{seconds:g} seconds"


def size(count: int) -> str:
    """A number of bytes in words."""
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if count and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"


def personal(policy: Policy) -> str:
    """What a key must not look like."""
    return " or ".join(pattern.name for pattern in policy.key.personal)


def openapi_path(template: str) -> str:
    """A template of Starlette's or Flask's as OpenAPI writes it."""
    path = re.sub(r"{(\w+):\w+}", r"{\1}", template)
    return re.sub(r"<(?:[^<>]*:)?(\w+)>", r"{\1}", path)


__all__ = [
    "Line",
    "Section",
    "body_of",
    "lines",
    "openapi_path",
    "personal",
    "sections",
    "shown_code",
    "size",
    "span",
]

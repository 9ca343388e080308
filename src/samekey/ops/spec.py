"""The specification that an API publishes of its idempotency, generated from what is really configured.

``markdown(app)`` is for people, ``openapi(app)`` for tools. Routes whose clients see the same rules share one
section; a handler with settings of its own gets another. Error bodies in it are made by the code that makes
them for clients.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ..core.fingerprint import PARTS
from ..core.policy import NEVER_REMEMBERED, Policy
from ..core.problem import Refusal, refuse
from ..core.states import Mode, State
from ..errors import ConfigurationError
from .coverage import RouteCoverage, coverage

_SEEN_BY_CLIENTS: Final = (
    *("key", "scope", "fingerprint", "on_mismatch", "mismatch_status", "on_in_progress", "wait"),
    *("retry_after", "unknown_retry_after", "remember", "max_answer", "errors", "expires_header"),
    *("replayed_header", "documentation", "ttl_from", "after_expiry", "gone_status"),
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
        yield Line(f"The key looks like {_personal(policy)}", "Nothing is done", 400, "personal")
    yield Line("The caller is not known", "Nothing is done", 401)
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


def _name(route: RouteCoverage) -> str:
    return _code(f"{route.method} {openapi_path(route.path)}")


def _personal(policy: Policy) -> str:
    return " or ".join(pattern.name for pattern in policy.key.personal)


# For people


def markdown(app: Any) -> str:
    """The specification as a page of Markdown."""
    found = sections(app)
    return (
        "\n".join([*_opening(found), *(line for section in found for line in _section(section, found))])
        + "\n"
    )


def _opening(found: list[Section]) -> Iterator[str]:
    several = len(found) > 1
    headers = " or ".join(f"`{name}`" for name in dict.fromkeys(section.edge.header for section in found))
    yield "# Idempotent requests"
    yield ""
    yield (
        f"These requests may be repeated without fear: sent again with the same {headers}, the operation is "
        "carried out once, and every repetition gets the first answer."
    )
    yield ""
    yield "| route | key | kept for |" + (" rules |" if several else "")
    yield "|---|---|---|" + ("---|" if several else "")
    for section in found:
        for route in section.routes:
            key = "required" if route.required else "optional"
            assert route.rules is not None
            row = f"| {_name(route)} | {key} | {span(route.rules.policy.ttl)} |"
            yield row + (f" [{section.number}](#rules-{section.number}) |" if several else "")
    yield ""
    if any(not route.required for section in found for route in section.routes):
        yield "Where the key is optional, a request without one is carried out each time that it arrives."
        yield ""


def _section(section: Section, found: list[Section]) -> Iterator[str]:
    """One section. Later ones say only what is different from the first."""
    level, first = "##", found[0]
    if len(found) > 1:
        yield f"## Rules {section.number}"
        yield ""
        yield "For " + ", ".join(_name(route) for route in section.routes) + "."
        if section is not first:
            yield "What is not said here is as in [rules 1](#rules-1)."
        yield ""
        level = "###"
    for title, part in _PARTS:
        text = list(part(section))
        if text and (section is first or text != list(part(first))):
            yield f"{level} {title}"
            yield ""
            yield from text
            yield ""


def _key(section: Section) -> Iterator[str]:
    rules, policy, header = section.policy.key, section.policy, section.edge.header
    yield f"- The client makes it, one for each operation, and sends it as `{header}` with every attempt."
    if rules.strict:
        yield (
            "- A String of RFC 9651: in double quotation marks, "
            f'`{header}: "8e03978e-40d5-43dd-bc93-6894a57f9324"`. A bare value is refused.'
        )
    else:
        yield (
            "- A bare value of visible ASCII without commas, or the same in double quotation marks (a String "
            "of RFC 9651). Both spellings are one key."
        )
    yield f"- {rules.min_length} to {rules.max_length} characters, not counting quotation marks."
    if rules.pattern is not None:
        flags = " (upper and lower case alike)" if rules.pattern.flags & re.IGNORECASE else ""
        yield f"- All of it matches {_code(rules.pattern.pattern)}{flags}."
    yield "- A random value such as a UUID. It is stored, and it is no secret."
    if rules.personal:
        yield f"- It must not look like {_personal(policy)}."
    if policy.scope == "tenant":
        yield "- It belongs to its caller, for all routes: on another route it counts as a different request."
    else:
        yield "- It belongs to its caller and to one route: on another route it is another key."


def _same(section: Section) -> Iterator[str]:
    rules = section.policy.fingerprint
    parts = ["method", "path", "query", "media type"]
    if rules.headers:
        parts.append("the headers " + ", ".join(f"`{name}`" for name in rules.headers))
    yield (
        f"Two requests are the same if they agree in {', '.join(parts)} and body. JSON is compared by value: "
        "the order of members, white space and the spelling of numbers do not matter."
    )
    if rules.include:
        yield ""
        yield f"Of a JSON body or a form only these members count: {_names(rules.include)}."
    if rules.exclude_query:
        yield ""
        yield f"These parameters of the query do not count: {_names(rules.exclude_query)}."
    if rules.exclude:
        yield ""
        yield f"These members of the body do not count: {_names(rules.exclude)}."


def _names(pointers: tuple[str, ...]) -> str:
    return ", ".join(_code(pointer) for pointer in pointers)


def _gets(section: Section) -> Iterator[str]:
    policy = section.policy
    yield "| | | status | code | `Retry-After` |"
    yield "|---|---|---|---|---|"
    for line in lines(section):
        status = "its own" if line.status is None else str(line.status)
        code = shown_code(line, policy)
        shown = "" if code is None else f"`{code}`"
        pause = "" if line.retry_after is None else f"{line.retry_after} s"
        yield f"| {line.situation} | {line.outcome} | {status} | {shown} | {pause} |"
    yield ""
    media = "application/json" if policy.errors == "stripe" else "application/problem+json"
    example = next(line for line in lines(section) if line.code == "malformed")
    yield f"Errors are `{media}`:"
    yield ""
    yield "```json"
    yield json.dumps(body_of(example, policy), indent=2)
    yield "```"


def _kept(section: Section) -> Iterator[str]:
    policy = section.policy
    never = ", ".join(map(str, sorted(NEVER_REMEMBERED)))
    match policy.remember:
        case "definite":
            kept = (
                f"Answers with 2xx, 3xx and 4xx, except {never}. After another answer a retry is carried out"
            )
        case "successes":
            kept = "Answers with 2xx and 3xx. After another answer a retry is carried out"
        case "everything":
            kept = "Every answer once the operation has begun, errors included, except 401 and 429"
    text = f"{kept}, unless its outcome is not known. A refusal before the operation begins is never kept."
    yield text + (" These routes have rules of their own beyond that." if section.classified else "")
    yield ""
    since = "the end of the operation" if policy.ttl_from == "completion" else "the first request"
    after = f"gets {policy.gone_status}" if policy.after_expiry == "gone" else "is a new one"
    yield (
        f"How long is in the table at the top, counted from {since}. After that the key {after}. The body of "
        f"an answer is kept up to {size(policy.max_answer)}; a larger one is sent once."
    )
    yield ""
    yield "A repeated answer says what the request did, not what the resource is now; use GET for that."


def _headers(section: Section) -> Iterator[str]:
    policy = section.policy
    yield "| header | on | |"
    yield "|---|---|---|"
    yield f"| `{policy.replayed_header}` | repeated answers | `true` |"
    expiring = "answers that are kept or repeated, 202, 409"
    if policy.on_mismatch == "reject" and policy.mismatch_status != 409:
        expiring += f", {policy.mismatch_status} for a different request"
    yield f"| `{policy.expires_header}` | {expiring} | when the key expires, as an HTTP date |"
    yield "| `Retry-After` | see above | seconds |"
    yield f'| `Link` | errors | `<{policy.documentation}>; rel="describedby"` |'
    if section.edge.status_path is not None:
        yield '| `Link` | 409, where there is a status | `rel="status"` |'
        yield "| `Location` | 202 | the status |"


def _status(section: Section) -> Iterator[str]:
    path = section.edge.status_path
    if path is None:
        return
    states = ", ".join(f"`{state}`" for state in State if state is not State.EXPIRED)
    resource = f"{path.rstrip('/')}/{{operation}}"
    yield (
        f"`GET {resource}` gives the state of an operation ({states}), its times, and its answer when "
        "there is one. 404 for an operation of another caller, 410 once it has expired."
    )


_PARTS: Final = (
    ("The key", _key),
    ("The same request", _same),
    ("What a request gets", _gets),
    ("What is kept", _kept),
    ("Headers", _headers),
    ("The status of an operation", _status),
)


def _code(text: str) -> str:
    """Text as code in Markdown, also inside a table."""
    fence = "``" if "`" in text else "`"
    return fence + text.replace("|", "\\|") + fence


# For tools


def openapi(app: Any) -> dict[str, Any]:
    """The specification as a fragment of OpenAPI 3.1, to be merged into the API's own document."""
    found = sections(app)
    paths: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {"parameters": {}, "headers": {}, "responses": {}, "schemas": {}}
    for section in found:
        made = _Components(section, "" if section is found[0] else f"Rules{section.number}", parts)
        for route in section.routes:
            path = openapi_path(route.path)
            item = paths.setdefault(path, _path_item(path))
            item.setdefault(route.method.lower(), made.operation(route))
        if section.edge.status_path is not None:
            path = f"{section.edge.status_path.rstrip('/')}/{{operation}}"
            if path not in paths:
                paths[path] = {**_path_item(path), "get": made.status()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Idempotent requests", "version": "1"},
        "paths": paths,
        "components": parts,
    }


def openapi_path(template: str) -> str:
    """A template of Starlette's or Flask's as OpenAPI writes it."""
    path = re.sub(r"{(\w+):\w+}", r"{\1}", template)
    return re.sub(r"<(?:[^<>]*:)?(\w+)>", r"{\1}", path)


def _path_item(path: str) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", path)
    made = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {"parameters": made} if made else {}


class _Components:
    """The shared parts of one section, put into the document under names of their own."""

    def __init__(self, section: Section, suffix: str, parts: dict[str, dict[str, Any]]) -> None:
        self._section = section
        self._policy = section.policy
        self._suffix = suffix
        self._parts = parts
        self._by_status: dict[int, list[Line]] = {}
        for line in lines(section):
            if line.status is not None:
                self._by_status.setdefault(line.status, []).append(line)
        policy = section.policy
        self._headers = {
            policy.replayed_header: self._add(
                "headers", "IdempotentReplayed", _header("`true` on a repeated answer.", {"const": "true"})
            ),
            policy.expires_header: self._add(
                "headers", "IdempotencyKeyExpires", _header("When the key expires, as an HTTP date.")
            ),
            "Retry-After": self._add(
                "headers",
                "IdempotencyRetryAfter",
                _header("Seconds to wait before the next attempt.", {"type": "integer", "minimum": 0}),
            ),
            "Link": self._add("headers", "IdempotencyLink", _header("This specification; the status.")),
        }
        if section.edge.status_path is not None:
            location = _header("The status of the operation.")
            self._headers["Location"] = self._add("headers", "IdempotencyLocation", location)
        self._error = self._add("schemas", "IdempotencyError", self._error_schema())
        self._responses = {
            str(status): self._add("responses", f"Idempotency{status}", self._response(status, found))
            for status, found in sorted(self._by_status.items())
        }
        self._responses["2XX"] = self._add(
            "responses",
            "IdempotencyAnswer",
            {
                "description": "The answer of the operation, the first time and every later time.",
                "headers": self._named(policy.replayed_header, policy.expires_header),
            },
        )

    def operation(self, route: RouteCoverage) -> dict[str, Any]:
        assert route.rules is not None
        policy = route.rules.policy
        return {
            "parameters": [self._parameter(required=bool(route.required))],
            "responses": dict(self._responses),
            "x-idempotency": {
                "required": bool(route.required),
                "scope": policy.scope,
                "retention_seconds": int(policy.ttl.total_seconds()),
                "retention_from": policy.ttl_from,
                "remembered": policy.remember,
                "on_mismatch": policy.on_mismatch,
                "on_in_progress": policy.on_in_progress,
                "after_expiry": policy.after_expiry,
            },
        }

    def status(self) -> dict[str, Any]:
        times = ("created_at", "last_run_at", "completed_at", "expires_at")
        schema = {
            "type": "object",
            "required": ["id", "state", "created_at", "expires_at", "answer"],
            "properties": {
                "id": {"type": "string"},
                "state": {"enum": [str(state) for state in State if state is not State.EXPIRED]},
                **{name: {"type": ["string", "null"], "format": "date-time"} for name in times},
                "answer": {
                    "type": ["object", "null"],
                    "properties": {
                        "status": {"type": "integer"},
                        "headers": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
                        "body": {"type": "string"},
                        "encoding": {"enum": ["utf-8", "base64"]},
                    },
                },
            },
        }
        content = {"application/json": {"schema": self._add("schemas", "IdempotencyOperation", schema)}}
        refusals = {
            401: "The caller is not known.",
            404: "No such operation of this caller.",
            410: "Expired.",
        }
        error = {self._media(): {"schema": self._error}}
        return {
            "summary": "The state of an operation, and its answer when there is one.",
            "responses": {
                "200": {
                    "description": "The operation.",
                    "headers": self._named("Retry-After"),
                    "content": content,
                },
                **{str(status): {"description": text, "content": error} for status, text in refusals.items()},
                "503": self._responses["503"],
            },
        }

    def _add(self, kind: str, name: str, part: dict[str, Any]) -> dict[str, Any]:
        if self._parts[kind].get(name) != part:  # what is the same in every section is there once
            name = f"{name}{self._suffix}"
            self._parts[kind].setdefault(name, part)
        return {"$ref": f"#/components/{kind}/{name}"}

    def _named(self, *names: str) -> dict[str, Any]:
        return {name: self._headers[name] for name in names}

    def _parameter(self, *, required: bool) -> dict[str, Any]:
        text = "One value for each operation, such as a UUID; the same with every attempt."
        part = {
            "name": self._section.edge.header,
            "in": "header",
            "required": required,
            "description": text,
            "schema": key_schema(self._policy),
            "example": '"8e03978e-40d5-43dd-bc93-6894a57f9324"'
            if self._policy.key.strict
            else "8e03978e-40d5-43dd-bc93-6894a57f9324",
        }
        if self._policy.key.pattern is not None and not self._policy.key.pattern.fullmatch(_UUID):
            del part["example"]
        return self._add("parameters", "IdempotencyKey" if required else "IdempotencyKeyOptional", part)

    def _response(self, status: int, found: list[Line]) -> dict[str, Any]:
        said = [f"{line.situation}. {line.outcome}." for line in found]
        names = ["Link"] if status >= 400 else [name for name in ("Location",) if name in self._headers]
        if any(line.retry_after is not None for line in found):
            names.append("Retry-After")
        if status in (202, 409) or any(line.code == "reused" for line in found):
            names.append(self._policy.expires_header)
        if status < 400:
            schema = {
                "type": "object",
                "properties": {"id": {"type": "string"}, "state": {"type": "string"}},
            }
            content: dict[str, Any] = {"application/json": {"schema": schema}}
        else:
            examples = {
                shown_code(line, self._policy) or "unauthenticated": {"value": body_of(line, self._policy)}
                for line in found
            }
            content = {self._media(): {"schema": self._error, "examples": examples}}
        return {"description": " ".join(said), "headers": self._named(*names), "content": content}

    def _media(self) -> str:
        return "application/json" if self._policy.errors == "stripe" else "application/problem+json"

    def _error_schema(self) -> dict[str, Any]:
        shown = (shown_code(line, self._policy) for line in lines(self._section))
        code = {"type": "string", "enum": list(dict.fromkeys(one for one in shown if one is not None))}
        if self._policy.errors == "stripe":
            text = {"type": "string"}
            inner = {"type": text, "message": text, "doc_url": text, "code": code}
            error = {"type": "object", "required": ["type", "message"], "properties": inner}
            return {"type": "object", "required": ["error"], "properties": {"error": error}}
        return {
            "type": "object",
            "required": ["type", "title", "status", "detail"],
            "properties": {
                "type": {"type": "string", "format": "uri-reference"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string"},
                "code": code,
                "operation": {"type": "string", "description": "The id for the status of the operation."},
                "differs": {
                    "type": "array",
                    "items": {"type": "string", "enum": list(PARTS)},
                    "description": "In which parts the request differs from the first one with its key.",
                },
            },
        }


_UUID: Final = "8e03978e-40d5-43dd-bc93-6894a57f9324"


def _header(description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": description, "schema": schema or {"type": "string"}}


_STRING: Final = r'^"(?:[ !#-\[\]-~]|\\["\\])+"(?:;.*)?$'
_BARE: Final = r"^[!#-+\--~][!-+\--~]*$"
_ONLY_PYTHON: Final = re.compile(r"\(\?[^:=!]|\\[AZz]|[*+?}]\+")
"""What the regular expressions of JSON Schema do not know."""


def key_schema(policy: Policy) -> dict[str, Any]:
    """The header's value as it is sent. A String has quotation marks, and may have escapes and parameters,
    so the lengths of the key are only exact for a bare value."""
    rules = policy.key
    quoted: dict[str, Any] = {"type": "string", "pattern": _STRING, "minLength": rules.min_length + 2}
    bare: dict[str, Any] = {
        "type": "string",
        "pattern": _BARE,
        "minLength": rules.min_length,
        "maxLength": rules.max_length,
    }
    pattern = rules.pattern
    if pattern is not None and not pattern.flags & ~re.UNICODE and not _ONLY_PYTHON.search(pattern.pattern):
        bare["pattern"] = f"^(?:{pattern.pattern})$"
        if not re.search(r"[\"\\.]|\[\^", pattern.pattern):
            quoted["pattern"] = f'^"(?:{pattern.pattern})"(?:;.*)?$'
    elif pattern is not None:
        quoted["description"] = bare["description"] = f"All of it matches {pattern.pattern}"
    return quoted if rules.strict else {"anyOf": [bare, quoted]}


__all__ = ["Line", "Section", "key_schema", "markdown", "openapi", "sections", "span"]

"""The specification as a fragment of OpenAPI, for tools."""

from __future__ import annotations

import re
from typing import Any, Final

from ..core.fingerprint import PARTS
from ..core.policy import Policy
from ..core.states import State
from .coverage import RouteCoverage
from .spec import Line, Section, body_of, lines, openapi_path, sections, shown_code

__all__ = ["key_schema", "openapi"]


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
        policy, day = route.rules.policy, route.required_from
        return {
            "parameters": [self._parameter(required=route.refuses_without_key)],
            "responses": dict(self._responses),
            "x-idempotency": {
                "required": route.refuses_without_key,
                **({} if day is None else {"required_from": day.isoformat()}),
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

"""The idempotency of an API in its own OpenAPI document: the header, who asks, and what may come back.

    describe(app)                                                  FastAPI, Litestar, Flask with flask-smorest
    described(document, app)                                       any other document
    POSTPROCESSING_HOOKS = [..., "samekey.openapi.spectacular"]    REST framework, by drf-spectacular

What is added comes from the real configuration of each route (``samekey.ops.spec_openapi``). Whatever the
document says itself stays.
"""

from __future__ import annotations

import re
import sys
from copy import deepcopy
from typing import Any
from urllib.parse import unquote

from .edges.walk import RoutePlace, walk
from .edges.wrapped import attribute, behind, is_flask, is_litestar
from .errors import ConfigurationError
from .idempotency import Idempotency
from .ops.coverage import RouteCoverage, coverage
from .ops.spec import openapi_path
from .ops.spec_openapi import openapi
from .tenants import security_of

__all__ = ["describe", "described", "spectacular"]

Document = dict[str, Any]


def describe(app: Any, idempotency: Idempotency | None = None) -> None:
    """Has the document that an application serves say what samekey promises.

    FastAPI and flask-smorest make it when it is asked for, so this may be said at any time; for Litestar, say
    it once all routes are there (``samekey.litestar`` does it at start-up). ``ConfigurationError`` where
    there is no document that is known, or where the given ``Idempotency`` guards nothing in it.
    """
    for is_it, put in ((_is_fastapi, _fastapi), (is_litestar, _litestar), (_is_smorest, _smorest)):
        found = behind(app, is_it)
        if found is not None:
            put(found, app, idempotency)
            return
    raise ConfigurationError(
        f"A {type(app).__name__} has no OpenAPI document that samekey knows of (those of FastAPI, Litestar "
        "and flask-smorest). Take yours through samekey.openapi.described(document, app)."
    )


def described(document: Document, app: Any, idempotency: Idempotency | None = None) -> Document:
    """A document that says what samekey promises for the guarded routes of ``app``. The given one stays."""
    _check(app, idempotency)
    guarded = {(openapi_path(one.path), one.method.lower()): one for one in coverage(app) if one.guarded}
    if not guarded:
        return document
    made, added = deepcopy(document), openapi(app)
    if str(made.get("openapi", "")).startswith("3.0"):
        added = _in_3_0(added)
    for kind, parts in added["components"].items():
        for name, part in parts.items():
            made.setdefault("components", {}).setdefault(kind, {}).setdefault(name, part)
    paths = made.setdefault("paths", {})
    known = {_shape(path): path for path in paths}
    for path, item in added["paths"].items():
        there = paths.get(known.get(_shape(path), path))
        for method, operation in item.items():
            route = guarded.get((path, method))
            if route is not None and there is not None and method in there:
                _merge(there[method], operation, made)
                _ask_who(there[method], route, made)
        if there is None and "get" in item:  # what the document leaves out of the guarded routes stays out
            status = {"operationId": "idempotency_status", "parameters": item["parameters"], **item["get"]}
            paths[path] = {"get": status}
            _ask_who(status, next(iter(guarded.values())), made)
    return made


def spectacular(result: Document, generator: Any, request: Any, public: bool) -> Document:
    """A postprocessing hook of drf-spectacular."""
    from django.core.wsgi import get_wsgi_application  # type: ignore[import-not-found, unused-ignore]

    return described(result, get_wsgi_application())


# Where documents are made


def _is_fastapi(app: Any) -> bool:
    kind = getattr(sys.modules.get("fastapi"), "FastAPI", None)
    return kind is not None and isinstance(app, kind)


def _is_smorest(app: Any) -> bool:
    return is_flask(app) and "flask-smorest" in attribute(app, "extensions")


def _fastapi(found: Any, app: Any, idempotency: Idempotency | None) -> None:
    make, ours = found.openapi, object()

    def openapi() -> Any:
        nonlocal ours
        if found.openapi_schema is not ours:  # it was made anew, or never
            ours = found.openapi_schema = described(make(), app, idempotency)
        return ours

    found.openapi = openapi


def _litestar(found: Any, app: Any, idempotency: Idempotency | None) -> None:
    plugin = found.plugins.get(sys.modules["litestar._openapi.plugin"].OpenAPIPlugin)
    document = plugin.provide_openapi_schema()
    document.update(described(document, app, idempotency))


def _smorest(found: Any, app: Any, idempotency: Idempotency | None) -> None:
    for api in found.extensions["flask-smorest"]["apis"].values():
        spec = api["ext_obj"].spec
        make = spec.to_dict
        spec.to_dict = lambda make=make: described(make(), app, idempotency)


def _check(app: Any, idempotency: Idempotency | None) -> None:
    reached = list(walk(app, RoutePlace()))
    engines = [guard.middleware._engine for one in reached for guard in one.guards]
    if idempotency is not None and reached and idempotency.engine not in engines:
        raise ConfigurationError(
            "This Idempotency guards nothing in this application, so there is nothing to describe: put its "
            "IdempotencyMiddleware (or plugin, or extension) around it first."
        )


# What is added to an operation


def _merge(there: Document, added: Document, document: Document) -> None:
    parameters = there.setdefault("parameters", [])
    known = [_found(one, document) for one in parameters]
    named = {(one.get("in"), str(one.get("name")).lower()) for one in known}
    for one in added["parameters"]:
        if ("header", _found(one, document)["name"].lower()) not in named:
            parameters.append(one)
    responses = there.setdefault("responses", {})
    for status, response in added["responses"].items():
        same = [one for one in responses if one == status or (status == "2XX" and str(one).startswith("2"))]
        for one in same:
            theirs = _found(responses[one], document)
            if "$ref" not in theirs:  # else it is another document's, and stays as it is
                responses[one] = _joined(theirs, _found(response, document))
        if not same:
            responses[status] = response
    there.setdefault("x-idempotency", added["x-idempotency"])


def _joined(there: Document, added: Document) -> Document:
    """A response that is both: the application's own, and samekey's."""
    own = str(there.get("description", "")).rstrip(".")
    made = {**there, "description": f"{own}. {added['description']}" if own else added["description"]}
    made["headers"] = {**added.get("headers", {}), **there.get("headers", {})}
    content = dict(there.get("content", {}))
    for media, one in added.get("content", {}).items():
        if media in content and content[media].get("schema") not in (None, one["schema"]):
            schema = {"anyOf": [content[media]["schema"], one["schema"]]}
            content[media] = {**content[media], "schema": schema}
        else:
            content[media] = one
    return {**made, "content": content} if content else made


def _ask_who(there: Document, route: RouteCoverage, document: Document) -> None:
    """Without the tenant there is no key: the page must be able to send whatever names it."""
    assert route.edge is not None
    scheme = security_of(route.tenant, route.edge.challenge)
    said = there.get("security") or document.get("security") or ()
    if scheme is None or any(said):  # an empty one says that anybody may come
        return
    schemes = document["components"].setdefault("securitySchemes", {})
    name = next((name for name, known in schemes.items() if scheme.items() <= known.items()), "samekeyCaller")
    schemes.setdefault(name, scheme)
    there["security"] = [{name: []}]


def _found(part: Document, document: Document) -> Document:
    """What a reference leads to; the reference itself, where that is not in this document."""
    seen: set[str] = set()
    while "$ref" in part and part["$ref"].startswith("#/") and part["$ref"] not in seen:
        seen.add(part["$ref"])
        found: Any = document
        for step in part["$ref"].removeprefix("#/").split("/"):
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            break
        part = found
    return part


def _shape(path: str) -> str:
    """A path whatever its parameters are called, and whether it ends with a slash."""
    return re.sub(r"{[^{}]*}", "{}", path).rstrip("/")


def _in_3_0(part: Any) -> Any:
    """In the words of OpenAPI 3.0, which has another way to say that something may be null."""
    if isinstance(part, list):
        return [_in_3_0(one) for one in part]
    if not isinstance(part, dict):
        return part
    made = {name: _in_3_0(one) for name, one in part.items()}
    if isinstance(made.get("type"), list):
        made["nullable"], made["type"] = True, next(one for one in made["type"] if one != "null")
    if "const" in made:
        made["enum"] = [made.pop("const")]
    return made

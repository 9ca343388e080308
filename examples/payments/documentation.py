"""The OpenAPI document: FastAPI's own, with samekey's header and answers on every guarded route."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from samekey.ops.spec_openapi import openapi


def document(app: FastAPI) -> dict[str, Any]:
    """Made once. What both say about one status is kept side by side."""
    if app.openapi_schema is None:
        own = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        app.openapi_schema = _joined(own, openapi(app))
    return app.openapi_schema


def _joined(own: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    answers = keys["components"]["responses"]
    for kind, parts in keys["components"].items():
        own.setdefault("components", {}).setdefault(kind, {}).update(parts)
    for path, item in keys["paths"].items():
        if path not in own["paths"]:  # the status resource, which the middleware answers by itself
            own["paths"][path] = item
            continue
        for method, described in item.items():
            if method == "parameters":  # of the path: FastAPI has them
                continue
            operation = own["paths"][path][method]
            operation.setdefault("parameters", []).extend(described["parameters"])
            for status, reference in described["responses"].items():
                there = operation["responses"].get(status)
                if there is None:
                    operation["responses"][status] = reference
                else:
                    content = answers[reference["$ref"].rpartition("/")[2]].get("content", {})
                    there["content"] = {**content, **there.get("content", {})}
            operation["x-idempotency"] = described["x-idempotency"]
    return own

"""What a client can read: problem details, links, and the OpenAPI document."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ..bench import Bench
from ..judging import document_of
from ..wire import RawAnswer

_ABOUT_THE_KEY = ("missing", "malformed", "misuse", "in progress")


def refusals(bench: Bench) -> None:
    """How refusals about the key are worded."""
    if not bench.profile.problems:
        return
    found = [bench.refusals[name] for name in _ABOUT_THE_KEY if name in bench.refusals]
    if not found:
        bench.report.cannot_tell("nothing was refused", "documentation.problem", "documentation.link")
    for exchange in found:
        answer = exchange.answer
        assert answer is not None
        if "application/problem+json" not in (answer.header("content-type") or "").lower():
            bench.report.find("documentation.problem", f"A {answer.status} is no problem+json.", [exchange])
        if not _leads_somewhere(answer):
            bench.report.find(
                "documentation.link", f"A {answer.status} leads to no documentation.", [exchange]
            )
    if found:
        bench.report.hold("documentation.problem", "documentation.link")


def _leads_somewhere(answer: RawAnswer) -> bool:
    document = document_of(answer)
    kind = document.get("type") if isinstance(document, dict) else None
    linked = any("describedby" in value or "help" in value for value in answer.every("link"))
    return linked or (isinstance(kind, str) and kind not in ("", "about:blank")) or b"http" in answer.body


def openapi(bench: Bench) -> None:
    """Whether the document that the server publishes names the header."""
    parts = urlsplit(bench.endpoint.url)
    root = urlunsplit(parts._replace(path="/openapi.json", query=""))
    exchange = bench.send(bench.request(method="GET", url=root))
    operation = _operation(document_of(exchange.answer), bench) if exchange.succeeded else None
    if operation is None:
        bench.report.cannot_tell("there is no /openapi.json that knows the endpoint", "documentation.openapi")
    elif "idempotency-key" in json.dumps(operation).lower():
        bench.report.hold("documentation.openapi")
    else:
        bench.report.find("documentation.openapi", "The operation has no parameter Idempotency-Key.", [])


def _operation(document: Any, bench: Bench) -> Any:
    """The operation's part of the document, with what belongs to its whole path."""
    paths = document.get("paths") if isinstance(document, dict) else None
    for template, item in paths.items() if isinstance(paths, dict) else ():
        method = bench.endpoint.method.lower()
        if isinstance(item, dict) and method in item and _fits(template, urlsplit(bench.endpoint.url).path):
            # Parameters may be written elsewhere, and only be referred to here.
            named = (
                document.get("components")
                if "$ref" in json.dumps([item[method], item.get("parameters")])
                else None
            )
            return [item[method], item.get("parameters"), named]
    return None


def _fits(template: str, path: str) -> bool:
    wanted, given = template.strip("/").split("/"), path.strip("/").split("/")
    return len(wanted) == len(given) and all(
        one == two or (one.startswith("{") and one.endswith("}"))
        for one, two in zip(wanted, given, strict=True)
    )

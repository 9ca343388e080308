"""An exchange as text that can be shown to anybody: credentials and cookies are masked, bodies are cut."""

from __future__ import annotations

import re
from collections.abc import Collection

from .wire import RawExchange

MASK = "•••"
LONGEST = 2000
"""Characters of a body that are shown."""

_CREDENTIAL = re.compile(
    r"authorization|cookie|token|secret|api[-_]?key|password|credential|signature|session", re.IGNORECASE
)


def is_credential(name: str) -> bool:
    """Whether a header of this name may hold something secret."""
    return name.lower() != "idempotency-key" and _CREDENTIAL.search(name) is not None


def shown_request(exchange: RawExchange, secrets: Collection[str] = ()) -> str:
    """What was sent, without what is secret."""
    head, _, body = exchange.request.whole().partition(b"\r\n\r\n")
    return _shown(head, body, secrets)


def shown_answer(exchange: RawExchange, secrets: Collection[str] = ()) -> str:
    """What came back, or why nothing did."""
    answer = exchange.answer
    if answer is None:
        return f"({exchange.silence})"
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}".rstrip()]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    return _shown("\r\n".join(lines).encode("latin-1", "replace"), answer.body, secrets)


def _shown(head: bytes, body: bytes, secrets: Collection[str]) -> str:
    first, *headers = head.decode("latin-1").split("\r\n")
    hidden = {name.lower() for name in secrets}
    lines = [first]
    for line in headers:
        name, _, value = line.partition(": ")
        secret = name.lower() in hidden or is_credential(name)
        lines.append(f"{name}: {MASK if secret and value else value}")
    text = body.decode("utf-8", "backslashreplace")
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(body)} bytes)"
    return "\n".join(lines) + (f"\n\n{text}" if text else "")

"""Dialects: how a key is spelled, and how a server says what it does with one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from ..core.header import KeyRefused, KeyRules, parse_key
from ..errors import ConfigurationError
from .wire import Request


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to speak about keys over HTTP."""

    header: str = "Idempotency-Key"
    quoted: bool = True
    """A String of RFC 9651, in double quotation marks; else the bare value."""
    member: str | None = None
    """The key stands in this member of a JSON body, and in no header."""
    longest: int = 255
    """Characters of a key; a longer one is sent as its digest."""
    replayed_header: str = "Idempotent-Replayed"
    expires_header: str = "Idempotency-Key-Expires"

    @property
    def spelling(self) -> str:
        """What tells apart how two servers are given a key."""
        return f"{self.header.lower()} {'quoted' if self.quoted else 'bare'} {self.member or ''}".rstrip()

    def spell(self, key: str) -> str:
        """The key as it is sent."""
        if len(key) > self.longest:
            key = hashlib.sha256(key.encode()).hexdigest()[: self.longest]
        if not self.quoted:
            return key
        escaped = key.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    def put(self, request: Request, key: str) -> Request:
        """The request with its key."""
        if self.member is None:
            return replace(request, headers=(*self.take(request).headers, (self.header, self.spell(key))))
        content = _object(request)
        if content is None:
            raise ConfigurationError(
                f"The key belongs into the member {self.member!r} of a JSON body, and this body is no JSON "
                "object. Nothing was sent."
            )
        if content.get(self.member) == self.spell(key):
            return request  # the caller's own bytes, which may be signed
        body = json.dumps({**content, self.member: self.spell(key)}).encode()
        rest = (pair for pair in request.headers if pair[0].lower() != "content-length")
        return replace(request, headers=(*rest, ("Content-Length", str(len(body)))), body=body)

    def take(self, request: Request) -> Request:
        """The request without a key in its headers."""
        name = self.header.lower()
        return replace(request, headers=tuple(pair for pair in request.headers if pair[0].lower() != name))

    def own_key(self, request: Request) -> str | None:
        """The key that the caller has set. ``ConfigurationError`` for what cannot be one."""
        if self.member is not None:
            value = (_object(request) or {}).get(self.member)
            return value if isinstance(value, str) and value else None
        value = request.header(self.header)
        if value is None or not self.quoted:
            return value
        try:
            return parse_key([value], KeyRules(personal=()))
        except KeyRefused as refused:
            raise ConfigurationError(f"The caller's own {self.header} cannot be sent. {refused}") from None


def _object(request: Request) -> dict[str, Any] | None:
    try:
        found = json.loads(request.body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


IETF = Dialect()
"""draft-ietf-httpapi-idempotency-key-header: the key is a quoted String."""
STRIPE = Dialect(quoted=False)
"""Stripe's: the key is a bare value."""

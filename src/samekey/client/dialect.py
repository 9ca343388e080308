"""Dialects: how a key is spelled, and how a server says what it does with one."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.header import KeyRefused, KeyRules, parse_key
from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to speak about keys over HTTP."""

    header: str = "Idempotency-Key"
    quoted: bool = True
    """A String of RFC 9651, in double quotation marks; else the bare value."""
    replayed_header: str = "Idempotent-Replayed"
    expires_header: str = "Idempotency-Key-Expires"

    def spell(self, key: str) -> str:
        """The key as the value of its header."""
        if not self.quoted:
            return key
        escaped = key.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    def key_in(self, value: str) -> str:
        """The key in a header that the caller has set. ``ConfigurationError`` for what cannot be one."""
        if not self.quoted:
            return value
        try:
            return parse_key([value], KeyRules(personal=()))
        except KeyRefused as refused:
            raise ConfigurationError(f"The caller's own {self.header} cannot be sent. {refused}") from None


IETF = Dialect()
"""draft-ietf-httpapi-idempotency-key-header: the key is a quoted String."""
STRIPE = Dialect(quoted=False)
"""Stripe's: the key is a bare value."""

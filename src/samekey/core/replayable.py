"""Which headers of an answer may be kept and sent again.

Never: cookies and credentials (they belong to one session), hop-by-hop headers (they belong to one
connection), and what is only true at one moment (dates, ages, rate limits, our own marks). A header is taken
for a credential by its name; ``keep_headers`` and ``drop_headers`` of the policy say otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from .record import Answer, Headers

NEVER: Final = frozenset(
    {
        # sessions
        b"cookie",
        b"set-cookie",
        b"set-cookie2",
        b"clear-site-data",
        # one connection
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"alt-svc",
    }
)
"""What no setting can keep."""
_ONE_MOMENT: Final = frozenset(
    {
        b"date",
        b"age",
        b"server",
        b"server-timing",
        b"retry-after",
        b"idempotent-replayed",
        b"idempotency-key-expires",
    }
)
_NEVER_PREFIXES: Final = (b"ratelimit", b"rate-limit", b"x-ratelimit", b"x-rate-limit")
_CREDENTIAL: Final = re.compile(
    rb"token|secret|session|credential|passw|passphrase|passcode|pass-?key|cookie|csrf|xsrf|jwt|bearer|dpop|saml"
    rb"|assertion|signature|nonce|ticket|captcha|challenge|otp|one-?time|magic-?link"
    rb"|auth(?!or(?!i))"  # not the author
    rb"|(?:api|app|access|account|private|client|security|shared|signing|encryption|session|service|subscription|master)-?key"
    rb"|(?:^|-)(?:sid|pin|pwd|sso|mfa|2fa|tan|cvv|cvc|impersonat\w*|refresh)(?:-|$)|(?:^|(?<!idempotency)-)key$"
)


def replayable_headers(headers: Headers, keep: Collection[str] = (), drop: Collection[str] = ()) -> Headers:
    """The headers that may be stored. A header that ``Connection`` names is hop-by-hop too."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    kept, dropped = _names(keep), named | _names(drop)

    def allowed(name: bytes) -> bool:
        if name in NEVER or name in dropped:
            return False
        return name in kept or not (
            name in _ONE_MOMENT or name.startswith(_NEVER_PREFIXES) or _seems_secret(name)
        )

    return tuple((name, value) for name, value in headers if allowed(name.lower()))


def _seems_secret(name: bytes) -> bool:
    # What CORS says of credentials is none.
    plain = name.startswith(b"access-control-")
    return not plain and _CREDENTIAL.search(name.replace(b"_", b"-")) is not None


def _names(names: Collection[str]) -> set[bytes]:
    return {name.lower().encode("latin-1") for name in names}


def replayable(answer: Answer, keep: Collection[str] = (), drop: Collection[str] = ()) -> Answer:
    """The part of an answer that is stored."""
    return Answer(answer.status, replayable_headers(answer.headers, keep, drop), answer.body)

"""The Idempotency-Key header: from the lines of a request to one key, or one clear refusal.

Pure. It decides what a key is (K1 to K4) and nothing else: it knows no status codes, no tenants and
no store, and what it raises never repeats the key, because refusals end up in answers and logs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import http_sf

__all__ = [
    "EMAIL",
    "NATIONAL_ID",
    "PHONE",
    "UUID",
    "KeyRefused",
    "KeyRules",
    "PersonalPattern",
    "parse_key",
]

# The longest key there is (K3); a store's column is this wide.
MAX_KEY_LENGTH = 255
# A String of 255 characters, each of them escaped, needs 512 bytes; the rest is room for
# parameters. The limit is what bounds the time spent on a hostile value.
MAX_RAW_LENGTH = 1024

_OWS = b" \t"
# Visible ASCII without the comma (a comma joins header lines, so it may hide a second key) and
# without a leading quotation mark, which announces a String.
_BARE = re.compile(rb"[!#-+\--~][!-+\--~]*")

#: Any RFC 9562 UUID in its usual spelling, upper or lower case; for ``KeyRules(pattern=UUID)``.
UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class KeyRefused(Exception):
    """The request carries no usable key. ``detail`` tells the client what to do about it."""

    def __init__(self, code: Literal["missing", "malformed", "personal"], detail: str) -> None:
        super().__init__(detail)
        self.code: Literal["missing", "malformed", "personal"] = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class PersonalPattern:
    """A kind of personal data that must not be used as a key: found anywhere in it, it refuses.

    ``name`` completes the sentence "the key looks like …". The pattern is searched in at most 255
    characters, and should still be one that cannot backtrack without bound.
    """

    name: str
    pattern: re.Pattern[str]


# Each pattern starts at a rare character or at a word boundary and repeats one class at a time, so
# a search is linear. Only ASCII letters and digits reach them.

#: An e-mail address, also with the @ percent-encoded, also inside a longer key.
EMAIL = PersonalPattern(
    "an e-mail address",
    re.compile(r"[A-Za-z0-9_+-](?:@|%40)[A-Za-z0-9](?:[A-Za-z0-9-]|\.(?=[A-Za-z0-9]))*\.[A-Za-z]{2}"),
)

#: A telephone number: +44 20 7946 0958, (555) 010-9999, 555-010-9999, or 10 to 15 plain digits.
#: Not on by default: a counter or a timestamp of that many digits looks just the same. A UUID does
#: not, since its groups have other lengths.
PHONE = PersonalPattern(
    "a telephone number",
    re.compile(
        r"(?<![0-9A-Za-z])(?:"
        r"\+[0-9](?:[ .()/-]{0,2}[0-9]){7,14}(?![0-9])"
        r"|(?:\([0-9]{3}\)[ .-]?|[0-9]{3}[ .-])[0-9]{3}[ .-][0-9]{4}(?![0-9A-Za-z])"
        r"|(?<![-.])[0-9]{10,15}(?![0-9A-Za-z]|[-.][0-9A-Za-z])"
        r")"
    ),
)

#: A national identity number with a shape of its own: US social security (123-45-6789), UK national
#: insurance (QQ123456C), Brazilian CPF (123.456.789-09), Italian codice fiscale. Not on by default.
NATIONAL_ID = PersonalPattern(
    "a national identity number",
    re.compile(
        r"(?<![0-9A-Za-z])(?:"
        r"(?!000|666)[0-8][0-9]{2}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}"
        r"|[A-Za-z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-Da-d]"
        r"|[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}"
        r"|[A-Za-z]{6}[0-9]{2}[A-EHLMPRSTa-ehlmprst][0-9]{2}[A-Za-z][0-9]{3}[A-Za-z]"
        r")(?![0-9A-Za-z])"
    ),
)


@dataclass(frozen=True, slots=True)
class KeyRules:
    """What is accepted as a key. Impossible rules raise ``ValueError`` when they are built.

    ``strict`` takes the quoted String of the IETF draft only. The lengths count characters of the
    key itself, without quotation marks and escapes. ``pattern`` must match the whole key.
    """

    strict: bool = False
    min_length: int = 1
    max_length: int = MAX_KEY_LENGTH
    pattern: re.Pattern[str] | None = None
    personal: tuple[PersonalPattern, ...] = (EMAIL,)

    def __post_init__(self) -> None:
        if self.min_length < 1:
            raise ValueError(f"min_length is {self.min_length}; a key has at least 1 character")
        if self.max_length > MAX_KEY_LENGTH:
            raise ValueError(
                f"max_length is {self.max_length}; a key has at most {MAX_KEY_LENGTH} characters"
            )
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length {self.min_length} is above max_length {self.max_length}: no key could pass"
            )
        if self.pattern is not None and not isinstance(self.pattern.pattern, str):
            raise ValueError("pattern must be compiled from a str, not from bytes")
        object.__setattr__(self, "personal", tuple(self.personal))


def parse_key(lines: Sequence[bytes | str], rules: KeyRules) -> str:
    """Return the key that ``lines``, all the header lines of that name, carry.

    A quoted String and a bare value with the same characters are the same key. Raises
    ``KeyRefused`` and nothing else, whatever the bytes.
    """
    if not lines:
        raise KeyRefused(
            "missing",
            "This request needs an idempotency key: make one unique value for the operation, such "
            "as a UUID, and send it with every attempt.",
        )
    if len(lines) > 1:
        raise _malformed("The key's header stands more than once in the request; send it once.")
    key = _value(_raw(lines[0]), rules)
    _check(key, rules)
    return key


def _malformed(detail: str) -> KeyRefused:
    return KeyRefused("malformed", detail)


def _raw(line: bytes | str) -> bytes:
    if len(line) > MAX_RAW_LENGTH:
        raise _malformed(f"The key's header is longer than {MAX_RAW_LENGTH} bytes; shorten it.")
    if isinstance(line, str):
        # Asked rather than tried: an encoding error would carry the key along as its context.
        if not line.isascii():
            raise _malformed("The key is not ASCII; send a value such as a UUID.")
        line = line.encode("ascii")
    return line.strip(_OWS)


def _value(raw: bytes, rules: KeyRules) -> str:
    """The characters of the key, of whichever spelling, not yet held against the rules."""
    if not rules.strict and _BARE.fullmatch(raw):
        return raw.decode("ascii")
    if not raw:
        raise _malformed("The key is empty; send a unique value such as a UUID.")
    if rules.strict or raw.startswith(b'"'):
        return _string(raw)
    raise _malformed(
        "The key is not valid: a bare key is visible ASCII without spaces or commas. Send a UUID, "
        'or a quoted String such as "a key".'
    )


def _string(raw: bytes) -> str:
    try:
        item = http_sf.parse(raw, tltype="item")
    except Exception as error:  # a parser of hostile bytes: whatever it trips over, the value is at fault
        error.__traceback__ = None  # its frames hold it, and would wait for the garbage collector
        item = None
    # An Item comes as (value, parameters); parameters do not change the key (K2). Tokens and
    # display strings are other types, not str.
    if not isinstance(item, tuple) or not isinstance(item[0], str):
        # Raised outside the handler: the parser's own message quotes the value.
        raise _malformed(
            "The key is not a valid Structured Field String (RFC 9651): send it in double quotes, "
            'such as "8e03978e-40d5-43dd-bc93-6894a57f9324".'
        )
    return item[0]


def _check(key: str, rules: KeyRules) -> None:
    if not key.strip(" "):
        raise _malformed("The key is empty or blank; send a unique value such as a UUID.")
    if len(key) < rules.min_length:
        raise _malformed(f"The key has {len(key)} characters; it must have at least {rules.min_length}.")
    if len(key) > rules.max_length:
        raise _malformed(f"The key has {len(key)} characters; it must have at most {rules.max_length}.")
    if rules.pattern is not None and rules.pattern.fullmatch(key) is None:
        raise _malformed("The key does not have the form that this API asks for; see its docs.")
    for personal in rules.personal:
        if personal.pattern.search(key):
            raise KeyRefused(
                "personal",
                f"The key looks like {personal.name}. Keys are stored and are not secret: send a "
                "random value, such as a UUID, that holds no personal data.",
            )

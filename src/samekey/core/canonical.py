"""JSON bytes to canonical bytes: RFC 8785, with numbers that keep their exact value (F3, F4).

Pure. `parse_json` reads a document and refuses (`NotCanonical`) whatever could be read in two ways
or could cost too much; `canonical` writes what it read. Nothing here hashes, and nothing here knows
of requests: the caller decides what stands in for a document that is refused.

RFC 8785 writes every number as the double nearest to it, so 9007199254740993 and 9007199254740992
would become one text. Here a number is handed to RFC 8785 only if the text it will be given, read
as a decimal, is exactly the number that was sent. Any other number is an `Exact`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn

import rfc8785

__all__ = ["Exact", "NotCanonical", "canonical", "parse_json"]

# Commas, opening brackets and backslashes in one document. Each costs interpreted work here, so the
# sum bounds the time: tenths of a second on a slow core. A larger document counts by its bytes.
MAX_WORK = 100_000
# 1e<300 digits> is no amount of anything; the limit keeps the arithmetic on exponents trivial and
# below the shortest integer text that Python can be told to refuse.
MAX_EXPONENT_TEXT = 300
# No double's shortest text has more digits (ECMA-262, Number::toString).
MAX_DOUBLE_DIGITS = 17


class NotCanonical(ValueError):
    """The document has no canonical form that is safe to compare."""


@dataclass(frozen=True, slots=True)
class Exact:
    """A number that a double would change: ``text`` is -?digits e power, one text per value."""

    text: str


def parse_json(data: bytes, max_depth: int) -> Any:
    """Read one JSON document; numbers become int, float or `Exact`, one form per exact value.

    Raises `NotCanonical` for anything but well-formed UTF-8 JSON, and for repeated member names,
    NaN and infinities, more than ``max_depth`` nested containers, or too much work. Lone surrogates
    are left for `canonical` to find. Time and memory are linear, and the call stack is bounded.
    """
    if not _within_limits(data, max_depth):
        raise NotCanonical("nested too deeply or too large")
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except NotCanonical:
        raise
    except ValueError as error:  # not UTF-8, not JSON
        raise NotCanonical("not JSON") from error


def canonical(document: Any) -> tuple[bytes, bytes]:
    """Return (form, bytes) for what `parse_json` returned, or for any part of it.

    The form is ``json``, plain RFC 8785, or, where an `Exact` is in the document, ``json-exact``:
    then every string value begins with ``s``, and an exact number is a string that begins with
    ``n``. Two documents have the same form and bytes only if they are the same value. Raises
    `NotCanonical` for a lone surrogate.
    """
    plain = _plainly(document)
    if plain is not None:
        return b"json", plain
    try:
        return b"json", rfc8785.dumps(document)
    except ValueError:
        # An Exact, which it does not know, or a lone surrogate. Rare: worth a second attempt here
        # rather than a look at every value of every document beforehand.
        pass
    try:
        return b"json-exact", rfc8785.dumps(_marked(document))
    except ValueError as error:
        raise NotCanonical("a lone surrogate") from error


_ENCODE = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False, allow_nan=False
).encode
# What Python writes otherwise than RFC 8785 does: a float, which always has a point or an exponent; and the
# order of names beyond the basic plane. Inside a string either may look so: then the other way is taken.
_OTHERWISE = re.compile(r"(?:^|[:,\[])-?[0-9]++[.e]|[\U00010000-\U0010ffff]")


def _plainly(document: Any) -> bytes | None:
    """The same bytes as RFC 8785's by the standard library, written in C; None where they may differ."""
    try:
        text = _ENCODE(document)
        return None if _OTHERWISE.search(text) else text.encode()
    except (TypeError, ValueError):
        return None  # an Exact, or a lone surrogate


def _marked(value: Any) -> Any:
    """The same document for RFC 8785, with strings and exact numbers made unmistakable."""
    if isinstance(value, str):
        return "s" + value
    if isinstance(value, Exact):
        return "n" + value.text
    if isinstance(value, list):
        return [_marked(item) for item in value]
    if isinstance(value, dict):
        return {name: _marked(item) for name, item in value.items()}
    return value


# Possessive, so it never backtracks; the closing mark is optional, so that an unterminated string
# is consumed once and not tried again from each of its characters.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NESTING = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def _within_limits(data: bytes, max_depth: int) -> bool:
    # A closing bracket in the wrong place, or a bad string, makes this miscount only behind the
    # point at which the parser gives up.
    if len(data) <= MAX_WORK and data.count(b"[") + data.count(b"{") <= max_depth:
        return True
    # A value or a name needs a comma or a bracket beside it, a mark inside a string a backslash: so
    # many quotation marks cannot be JSON within the limit, and would only make the next step dear.
    if data.count(b'"') > 4 * (MAX_WORK + 1):
        return False
    bare = _STRING.sub(b"", data)
    opening = bare.count(b"[") + bare.count(b"{")
    if opening + bare.count(b",") + data.count(b"\\") > MAX_WORK:
        return False
    if opening <= max_depth:
        return True
    brackets = bare.translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_NESTING.__getitem__, brackets))) <= max_depth


def _integer(text: str) -> int | float | Exact:
    # Below 2^53 whatever the digits, so exact in a double.
    return int(text) if len(text) <= 15 else _number(text)


def _decimal(text: str) -> int | float | Exact:
    # Up to 15 digits, of an ordinary size: every such decimal is the shortest text of its double.
    if len(text) <= 16 and "e" not in text and "E" not in text:
        return float(text)
    return _number(text)


def _number(text: str) -> int | float | Exact:
    sign = "-" if text[0] == "-" else ""
    digits, power = _decompose(text)
    if not digits:
        return 0  # RFC 8785 has no negative zero, and no amount has one either
    # A quick look at the size first: no float() of a million digits.
    if len(digits) <= MAX_DOUBLE_DIGITS and -330 < power + len(digits) < 310:
        double = float(f"{digits}e{power}")
        if math.isfinite(double) and _decompose(repr(double)) == (digits, power):
            return -double if sign else double
    return Exact(f"{sign}{digits}e{power}")


def _decompose(text: str) -> tuple[str, int]:
    """The one pair with abs(number) == int(digits) * 10**power and no zero at either end.

    Zero is ("", 0).
    """
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    padded = (whole + fraction).lstrip("0")
    digits = padded.rstrip("0")
    if not digits:
        return "", 0
    if len(exponent) > MAX_EXPONENT_TEXT:
        raise NotCanonical("an exponent of absurd length")
    return digits, int(exponent or "0") - len(fraction) + len(padded) - len(digits)


def _constant(name: str) -> NoReturn:
    raise NotCanonical(f"{name} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        # Parsers disagree on which of the two counts, so the bytes must decide.
        raise NotCanonical("a member name is repeated")
    return members


_DECODER = json.JSONDecoder(
    parse_int=_integer,
    parse_float=_decimal,
    parse_constant=_constant,
    object_pairs_hook=_members,
)

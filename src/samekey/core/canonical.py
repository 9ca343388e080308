"""JSON bytes to canonical bytes: RFC 8785, with numbers that keep their exact value (F3, F4).

Pure. `parse_json` reads a document and refuses (`NotCanonical`) whatever could be read in two ways
or could cost too much; `canonical` writes what it read. Nothing here hashes, and nothing here knows
of requests: the caller decides what stands in for a document that is refused.

What a document may cost is bounded before it costs it. Ordinary ones are read and written by the standard
library's C code; what that would write otherwise than RFC 8785 does takes the slow way, which only small
documents may.

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

__all__ = ["Document", "Exact", "NotCanonical", "canonical", "parse_json"]

# Bytes of a document. One call of C code over so many takes a millisecond or two, and no other thread gets
# its turn meanwhile.
MAX_SIZE = 256 * 1024
# Commas, opening brackets and backslashes in one document. Each costs interpreted work here, so the sum
# bounds the time: tens of milliseconds on a slow core. A larger document counts by its bytes.
MAX_WORK = 10_000
# The same for what takes the slow way, and the numbers that are looked at one by one.
MAX_SLOW_WORK = 100
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


@dataclass(frozen=True, slots=True)
class Document:
    """What was read, and whether it holds only numbers that the standard library writes as RFC 8785 does."""

    value: Any
    plain: bool


def parse_json(data: bytes, max_depth: int) -> Document:
    """Read one JSON document; numbers become int, float or `Exact`, one form per exact value.

    Raises `NotCanonical` for anything but well-formed UTF-8 JSON, and for repeated member names,
    NaN and infinities, more than ``max_depth`` nested containers, or too much work. Lone surrogates
    are left for `canonical` to find. Time and memory are linear, and the call stack is bounded.
    """
    if not _within_limits(data, max_depth):
        raise NotCanonical("nested too deeply or too large")
    numbers = _Numbers()
    try:
        # Not kept with the numbers: the two would hold each other, and wait for the garbage collector.
        decoder = json.JSONDecoder(
            parse_int=numbers.integer,
            parse_float=numbers.decimal,
            parse_constant=_constant,
            object_pairs_hook=_members,
        )
        value = decoder.decode(data.decode("utf-8"))
    except NotCanonical:
        raise
    except ValueError as error:  # not UTF-8, not JSON
        raise NotCanonical("not JSON") from error
    return Document(value, numbers.plain)


def canonical(document: Any, *, plain: bool) -> tuple[bytes, bytes]:
    """Return (form, bytes) for the value of a `Document`, or for any part of it.

    The form is ``json``, plain RFC 8785, or, where an `Exact` is in the document, ``json-exact``:
    then every string value begins with ``s``, and an exact number is a string that begins with
    ``n``. Two documents have the same form and bytes only if they are the same value. Raises
    `NotCanonical` for a lone surrogate, and where it would cost too much.
    """
    exact: list[Exact] = []
    text = _encoder(exact).encode(document)
    try:
        written = text.encode()
        ordered = not _is_ordered_otherwise(text)
    except ValueError as error:
        raise NotCanonical("a lone surrogate") from error
    if plain and ordered:
        return b"json", written
    if sum(map(text.count, "[{,")) > MAX_SLOW_WORK:
        raise NotCanonical("too large for its odd numbers or names")
    if exact:
        return b"json-exact", rfc8785.dumps(_marked(document))
    return b"json", rfc8785.dumps(document)


def _encoder(exact: list[Exact]) -> json.JSONEncoder:
    """Written in C. What it does not know is noted, and stands there as null."""
    return json.JSONEncoder(
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        check_circular=False,
        allow_nan=False,
        default=exact.append,
    )


_BEHIND_SURROGATES = re.compile("[\ue000-\uffff]")


def _is_ordered_otherwise(text: str) -> bool:
    """Whether names may stand in another order in RFC 8785, which sorts by UTF-16: then there are characters
    beyond the basic plane, and some of its last ones."""
    if text.isascii() or len(text.encode("utf-16-le")) == 2 * len(text):
        return False
    return _BEHIND_SURROGATES.search(text) is not None


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
    if len(data) > MAX_SIZE:
        return False
    if len(data) <= MAX_WORK and data.count(b"[") + data.count(b"{") <= max_depth:
        return True
    # A value or a name needs a comma or a bracket beside it, a mark inside a string a backslash: so
    # many quotation marks cannot be JSON within the limit, and would only make the next step dear.
    if data.count(b'"') > 4 * (MAX_WORK + 1) or data.count(b"\\") > MAX_WORK:
        return False
    bare = _STRING.sub(b"", data)
    opening = bare.count(b"[") + bare.count(b"{")
    if opening + bare.count(b",") + data.count(b"\\") > MAX_WORK:
        return False
    if opening <= max_depth:
        return True
    brackets = bare.translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_NESTING.__getitem__, brackets))) <= max_depth


class _Numbers:
    """The numbers of one document, as they are read."""

    def __init__(self) -> None:
        self.plain = True
        self._odd = 0
        """How many were looked at one by one."""

    def integer(self, text: str) -> int | float | Exact:
        # Below 2^53 whatever the digits, so exact in a double.
        return int(text) if len(text) <= 15 else self._number(text)

    def decimal(self, text: str) -> int | float | Exact:
        # Up to 15 digits, of an ordinary size: every such decimal is the shortest text of its double, and
        # Python writes it as everybody does.
        if len(text) <= 16 and "e" not in text and "E" not in text:
            double = float(text)
            if double.is_integer():
                return int(double)
            if not -1e-4 < double < 1e-4:
                return double
        return self._number(text)

    def _number(self, text: str) -> int | float | Exact:
        self._odd += 1
        if self._odd > MAX_SLOW_WORK:
            raise NotCanonical("too many odd numbers")
        value = _number(text)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        self.plain &= isinstance(value, float) and not value.is_integer() and 1e-4 <= abs(value) < 1e16
        return value


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

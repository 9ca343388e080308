"""Queries and forms as the fields they carry, in order: query strings, urlencoded and multipart.

Pure. Each function either reads its input with certainty or returns None, and the caller compares
the bytes instead. Two inputs become the same fields only if every receiver that follows the
standard reads them alike; none of this is meant to hand values to an application.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from samekey.core.content import MediaType, parse_media_type

__all__ = ["FormPart", "Pair", "multipart_parts", "query_pairs", "urlencoded_pairs"]

# What web frameworks accept; beyond these the bytes are compared, which costs nothing.
MAX_PAIRS = 1_000
MAX_ESCAPES = 10_000
MAX_PARTS = 1_000
# Lines and parameters before the contents of all parts together.
MAX_HEADS = 4_000

#: A decoded name and value; no value (``a``) is not an empty value (``a=``).
Pair = tuple[bytes, bytes | None]

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
# In a query a plus may be a space or a plus, and a semicolon text or a separator: it depends on who
# reads. So they stay apart from their escapes, marked by a backslash, which is itself doubled.
_QUERY_ESCAPE = re.compile(rb"([+;\\])|%([0-9A-Fa-f]{2})")


def query_pairs(query: bytes) -> list[Pair] | None:
    """The pairs of a raw query; spelling of escapes aside, different queries stay different."""
    if query.count(b"%") > MAX_ESCAPES:
        return None
    return _pairs(query.split(b"&", MAX_PAIRS), _query_text)


def urlencoded_pairs(body: bytes) -> list[Pair] | None:
    """The pairs of an application/x-www-form-urlencoded body, where a plus is a space."""
    if body.count(b"%") > MAX_ESCAPES:
        return None
    pieces = body.split(b"&", MAX_PAIRS)
    # The format's parsing rules skip the nothing between two ampersands.
    return _pairs([piece for piece in pieces if piece], _form_text)


def _pairs(pieces: list[bytes], text: Callable[[bytes], bytes]) -> list[Pair] | None:
    if len(pieces) > MAX_PAIRS:  # the last piece is then an unsplit remainder
        return None
    pairs: list[Pair] = []
    for piece in pieces:
        if _BAD_ESCAPE.search(piece):
            return None
        name, equals, value = piece.partition(b"=")
        pair = (text(name), text(value) if equals else None)
        try:
            pair[0].decode("utf-8")
            (pair[1] or b"").decode("utf-8")
        except UnicodeDecodeError:
            return None
        pairs.append(pair)
    return pairs


def _form_text(text: bytes) -> bytes:
    return _ESCAPE.sub(_byte, text.replace(b"+", b" "))


def _query_text(text: bytes) -> bytes:
    return _QUERY_ESCAPE.sub(_query_byte, text)


def _byte(match: re.Match[bytes]) -> bytes:
    return bytes((int(match[1], 16),))


def _query_byte(match: re.Match[bytes]) -> bytes:
    if match[1] is not None:
        return b"\\" + match[1]
    decoded = bytes((int(match[2], 16),))
    return b"\\\\" if decoded == b"\\" else decoded


# RFC 2046: what a boundary may consist of; it does not end in a space.
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):[ \t]*+([^\r\n\0]*+)")
_DISPOSITION = re.compile(rb"form-data(?=[ \t]*+;)", re.IGNORECASE)
# Quotation marks, and escapes inside them, stay as they are: receivers disagree on what they mean.
_DISPOSITION_PARAMETER = re.compile(
    rb'[ \t]*+;[ \t]*+(name|filename\*?)=([^\s";\\]++|"(?:[^"\\]|\\.)*+")', re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form. ``headers`` are those that say neither its type nor its length."""

    name: bytes
    spelled: bytes
    """The name with its quotation marks, if it has any: receivers do not agree on names without."""
    filename: bytes | None
    extended_filename: bytes | None
    media_type: MediaType | None
    headers: tuple[tuple[bytes, bytes], ...]
    content: bytes


def multipart_parts(body: bytes, boundary: bytes) -> list[FormPart] | None:
    """The parts of a multipart/form-data body, in order.

    Strict: a preamble, an epilogue, bare line feeds, padding, folded or repeated headers, or a part
    without a name are all left to a comparison of bytes.
    """
    if not _BOUNDARY.fullmatch(boundary):
        return None
    # The line break before a delimiter belongs to it; the first one stands at the very beginning.
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_PARTS + 2)
    if len(pieces) > MAX_PARTS + 2 or pieces[0] or pieces[-1] not in (b"--", b"--\r\n"):
        return None
    split = [piece.partition(b"\r\n\r\n") for piece in pieces[1:-1]]
    if sum(head.count(b"\r\n") + head.count(b";") for head, _, _ in split) > MAX_HEADS:
        return None
    parts: list[FormPart] = []
    for head, blank_line, content in split:
        part = _part(head, content) if blank_line else None
        if part is None:
            return None
        parts.append(part)
    return parts


def _part(head: bytes, content: bytes) -> FormPart | None:
    if not head.startswith(b"\r\n"):
        return None
    headers: dict[bytes, bytes] = {}
    for line in head[2:].split(b"\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None or header[1].lower() in headers:
            return None
        headers[header[1].lower()] = header[2].rstrip(b" \t")
    names = _disposition(headers.pop(b"content-disposition", b""))
    if names is None or b"name" not in names:
        return None
    media_type = None
    if b"content-type" in headers:
        media_type = parse_media_type(headers.pop(b"content-type"))
        if media_type is None:
            return None
    headers.pop(b"content-length", None)
    return FormPart(
        name=names[b"name"].removeprefix(b'"').removesuffix(b'"'),
        spelled=names[b"name"],
        filename=names.get(b"filename"),
        extended_filename=names.get(b"filename*"),
        media_type=media_type,
        headers=tuple(sorted(headers.items())),
        content=content,
    )


def _disposition(value: bytes) -> dict[bytes, bytes] | None:
    """The names in a Content-Disposition; None unless it is ``form-data`` and well formed."""
    kind = _DISPOSITION.match(value)
    if kind is None:
        return None
    names: dict[bytes, bytes] = {}
    at = kind.end()
    while at < len(value):
        match = _DISPOSITION_PARAMETER.match(value, at)
        if match is None or match[1].lower() in names:
            return None
        names[match[1].lower()] = match[2]
        at = match.end()
    return names

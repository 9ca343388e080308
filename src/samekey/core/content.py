"""How a body is labelled and wrapped: Content-Type and Content-Encoding.

Pure. It reads the two headers and undoes a compression, up to a cap. It does not look at what the
content means, and anything it cannot read with certainty it says so about (None), never guesses.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["MediaType", "codings", "decode", "parse_media_type"]

# Nobody stacks them on purpose; each layer multiplies what a small body may cost by a thousand.
MAX_CODINGS = 1
# gzip files may be concatenated. Each member copies what follows it, so their number is bounded.
MAX_GZIP_MEMBERS = 16
# Bytes of a Content-Encoding, and parameters of a media type, that are looked into.
MAX_CODINGS_TEXT = 256
MAX_PARAMETERS = 32

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_ESSENCE = re.compile(rb"%b/%b[ \t]*+" % (_TOKEN, _TOKEN))
_PARAMETER = re.compile(
    rb';[ \t]*+(?:(%b)=(?:(%b)|"((?:[^"\\]|\\.)*+)")[ \t]*+)?' % (_TOKEN, _TOKEN), re.DOTALL
)
_QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MediaType:
    """A media type in one spelling: ``essence`` and parameter names in lower case, sorted."""

    essence: bytes
    parameters: tuple[tuple[bytes, bytes], ...] = ()

    def parameter(self, name: bytes) -> bytes | None:
        return dict(self.parameters).get(name)

    @property
    def is_json(self) -> bool:
        return self.essence == b"application/json" or self.essence.endswith(b"+json")

    @property
    def is_urlencoded(self) -> bool:
        return self.essence == b"application/x-www-form-urlencoded"

    @property
    def is_form_data(self) -> bool:
        return self.essence == b"multipart/form-data"


def parse_media_type(value: bytes) -> MediaType | None:
    """Read one Content-Type value; None if it is malformed, names a parameter twice, or has too many.

    A charset is compared without regard to case. For JSON and forms, where UTF-8 is what no charset
    means, ``charset=utf-8`` is dropped: it says nothing more than its absence.
    """
    head = _ESSENCE.match(value)
    if head is None:
        return None
    essence = MediaType(head.group().rstrip(b" \t").lower())
    if head.end() == len(value):
        return essence
    parameters: dict[bytes, bytes] = {}
    at, left = head.end(), MAX_PARAMETERS
    while at < len(value):
        match = _PARAMETER.match(value, at)
        left -= 1
        if match is None or left < 0:
            return None
        at = match.end()
        if match[1] is None:
            continue  # a stray semicolon
        name = match[1].lower()
        if name in parameters:
            return None
        content = _QUOTED_PAIR.sub(rb"\1", match[3]) if match[2] is None else match[2]
        parameters[name] = content.lower() if name == b"charset" else content
    means_utf8 = essence.is_json or essence.is_urlencoded or essence.is_form_data
    if means_utf8 and parameters.get(b"charset") in (b"utf-8", b"utf8"):
        del parameters[b"charset"]
    return MediaType(essence.essence, tuple(sorted(parameters.items())))


def codings(values: Iterable[bytes]) -> tuple[bytes, ...]:
    """The Content-Encoding of a request in one spelling, in the order they were applied."""
    values = tuple(values)
    if sum(map(len, values)) > MAX_CODINGS_TEXT:
        return values  # nobody's coding
    names = (name.strip(b" \t").lower() for value in values for name in value.split(b","))
    return tuple(b"gzip" if name == b"x-gzip" else name for name in names if name not in (b"", b"identity"))


def decode(body: bytes, applied: tuple[bytes, ...], cap: int) -> bytes | None:
    """Undo the codings; None if one is unknown or broken, or if the content exceeds the cap.

    No more than the cap (and one byte) is ever decompressed of a layer, however small the body.
    """
    if len(applied) > MAX_CODINGS:
        return None
    content: bytes | None = body
    for coding in reversed(applied):
        if content is None:
            return None
        if coding == b"gzip":
            content = _gunzip(content, cap)
        elif coding == b"deflate":
            # The standard says zlib; some senders leave its frame off, and receivers take both.
            framed = _inflate(content, zlib.MAX_WBITS, cap)
            bare = framed if framed is not None else _inflate(content, -zlib.MAX_WBITS, cap)
            content = bare[0] if bare is not None and not bare[1] else None
        else:
            return None
    return content


def _gunzip(data: bytes, cap: int) -> bytes | None:
    members: list[bytes] = []
    for _ in range(MAX_GZIP_MEMBERS):
        member = _inflate(data, 16 + zlib.MAX_WBITS, cap)
        if member is None:
            return None
        content, data = member
        cap -= len(content)
        members.append(content)
        if not data:
            return b"".join(members)
    return None


def _inflate(data: bytes, window: int, cap: int) -> tuple[bytes, bytes] | None:
    """One complete stream's content and what follows it; None if broken or above the cap."""
    stream = zlib.decompressobj(window)
    try:
        content = stream.decompress(data, cap + 1)  # 0 would mean no limit
    except zlib.error:
        return None
    if len(content) > cap or not stream.eof:
        return None
    return content, stream.unused_data

"""A request's intent as 80 bytes: same intent, same digest; different intent, different digest.

Pure: no I/O, and nothing here raises on a request, whatever its bytes. Only rules that make no
sense raise, when they are built.

What is hashed, in this order, each behind its tag and its length: method, path, query, media type,
the chosen headers, body. Each part has a digest of its own, and the whole is the digest of those. The
first 32 bytes are the whole; after them stand the beginnings of the parts', so that a request which is
refused can be told in which part it differs. How a body counts:

- JSON: RFC 8785 with exact numbers (`canonical`). JSON that has no safe canonical form: its bytes.
- A form: its fields in order, as sent; a multipart boundary does not count (`forms`).
- Compressed: as what it decodes to; if that is unsafe, its bytes and the names of its codings.
- Anything else: its bytes. Absent, empty and ``{}`` are three different things.

Every way of counting has a tag of its own, so a fallback never equals anything but itself.

A digest comes with a version: the algorithm, and the secret if there is one. The digest under a
version met in a stored record stays computable as long as its secret is in the rules, and the plain
one always, so neither an upgrade nor a new secret turns an honest retry into a mismatch. The other
rules (headers, include, exclude) say what the intent is; changing those does change digests.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Any, Final

from samekey.core.canonical import Document, NotCanonical, canonical, parse_json
from samekey.core.content import MediaType, codings, decode, parse_media_type
from samekey.core.forms import FormPart, multipart_parts, query_pairs, urlencoded_pairs
from samekey.core.pointer import Pointer, find, holds_value, parse_pointer, remove

__all__ = ["Fingerprint", "FingerprintRules", "Intent", "RequestParts", "differing"]

# Python's recursion limit, with a framework's frames below ours, allows a little more than this:
# up to two frames a level are needed.
MAX_DEPTH = 128

PARTS = ("method", "path", "query", "media type", "headers", "body")
"""What a request can differ in, in the order of the parts' digests."""
_WHOLE = 32
_PART = 8
"""Bytes that are kept of a part's digest. It decides nothing, so a chance in 2^64 may stand."""

_SMALL = 4096
"""Bytes of query, headers and body."""

_ALGORITHM = "3"
_DOMAIN = b"samekey fingerprint 3\n"
_SECRET_ID_DOMAIN = b"samekey fingerprint secret id\n"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class RequestParts:
    """The request as received (F7)."""

    method: str
    path: str
    query: bytes
    """The raw query string, without the question mark."""
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None
    """None if there is no body at all, which is not the same as an empty one."""


@dataclass(frozen=True, slots=True)
class FingerprintRules:
    """What counts as intent. Rules that make no sense raise ``ValueError`` when they are built.

    ``headers``: names of headers that are part of it, such as an API version.

    ``include``, ``exclude``: JSON Pointers. With ``include`` only those members of a JSON body
    count; ``exclude`` leaves members out. In a form, a pointer of one token names a field. Where
    none of the included members is there, the whole body counts (less what is excluded); where
    nothing but excluded members is there, they count after all: a body that holds anything never
    counts as nothing. An excluded item of an array keeps its place.

    ``exclude_query``: names of query parameters that do not count, such as those that only measure.

    ``secrets``: newest first. With any, digests are HMAC-SHA-256 by the newest; the others, and
    plain SHA-256, serve records made before it.

    ``max_decoded``: a compressed body that decodes to more bytes is compared as it came.
    ``max_depth``: JSON nested deeper is compared by its bytes.
    """

    headers: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclude_query: tuple[str, ...] = ()
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    max_decoded: int = 1024 * 1024
    max_depth: int = 64

    _header_names: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    _include: tuple[Pointer, ...] = field(init=False, repr=False, compare=False)
    _exclude: tuple[Pointer, ...] = field(init=False, repr=False, compare=False)
    _exclude_query: frozenset[bytes] = field(init=False, repr=False, compare=False)
    _secret_by_id: dict[str, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("headers", "include", "exclude", "exclude_query", "secrets"):
            given = getattr(self, name)
            if isinstance(given, (str, bytes)):
                # One kind of error for every rule that is wrong, so that one handler suffices.
                raise ValueError(f"{name} must be a tuple, not one value")  # noqa: TRY004
            _set(self, name, tuple(given))
        for header in self.headers:
            if not _HEADER_NAME.fullmatch(header):
                raise ValueError(f"{header!r} is not the name of a header")
        if self.max_decoded < 1:
            raise ValueError(f"max_decoded is {self.max_decoded}; it must be at least 1 byte")
        if not 1 <= self.max_depth <= MAX_DEPTH:
            raise ValueError(f"max_depth is {self.max_depth}; it must be 1 to {MAX_DEPTH}")
        # Order and repetition of rules mean nothing, so they must not reach the digest.
        _set(self, "_header_names", tuple(sorted({name.lower().encode() for name in self.headers})))
        _set(self, "_include", tuple(parse_pointer(text) for text in sorted(set(self.include))))
        _set(self, "_exclude", tuple(parse_pointer(text) for text in sorted(set(self.exclude))))
        _set(self, "_exclude_query", frozenset(_query_names(self.exclude_query)))
        for left_out in self._exclude:
            if not left_out.tokens:
                raise ValueError("exclude holds the empty pointer, which is the whole body")
            for wanted in self._include:
                if wanted.tokens[: len(left_out.tokens)] == left_out.tokens:
                    raise ValueError(
                        f"include {wanted.text!r} lies within exclude {left_out.text!r}: it could never count"
                    )
        _set(self, "_secret_by_id", _by_id(self.secrets))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A digest (80 bytes) and the version it was made by, both to be stored."""

    digest: bytes
    version: str


class Intent:
    """What a request asks for, read once. Nothing here raises.

    Reading it is the dear part: the time is bounded, and in proportion to the size of the request where that
    is small. The digests under different versions are cheap.
    """

    __slots__ = ("_parts", "_rules")

    def __init__(self, parts: RequestParts, rules: FingerprintRules) -> None:
        self._parts = _parts(parts, rules)
        self._rules = rules

    def fingerprint(self) -> Fingerprint:
        """The digest by the newest algorithm and the newest secret."""
        by_id = self._rules._secret_by_id
        if not by_id:
            return Fingerprint(_digest(self._parts, None), _ALGORITHM)
        secret_id, secret = next(iter(by_id.items()))
        return Fingerprint(_digest(self._parts, secret), f"{_ALGORITHM}:{secret_id}")

    def digest_as(self, version: str) -> bytes | None:
        """The digest under a stored version, to be compared with the stored digest.

        None if this process cannot compute it: an algorithm it does not know, or a secret that is no
        longer in the rules.
        """
        algorithm, colon, secret_id = version.partition(":")
        if algorithm != _ALGORITHM:
            return None
        if not colon:
            return _digest(self._parts, None)
        secret = self._rules._secret_by_id.get(secret_id)
        return None if secret is None else _digest(self._parts, secret)

    def content_id(self) -> str:
        """The content as part of an identity: without a secret, since a new one must not make a new
        identity."""
        return _digest(self._parts, None)[:_WHOLE].hex()


def is_small(parts: RequestParts) -> bool:
    """Whether to read it takes a millisecond or two at most, however odd it is."""
    size = len(parts.query) + len(parts.body or b"")
    for name, value in parts.headers:
        if name == b"content-encoding":
            return False  # a few bytes may be a million
        size += len(value)
    return size <= _SMALL


def part_digests(digest: bytes) -> dict[str, bytes]:
    """The digest of each part, by its name; nothing where these are not the bytes of a fingerprint."""
    if len(digest) != _WHOLE + _PART * len(PARTS):
        return {}
    starts = range(_WHOLE, len(digest), _PART)
    return {name: digest[start : start + _PART] for name, start in zip(PARTS, starts, strict=True)}


def differing(one: bytes, other: bytes) -> tuple[str, ...]:
    """The names of the parts in which two digests of one version differ."""
    here, there = part_digests(one), part_digests(other)
    return tuple(name for name in here if there and here[name] != there[name])


def _digest(parts: tuple[bytes, ...], secret: bytes | None) -> bytes:
    each = [
        _known_part(part, secret) if len(part) < limit else _part(part, secret)
        for part, limit in zip(parts, _REMEMBERED, strict=True)
    ]
    return _keyed(_frames(b"whole", each), secret) + b"".join([one[:_PART] for one in each])


def _keyed(message: bytes, secret: bytes | None) -> bytes:
    if secret is None:
        return hashlib.sha256(_DOMAIN + message).digest()
    return hmac.digest(secret, _DOMAIN + message, "sha256")


def _part(part: bytes, secret: bytes | None) -> bytes:
    return _keyed(_frame(b"part", part), secret)


_REMEMBERED: Final = (200, 200, 15, 200, 15, 0)
"""For each part, the bytes below which its digest is remembered: most requests differ in their body only. Of
query and headers, which may tell something of a person, only that there are none."""
_known_part = lru_cache(maxsize=1_000)(_part)


def _query_names(names: tuple[str, ...]) -> Iterable[bytes]:
    """As they stand in a query, whether or not their characters are escaped there."""
    for name in names:
        plain = name.encode("utf-8", "surrogatepass")
        for spelled in (plain, b"".join(b"%%%02X" % byte for byte in plain)):
            pairs = query_pairs(spelled)
            if not name or pairs is None or len(pairs) != 1 or pairs[0][1] is not None:
                raise ValueError(f"exclude_query holds {name!r}, which cannot be the name of a parameter")
            yield pairs[0][0]


def _set(rules: FingerprintRules, name: str, value: object) -> None:
    object.__setattr__(rules, name, value)


def _by_id(secrets: tuple[bytes, ...]) -> dict[str, bytes]:
    """Secrets by a short name that tells nothing of them; the order is kept."""
    by_id: dict[str, bytes] = {}
    for secret in secrets:
        if not isinstance(secret, bytes) or not secret:
            raise ValueError("each of the secrets must be bytes, and not empty")
        secret_id = hashlib.sha256(_SECRET_ID_DOMAIN + secret).hexdigest()[:8]
        if by_id.setdefault(secret_id, secret) != secret:
            raise ValueError("two of the secrets have the same short id; replace one of them")
    return by_id


def _frame(tag: bytes, payload: bytes) -> bytes:
    """One part, such that no sequence of parts reads like another (F1: no delimiters)."""
    return _head(tag) + len(payload).to_bytes(8, "big") + payload


@cache
def _head(tag: bytes) -> bytes:
    return bytes([len(tag)]) + tag


def _frames(tag: bytes, payloads: Iterable[bytes]) -> bytes:
    return b"".join([_frame(tag, payload) for payload in payloads])


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # whatever a server made of the bytes of a path


def _parts(parts: RequestParts, rules: FingerprintRules) -> tuple[bytes, ...]:
    """What is hashed of each part, in the order of ``PARTS``."""
    types: list[bytes] = []
    encodings: list[bytes] = []
    chosen: dict[bytes, list[bytes]] = {name: [] for name in rules._header_names}
    for raw_name, raw_value in parts.headers:
        name, value = raw_name.lower(), raw_value.strip(b" \t")
        if name == b"content-type":
            types.append(value)
        elif name == b"content-encoding":
            encodings.append(value)
        if name in chosen:
            chosen[name].append(value)
    media = parse_media_type(types[0]) if len(types) == 1 else None
    form, body = _body(parts.body, media, codings(encodings) if encodings else (), rules)
    if media is not None:
        # Only where the parts were told apart has the boundary done its work; elsewhere it is
        # needed to know what the bytes mean.
        media_type = _media_frame(media, without=b"boundary" if form in _MULTIPART else None)
    elif types:
        media_type = _frame(b"type-raw", _frames(b"value", types))
    else:
        media_type = _frame(b"type-absent", b"")
    return (
        _frame(b"method", parts.method.encode("utf-8", "surrogatepass").upper()),  # of bytes: ASCII only
        _frame(b"path", parts.path.encode("utf-8", "surrogatepass")),
        _query_frame(parts.query, rules._exclude_query),
        media_type,
        # Absent is no value, empty is an empty one.
        b"".join(
            [
                _frame(b"header", _frame(b"name", name) + _frames(b"value", values))
                for name, values in chosen.items()
            ]
        ),
        _frame(form, body),
    )


def _query_frame(query: bytes, excluded: frozenset[bytes]) -> bytes:
    pairs = query_pairs(query) if query else []
    if pairs is None:
        return _frame(b"query-raw", query)
    counted = [_pair_frame(name, value) for name, value in pairs if name not in excluded]
    return _frame(b"query", b"".join(counted))


def _pair_frame(name: bytes, value: bytes | None) -> bytes:
    return _frame(b"name", name) + _optional_frame(b"value", value)


def _optional_frame(tag: bytes, payload: bytes | None) -> bytes:
    return _frame(b"none", b"") if payload is None else _frame(tag, payload)


def _media_frame(media: MediaType, without: bytes | None = None) -> bytes:
    parameters = [_pair_frame(*pair) for pair in media.parameters if pair[0] != without]
    return _frame(b"type", _frame(b"essence", media.essence) + b"".join(parameters))


_MULTIPART = (b"multipart", b"multipart-chosen", b"multipart-whole")


def _body(
    body: bytes | None, media: MediaType | None, applied: tuple[bytes, ...], rules: FingerprintRules
) -> tuple[bytes, bytes]:
    """How the body counts, as a tag, and what is hashed of it."""
    if body is None:
        return b"absent", b""
    if applied:
        decoded = decode(body, applied, rules.max_decoded)
        if decoded is None:
            return b"encoded", _frames(b"coding", applied) + _frame(b"bytes", body)
        body = decoded
    if not body:
        return b"empty", b""
    if media is None or media.parameter(b"charset") is not None:
        return (
            b"bytes",
            body,
        )  # a charset that is still there is not UTF-8, or not of JSON or a form
    if media.is_json:
        try:
            return _json_body(parse_json(body, rules.max_depth), rules)
        except NotCanonical:
            return b"bytes", body
    if media.is_urlencoded:
        pairs = urlencoded_pairs(body)
        if pairs is not None:
            fields = [(name, _pair_frame(name, value)) for name, value in pairs]
            return _form_body(b"form", fields, rules)
    if media.is_form_data:
        parts = multipart_parts(body, media.parameter(b"boundary") or b"")
        if parts is not None:
            fields = [(part.name, _frame(b"part", _part_frames(part))) for part in parts]
            return _form_body(b"multipart", fields, rules)
    return b"bytes", body


def _json_body(read: Document, rules: FingerprintRules) -> tuple[bytes, bytes]:
    if not rules._exclude and not rules._include:
        return canonical(read.value, plain=read.plain)
    write = partial(canonical, plain=read.plain)
    document = rest = read.value
    for pointer in rules._exclude:
        rest = remove(rest, pointer)
    chosen = _select(rest, rules._include)
    if chosen and not _emptied(_select(document, rules._include), chosen):
        return b"json-chosen", b"".join(
            [_frame(b"pointer", _text(text)) + _frame(*write(value)) for text, value in chosen.items()]
        )
    if not _emptied(document, rest):
        return write(rest)
    # A tag of its own, so that nobody has to prove that no other document's rest can look like this.
    return b"json-whole", _frame(*write(document))


def _select(document: Any, pointers: tuple[Pointer, ...]) -> dict[str, Any]:
    hits = {pointer.text: find(document, pointer) for pointer in pointers}
    return {text: hit[0] for text, hit in hits.items() if hit is not None}


def _emptied(before: Any, after: Any) -> bool:
    """Whether leaving things out has left nothing that tells one body from another."""
    return after is not before and not holds_value(after) and holds_value(before)


def _form_body(tag: bytes, fields: list[tuple[bytes, bytes]], rules: FingerprintRules) -> tuple[bytes, bytes]:
    excluded = _field_names(rules._exclude)
    included = _field_names(rules._include)
    rest = [field for field in fields if field[0] not in excluded]
    chosen = [field for field in rest if field[0] in included]
    if chosen:
        return tag + b"-chosen", _joined(chosen)
    if rest or not fields:
        return tag, _joined(rest)
    return tag + b"-whole", _joined(fields)


def _joined(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join([payload for _, payload in fields])


def _field_names(pointers: tuple[Pointer, ...]) -> set[bytes]:
    return {_text(pointer.tokens[0]) for pointer in pointers if len(pointer.tokens) == 1}


def _part_frames(part: FormPart) -> bytes:
    return b"".join(
        [
            _frame(b"name", part.spelled),
            _optional_frame(b"filename", part.filename),
            _optional_frame(b"filename*", part.extended_filename),
            _frame(b"none", b"") if part.media_type is None else _media_frame(part.media_type),
            *[_pair_frame(name, value) for name, value in part.headers],
            _frame(b"content", part.content),
        ]
    )

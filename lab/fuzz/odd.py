"""Requests that nobody thought of, as bytes. Seeded: the same seed gives the same requests."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

CAP = 1 << 20
"""What an application takes by default."""
SECRET = b"secret"
"""The API key that the applications know."""


@dataclass(frozen=True, slots=True)
class Odd:
    """One request of HTTP/1.1, whole."""

    wire: bytes
    headers: int
    """Header values that were made up."""


def request(choose: random.Random, number: int, now: int) -> Odd:
    """``number`` makes its key; ``now``: a time in seconds that applications take for fresh."""
    method = choose.choices(
        (b"POST", b"PATCH", b"post", b"PUT", b"GET", b"POsT", b"X"), (60, 3, 1, 1, 1, 1, 1)
    )[0]
    path = choose.choices((b"/pay", b"/pay?" + _query(choose), b"/", b"/%ff", b"//pay"), (40, 8, 1, 1, 1))[0]
    body = _body(choose)
    made = [*_keys(choose, number), *_described(choose), *_others(choose)]
    proper = []
    for name, value in ((b"Authorization", b"Bearer " + SECRET), (b"Request-Timestamp", b"%d" % now)):
        if choose.random() < 0.95:
            proper.append(b"%b: %b" % (name, value))
        else:
            made.append(b"%b: %b" % (name, _value(choose)))
    headers = [*proper, *made]
    if choose.random() < 0.02:
        headers += [b"X-%d: y" % place for place in range(80)]
    choose.shuffle(headers)
    if choose.random() < 0.9:
        framing = b"Content-Length: %d" % len(body)
    else:
        framing = b"Transfer-Encoding: chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    head = [b"%b %b HTTP/1.1" % (method, path), b"Host: x", *headers, framing]
    return Odd(b"\r\n".join([*head, b"", body]), len(made))


def _text(choose: random.Random, most: int) -> bytes:
    return bytes(choose.choices(range(0x20, 0x7F), k=choose.randint(0, most)))


def _query(choose: random.Random) -> bytes:
    return choose.choice((b"a=1&b=2", b"&" * 2_000, b"%41" * 2_000, b"+" * 3_000, b"a=%zz&%ff", b"a;b;c"))


# ------------------------------------------------------------------ headers


def _keys(choose: random.Random, number: int) -> list[bytes]:
    key = b"key-%d" % (number if choose.random() < 0.9 else number % 97)
    forms: list[Callable[[], list[bytes]]] = [
        lambda: [key],
        lambda: [b'"%b"' % key],
        lambda: [b'"%b";a=1;b' % key],
        lambda: [b""],
        lambda: [key, key],
        lambda: [b"x" * choose.choice((255, 256, 7_000))],
        lambda: [b'"%b' % key],
        lambda: [b'"a"' + b";a=1" * 1_500],
        lambda: [b"%b@example.com" % key],
        lambda: [_text(choose, 60)],
        lambda: [b"\xc3\xa9\xff" + key],
        lambda: [],
    ]
    values = choose.choices(forms, (40, 8, 3, *[1] * 9))[0]()
    return [b"Idempotency-Key: " + value for value in values]


TYPES = (
    *(b"application/json", b"application/json; charset=utf-8", b"application/vnd.x+json", b"text/plain", b""),
    *(b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"multipart/form-data", b";"),
    *(b"a/b" + b";a=b" * 1_000, b"a/b;" + b'c="\\"' * 200, b"a" * 4_000, b"\xff/\xfe"),
    b"application/json, x/y",
)
CODINGS = (
    *(b"gzip", b"deflate", b"br", b"identity", b"gzip, gzip", b"GZIP"),
    *(b"," * 2_000, b"gzip;q=1", b"\xff"),
)
OTHERS = (
    *(
        b"Cookie",
        b"Accept",
        b"Forwarded",
        b"X-Forwarded-For",
        b"X-Forwarded-Proto",
        b"X-HTTP-Method-Override",
    ),
    *(
        b"traceparent",
        b"Range",
        b"If-None-Match",
        b"Origin",
        b"Prefer",
        b"X-Request-Id",
        b"User-Agent",
        b"Date",
    ),
    *(b"Accept-Encoding", b"Content-Language", b"Content-Disposition", b"Digest", b"X-Session-Token", b"Via"),
)


def _described(choose: random.Random) -> list[bytes]:
    made = [b"Content-Type: " + choose.choices(TYPES, [30, *[1] * (len(TYPES) - 1)])[0]]
    if choose.random() < 0.2:
        made.append(b"Content-Encoding: " + choose.choice(CODINGS))
    return made


def _others(choose: random.Random) -> list[bytes]:
    return [b"%b: %b" % (name, _value(choose)) for name in choose.choices(OTHERS, k=choose.randint(2, 10))]


def _value(choose: random.Random) -> bytes:
    forms: list[Callable[[], bytes]] = [
        lambda: _text(choose, 80),
        lambda: choose.choice(
            (b"", b" ", b"\t", b",", b";", b'"', b'"\\"', b"=", b"%", b"Bearer", b"Bearer ")
        ),
        lambda: choose.choice((b",", b";a=1", b'"', b"%41", b"(", b"a ", b"0")) * choose.randint(1, 600),
        lambda: bytes(choose.choices(range(0x80, 0x100), k=choose.randint(1, 40))),
        lambda: b"%d" % choose.choice((0, -1, 2**31, 2**63, 10**30, choose.randint(0, 10**10))),
        lambda: choose.choice(
            (b"NaN", b"inf", b"1e999", b"0x1", b"-0", b"9999-12-31T23:59:59Z", b"0000-00-00")
        ),
        lambda: b"Mon, 16 Nov %d %d:00:00 GMT" % (choose.randint(0, 99_999), choose.randint(0, 99)),
        lambda: b'"%b";%b=?1' % (_text(choose, 10).replace(b'"', b""), _text(choose, 4)),
    ]
    return choose.choices(forms, (12, *[2] * 7))[0]()


# ------------------------------------------------------------------ bodies

ITEMS = (
    *(
        b"1",
        b"1.5",
        b"1.5e300",
        b"0.1234567890123456",
        b"12345678901234567",
        b"{}",
        b'{"a":1}',
        b'"\\n"',
        b"NaN",
    ),
    *('"😀\uff08"'.encode(), b'{"a":1.5e300}', b"9" * 400, b"[[[[]]]]", b'"\\ud800"', b'{"a":1,"a":2}'),
)
PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'


@cache
def _list(item: bytes, size: int) -> bytes:
    return b"[" + b",".join([item] * max(1, size // (len(item) + 1))) + b"]"


@cache
def _packed(item: bytes, size: int) -> bytes:
    return gzip.compress(_list(item, size), 1, mtime=0)


@cache
def _packed_twice(item: bytes) -> bytes:
    return gzip.compress(gzip.compress(_list(item, CAP), 9, mtime=0), 9, mtime=0)


@cache
def _zeros() -> bytes:
    return gzip.compress(b"\0" * 4 * CAP, 9, mtime=0)


def _body(choose: random.Random) -> bytes:
    size = choose.choices((100, 1_000, 10_000, 100_000, CAP - 100, CAP + 1), (60, 30, 8, 1, 0.1, 0.1))[0]
    item = choose.choice(ITEMS)
    forms: list[Callable[[], bytes]] = [
        lambda: json.dumps({"amount": choose.randint(1, 10**6), "note": "x" * (size // 10)}).encode(),
        lambda: _list(item, size),
        lambda: _packed(item, size),
        lambda: zlib.compress(_list(item, min(size, 10_000)), 1),
        lambda: _packed_twice(item) if choose.random() < 0.1 else b"\x1f\x8b",
        lambda: _zeros() if choose.random() < 0.1 else b"\0" * size,
        lambda: b"[" * (size // 2) + b"]" * (size // 2),
        lambda: b'{"a":' * (size // 5),
        lambda: b'"' + b"\\" * size,
        lambda: b"&".join([b"a=%41"] * (size // 6)),
        lambda: b"%41" * (size // 3),
        lambda: PART * (size // len(PART)) + b"--x--\r\n",
        lambda: b'--x\r\nContent-Disposition: form-data; name="a"\r\n' + b"a: b\r\n" * (size // 6),
        lambda: choose.randbytes(size),
        lambda: b"1" * size,
        lambda: b"",
    ]
    return _damaged(choose, choose.choices(forms, (40, 10, *[2] * 14))[0]())


def _damaged(choose: random.Random, body: bytes) -> bytes:
    """Half of them, in a few places: no two are the same."""
    if not body or choose.random() < 0.5:
        return body
    changed = bytearray(body)
    for _ in range(choose.randint(1, 4)):
        changed[choose.randrange(len(changed))] = choose.randrange(256)
    return bytes(changed)

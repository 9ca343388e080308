"""Requests that nobody thought of, as bytes. Seeded: the same seed gives the same requests."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable

CAP = 1 << 20
"""What an application takes by default."""


def request(choose: random.Random, number: int) -> bytes:
    """One request of HTTP/1.1, whole; or with a body that is not what its headers say."""
    method = choose.choices(
        (b"POST", b"PATCH", b"post", b"PUT", b"GET", b"POsT", b"X"), (20, 3, 1, 1, 1, 1, 1)
    )[0]
    path = choose.choices((b"/pay", b"/pay?" + _query(choose), b"/", b"/%ff", b"//pay"), (12, 4, 1, 1, 1))[0]
    body = _body(choose)
    headers = [b"Host: x", *_keys(choose, number), *_headers(choose)]
    if choose.random() < 0.9:
        headers.append(b"Content-Length: %d" % len(body))
    else:
        headers.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    return b"\r\n".join([b"%b %b HTTP/1.1" % (method, path), *headers, b"", body])


def _text(choose: random.Random, most: int) -> bytes:
    return bytes(choose.choices(range(0x20, 0x7F), k=choose.randint(0, most)))


def _query(choose: random.Random) -> bytes:
    forms = (b"a=1&b=2", b"&" * 2_000, b"%41" * 2_000, b"+" * 3_000, b"a=%zz&%ff", b"a;b;c")
    return choose.choice(forms)


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
    values = choose.choices(forms, (24, 6, 3, *[1] * 9))[0]()
    return [b"Idempotency-Key: " + value for value in values]


TYPES = (
    *(b"application/json", b"application/json; charset=utf-8", b"application/vnd.x+json", b"text/plain", b""),
    *(b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"multipart/form-data", b";"),
    *(
        b"a/b" + b";a=b" * 1_000,
        b"a/b;" + b'c="\\"' * 200,
        b"a" * 4_000,
        b"\xff/\xfe",
        b"application/json, x/y",
    ),
)
CODINGS = (
    b"gzip",
    b"deflate",
    b"br",
    b"identity",
    b"gzip, gzip",
    b"GZIP",
    b"," * 2_000,
    b"gzip;q=1",
    b"\xff",
)


def _headers(choose: random.Random) -> list[bytes]:
    found = [b"Content-Type: " + choose.choices(TYPES, [12, *[1] * (len(TYPES) - 1)])[0]]
    if choose.random() < 0.3:
        found.append(b"Content-Encoding: " + choose.choice(CODINGS))
    if choose.random() < 0.2:
        found.append(b"X-Odd: " + _text(choose, 200))
    if choose.random() < 0.05:
        found += [b"X-%d: y" % place for place in range(90)]
    return found


def _list(item: bytes, size: int) -> bytes:
    return b"[" + b",".join([item] * max(1, size // (len(item) + 1))) + b"]"


ITEMS = (
    b"1",
    b"1.5",
    b"1.5e300",
    b"0.1234567890123456",
    b"12345678901234567",
    b"{}",
    b'{"a":1}',
    b'"\\n"',
    b"NaN",
)
MORE = ('"😀\uff08"'.encode(), b'{"a":1.5e300}', b"9" * 400, b"[[[[]]]]", b'"\\ud800"', b'{"a":1,"a":2}')


def _body(choose: random.Random) -> bytes:
    size = choose.choices((100, 4_000, 60_000, 250_000, CAP - 100, CAP + 1), (30, 20, 10, 4, 2, 1))[0]
    item = choose.choice(ITEMS + MORE)
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    forms: list[Callable[[], bytes]] = [
        lambda: json.dumps(
            {"amount": choose.randint(1, 10**6), "note": "x" * choose.randint(0, 50)}
        ).encode(),
        lambda: _list(item, size),
        lambda: gzip.compress(_list(item, size), 1, mtime=0),
        lambda: zlib.compress(_list(item, size), 1),
        lambda: gzip.compress(gzip.compress(_list(item, CAP), 9, mtime=0), 9, mtime=0),
        lambda: gzip.compress(b"\0" * 4 * CAP, 9, mtime=0),
        lambda: b"[" * (size // 2) + b"]" * (size // 2),
        lambda: b'{"a":' * (size // 5),
        lambda: b'"' + b"\\" * size,
        lambda: b"&".join([b"a=%41"] * (size // 6)),
        lambda: b"%41" * (size // 3),
        lambda: part * (size // len(part)) + b"--x--\r\n",
        lambda: b'--x\r\nContent-Disposition: form-data; name="a"\r\n' + b"a: b\r\n" * (size // 6),
        lambda: choose.randbytes(size),
        lambda: b"1" * size,
        lambda: b"",
    ]
    return choose.choices(forms, (20, 12, *[2] * 14))[0]()

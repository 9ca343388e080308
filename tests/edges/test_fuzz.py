"""Odd bytes in every place, thousands of times: never a 500, never an error, never a second run.

Seeded, so a failure comes again; each request is sent twice and must get the same answer twice.
"""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from samekey import KeyRules
from samekey.core.header import KeyRefused, parse_key
from tests.chosen import whole
from tests.edges.apps import Kind
from tests.edges.callers import Request
from tests.edges.conftest import Build
from tests.edges.world import Stores, World

PAIRS = 900
"""Of requests for each application and route: 6 × 900 × 2 = 10,800 requests."""

MAX_BODY = 2000
Choose = random.Random


def _bytes(choose: Choose, most: int) -> bytes:
    return choose.randbytes(choose.randint(0, most))


def _printable(choose: Choose, most: int) -> bytes:
    return bytes(choose.choices(range(0x20, 0x7F), k=choose.randint(0, most)))


def _keys(choose: Choose, number: int) -> tuple[bytes, ...]:
    unique = b"key-%d" % number
    forms: list[Callable[[], tuple[bytes, ...]]] = [
        lambda: (unique,),
        lambda: (b'"%b"' % unique,),
        lambda: (b'  "%b" ;a=1;b' % unique,),
        lambda: (b'"%b with \\" and \\\\"' % unique,),
        lambda: (unique + b"x" * (255 - len(unique)),),
        lambda: (b"",),
        lambda: (b"x" * choose.choice((256, 9000)),),
        lambda: (unique, unique),
        lambda: (b"%b@example.com" % unique,),
        lambda: (b'"%b' % unique,),
        lambda: (b":%b:" % unique, b"a"),
        lambda: (unique + b"\x00",),
        lambda: (unique + b"\r\nx: y",),
        lambda: ("schlüssel".encode() + unique,),
        lambda: (_bytes(choose, 40),),
        lambda: (_printable(choose, 40),),
        lambda: (),
    ]
    return choose.choices(forms, weights=[12, 6, 3, 3, 2, *[1] * 12])[0]()


def _body(choose: Choose) -> bytes:
    forms: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: b"{}",
        lambda: b'{"a": 1, "a": 2}',
        lambda: b'{"n": 123456789012345678901234567890.10}',
        lambda: b'{"n": NaN, "i": -Infinity}',
        lambda: b'{"s": "\\ud800"}',
        lambda: b'\xef\xbb\xbf{"bom": 1}',
        lambda: b"[" * 900 + b"]" * choose.choice((0, 900)),
        lambda: b'{"a":' * 300,
        lambda: b"1" * 1900,
        lambda: b"1e" + b"9" * 400,
        lambda: b"a=1&b=%ff&=&a&c=%zz;d",
        lambda: b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n',
        lambda: b"--x\r\nContent-Disposition: form-data\r\n--x",
        lambda: gzip.compress(b'{"a": 1}'),
        lambda: gzip.compress(b"\0" * 2_000_000),
        lambda: zlib.compress(b'{"a": 1}')[: choose.randint(1, 16)],
        lambda: gzip.compress(b"x") * 30,
        lambda: b"x" * choose.randint(MAX_BODY - 1, MAX_BODY + 2),
        lambda: _bytes(choose, 300),
        lambda: _printable(choose, 300),
    ]
    return choose.choice(forms)()


TYPES = (
    *(b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-16"),
    *(b"application/vnd.api+json; a=b; a=c", b"application/x-www-form-urlencoded", b"multipart/form-data"),
    *(b"multipart/form-data; boundary=x", b'multipart/form-data; boundary="x"; boundary=y', b"text/plain"),
    *(b"", b";", b"/", b"a/", b'a/b; c="\\', b"a/b; =;;;", b"\xff\xfe", b"application/json, text/plain"),
    b"a" * 3000,
)
ENCODINGS = (
    *(b"gzip", b"deflate", b"br", b"identity", b"gzip, gzip", b"gzip,,deflate , identity", b"GZIP"),
    *(b"x-gzip", b"", b",", b"\xff", b"gzip;q=1", b"gzip," * 50),
)


def _headers(choose: Choose) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for name, values in ((b"content-type", TYPES), (b"content-encoding", ENCODINGS)):
        for _ in range(choose.choices((0, 1, 2), weights=(1, 6, 1) if values is TYPES else (4, 4, 1))[0]):
            value = choose.choice(values) if choose.random() < 0.9 else _bytes(choose, 30)
            found.append((name, value))
    for _ in range(choose.randint(0, 2)):
        name = choose.choice((b"x-odd", b"accept", b"cookie", b"range", b"expect", b"x" * 200, b"x-\xe9"))
        found.append((name, _bytes(choose, 60)))
    return found


def _path(choose: Choose, route: str) -> str:
    odd = (
        "/",
        "",
        "//",
        f"{route}/",
        f"{route}/../x",
        "/%00",
        "/\x00",
        "/idempotency/" + "f" * 32,
        "/é/ü",
        "*",
    )
    if choose.random() < 0.8:
        return route
    if choose.random() < 0.7:
        return choose.choice(odd)
    return "/" + _bytes(choose, 60).decode("utf-8", "surrogateescape")


def _request(choose: Choose, number: int, route: str, tenant: str) -> tuple[Request, tuple[bytes, ...]]:
    keys = _keys(choose, number)
    headers = [(b"idempotency-key", key) for key in keys] + _headers(choose)
    if choose.random() < 0.95:
        headers.append((b"x-tenant", tenant.encode()))
    choose.shuffle(headers)
    method = choose.choices(("POST", "PATCH", "PUT", "post", "X-ODD", "GET"), weights=(12, 4, 1, 1, 1, 1))[0]
    path = _path(choose, route)
    if route != "/edge" and path == route and method not in ("POST", "PATCH"):
        method = "POST"  # a decorated handler for other methods is another test's business
    # Starlette's own redirects cannot read a query that is not ASCII.
    query = choose.choice((b"", b"a=1", b"&&=;%", b"%ff%zz", _bytes(choose, 30) if path == route else b"x"))
    return Request(method, path, tuple(headers), _body(choose), query), keys


def _is_key(lines: tuple[bytes, ...]) -> bool:
    try:
        parse_key(lines, KeyRules())
    except KeyRefused:
        return False
    return True


APPLICATIONS: list[tuple[Kind, str]] = [
    *(("asgi", "/edge"), ("wsgi", "/edge"), ("starlette", "/edge")),
    *(("fastapi", "/leased"), ("threadpool", "/atomic"), ("flask", "/leased")),
]


@whole
@pytest.mark.parametrize(("kind", "route"), APPLICATIONS)
def test_odd_requests(kind: Kind, route: str, builder: Build, stores: Stores) -> None:
    choose = random.Random(f"{kind} {route}")
    world = World()
    client = builder(kind, stores.get(max_body=MAX_BODY), world)
    bare = kind in ("asgi", "wsgi")
    seen: dict[str, int] = {}
    for number in range(PAIRS):
        request, keys = _request(choose, number, route, f"{world.name}-alice")
        before = world.runs
        first, again = client.send(request), client.send(request)
        runs = world.runs - before
        note: Any = (number, request, first, again)
        for got in (first, again):
            assert got.error is None, note
            assert 200 <= got.status < 500, note
        assert again.status == first.status, note
        method = request.method.upper() if bare else request.method  # a router knows only its own spelling
        guarded = method in ("POST", "PATCH") and (bare or request.path == route)
        tenant = any(name == b"x-tenant" for name, _ in request.headers)
        if not guarded:
            kind_of = "free"
            assert runs == (2 if bare and not _is_status(request) else runs), note
        elif not keys:
            kind_of = "no key"
            assert runs == (0 if route != "/edge" else 2), note
        elif len(request.body) > MAX_BODY:
            kind_of = "too large"
            # Unless its length was announced, it is seen to be that once the caller is known, and no earlier.
            unread = {400} if not _is_key(keys) else {401} if not tenant else set()
            assert first.status in {413} | unread and runs == 0 and again.content == first.content, note
        elif not _is_key(keys):
            kind_of = "not a key"
            assert (first.status, runs) == (400, 0) and again.content == first.content, note
        elif not tenant:
            kind_of = "nobody"
            assert (first.status, runs) == (401, 0), note
        else:
            kind_of = "executed"
            assert (first.status, runs) == (201, 1), note
            assert again.replayed and again.content == first.content, note
        seen[kind_of] = seen.get(kind_of, 0) + 1
    # All of it was really tried.
    assert min(seen.get(name, 0) for name in ("no key", "not a key", "nobody", "too large")) >= 3, seen
    assert seen["executed"] > PAIRS / 8, seen


def _is_status(request: Request) -> bool:
    return request.method == "GET" and request.path.startswith("/idempotency/")

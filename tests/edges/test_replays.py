"""Answers again: byte for byte where they can be kept (D3), and never a second run where they cannot (X8)."""

from __future__ import annotations

import traceback

import pytest

from samekey.errors import StreamedAnswer
from tests.edges.apps import FRAMEWORKS, Kind
from tests.edges.conftest import Build
from tests.edges.scenarios import Ask
from tests.edges.test_duplicates import every_route
from tests.edges.world import JSON, Reply, Stores, World

OCTETS = ((b"content-type", b"application/octet-stream"),)

REPLIES = {
    "all 256 bytes": Reply(200, bytes(range(256)), OCTETS),
    "a megabyte": Reply(200, bytes(range(256)) * 4096, OCTETS),
    "empty 200": Reply(200, b"", ()),
    "204": Reply(204, b"", ()),
    "repeated headers": Reply(
        201,
        b"{}",
        (
            *JSON,
            *((b"link", b'</1>; rel="self"'), (b"vary", b"accept"), (b"x-between", b"1")),
            *((b"link", b'</2>; rel="next"'), (b"vary", b"accept-language")),
        ),
    ),
    "Latin-1 headers": Reply(200, b"{}", (*JSON, (b"x-name", b"Andr\xe9 \xa3\xff"))),
    "an odd spelling": Reply(200, b"{}", (*JSON, (b"X-ODD-Case", b"  kept "), (b"etag", b'W/"1"'))),
    "302": Reply(302, b"", ((b"location", b"/elsewhere?a=%20b"),)),
    "409": Reply(409, b'{"why":"taken"}'),
    "418": Reply(418, b"short and stout", ((b"content-type", b"text/plain; charset=latin-1"),)),
    "compressed": Reply(200, b"\x1f\x8b\x08\x00nonsense", (*JSON, (b"content-encoding", b"gzip"))),
    "a status of its own": Reply(299, b"{}"),
    "streamed": Reply(200, None, OCTETS, chunks=(b"", b"one ", b"", b"two", b"")),
}


@every_route
@pytest.mark.parametrize("name", REPLIES)
def test_byte_for_byte(name: str, kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    reply = REPLIES[name]
    world = World(reply)
    client = builder(kind, stores.get(), world)
    ask = Ask().request(f"/{mode}", world.name)
    first = client.send(ask)
    assert first.status == reply.status and first.error is None
    assert first.body == (b"".join(reply.chunks) if reply.chunks is not None else reply.body)
    # Werkzeug takes white space off; nothing else may be changed.
    sent = [(n.lower(), v.strip()) for n, v in reply.headers]
    assert [pair for pair in _plain(first.headers) if pair in sent] == sent
    for _ in range(2):
        again = client.send(ask)
        assert again.replayed and again.content == first.content
        assert again.header("idempotency-key-expires") == first.header("idempotency-key-expires")
    assert world.runs == 1


def _plain(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value.strip()) for name, value in headers]


ONCE_ONLY = (
    *((b"set-cookie", b"session=secret"), (b"set-cookie", b"b=2"), (b"www-authenticate", b"Bearer")),
    *((b"authorization", b"Bearer x"), (b"x-csrf-token", b"t"), (b"connection", b"x-hop, keep-alive")),
    *((b"x-hop", b"1"), (b"keep-alive", b"timeout=5"), (b"date", b"Thu, 01 Jan 1970 00:00:00 GMT")),
    *((b"x-ratelimit-remaining", b"9"), (b"ratelimit", b'"a";r=5'), (b"retry-after", b"7")),
    *((b"age", b"1"), (b"server", b"test"), (b"proxy-authenticate", b"Basic"), (b"upgrade", b"h2c")),
)


@every_route
def test_what_belongs_to_one_answer_is_not_repeated(
    kind: Kind, mode: str, builder: Build, stores: Stores
) -> None:
    world = World(Reply(201, b"{}", (*JSON, *ONCE_ONLY, (b"x-kept", b"1"))))
    client = builder(kind, stores.get(), world)
    ask = Ask().request(f"/{mode}", world.name)
    first, again = client.send(ask), client.send(ask)
    assert [pair for pair in _plain(first.headers) if pair in ONCE_ONLY] == list(ONCE_ONLY)
    forbidden = {name for name, _ in ONCE_ONLY}
    assert not [name for name, _ in _plain(again.headers) if name in forbidden]
    assert again.replayed and again.header("x-kept") == "1"


@every_route
def test_too_large_to_keep(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    world = World(Reply(200, b"x" * 1001, OCTETS))
    store = stores.get(max_answer=1000)
    client = builder(kind, store, world)
    ask = Ask().request(f"/{mode}", world.name)
    first = client.send(ask)
    assert (first.status, len(first.body)) == (200, 1001) and first.header("idempotency-key-expires")
    again = client.send(ask)
    assert (again.status, again.code) == (409, "result_unavailable")
    assert not again.replayed and again.header("idempotency-key-expires")
    assert world.runs == 1
    if mode == "atomic":
        assert store.effects(world) == 1


LEASED = [
    *(
        (kind, mode)
        for kind in ("starlette", "fastapi", "threadpool", "flask")
        for mode in ("leased", "edge")
    ),
    ("asgi", "edge"),
    ("wsgi", "edge"),
]
ENDLESS = {
    "too large": (OCTETS, tuple(b"%03d" % number * 100 for number in range(10))),
    "server-sent events": (
        ((b"content-type", b"text/event-stream; charset=utf-8"),),
        (b"data: 1\n\n", b"data: 2\n\n"),
    ),
}


@pytest.mark.parametrize(("kind", "mode"), LEASED)
@pytest.mark.parametrize("name", ENDLESS)
def test_streamed_leased(name: str, kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    headers, chunks = ENDLESS[name]
    world = World(Reply(200, None, headers, chunks))
    client = builder(kind, stores.get(max_answer=1000), world)
    ask = Ask().request(f"/{mode}", world.name)
    first = client.send(ask)
    assert (first.status, first.body) == (200, b"".join(chunks)) and first.error is None
    assert first.header("idempotency-key-expires")
    assert client.send(ask).code == "result_unavailable"
    assert world.runs == 1


@pytest.mark.parametrize(("kind", "mode"), [("fastapi", "leased"), ("flask", "edge"), ("starlette", "edge")])
def test_a_streamed_failure_is_not_kept(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    world = World(Reply(500, None, OCTETS, tuple(b"x" * 400 for _ in range(4))))
    client = builder(kind, stores.get(max_answer=1000), world)
    ask = Ask().request(f"/{mode}", world.name)
    first = client.send(ask)
    assert (first.status, len(first.body)) == (500, 1600)
    assert client.send(ask).json() == {"run": 2}


@pytest.mark.parametrize("kind", FRAMEWORKS)
@pytest.mark.parametrize("name", ENDLESS)
def test_streamed_atomic_is_refused(name: str, kind: Kind, builder: Build, stores: Stores) -> None:
    headers, chunks = ENDLESS[name]
    world, store = World(Reply(200, None, headers, chunks)), stores.get(max_answer=1000)
    client = builder(kind, store, world)
    ask = Ask().request("/atomic", world.name)
    first = client.send(ask)
    assert first.status == 500 and first.error is not None
    # Litestar raises an error of its own, because of ours.
    assert StreamedAnswer.__name__ in "".join(traceback.format_exception(first.error))
    assert (store.effects(world), store.records(f"{world.name}-alice")) == (0, [])
    assert client.send(ask).json() == {"run": 2}
    assert store.effects(world) == 1

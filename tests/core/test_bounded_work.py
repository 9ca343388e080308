"""What a client can make a fingerprint cost (T6): counted in calls, which no busy machine changes."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from samekey.core.fingerprint import FingerprintRules, Intent, RequestParts, is_small

RULES = FingerprintRules()
JSON, FORM, MULTIPART = (
    b"application/json",
    b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=x",
)
MEGABYTE = 1 << 20
CALLS = 75_000
"""Of functions, in Python or C: some 15 milliseconds. The dearest honest document takes fewer."""


def parts_of(
    body: bytes, content_type: bytes = JSON, encoding: bytes | None = None, query: bytes = b""
) -> RequestParts:
    headers = [(b"content-type", content_type)]
    headers += [] if encoding is None else [(b"content-encoding", encoding)]
    return RequestParts("POST", "/", query, tuple(headers), body)


def calls_of(work: Callable[[], object]) -> int:
    count = 0

    def note(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def _list(item: bytes, size: int = MEGABYTE) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1) - 2)) + b"]"


def _part(lines: bytes) -> bytes:
    return b'--x\r\nContent-Disposition: form-data; name="a"\r\n%b\r\n1\r\n' % lines


ITEMS = [
    b"1",
    b"1.5",
    b"1.5e300",
    b"0.1234567890123456",
    b"12345678901234567",
    b"{}",
    b"[]",
    b'{"a":1}',
    b'""',
]
ITEMS += [
    '"😀"'.encode(),
    '"😀\uff08"'.encode(),
    b'{"a":1.5e300}',
    b"9" * 400,
    b'"\\n"',
    b"-0.00001",
    b"1E400",
]
HOSTILE = {
    **{f"many {item[:20]!r}": parts_of(_list(item)) for item in ITEMS},
    **{f"some {item[:20]!r}": parts_of(_list(item, 60_000)) for item in ITEMS},
    **{f"packed {item[:20]!r}": parts_of(gzip.compress(_list(item)), encoding=b"gzip") for item in ITEMS},
    "packed twice": parts_of(gzip.compress(gzip.compress(_list(b"1.5"))), encoding=b"gzip, gzip"),
    "names": parts_of(json.dumps({str(n): 1.5e300 for n in range(50_000)}).encode()),
    "pairs": parts_of(b"&".join([b"a=%41"] * 150_000), FORM),
    "escapes": parts_of(b"%41" * 300_000, FORM),
    "lines": parts_of(_part(b"".join(b"a%d: b\r\n" % n for n in range(90))) * 999 + b"--x--", MULTIPART),
    "one head": parts_of(_part(b"".join(b"a%d: b\r\n" % n for n in range(90_000))) + b"--x--", MULTIPART),
    "parameters": parts_of(
        (_part(b"Content-Type: a/b" + b";a=b" * 400 + b"\r\n")) * 500 + b"--x--", MULTIPART
    ),
    "media type": parts_of(b"{}", b"a/b" + b"".join(b";a%d=b" % n for n in range(8_000))),
    "semicolons": parts_of(b"{}", b"a/b" + b";" * 64_000),
    "codings": parts_of(b"{}", encoding=b"," * 64_000),
    "query": parts_of(b"{}", query=b"&".join([b"%41=%41"] * 9_000)),
    "query signs": parts_of(b"{}", query=b"+" * 9_999),
}


@pytest.mark.parametrize("parts", HOSTILE.values(), ids=HOSTILE)
def test_no_request_costs_more_than_an_honest_one_may(parts: RequestParts) -> None:
    assert calls_of(lambda: Intent(parts, RULES).fingerprint()) < CALLS


def test_what_is_read_at_once_costs_a_millisecond_or_two() -> None:
    """An event loop reads small requests itself; a compressed one is never small."""
    for item in ITEMS:
        small = parts_of(_list(item, 4_000)) if len(item) < 100 else parts_of(item)
        assert is_small(small)
        assert calls_of(lambda parts=small: Intent(parts, RULES).fingerprint()) < 5_000  # type: ignore[misc]
    assert not is_small(parts_of(gzip.compress(b"{}"), encoding=b"gzip"))
    assert not is_small(parts_of(b"{}", query=b"+" * 5_000))
    assert not is_small(parts_of(b"x" * 5_000))

"""A host with several addresses: all of them together have the time that is left."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pytest

from samekey.client import Keyed, Patience
from samekey.client.deadline import attempting, to_one_of
from tests.client.scripted import Say, scripted
from tests.client.wires import WIRES, Wire

SYNC = [wire for wire in WIRES if "async" not in wire.name and wire.name != "plain"]


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of ``several.test``."""
    found: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *rest: Any, **named: Any) -> Any:
        if host not in ("several.test", b"several.test"):
            return real(host, port, *rest, **named)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return found


@pytest.mark.parametrize("wire", SYNC, ids=lambda wire: wire.name)
def test_the_next_one_is_tried_where_one_refuses(wire: Wire, addresses: list[str]) -> None:
    with scripted(Say()) as server:
        addresses += ["127.0.0.2", "127.0.0.3", "127.0.0.1"]  # the server listens at the last one only
        answer = wire.post(
            f"http://several.test:{server.port}/payments",
            {},
            Keyed(patience=Patience(deadline=timedelta(seconds=20))),
        )
    assert answer.status == 201 and server.seen[0].headers["host"] == f"several.test:{server.port}"


def test_each_has_its_part_of_the_time_and_the_last_ones_error_is_told(addresses: list[str]) -> None:
    addresses += [f"127.0.0.{number}" for number in range(2, 6)]
    given: list[tuple[str, float]] = []

    def connect(address: str, share: int) -> None:
        given.append((address, attempt.left(None, share)))
        raise ConnectionRefusedError(address)

    with attempting(8) as attempt, pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.5"):
        to_one_of("several.test", 80, connect)
    assert [address for address, _ in given] == addresses
    assert all(seconds <= 8 / share for (_, seconds), share in zip(given, (4, 3, 2, 1), strict=True))

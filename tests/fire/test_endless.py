"""Answers and handlers without an end: they pass to their client, end with it, and never keep a server from
ending, whatever their type is."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from lab.processes import LOOPBACK, ServedApp, serve_asgi, wait_until
from tests.chosen import whole

pytestmark = whole


STREAMS = ["stream", "sync_stream", "mixed", "undecorated"]
ATOMIC_STREAM = "atomic_stream"
HANGS = ["hang", "sync_hang", "atomic_hang"]


def ask(server: ServedApp, path: str) -> socket.socket:
    line = socket.create_connection((LOOPBACK, server.port), timeout=30)
    head = f"POST /{path} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\n"
    line.sendall(head.encode() + b"Content-Length: 2\r\n\r\n{}")
    return line


def read_until(line: socket.socket, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got:
        piece = line.recv(4096)
        assert piece, got
        got += piece
    return got


@pytest.mark.parametrize("path", STREAMS)
def test_an_endless_answer_reaches_its_client_and_ends_with_it(sqlite_url: str, path: str) -> None:
    environment = {"ENDLESS_URL": sqlite_url, "ENDLESS_PATIENCE": "0.5"}
    with serve_asgi("tests.fire.endless:app", environment) as server:
        with ask(server, path) as line:
            assert read_until(line, b"tick").startswith(b"HTTP/1.1 200")
        with ask(server, path) as again:  # it was done, and nothing of it could be kept
            assert read_until(again, b"\r\n\r\n").startswith(b"HTTP/1.1 409")
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: not server.running)


def test_an_answer_that_takes_seconds_to_stream_is_kept(sqlite_url: str) -> None:
    with serve_asgi("tests.fire.endless:app", {"ENDLESS_URL": sqlite_url}) as server:
        with ask(server, "slow") as line:
            assert read_until(line, b"report").startswith(b"HTTP/1.1 200")
        with ask(server, "slow") as again:
            replay = read_until(again, b"a long report")
        assert replay.startswith(b"HTTP/1.1 200") and b"idempotent-replayed: true" in replay.lower()


@pytest.mark.parametrize("path", [*HANGS, ATOMIC_STREAM])
@pytest.mark.parametrize("stays", [True, False])
def test_nothing_keeps_a_server_from_ending_for_longer_than_its_longest_run(
    sqlite_url: str, path: str, stays: bool
) -> None:
    with serve_asgi("tests.fire.endless:app", {"ENDLESS_URL": sqlite_url}) as server:
        with ask(server, path) as line:
            if stays:
                status = b"HTTP/1.1 " + (b"500" if path == ATOMIC_STREAM else b"409")
                assert read_until(line, b"\r\n\r\n").startswith(status)
            else:
                wait_until(lambda: "begun" in server.output())
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: not server.running)

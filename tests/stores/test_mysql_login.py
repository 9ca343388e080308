"""Logging in to something that is no MySQL server, or stands in front of one: it learns no password."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from samekey.drivers.mysql.driver import PyMySQLDriver
from samekey.errors import StoreUnavailable

PASSWORD = "correct-horse"
PROTOCOL_41, SECURE, PLUGIN_AUTH = 0x0200, 0x8000, 0x0008
"""The flags that a server needs to ask for another way of logging in; none of them offers TLS."""


def packet(number: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def read(connection: socket.socket) -> bytes:
    """One packet, or nothing where the client has gone."""
    head = connection.recv(4, socket.MSG_WAITALL)
    return connection.recv(int.from_bytes(head[:3], "little"), socket.MSG_WAITALL) if len(head) == 4 else b""


def greeting() -> bytes:
    flags = struct.pack("<HBHH", PROTOCOL_41 | SECURE, 45, 2, PLUGIN_AUTH)
    salt = b"12345678", b"123456789012\0"
    return (
        b"\x0a8.0.40\0" + struct.pack("<I", 1) + salt[0] + b"\0" + flags + b"\x15" + bytes(10) + salt[1]
        + b"mysql_native_password\0"
    )  # fmt: skip


@pytest.mark.parametrize("plugin", ["mysql_clear_password", "dialog"])
def test_nobody_is_given_the_password_in_clear(plugin: str) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(30)
                connection.sendall(packet(0, greeting()))
                heard.append(read(connection))
                connection.sendall(packet(2, b"\xfe" + plugin.encode() + b"\0\x04Password: "))
                heard.append(read(connection))

        thread = threading.Thread(target=serve)
        thread.start()
        port = listening.getsockname()[1]
        driver = PyMySQLDriver(f"mysql://app:{PASSWORD}@127.0.0.1:{port}/shop", timeout=5)
        with pytest.raises(StoreUnavailable, match=r"password in clear.*ssl_ca"):
            driver.open()
        thread.join(30)
    assert len(heard) == 2 and b"app" in heard[0]
    assert not any(PASSWORD.encode() in one for one in heard)


@pytest.mark.parametrize("option", ["ssl_mode=required", "ssl_mode=verify_identity"])
def test_a_url_that_demands_tls_says_nothing_to_a_server_without(option: str) -> None:
    """Whoever strips TLS from the greeting does not even learn the user."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(30)
                connection.sendall(packet(0, greeting()))
                heard.append(read(connection))

        thread = threading.Thread(target=serve)
        thread.start()
        port = listening.getsockname()[1]
        driver = PyMySQLDriver(f"mysql://app:{PASSWORD}@127.0.0.1:{port}/shop?{option}", timeout=5)
        with pytest.raises(StoreUnavailable, match="offers no TLS, and the URL demands it"):
            driver.open()
        thread.join(30)
    assert heard == [b""]

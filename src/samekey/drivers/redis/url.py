"""What a Redis URL says: which servers, how to reach them, and what is asked of them.

    redis://user:password@host:6379/0       one server; rediss:// with TLS
    redis+cluster://one:6379,two:6379       a Redis Cluster, by any of its nodes; rediss+cluster:// with TLS

``valkey`` may stand for ``redis`` everywhere. Options follow after ``?``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from ...errors import ConfigurationError

SCHEMES: Final = frozenset(
    f"{name}{tls}{cluster}"
    for name in ("redis", "valkey")
    for tls in ("", "s")
    for cluster in ("", "+cluster")
)
PORT: Final = 6379
PARTITIONS: Final = 128
"""Many more than a Cluster has masters, so that each gets its share; few enough that all of them can be asked
in one go, as sweeper and reconciler do. It is part of every key's name, so it can never change for keys that
are there (``stores/redis/check.py``)."""
PREFIX: Final = "samekey"
WAIT_SECONDS: Final = 1.0

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TLS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_OPTIONS: Final = ("prefix", "partitions", "wait", "wait_timeout", "unsafe", *_TLS)

Address = tuple[str, int]
Unsafe = Literal["", "warn", "refuse"]


@dataclass(frozen=True, slots=True)
class RedisURL:
    """A Redis URL, read."""

    servers: tuple[Address, ...]
    cluster: bool
    login: Mapping[str, Any] = field(repr=False)
    """User, password, database and TLS, as redis-py takes them."""
    prefix: str = PREFIX
    partitions: int = PARTITIONS
    wait: int = 0
    """Replicas that must confirm a claim or an outcome before it counts."""
    wait_seconds: float = WAIT_SECONDS
    unsafe: Unsafe = ""
    """What becomes of a server that may forget keys: said aloud, or refused."""


def read_url(url: str) -> RedisURL:
    """A ``ConfigurationError`` says what is wrong with it."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise ConfigurationError(f"The Redis URL cannot be read: {error}.") from None
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        raise ConfigurationError(
            f"The Redis URL has options that samekey does not know: {', '.join(unknown)}. "
            f"There are {', '.join(_OPTIONS)}."
        )
    kind, _, shape = parts.scheme.partition("+")
    cluster = shape == "cluster"
    user, _, hosts = parts.netloc.rpartition("@")
    servers = tuple(_server(host) for host in hosts.split(","))
    if len(servers) > 1 and not cluster:
        raise ConfigurationError(
            "The Redis URL names several servers. Are they a Cluster? Then write redis+cluster://…"
        )
    name, _, password = user.partition(":")
    login: dict[str, Any] = {
        "username": unquote(name) or None,
        "password": unquote(password) or None,
        "db": _database(parts.path, cluster=cluster),
    }
    if kind.endswith("s") and kind != "redis":
        login["ssl"] = True
        login.update({name: options[name] for name in _TLS if name in options})
    elif any(name in options for name in _TLS):
        raise ConfigurationError("The Redis URL has options for TLS, but not its scheme: write rediss://…")
    prefix = options.get("prefix", PREFIX)
    if not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"The prefix {prefix!r} cannot be used: take up to 64 letters, digits and the characters _ . : -"
        )
    unsafe = options.get("unsafe", "")
    if unsafe not in ("", "warn", "refuse"):
        raise ConfigurationError(f"unsafe={unsafe} in the Redis URL means nothing: write warn or refuse.")
    return RedisURL(
        servers,
        cluster,
        login,
        prefix=prefix,
        partitions=_whole(options, "partitions", PARTITIONS, 1, 1000),
        wait=_whole(options, "wait", 0, 0, 100),
        wait_seconds=_seconds(options),
        unsafe=unsafe,  # type: ignore[arg-type]
    )


def _server(text: str) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"The Redis URL names a server that cannot be one: {error}.") from None
    if not host:
        raise ConfigurationError("The Redis URL names no server: write redis://host:6379/0.")
    return host, port or PORT


def _database(path: str, *, cluster: bool) -> int:
    number = path.strip("/") or "0"
    if not number.isdecimal():
        raise ConfigurationError(f"A Redis database is a number, and {number!r} is none.")
    if cluster and number != "0":
        raise ConfigurationError("A Redis Cluster has database 0 only. Use ?prefix=… to keep things apart.")
    return int(number)


def _whole(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ConfigurationError(f"{name}={text} in the Redis URL must be a number from {low} to {high}.")
    return int(text)


def _seconds(options: Mapping[str, str]) -> float:
    text = options.get("wait_timeout", str(WAIT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.001 <= seconds <= 60:
        raise ConfigurationError(f"wait_timeout={text} in the Redis URL must be seconds, up to 60.")
    return seconds

"""A real Redis or Valkey for tests: a throwaway server or Cluster on loopback, or a server that is named.

`find_server()` is what a test fixture calls. `RedisServer` is for tests that also restart or kill the server,
`RedisCluster` for tests of slots and of failover. Nothing here knows samekey's keys; nothing here may be used
in production: anyone who can reach the port is let in.
"""

from __future__ import annotations

from .redis_cluster import RedisCluster
from .redis_server import (
    URL_VARIABLE,
    NamedServer,
    RedisServer,
    RedisUnavailable,
    bundled_binary,
    connect,
    find_binary,
    find_server,
)

__all__ = [
    "URL_VARIABLE",
    "NamedServer",
    "RedisCluster",
    "RedisServer",
    "RedisUnavailable",
    "bundled_binary",
    "connect",
    "find_binary",
    "find_server",
]

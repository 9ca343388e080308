"""How a statement becomes commands for servers: what the sync and the async Redis driver have in common.

A plan is a generator. It yields batches of commands, each for one server and sent as one pipeline on one
connection, is sent the replies, and returns rows. It does no I/O.

redis-py's own Cluster client is not used. It sends a command again by itself when a reply is lost, which
must be seen here (the runners ask again, because programs recognise their own attempt), and it cannot send
WAIT on the connection of the script before it. Its connections, pools, TLS and protocol are.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from redis import exceptions as redis
from redis.crc import key_slot

from ...core.program import Row, Statement, Value
from ...errors import ConfigurationError, StoreBusy, StoreUnavailable
from .errors import translate
from .url import Address, RedisURL

INDEXES: Final = ("leases", "unknown", "dead", "settled")
TURNS: Final = 5
"""How often a call is sent again because its script or its slot was not where it was thought to be."""

Command: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Commands for one server, in their order, on one connection."""

    server: Address
    commands: tuple[Command, ...]


Replies: TypeAlias = list[Any] | Exception
"""One for each command, an error in its place; or the one error that took the connection along."""
Plan: TypeAlias = Generator[Sequence[Batch], Sequence[Replies], Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a script, on the keys of one partition."""

    keys: tuple[str, ...]
    arguments: tuple[bytes, ...]
    asking: Address | None = None
    """Where a slot that is being moved is asked for this time."""


class Layout:
    """Where records lie: every key of a partition has the same hash tag, and so the same slot."""

    def __init__(self, prefix: str, partitions: int) -> None:
        self.prefix = prefix
        self.partitions = partitions
        self._homes = [f"{prefix}:{{p{number:03d}}}:" for number in range(partitions)]

    def partition(self, base: str) -> int:
        return int(base[:8], 16) % self.partitions

    def record(self, base: str) -> str:
        """The name of the hash that holds a record."""
        return self._homes[self.partition(base)] + base

    def calls(self, statement: Statement) -> list[Call]:
        """The runs that a statement takes: one, or one for each partition that it is about."""
        at = statement.parameters["at"]
        if isinstance(at, str):
            return [self._call(statement, self.partition(at), [at], statement.parameters)]
        if at is None:
            return [
                self._call(statement, number, [], statement.parameters) for number in range(self.partitions)
            ]
        assert isinstance(at, list)
        return list(self._shares(statement, at))

    def _shares(self, statement: Statement, bases: Sequence[str]) -> Iterator[Call]:
        """Each partition gets its records, and of every list the values that stand beside them."""
        places: dict[int, list[int]] = {}
        for place, base in enumerate(bases):
            places.setdefault(self.partition(base), []).append(place)
        for number, mine in places.items():
            share: dict[str, Value] = {
                name: [value[place] for place in mine] if isinstance(value, list) else value
                for name, value in statement.parameters.items()
            }
            yield self._call(statement, number, [bases[place] for place in mine], share)

    def _call(
        self, statement: Statement, partition: int, bases: Sequence[str], values: Mapping[str, Value]
    ) -> Call:
        home = self._homes[partition]
        _, names = statement.query.rendered["lua"]
        keys = (*(home + index for index in INDEXES), *(home + base for base in bases))
        return Call(keys, tuple(_encode(values[name]) for name in names))


@dataclass(frozen=True, slots=True)
class Map:
    """Which server holds what, at one moment."""

    only: Address | None
    """The one server, if it is no Cluster."""
    owners: Mapping[int, Address]

    def owner(self, key: str) -> Address:
        found = self.only or self.owners.get(key_slot(key.encode()))
        if found is None:
            raise StoreBusy("The Redis Cluster does not serve this key's slot now. Retry with the same key.")
        return found

    def masters(self) -> list[Address]:
        return [self.only] if self.only else sorted(set(self.owners.values()))


class Router:
    """Knows which server holds which slot. Shared by all plans of a driver; safe in threads."""

    def __init__(self, url: RedisURL) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._owners: dict[int, Address] = {}
        self._known: list[Address] = list(url.servers)

    def map(self) -> Generator[Sequence[Batch], Sequence[Replies], Map]:
        """The map as it is now; the nodes are asked where nobody knows."""
        if not self._url.cluster:
            return Map(self._url.servers[0], {})
        # Taken once: another thread may forget it meanwhile.
        owners = self._owners or (yield from self._learn())
        return Map(None, owners)

    def moved(self, slot: int, server: Address) -> None:
        with self._lock:
            self._owners = {**self._owners, slot: server}

    def forget(self) -> None:
        """After a lost connection another node may be the master: ask before the next call."""
        with self._lock:
            self._owners = {}

    def _learn(self) -> Generator[Sequence[Batch], Sequence[Replies], Mapping[int, Address]]:
        """Asks one node after the other for the map of the slots."""
        failed: Exception | None = None
        for server in list(self._known):
            (replies,) = yield [Batch(server, (("CLUSTER", "SLOTS"),))]
            reply = replies if isinstance(replies, Exception) else replies[0]
            if isinstance(reply, Exception):
                failed = translate(reply, cluster=True)
                if isinstance(failed, ConfigurationError):
                    raise failed
                continue
            return self._read(server, reply)
        raise StoreUnavailable(f"No node of the Redis Cluster can be reached: {failed}")

    def _read(self, asked: Address, ranges: Sequence[Any]) -> Mapping[int, Address]:
        owners: dict[int, Address] = {}
        known: list[Address] = [asked]
        for first, last, *nodes in ranges:
            addresses = [(_host(node[0]) or asked[0], int(node[1])) for node in nodes]
            known += [address for address in addresses if address not in known]
            owners.update(dict.fromkeys(range(int(first), int(last) + 1), addresses[0]))
        known += [server for server in self._url.servers if server not in known]
        with self._lock:
            self._owners, self._known = owners, known
        return owners


class Planner:
    """Plans for the statements of one URL."""

    def __init__(self, url: RedisURL) -> None:
        self.url = url
        self.layout = Layout(url.prefix, url.partitions)
        self.router = Router(url)

    def plan(self, statement: Statement) -> Plan:
        """The rows of a statement, from wherever its records are."""
        if "at" not in statement.parameters:
            return (yield from self._server_facts())
        text, _ = statement.query.rendered["lua"]
        confirmed = self.url.wait > 0 and text.startswith("-- durable")
        waiting = dict(enumerate(self.layout.calls(statement)))
        rows: dict[int, list[list[Any]]] = {}
        unloaded: set[Address] = set()
        for _ in range(TURNS):
            groups = _groups(waiting, (yield from self.router.map()))
            batches = [
                self._batch(server, text, [waiting[n] for n in numbers], server in unloaded, confirmed)
                for server, numbers in groups.items()
            ]
            answers = yield batches
            unloaded.clear()
            for (server, numbers), replies in zip(groups.items(), answers, strict=True):
                if isinstance(replies, Exception):
                    self.router.forget()
                    raise translate(replies, cluster=self.url.cluster) from replies
                scripts = [reply for reply in replies if reply is not _ASKED]
                confirmation = scripts.pop() if confirmed else None
                for number, reply in zip(numbers, scripts, strict=True):
                    if isinstance(reply, redis.NoScriptError):
                        unloaded.add(server)
                    elif isinstance(reply, Exception):
                        waiting[number] = self._redirected(waiting[number], reply, server)
                    else:
                        rows[number] = reply
                        del waiting[number]
                if confirmed and not all(isinstance(reply, Exception) for reply in scripts):
                    self._must_be_confirmed(confirmation)
            if not waiting:
                return [[_decode(value) for value in row] for number in sorted(rows) for row in rows[number]]
        raise StoreBusy("The Redis Cluster is moving this key's slot. Retry with the same key.")

    def _batch(
        self, server: Address, text: str, calls: Sequence[Call], unloaded: bool, confirmed: bool
    ) -> Batch:
        commands: list[Command] = []
        for call in calls:
            if call.asking is not None:
                commands.append(("ASKING",))
            # With its text once, where the server did not have it; by its digest after that.
            script = ("EVAL", text) if unloaded else ("EVALSHA", _sha(text))
            unloaded = False
            commands.append((*script, len(call.keys), *call.keys, *call.arguments))
        if confirmed:
            commands.append(("WAIT", self.url.wait, round(self.url.wait_seconds * 1000)))
        return Batch(server, tuple(commands))

    def _redirected(self, call: Call, error: Exception, server: Address) -> Call:
        """The same call where the server says that it belongs; any other error is final."""
        if self.url.cluster and isinstance(error, redis.AskError):
            there = (error.host or server[0], error.port)
            if not isinstance(error, redis.MovedError):  # which is a kind of it
                return replace(call, asking=there)  # this time only
            self.router.moved(error.slot_id, there)
            return replace(call, asking=None)
        if isinstance(error, redis.ClusterDownError | redis.ReadOnlyError):
            self.router.forget()
        raise translate(error, cluster=self.url.cluster) from error

    def _must_be_confirmed(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            raise translate(reply, cluster=self.url.cluster) from reply
        if int(reply) < self.url.wait:
            raise StoreUnavailable(
                f"{reply} of {self.url.wait} replicas confirmed the write within {self.url.wait_seconds:g} s "
                "(the URL says wait). It stands on the master, and a failover could lose it."
            )

    def _server_facts(self) -> Plan:
        """Of each master: what it says of itself, and of its settings if it may be asked."""
        masters = (yield from self.router.map()).masters()
        asked = (("INFO",), ("CONFIG", "GET", "appendfsync"), ("CONFIG", "GET", "save"))
        answers = yield [Batch(server, asked) for server in masters]
        rows: list[list[str]] = [
            ["", "partitions", str(self.url.partitions)],
            ["", "unsafe", self.url.unsafe],
        ]
        for (host, port), replies in zip(masters, answers, strict=True):
            if isinstance(replies, Exception):
                self.router.forget()
                raise translate(replies, cluster=self.url.cluster) from replies
            info, *settings = replies
            if isinstance(info, Exception):
                raise translate(info, cluster=self.url.cluster) from info
            name = f"{host}:{port}"
            rows += [[name, fact, str(value)] for fact, value in info.items() if isinstance(value, str | int)]
            for reply in settings:
                if not isinstance(reply, Exception) and reply:
                    rows.append([name, reply[0].decode(), reply[1].decode()])
        return rows


def _groups(waiting: Mapping[int, Call], servers: Map) -> dict[Address, list[int]]:
    groups: dict[Address, list[int]] = {}
    for number, call in waiting.items():
        groups.setdefault(call.asking or servers.owner(call.keys[0]), []).append(number)
    return groups


_ASKED: Final = object()
"""In place of the reply to ASKING, which nobody needs."""


def without_asking(batch: Batch, replies: Sequence[Any]) -> list[Any]:
    return [
        _ASKED if command[0] == "ASKING" else reply
        for command, reply in zip(batch.commands, replies, strict=True)
    ]


@lru_cache(maxsize=256)
def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()  # it is Redis's name for a script


def _encode(value: Value) -> bytes:
    """A parameter with a letter in front that says what it is; nothing at all for None."""
    if value is None:
        return b""
    if isinstance(value, str):
        return b"t" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, bytes):
        return b"b" + value
    return b"j" + json.dumps(list(value)).encode()


def _decode(value: Any) -> str | int | bytes | None:
    if not isinstance(value, bytes):
        return value  # type: ignore[no-any-return]
    if value[:1] == b"b":
        return value[1:]
    try:
        return value[1:].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return value[1:]  # damage: whoever wants text says so


def _host(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else ""

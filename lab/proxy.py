"""A TCP proxy on loopback that fails on command, between a client and its database.

Connections can be cut, refused or stalled; and it understands just enough of PostgreSQL's
protocol to see a COMMIT go by and lose it, lose its acknowledgement, or let it land late, when the
client has long given up. Other protocols pass through unread, and so does encrypted traffic.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar, assert_never
from urllib.parse import urlsplit, urlunsplit

from lab.processes import LOOPBACK, free_port

__all__ = ["Action", "FaultProxy", "Rule", "cut_after", "cut_and_delay", "cut_before"]

T = TypeVar("T")

COMMIT = r"COMMIT(\s+(WORK|TRANSACTION))?(\s*;[\s\S]*)?"
# With whatever follows it in the same text.

# Codes that stand in a first packet where the protocol's version would be.
CANCEL = 80877102
NEGOTIATE = frozenset({80877103, 80877104})  # TLS, GSSAPI

# PostgreSQL's own limit for a first packet; a larger "length" is another protocol's first bytes.
LONGEST_STARTUP = 10_000

SYNC = b"S" + struct.pack("!i", 4)

# Every command to the proxy's thread is done in microseconds: more means that it hangs.
COMMAND_TIMEOUT = 10.0


# ------------------------------------------------------------------ actions and rules


@dataclass(frozen=True, slots=True)
class CutBefore:
    """Cut the connection before the statement reaches the server."""


@dataclass(frozen=True, slots=True)
class CutAfter:
    """Let the statement reach the server, drop its answer, then cut the connection."""


@dataclass(frozen=True, slots=True)
class CutAndDelay:
    """Cut the client off at once; let the statement reach the server `seconds` later."""

    seconds: float


Action = CutBefore | CutAfter | CutAndDelay

cut_before = CutBefore()
cut_after = CutAfter()


def cut_and_delay(seconds: float = math.inf) -> CutAndDelay:
    """The statement lands after `seconds`, or when the rule's `release()` is called if sooner."""
    return CutAndDelay(seconds)


class Rule:
    """What to do when a client sends a statement. Returned by `FaultProxy.on_statement`.

    `fired` is set when the statement was seen and the client's connection is about to be lost,
    `done` when nothing more will happen: the server has answered, or has lost its connection too.
    With `times` above one, both are set by the first; `count` says how often it fired.
    """

    def __init__(self, pattern: str, action: Action, times: int | None) -> None:
        self.action = action
        self.times = times
        self.count = 0
        self.fired = threading.Event()
        self.done = threading.Event()
        self._pattern = re.compile(rf"\s*(?:{pattern})\s*;?\s*", re.IGNORECASE)
        self._released = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def release(self) -> None:
        """Let statements held by `cut_and_delay` reach the server now, and later ones at once."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._released.set)

    def _matches(self, sql: str) -> bool:
        spent = self.times is not None and self.count >= self.times
        return not spent and self._pattern.fullmatch(sql) is not None


# ------------------------------------------------------------------ the protocol


def _text(field: bytes) -> str:
    return field.decode("utf-8", "replace")


class _Messages:
    """Cuts a stream into PostgreSQL's messages: one byte of type, four of length, content."""

    def __init__(self) -> None:
        self.held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self.held += data
        while len(self.held) >= 5:
            end = 1 + struct.unpack_from("!i", self.held, 1)[0]
            if len(self.held) < end:
                return
            message = bytes(self.held[:end])
            del self.held[:end]
            yield message


class _Session:
    """What one connection's two directions need to know of each other.

    The server answers every simple query, every Sync and the startup with one ReadyForQuery:
    counting both tells when the answer to a given statement is complete. (Not so after a COPY
    FROM STDIN that was prepared: the server ignores a Sync while it copies.)
    """

    def __init__(self) -> None:
        self.started = False
        self.opaque = False
        self.negotiating = False
        self.answers_due = 1  # the startup's
        self.answers_seen = 0
        self._first = bytearray()
        self._client = _Messages()
        self._server = _Messages()
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}

    def from_client(self, data: bytes) -> Iterator[tuple[bytes, str | None]]:
        """Pieces to send on, each with the SQL that it makes the server execute, if any."""
        if self.opaque:
            yield data, None
            return
        if self.started:
            for message in self._client.feed(data):
                yield message, self._executed(message)
            return
        self._first += data
        while not self.started and len(self._first) >= 4:
            length = struct.unpack_from("!i", self._first)[0]
            if not 8 <= length <= LONGEST_STARTUP:
                self.opaque = True
                yield bytes(self._first), None
                return
            if len(self._first) < length:
                return
            packet = bytes(self._first[:length])
            del self._first[:length]
            code = struct.unpack_from("!i", packet, 4)[0]
            if code in NEGOTIATE:
                self.negotiating = True
            else:
                self.started = True
                self.opaque = code == CANCEL
            yield packet, None
        if self.started and self._first:
            rest = bytes(self._first)
            self._first.clear()
            yield from self.from_client(rest)

    def _executed(self, message: bytes) -> str | None:
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            self.answers_due += 1
            return _text(body.rstrip(b"\0"))
        if kind in {b"S", b"F"}:
            self.answers_due += 1
        elif kind == b"P":
            name, sql = body.split(b"\0", 2)[:2]
            self._statements[name] = _text(sql)
        elif kind == b"B":
            portal, statement = body.split(b"\0", 2)[:2]
            self._portals[portal] = self._statements.get(statement, "")
        elif kind == b"E":
            return self._portals.get(body.split(b"\0", 1)[0])
        return None

    def from_server(self, data: bytes) -> None:
        """Take note of what the server said."""
        if self.negotiating:
            self.negotiating = False
            if data[:1] in b"SG":
                self.opaque = True  # what follows is encrypted
            if data[:1] in b"SGN":
                data = data[1:]
        if self.started and not self.opaque:
            for message in self._server.feed(data):
                self.answers_seen += message[:1] == b"Z"


# ------------------------------------------------------------------ one connection


class _Connection:
    """A client, its server, and what passes between them. Lives in the proxy's loop."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client_reader = reader
        self._client = writer
        self._server: asyncio.StreamWriter | None = None
        self._session = _Session()
        self._rule: Rule | None = None
        self._answered = asyncio.Event()
        self._answer: float = math.inf  # the count of answers after which the rule's is complete

    async def run(self, host: str, port: int) -> None:
        try:
            try:
                reader, self._server = await asyncio.open_connection(host, port)
            except OSError:
                return
            upward = asyncio.ensure_future(self._to_server(self._server))
            downward = asyncio.ensure_future(self._to_client(reader))
            try:
                await asyncio.gather(upward, downward)
                if self._rule is None:
                    await self._close()
            finally:
                upward.cancel()
                downward.cancel()
                await asyncio.gather(upward, downward, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # cut by us, by one of them, or the proxy is closing
        finally:
            self.cut()
            if self._rule is not None:
                self._rule.done.set()

    async def _to_server(self, server: asyncio.StreamWriter) -> None:
        while data := await self._client_reader.read(65_536):
            await self._proxy._pass()
            for message, sql in self._session.from_client(data):
                rule = None if sql is None else self._proxy._rule_for(sql)
                if rule is not None:
                    await self._play(rule, message, server)
                    return
                server.write(message)
            await server.drain()
        await self._proxy._flowing.wait()
        server.write_eof()

    async def _to_client(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            await self._proxy._pass()
            self._session.from_server(data)
            if self._session.answers_seen >= self._answer:
                self._answered.set()
            if self._rule is None:
                self._client.write(data)
                await self._client.drain()
        self._answered.set()  # the server is gone: there will be none
        await self._proxy._flowing.wait()
        if self._rule is None:
            self._client.write_eof()

    async def _play(self, rule: Rule, message: bytes, server: asyncio.StreamWriter) -> None:
        """Do what the rule says with the statement in `message`, then end the connection."""
        self._rule = rule
        rule.fired.set()
        match rule.action:
            case CutBefore():
                self.cut()
                return
            case CutAfter():
                pass
            case CutAndDelay(seconds):
                _reset(self._client)
                try:
                    limit = None if math.isinf(seconds) else seconds
                    await asyncio.wait_for(rule._released.wait(), limit)
                except TimeoutError:
                    pass
            case _:
                assert_never(rule.action)
        await self._proxy._flowing.wait()
        if message[:1] == b"E":
            # An extended query is only answered at a Sync, which the client has yet to send.
            message += SYNC
            self._session.answers_due += 1
        self._answer = self._session.answers_due
        server.write(message)
        await self._answered.wait()
        self.cut()

    async def _close(self) -> None:
        """Both said their last: what is on its way to either still arrives."""
        for writer in (self._client, self._server):
            if writer is not None:
                writer.close()
                await writer.wait_closed()

    def cut(self) -> None:
        """Both ends see a reset; what they have not read yet is lost."""
        _reset(self._client)
        if self._server is not None:
            _reset(self._server)


def _reset(writer: asyncio.StreamWriter) -> None:
    if writer.transport.is_closing():
        return
    sock = writer.get_extra_info("socket")
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass  # the other side was faster
    writer.transport.abort()


# ------------------------------------------------------------------ the proxy


class FaultProxy:
    """Listens on a loopback port and passes everything on to `target_host:target_port`.

    It runs in a thread of its own; the methods may be called from any thread, including one with
    an event loop, and have taken effect when they return. A context manager.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.host = LOOPBACK
        self.port = free_port()
        self._target = (target_host, target_port)
        self._rules: list[Rule] = []
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._listener: asyncio.Server | None = None
        self._accepted = 0
        # Not asyncio's policy: the tests' own may be a loop that cannot be had twice.
        self._loop = asyncio.SelectorEventLoop()
        self._latency = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        try:
            self.accept()
        except BaseException:
            self.close()
            raise

    @classmethod
    def before(cls, url: str) -> Self:
        """A proxy in front of the server in this URL; `url_for(url)` then leads through it."""
        parts = urlsplit(url)
        return cls(parts.hostname or LOOPBACK, parts.port or 5432)

    def url_for(self, url: str) -> str:
        """The same URL, but through the proxy."""
        parts = urlsplit(url)
        credentials, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{credentials}{at}{self.host}:{self.port}"))

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._connections)

    @property
    def accepted(self) -> int:
        """How many connections were made so far."""
        return self._accepted

    # -------------------------------------------------------------- faults

    def cut_all(self) -> None:
        """Reset all open connections, both the client's end and the server's."""
        self._do(self._cut_all())

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Allow new connections again."""
        self._do(self._accept())

    def stall(self) -> None:
        """Pass nothing on, in either direction; nobody is told. A black hole."""
        self._do(self._set_flowing(False))

    def flow(self) -> None:
        """Pass on what was held back, and everything from now on."""
        self._do(self._set_flowing(True))

    def slow_down(self, seconds: float) -> None:
        """Let whatever passes from now on take this much longer, in each direction."""
        self._latency = seconds

    def on_commit(self, action: Action, *, times: int | None = 1) -> Rule:
        """Let `action` befall the next COMMITs, `times` of them (None: all), on any connection."""
        return self.on_statement(COMMIT, action, times=times)

    def on_statement(self, pattern: str, action: Action, *, times: int | None = 1) -> Rule:
        """The same for a statement whose whole SQL matches `pattern`, a regular expression.

        Case, surrounding white space and a closing semicolon do not matter. Seen are simple
        queries, as one, and each execution of a prepared statement; several statements in one
        simple query count as one text.
        """
        rule = Rule(pattern, action, times)
        rule._loop = self._loop
        self._do(self._add(rule))
        return rule

    def clear(self) -> None:
        """Forget all rules; what one of them has already begun goes on."""
        self._do(self._clear())

    def close(self) -> None:
        """Cut everything and end the thread. May be repeated."""
        if self._loop.is_closed():
            return
        self._do(self._refuse())
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------- inside the thread

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(COMMAND_TIMEOUT)

    def _rule_for(self, sql: str) -> Rule | None:
        """The first rule for this statement, counted as used."""
        for rule in self._rules:
            if rule._matches(sql):
                rule.count += 1
                return rule
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._accepted += 1
        self._connections[task] = connection = _Connection(self, reader, writer)
        try:
            await connection.run(*self._target)
        finally:
            del self._connections[task]

    async def _accept(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, self.host, self.port)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _cut_all(self) -> None:
        tasks = dict(self._connections)
        for task, connection in tasks.items():
            connection.cut()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self) -> None:
        # A connection accepted just now takes a few turns of the loop to become a task, and what is cancelled
        # takes one more to close its socket.
        for _ in range(20):
            await asyncio.sleep(0)
            await self._cut_all()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def _pass(self) -> None:
        if self._latency:
            await asyncio.sleep(self._latency)
        await self._flowing.wait()

    async def _set_flowing(self, flowing: bool) -> None:
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _add(self, rule: Rule) -> None:
        self._rules.append(rule)

    async def _clear(self) -> None:
        self._rules.clear()

"""A payment provider to test against: a process of its own, with a ledger that only it writes.

It charges, remembers idempotency keys as real ones do, and fails on demand in all the ways that hurt: after
the charge and before the answer. What happened is what its ledger says; each line was on the disk before its
answer was sent. Nothing here knows samekey.

    with Provider.start(directory) as provider:
        provider.fail("charge_then_drop")
        client = ProviderClient(provider.url)
        ...
        assert len(provider.charges()) == 1
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args
from urllib.parse import parse_qs, quote, urlsplit

from samekey.testing.processes import LOOPBACK, GuardedProcess, ProcessFailed, free_port, wait_until

__all__ = ["Charge", "Declined", "Fault", "Provider", "ProviderClient", "ProviderError", "read_ledger"]

Fault = Literal[
    "decline",  # 402, nothing charged
    "delay",  # the answer comes late
    "charge_then_time_out",  # charged, and then never a word
    "charge_then_drop",  # charged, and then the connection is cut
    "error_before",  # 500, nothing charged
    "error_after",  # 500, and yet charged
    "limit",  # 429, nothing charged
]
FAULTS: Final = frozenset(get_args(Fault))

FOR_EVER: Final = 3600.0
"""Seconds that a provider which never answers keeps a connection open."""
LONGEST_BODY: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Charge:
    """One line of the ledger: money has moved."""

    id: str
    key: str | None
    """The idempotency key that it was asked for with."""
    reference: str
    """What the caller calls it: an order's number, say."""
    amount: int


def read_ledger(path: Path) -> list[Charge]:
    """Every charge that was ever made, in order. A last line that is not whole never happened."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [Charge(**json.loads(line)) for line in whole.splitlines()]


# ------------------------------------------------------------------ the client


class ProviderError(Exception):
    """The provider answered, and not with a charge."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"the provider answered {status}: {detail}")
        self.status = status


class Declined(ProviderError):
    """The card was declined; nothing was charged."""


class ProviderClient:
    """A client on the standard library. Safe in threads: each call has a connection of its own.

    Raises ``Declined`` or ``ProviderError`` for what the provider answered, ``TimeoutError`` and other
    ``OSError`` where nobody can tell what it did.
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or LOOPBACK, address.port or 80
        self._timeout = timeout

    def charge(self, amount: int, *, key: str | None, reference: str = "") -> Charge:
        """Charges; with the same key again it gives the first charge and moves no money."""
        headers = {} if key is None else {"Idempotency-Key": key}
        found = self.call("POST", "/charges", {"amount": amount, "reference": reference}, headers)
        return _charge(found)

    def find(self, key: str) -> Charge | None:
        """The charge that was made under this key, if any."""
        found = self.call("GET", f"/charges?key={quote(key, safe='')}")
        charges = found["charges"]
        return _charge(charges[0]) if charges else None

    def call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """One request of any kind; the answer's JSON."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Connection": "close", **(headers or {})})
            response = connection.getresponse()
            content = json.loads(response.read())
        except http.client.HTTPException as error:
            raise ConnectionError(f"the provider's answer broke off: {error!r}") from error
        finally:
            connection.close()
        if response.status >= 400:
            kind = Declined if response.status == 402 else ProviderError
            raise kind(response.status, content["error"])
        return content


def _charge(content: Mapping[str, Any]) -> Charge:
    return Charge(content["id"], content["key"], content["reference"], content["amount"])


# ------------------------------------------------------------------ the process


class Provider:
    """The provider as its owner sees it: start, fail, pause, kill, and look into the ledger."""

    def __init__(self, directory: Path, port: int, process: GuardedProcess, options: list[str]) -> None:
        self.url = f"http://{LOOPBACK}:{port}"
        self.ledger = directory / "ledger.jsonl"
        self._directory = directory
        self._port = port
        self._process = process
        self._options = options
        self._control = ProviderClient(self.url)

    @classmethod
    def start(cls, directory: Path, *, deduplicate: bool = True, latency: float = 0.0) -> Self:
        """A new process that keeps its ledger in ``directory``, and goes on with one that is there.

        ``latency``: seconds between the charge and its answer, in which a caller may die.
        """
        port = free_port()
        options = ["--latency", str(latency)] + ([] if deduplicate else ["--no-deduplication"])
        return cls(directory, port, _launch(directory, port, options), options)

    @property
    def pid(self) -> int:
        return self._process.pid

    def charges(self) -> list[Charge]:
        """What the ledger says, whether or not the process lives."""
        return read_ledger(self.ledger)

    def fail(
        self, fault: Fault, *, times: int | None = 1, seconds: float = FOR_EVER, reference: str | None = None
    ) -> None:
        """Lets a fault befall the next charges: ``times`` of them (None: all), or those of a reference.

        ``seconds`` is how long ``delay`` takes, and how long ``charge_then_time_out`` is silent.
        """
        self._control.call(
            "POST",
            "/faults",
            {"fault": fault, "times": times, "seconds": seconds, "reference": reference},
        )

    def recover(self) -> None:
        """Forgets all faults."""
        self._control.call("DELETE", "/faults")

    def figures(self) -> dict[str, int]:
        """Since its start: ``requests`` for a charge, ``charges`` made, ``replays`` of a known key."""
        found: dict[str, int] = self._control.call("GET", "/figures")
        return found

    def kill9(self) -> None:
        self._process.kill9()

    def start_again(self) -> None:
        """After ``kill9``: on the same port, with what the ledger says."""
        self._process = _launch(self._directory, self._port, self._options)

    def stop(self) -> None:
        """Ends the process; the ledger stays. May be repeated."""
        self._process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _launch(directory: Path, port: int, options: list[str]) -> GuardedProcess:
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "samekey.testing.provider", "--port", str(port)]
    process = GuardedProcess(
        [*command, "--ledger", str(directory / "ledger.jsonl"), *options],
        log=directory / "provider.log",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        wait_until(lambda: not process.running or _answers(port))
    except TimeoutError:
        process.kill9()
    if not process.running:
        raise ProcessFailed(f"The provider did not start:\n{process.output()}")
    return process


def _answers(port: int) -> bool:
    try:
        ProviderClient(f"http://{LOOPBACK}:{port}", timeout=1).call("GET", "/figures")
    except OSError:
        return False
    return True


# ------------------------------------------------------------------ inside the process


@dataclass(slots=True)
class _Rule:
    fault: Fault
    times: int | None
    seconds: float
    reference: str | None

    def applies(self, reference: str) -> bool:
        return self.reference in (None, reference) and (self.times is None or self.times > 0)


class _Ledger:
    """The file. Charges that come together are flushed together; each is on the disk before its answer."""

    def __init__(self, path: Path) -> None:
        past = read_ledger(path)
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        whole = path.read_bytes().rpartition(b"\n")
        os.ftruncate(self._file, len(whole[0]) + len(whole[1]))
        self.charges = list(past)
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def append(self, charge: Charge) -> None:
        written = asyncio.get_running_loop().create_future()
        self.charges.append(charge)
        self._waiting.append((json.dumps(asdict(charge)).encode() + b"\n", written))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await written

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await asyncio.to_thread(self._write, b"".join(line for line, _ in batch))
            for _, written in batch:
                written.set_result(None)
        self._flushing = None

    def _write(self, lines: bytes) -> None:
        os.write(self._file, lines)
        os.fsync(self._file)


@dataclass(slots=True)
class _Known:
    """What a key was first used for. Its charge is being written, or is."""

    asked: tuple[int, str]
    charge: Charge
    written: asyncio.Event = field(default_factory=asyncio.Event)


class _Dropped(Exception):
    """Cut the connection without an answer."""


class _Server:
    def __init__(self, ledger: _Ledger, *, deduplicate: bool, latency: float) -> None:
        self._ledger = ledger
        self._deduplicate = deduplicate
        self._latency = latency
        self._rules: list[_Rule] = []
        self._numbers = itertools.count(len(ledger.charges) + 1)
        self._known: dict[str, _Known] = {}
        for charge in ledger.charges:
            if charge.key is not None:
                known = _Known((charge.amount, charge.reference), charge)
                known.written.set()
                self._known.setdefault(charge.key, known)
        self._figures = {"requests": 0, "charges": 0, "replays": 0}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, then the connection ends."""
        try:
            status, content = await self._respond(reader)
            body = json.dumps(content).encode()
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            if status == 429:
                head += "Retry-After: 1\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        except (_Dropped, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[int, Any]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = head.rstrip().split("\r\n")
        method, target, _ = request.split(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        body = await reader.readexactly(min(int(headers.get("content-length", "0")), LONGEST_BODY))
        path = urlsplit(target)
        try:
            content = json.loads(body) if body else {}
            match method, path.path:
                case "POST", "/charges":
                    return await self._charge(headers.get("idempotency-key"), content)
                case "GET", "/charges":
                    key = parse_qs(path.query).get("key", [None])[0]
                    found = [asdict(c) for c in self._ledger.charges if key in (None, c.key)]
                    return 200, {"charges": found}
                case "POST", "/faults":
                    return self._add(_Rule(**content))
                case "DELETE", "/faults":
                    self._rules.clear()
                    return 200, {}
                case "GET", "/figures":
                    return 200, self._figures
        except (ValueError, KeyError, TypeError) as error:
            return 400, {"error": f"{type(error).__name__}: {error}"}
        return 404, {"error": "no such resource"}

    def _add(self, rule: _Rule) -> tuple[int, Any]:
        if rule.fault not in FAULTS:
            return 400, {"error": f"no such fault: {rule.fault}"}
        self._rules.append(rule)
        return 201, {}

    async def _charge(self, key: str | None, content: Mapping[str, Any]) -> tuple[int, Any]:
        amount, reference = int(content["amount"]), str(content.get("reference", ""))
        self._figures["requests"] += 1
        rule = next((rule for rule in self._rules if rule.applies(reference)), None)
        if rule is not None and rule.times is not None:
            rule.times -= 1
        match rule.fault if rule is not None else None:
            case "decline":
                return 402, {"error": "the card was declined"}
            case "error_before":
                return 500, {"error": "something broke before the charge"}
            case "limit":
                return 429, {"error": "too many requests"}
        answer = await self._make(key, amount, reference)
        match rule.fault if rule is not None else None:
            case "charge_then_drop":
                raise _Dropped
            case "error_after":
                return 500, {"error": "something broke after the charge"}
            case "delay" | "charge_then_time_out":
                assert rule is not None
                await asyncio.sleep(rule.seconds)
                if rule.fault == "charge_then_time_out":
                    raise _Dropped
        if self._latency:
            await asyncio.sleep(self._latency)
        return answer

    async def _make(self, key: str | None, amount: int, reference: str) -> tuple[int, Any]:
        known = self._known.get(key) if key is not None and self._deduplicate else None
        if known is not None:
            if known.asked != (amount, reference):
                return 422, {"error": "this key was used for another charge"}
            await known.written.wait()
            self._figures["replays"] += 1
            return 200, asdict(known.charge)
        # No await up to here: of two requests with one key, one is the first.
        charge = Charge(f"ch_{next(self._numbers)}", key, reference, amount)
        made = _Known((amount, reference), charge)
        if key is not None:
            self._known[key] = made
        await self._ledger.append(charge)
        made.written.set()
        self._figures["charges"] += 1
        return 201, asdict(charge)


async def _main(options: argparse.Namespace) -> None:
    server = _Server(_Ledger(options.ledger), deduplicate=options.deduplication, latency=options.latency)
    async with await asyncio.start_server(server.serve, LOOPBACK, options.port, backlog=512) as listener:
        await listener.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A payment provider to test against.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--deduplication", action=argparse.BooleanOptionalAction, default=True)
    asyncio.run(_main(parser.parse_args()))

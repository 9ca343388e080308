"""The provider's HTTP API, inside its process: one request for each connection.

| | |
|---|---|
| `POST /charges`, `/refunds`, `/transfers`, `/authorisations`, `/captures` | moves money: 201, 200 for a known key, 422 if it asked for something else, 402 if declined |
| `GET /charges`, … | those with `?key=` and `?reference=` |
| `GET /entries?after=&limit=` | the ledger, in pages, for reconciliation |
| `POST /faults`, `DELETE /faults` | fails on demand, and no more |
| `GET /figures` | what was done since the start |
"""  # noqa: E501 - a table

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from .faults import FOR_EVER, Befallen, Faults
from .ledger import KINDS, Entry, Kind, Ledger, Line
from .webhooks import Event, Webhooks

LONGEST_BODY: Final = 1024 * 1024
LONGEST_PAGE: Final = 1000
PREFIXES: Final[dict[Kind, str]] = {
    "charge": "ch",
    "refund": "re",
    "transfer": "tr",
    "authorisation": "au",
    "capture": "ca",
}
DECLINED, FAILED = "de", "fa"
RESOURCES: Final[dict[str, Kind]] = {f"/{kind}s": kind for kind in KINDS}


class Dropped(Exception):
    """Cut the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and JSON; ``torn`` answers break off in the middle."""

    status: int
    content: Any
    torn: bool = False

    def encoded(self) -> bytes:
        body = json.dumps(self.content).encode()
        if self.torn:
            body = body[: len(body) // 2]
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", "Content-Type: application/json"]
        if self.status == 429:
            lines.append("Retry-After: 1")
        lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        return "\r\n".join(lines).encode() + body


@dataclass(slots=True)
class Known:
    """What a key was first used for, and what came of it. That is on the disk, or about to be."""

    request: str
    entry: Entry
    declined: bool
    written: asyncio.Event = field(default_factory=asyncio.Event)


class Server:
    """Ledger, keys, faults and webhooks behind one port.

    ``declines`` is a second file of the ledger's form: refusals, which move no money and whose keys keep
    their answer all the same; and failures that were told, whose keys are as good as new.
    """

    def __init__(
        self,
        ledger: Ledger,
        declines: Ledger,
        webhooks: Webhooks,
        *,
        deduplicate: bool,
        window: float,
        latency: float,
    ) -> None:
        self._ledger = ledger
        self._declines = declines
        self._webhooks = webhooks
        self._deduplicate = deduplicate
        self._window = window
        self._latency = latency
        self._faults = Faults()
        self._numbers = itertools.count(len(ledger.lines) + 1)
        self._refusals = itertools.count(len(declines.lines) + 1)
        self._known: dict[str, Known] = {}
        self._figures = dict.fromkeys(("requests", *(f"{kind}s" for kind in KINDS), "declines", "replays"), 0)
        for book in (ledger, declines):
            for line in book.lines:
                if not line.entry.id.startswith(FAILED):
                    self._remember(line, declined=book is declines).written.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, then the connection ends."""
        try:
            answer = await self._respond(reader)
            writer.write(answer.encoded())
            await writer.drain()
        except (Dropped, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader) -> Answer:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = head.rstrip().split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        try:
            method, target, _ = request.split(" ")
            length = int(headers.get("content-length", "0"))
            if not 0 <= length <= LONGEST_BODY:
                return Answer(413, {"error": "the body is too long"})
            body = await reader.readexactly(length)
            url = urlsplit(target)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            return await self._route(method, url.path, query, headers, json.loads(body) if body else {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return Answer(400, {"error": f"{type(error).__name__}: {error}"})

    async def _route(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], content: Any
    ) -> Answer:
        kind = RESOURCES.get(path)
        match method, path:
            case "POST", _ if kind is not None:
                return await self._move(kind, headers.get("idempotency-key"), content)
            case "GET", _ if kind is not None:
                await self._ledger.settled()
                found = self._ledger.find(kind, key=query.get("key"), reference=query.get("reference"))
                return Answer(200, {f"{kind}s": [asdict(entry) for entry in found]})
            case "GET", "/entries":
                await self._ledger.settled()
                limit = max(1, min(int(query.get("limit", "100")), LONGEST_PAGE))
                entries, more = self._ledger.page(query.get("after"), limit)
                return Answer(200, {"entries": [asdict(entry) for entry in entries], "more": more})
            case "POST", "/faults":
                self._faults.add(
                    content["fault"],
                    content.get("times", 1),
                    float(content.get("seconds", FOR_EVER)),
                    content.get("reference"),
                    content.get("kind"),
                )
                return Answer(201, {})
            case "DELETE", "/faults":
                self._faults.clear()
                return Answer(200, {})
            case "GET", "/figures":
                return Answer(200, {**self._figures, "webhooks": self._webhooks.delivered})
        return Answer(404, {"error": "no such resource"})

    # Moving money

    async def _move(self, kind: Kind, key: str | None, content: Mapping[str, Any]) -> Answer:
        amount, reference = int(content["amount"]), str(content.get("reference", ""))
        request, customer = _digest(kind, content), str(content.get("customer", ""))
        self._figures["requests"] += 1
        befallen = self._faults.for_request(reference, kind)
        wanted = Line(Entry("", key, reference, amount, kind, time.time(), customer), request)
        match befallen.fault:
            case "error_before":
                return Answer(500, {"error": "something broke before any money moved"})
            case "failure_told" if self._recall(key, wanted.entry.at) is None:
                await self._fail(wanted, befallen)
                return Answer(500, {"error": "something broke before any money moved"})
            case "limit":
                return Answer(429, {"error": "too many requests"})
        answer = await self._make(wanted, declined=befallen.fault == "decline")
        answer = await self._befall(answer, befallen)
        if self._latency:
            await asyncio.sleep(self._latency)
        return answer

    async def _befall(self, answer: Answer, befallen: Befallen) -> Answer:
        """What becomes of an answer once the money has moved."""
        match befallen.fault:
            case "charge_then_drop":
                raise Dropped
            case "error_after":
                return Answer(500, {"error": "something broke after the money had moved"})
            case "malformed":
                return Answer(answer.status, answer.content, torn=True)
            case "delay":
                await asyncio.sleep(befallen.seconds)
            case "charge_then_time_out":
                await asyncio.sleep(befallen.seconds)
                raise Dropped
        return answer

    async def _fail(self, wanted: Line, befallen: Befallen) -> None:
        """Nothing is done, which is written down all the same: its event has a number."""
        number = next(self._refusals)
        line = replace(wanted, entry=replace(wanted.entry, id=f"{FAILED}_{number}"))
        await self._declines.append(line)
        self._webhooks.send(Event(str(2 * number), f"{line.entry.kind}.failed", line.entry), befallen)

    async def _make(self, wanted: Line, *, declined: bool) -> Answer:
        kind = wanted.entry.kind
        known = self._recall(wanted.entry.key, wanted.entry.at)
        if known is not None:
            if known.request not in ("", wanted.request):
                return Answer(422, {"error": "this key was used for another request"})
            await known.written.wait()
            self._figures["replays"] += 1
            return _refusal(known.entry) if known.declined else Answer(200, asdict(known.entry))
        # No await up to here: of two requests with one key, one is the first.
        number = next(self._refusals if declined else self._numbers)
        named = f"{DECLINED if declined else PREFIXES[kind]}_{number}"
        line = replace(wanted, entry=replace(wanted.entry, id=named))
        made = self._remember(line, declined=declined)
        await (self._declines if declined else self._ledger).append(line)
        made.written.set()
        self._figures["declines" if declined else f"{kind}s"] += 1
        # Odd and even: one row of numbers for both books, which goes on after a restart.
        told = ("declined", 2 * number) if declined else ("succeeded", 2 * number - 1)
        event = Event(str(told[1]), f"{kind}.{told[0]}", line.entry)
        self._webhooks.send(event, self._faults.for_webhook(wanted.entry.reference, kind))
        return _refusal(line.entry) if declined else Answer(201, asdict(line.entry))

    def _recall(self, key: str | None, now: float) -> Known | None:
        """What a key was used for, unless it was too long ago."""
        known = self._known.get(key) if key is not None and self._deduplicate else None
        return known if known is not None and now - known.entry.at < self._window else None

    def _remember(self, line: Line, *, declined: bool) -> Known:
        known = Known(line.request, line.entry, declined)
        if line.entry.key is not None:
            self._known[line.entry.key] = known
        return known


def _refusal(entry: Entry) -> Answer:
    return Answer(402, {"error": f"the {entry.kind} was declined", "id": entry.id})


def _digest(kind: Kind, content: Mapping[str, Any]) -> str:
    """Tells one request from another: what is asked for, whatever the order of its members."""
    return hashlib.sha256(json.dumps([kind, content], sort_keys=True).encode()).hexdigest()

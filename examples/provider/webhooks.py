"""Webhooks: what happened is told to the caller's own server, signed, a few times until it says 2xx.

An event has one id however often it is sent. Events are not kept on the disk: what was not delivered when
the process ends is lost, and callers must not rely on webhooks alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from dataclasses import asdict, dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from .faults import Befallen
from .ledger import KINDS, Entry

SIGNATURE: Final = "Provider-Signature"

TOLERANCE: Final = 300.0
"""Seconds that a signature is good for: longer than clocks differ, too short to be of use to a thief."""

ATTEMPTS: Final = 8
"""With the pauses below, a receiver may be away for some twenty seconds."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
PATIENCE: Final = 10.0
"""Seconds for one delivery."""
AT_ONCE: Final = 16
"""Deliveries at the same time: a receiver that hangs must not hold up all others."""


def sign(secret: str, body: bytes, at: float) -> str:
    """The header's value: the time, and an HMAC-SHA-256 over the time and the body."""
    stamp = str(int(at))
    digest = hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={stamp},v1={digest}"


def verify_signature(
    secret: str, header: str | None, body: bytes, tolerance: float = TOLERANCE, *, now: float | None = None
) -> bool:
    """Whether the provider signed exactly these bytes, within ``tolerance`` seconds of now."""
    given = re.fullmatch(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})", header or "")
    if given is None:
        return False
    signed_at = int(given[1])
    if abs((time.time() if now is None else now) - signed_at) > tolerance:
        return False
    return hmac.compare_digest(sign(secret, body, signed_at), given[0])


LONG_AGO: Final = 3600.0
"""Seconds before what it is about: an event of some former attempt, which nobody remembers."""


@dataclass(frozen=True, slots=True)
class Event:
    """What is told: what it is about, by the key that it was asked for with, and when it happened.

    Its id is unique with this provider. Another one counts from 1 too.
    """

    id: str
    type: str
    entry: Entry

    def body(self) -> bytes:
        content = {
            "id": self.id,
            "type": self.type,
            "created": self.entry.at,
            "data": asdict(self.entry),
        }
        return json.dumps(content).encode()

    def strays(self) -> list[Event]:
        """Three that say the opposite, and each is about something that is not there: another's operation,
        another step of it, an attempt of long ago."""
        kind, _, end = self.type.partition(".")
        opposite = "declined" if end == "succeeded" else "succeeded"
        another = next(one for one in reversed(KINDS) if one != kind)
        return [
            Event(f"{self.id}-a", f"{kind}.{opposite}", replace(self.entry, customer="somebody else")),
            Event(f"{self.id}-b", f"{another}.{opposite}", replace(self.entry, kind=another)),
            Event(f"{self.id}-c", f"{kind}.failed", replace(self.entry, at=self.entry.at - LONG_AGO)),
        ]


class Webhooks:
    """Sends events in the background. Without a URL it sends none."""

    def __init__(self, url: str | None, secret: str) -> None:
        self._url = url
        self._secret = secret
        self._held: list[Event] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self.delivered = 0

    def send(self, event: Event, befallen: Befallen) -> None:
        """Returns at once."""
        if self._url is None or befallen.fault == "webhook_lost":
            return
        if befallen.fault == "webhook_reordered":
            self._held.append(event)
            return
        overtaken, self._held = self._held, []
        task = asyncio.create_task(self._send(event, befallen, overtaken))
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def _send(self, event: Event, befallen: Befallen, overtaken: list[Event]) -> None:
        if befallen.fault in ("webhook_late", "failure_told"):
            await asyncio.sleep(befallen.seconds)
        if befallen.fault == "webhook_strays":
            for stray in event.strays():
                await self._deliver(stray, attempts=1)
        await self._deliver(event)
        if befallen.fault == "webhook_again":
            await asyncio.sleep(befallen.seconds)
        if befallen.fault in ("webhook_doubled", "webhook_again"):
            await self._deliver(event)
        for earlier in overtaken:
            await self._deliver(earlier)

    async def _deliver(self, event: Event, attempts: int = ATTEMPTS) -> None:
        body = event.body()
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
            try:
                async with self._at_once, asyncio.timeout(PATIENCE):
                    status = await self._post(body)
            except (OSError, ValueError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                continue
            if 200 <= status < 300:
                self.delivered += 1
                return

    async def _post(self, body: bytes) -> int:
        """One request; the status of its answer."""
        assert self._url is not None
        url = urlsplit(self._url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port or 80)
        try:
            head = (
                f"POST {url.path or '/'} HTTP/1.1\r\nHost: {url.netloc}\r\n"
                "Content-Type: application/json\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n{SIGNATURE}: {sign(self._secret, body, time.time())}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            return int((await reader.readuntil(b"\r\n")).split()[1])
        finally:
            writer.close()

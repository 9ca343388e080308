"""The ledger: what happened, one line for each movement of money, on the disk before anybody is told.

The file is only ever appended to. Whoever judges what a caller did reads it with ``read_ledger``, whether or
not the provider's process lives.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

Kind = Literal["charge", "refund", "transfer", "authorisation", "capture"]
"""The last two are one payment in two steps: money is set aside, then taken."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger: money has moved."""

    id: str
    key: str | None
    """The idempotency key that it was asked for with."""
    reference: str
    """What the caller calls it: an order's number, say."""
    amount: int
    kind: Kind = "charge"
    at: float = 0.0
    """When, in seconds since 1970."""
    customer: str = ""
    """For whom, in the caller's own words; it is told in webhooks."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """From its JSON; members that are not of an entry are left out."""
        return cls(**{name: content[name] for name in _NAMES if name in content})


_NAMES: Final = tuple(field.name for field in fields(Entry))

Charge = Entry
"""The name that an entry had while there were only charges."""


@dataclass(frozen=True, slots=True)
class Line:
    """An entry, and a digest of the request that it was made for: the same key must ask for the same."""

    entry: Entry
    request: str = ""

    def encoded(self) -> bytes:
        return json.dumps({**asdict(self.entry), "request": self.request}).encode() + b"\n"


def read_ledger(path: Path) -> list[Entry]:
    """Every entry that was ever made, in order. A last line that is not whole never happened."""
    return [line.entry for line in _read(path)]


def _read(path: Path) -> Iterator[Line]:
    if not path.exists():
        return
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    for text in whole.splitlines():
        content = json.loads(text)
        yield Line(Entry.of(content), content.get("request", ""))


class Ledger:
    """The file as its one writer sees it. Entries that come together are flushed together."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        whole = path.read_bytes().rpartition(b"\n")
        os.ftruncate(self._file, len(whole[0]) + len(whole[1]))
        self.lines: list[Line] = []
        self._positions: dict[str, int] = {}
        self._by_key: dict[str | None, list[Entry]] = {}
        self._by_reference: dict[str, list[Entry]] = {}
        for line in _read(path):
            self._note(line)
        self._waiting: list[tuple[Line, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def append(self, line: Line) -> None:
        """Returns when it is on the disk; before that nobody sees it."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((line, written))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        # Whoever asked for it may be gone; the entry is made all the same.
        await asyncio.shield(written)

    async def settled(self) -> None:
        """Returns when everything that was begun is on the disk, so that a reader misses nothing."""
        if self._flushing is not None:
            await asyncio.shield(self._flushing)

    def find(self, kind: Kind, *, key: str | None, reference: str | None) -> list[Entry]:
        """Those of a kind, with this key and this reference where they are given."""
        if key is not None:
            among = self._by_key.get(key, [])
        elif reference is not None:
            among = self._by_reference.get(reference, [])
        else:
            among = [line.entry for line in self.lines]
        return [e for e in among if e.kind == kind and reference in (None, e.reference)]

    def page(self, after: str | None, limit: int) -> tuple[list[Entry], bool]:
        """Entries after one, in order, and whether there are more. KeyError: there is no such entry."""
        start = 0 if after is None else self._positions[after] + 1
        chosen = self.lines[start : start + limit]
        return [line.entry for line in chosen], start + limit < len(self.lines)

    def _note(self, line: Line) -> None:
        entry = line.entry
        self._positions[entry.id] = len(self.lines)
        self.lines.append(line)
        self._by_key.setdefault(entry.key, []).append(entry)
        self._by_reference.setdefault(entry.reference, []).append(entry)

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await asyncio.to_thread(self._write, b"".join(line.encoded() for line, _ in batch))
            for line, written in batch:
                self._note(line)
                written.set_result(None)
        self._flushing = None

    def _write(self, lines: bytes) -> None:
        os.write(self._file, lines)
        os.fsync(self._file)

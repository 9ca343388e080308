"""Where operations are kept that were begun and have no final answer yet.

A journal's methods may block, and each is atomic, also between processes where it is shared by them. Each
reads what is stored and changes its own part of that: the caller's copy may be old.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final, Protocol

from .entry import Entry
from .errors import JournalFailed
from .inside import Inside

logger = logging.getLogger("samekey")

_REST: Final = 1024
"""Bytes for what an operation has beside its body."""


class Journal(Protocol):
    """What the client asks of a journal. ``JournalFailed`` where it cannot be done."""

    in_threads: bool
    """Whether any thread may call it: then async code does not wait for it in the event loop."""

    def begin(self, entry: Entry) -> Entry | None:
        """Saves it, durably. If there is one of its name (or key), nothing is saved but that it was joined;
        gives that one."""

    def join(self, entry: Entry) -> Entry | None:
        """Goes on with one that was listed: saves that it was joined, and gives what is stored; None if it
        is gone, or if its name is that of another one by now."""

    def note(self, entry: Entry, expires_at: float) -> None:
        """Until when its key may be sent again."""

    def finish(self, entry: Entry, now: float, expires_at: float | None = None) -> None:
        """It has its final answer. A named one is remembered, without its body."""

    def drop(self, entry: Entry) -> None:
        """It is certain that nothing was sent by the call that saved it: removes it, unless somebody else
        has joined or finished it."""

    def discard(self, entry: Entry) -> None:
        """Removes it, by the word of a person who has found out; not what was finished meanwhile."""

    def pending(self) -> list[Entry]:
        """Those without a final answer, oldest first. One that cannot be read is logged as an error."""

    def forget(self, older_than: timedelta, now: float) -> int:
        """Removes what is remembered of operations that were finished longer ago. Gives how many."""


class MemoryJournal:
    """In this process only: keys are kept across retries, not across restarts.

    ``remembered``: of so many named operations that are done the names are kept, the latest ones. Of those
    without an answer and without a name, which nobody can begin again, as many are kept as ``bytes_kept`` has
    room for.
    """

    in_threads = True

    def __init__(self, remembered: int = 10_000, *, bytes_kept: int = 64 * 1024 * 1024) -> None:
        self._lock = Inside()
        self._kept: dict[str, Entry] = {}
        self._unnamed: dict[str, int] = {}
        """Those without a name, oldest first, and the bytes of each."""
        self._room = bytes_kept
        self._done: deque[str] = deque()
        self._remembered = remembered

    def begin(self, entry: Entry) -> Entry | None:
        with self._lock:
            found = self._kept.get(entry.label)
            self._kept[entry.label] = entry if found is None else found.begun_again(entry)
            if found is None and entry.name is None:
                self._make_room(entry)
            return found

    def _make_room(self, entry: Entry) -> None:
        """An outage must not fill the memory with requests that nobody asks for."""
        size = self._unnamed[entry.label] = len(entry.body) + _REST
        self._room -= size
        while self._room < 0 and len(self._unnamed) > 1:
            oldest = next(iter(self._unnamed))
            logger.error(
                "An operation that had no answer is not kept any more (key %s): there are too many of them "
                "for this journal in memory. Whether it was carried out is not known. Use FileJournal or "
                "TableJournal, and finish what pending() lists.",
                self._kept[oldest].key,
            )
            self._remove(oldest)

    def _remove(self, label: str) -> None:
        self._kept.pop(label, None)
        self._room += self._unnamed.pop(label, 0)

    def join(self, entry: Entry) -> Entry | None:
        with self._lock:
            found = self._same(entry)
            if found is not None:
                self._kept[entry.label] = found.is_joined()
            return found

    def note(self, entry: Entry, expires_at: float) -> None:
        with self._lock:
            found = self._same(entry)
            if found is not None:
                self._kept[entry.label] = found.noted(expires_at)

    def finish(self, entry: Entry, now: float, expires_at: float | None = None) -> None:
        with self._lock:
            found = self._kept.get(entry.label, entry)
            if found.key != entry.key:
                return
            if entry.name is None:
                self._remove(entry.label)
                return
            self._kept[entry.label] = found.finished(entry, now, expires_at)
            if found.finished_at is None:
                self._done.append(entry.label)
            while len(self._done) > self._remembered:
                oldest = self._kept.get(label := self._done.popleft())
                if oldest is not None and oldest.finished_at is not None:
                    del self._kept[label]

    def drop(self, entry: Entry) -> None:
        with self._lock:
            found = self._kept.get(entry.label)
            if found is not None and found.may_be_dropped(entry.key):
                self._remove(entry.label)

    def discard(self, entry: Entry) -> None:
        with self._lock:
            found = self._kept.get(entry.label)
            if found is not None and found.may_be_discarded(entry.key):
                self._remove(entry.label)

    def pending(self) -> list[Entry]:
        with self._lock:
            return sorted(
                (one for one in self._kept.values() if one.finished_at is None), key=lambda one: one.begun_at
            )

    def forget(self, older_than: timedelta, now: float) -> int:
        with self._lock:
            old = [label for label, one in self._kept.items() if is_old(one, older_than, now)]
            for label in old:
                del self._kept[label]
            return len(old)

    def _same(self, entry: Entry) -> Entry | None:
        found = self._kept.get(entry.label)
        return found if found is not None and found.key == entry.key else None


def readable(stored: Iterable[tuple[str, bytes]]) -> Iterator[Entry]:
    """Those that can be read, of places and what is stored there. One that is damaged, or of a newer version,
    must not hide the others: it is reported, and stays where it is."""
    for where, content in stored:
        try:
            yield Entry.decode(content, where)
        except JournalFailed as error:
            logger.error("%s", error)


def is_old(entry: Entry, older_than: timedelta, now: float) -> bool:
    return entry.finished_at is not None and entry.finished_at <= now - older_than.total_seconds()

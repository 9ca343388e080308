"""Operations that were begun and have no final answer: listed, and finished or discarded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

from .entry import Entry
from .journal import Journal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """One of them. Another process may be at it right now; to finish it all the same does no harm, because
    both send the same key and the same bytes."""

    name: str | None
    method: str
    url: str
    begun_at: datetime
    key: str = field(repr=False)
    body: bytes = field(repr=False)
    _entry: Entry = field(repr=False)
    _journal: Journal = field(repr=False)
    _send: Callable[..., T] = field(repr=False)

    def finish(self, **options: object) -> T:
        """Sends it again, under its key, by the client that listed it, whose credentials are added anew.

        ``options`` are those of the client's own ``send``, such as ``auth``. Await it in async code.
        """
        return self._send(self._entry, **options)

    def discard(self) -> None:
        """Forgets it: you have found out at the server what became of it."""
        self._journal.discard(self._entry)


def listed(journal: Journal, send: Callable[..., T]) -> list[Pending[T]]:
    """Oldest first. ``send`` sends the request of an entry."""
    return [
        Pending(
            one.name,
            one.method,
            one.url,
            datetime.fromtimestamp(one.begun_at, UTC),
            one.key,
            one.body,
            one,
            journal,
            send,
        )
        for one in journal.pending()
    ]

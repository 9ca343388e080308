"""Operations that were begun and have no final answer: listed, and finished or discarded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

from .carry import Keyed
from .entry import Entry, identity_of
from .errors import OperationChanged
from .journal import Journal
from .wire import Pairs, origin_of

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
    _by: str = field(default="", repr=False)

    def finish(self, *, anyway: bool = False, **options: object) -> T:
        """Sends it again, under its key, by the client that listed it, whose credentials are added anew.

        Unless its account is named (``Keyed.account``), one that a client with other credentials has begun
        is refused (``OperationChanged``): it might be done for somebody else. ``anyway``: it is not.
        ``options`` are those of the client's own ``send``, such as ``auth``. Await it in async code.
        """
        changed = self._entry.by and self._by and self._entry.by != self._by
        if changed and not (self._entry.account or anyway):
            raise OperationChanged(
                "This operation was begun by a client with other credentials, perhaps of another account. "
                "Nothing was sent. Finish it by that client. Where its credentials have changed since, say "
                "finish(anyway=True), and name the account from now on: Keyed(account=…)."
            )
        return self._send(self._entry, **options)

    def discard(self) -> None:
        """Forgets it: you have found out at the server what became of it."""
        self._journal.discard(self._entry)


def listed(keyed: Keyed, send: Callable[..., T], defaults: Pairs = (), base: str = "") -> list[Pending[T]]:
    """Oldest first. ``send`` sends the request of an entry. Others may share the journal: what is for another
    account or server, or spelled otherwise, is not ours. ``defaults``, ``base``: the client's own headers and
    URL."""
    journal, by = keyed.journal, identity_of(defaults)
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
            by,
        )
        for one in journal.pending()
        if (one.account, one.spelling) == (keyed.account, keyed.dialect.spelling)
        and (not base or origin_of(one.url) == origin_of(base))
    ]

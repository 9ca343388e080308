"""The programs of the limits on new keys. A retry of a known key is never asked here.

A tenant's new keys are counted one after the other, by a lock on its row. On SQLite and MySQL the record
appears in the transaction that has counted. On PostgreSQL it may appear much later, with its handler's work,
which holds a connection: one statement counts, on another, and keeps a place for it, which counts as a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from ...core.claim import owner_of, scope_of
from ...core.program import BEGIN, Program, Statement, Value
from ...errors import LimitExceeded
from .keys import SqlKeys

T = TypeVar("T")

LATER = "Nothing was done; retry later with the same key."
PAUSE = 60
"""Seconds until a tenant that has too many keys comes back: they expire, nobody knows when."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One claim of a key that seems to be new, and the limits of its tenant. ``now`` is for tests."""

    keys: SqlKeys
    scope: str
    key: str
    per_minute: int | None
    active: int | None
    now: int | None = None

    def before(self, claim: Program[T], *, held_ms: int) -> Program[T]:
        """A program that makes the key's record, with the question in front. ``LimitExceeded`` if there are
        too many; then nothing is made."""
        if self._keeps_places:
            yield from self.keep_place(held_ms)
            made = yield from claim
            yield from self.leave()
            return made
        yield BEGIN
        yield self._statement("lock_limits", tenant=owner_of(self.scope))
        # What a try has made whose answer was lost is no new key.
        if (yield from self.keys.read(self.scope, self.key, now=self.now)) is None:
            yield from self._count()
        return (yield from claim)

    def keep_place(self, held_ms: int) -> Program[None]:
        """For a record that appears later: it is counted from now on, for as long as that may take."""
        if self.active is not None:
            yield from self._must_fit("keep_place", held_ms=held_ms)
        try:
            yield from self._count_minute()
        except LimitExceeded:
            yield from self.leave()
            raise

    def leave(self) -> Program[None]:
        """Its place is not needed any more: the record is there, or will not appear."""
        if self.active is not None:
            yield self._statement("leave_place", place=self._place)

    @property
    def _keeps_places(self) -> bool:
        return "keep_place" in self.keys.queries

    def _count(self) -> Program[None]:
        if self.active is not None:
            yield from self._must_fit("count_active_keys")
        yield from self._count_minute()

    def _must_fit(self, question: str, **values: Value) -> Program[None]:
        assert self.active is not None
        tenant = owner_of(self.scope)
        first = scope_of(tenant)
        rows = yield self._statement(
            question,
            tenant=tenant,
            # Every scope of a tenant begins with it; '\x7f' sorts after every printable character.
            first_scope=first,
            last_scope=first + "\x7f",
            place=self._place,
            limit=self.active,
            **values,
        )
        if _int(rows[0][0]) >= self.active:
            raise LimitExceeded(f"You have {self.active} keys in use, which is the limit. {LATER}", PAUSE)

    def _count_minute(self) -> Program[None]:
        if self.per_minute is None:
            return
        rows = yield self._statement("count_new_key", tenant=owner_of(self.scope))
        used, clock = _int(rows[0][0]), _int(rows[0][1])
        if used > self.per_minute:
            raise LimitExceeded(
                f"You have used {self.per_minute} new keys in this minute, which is the limit. {LATER}",
                60 - clock // 1000 % 60,
            )

    @property
    def _place(self) -> str:
        return f"{self.scope}\n{self.key}"  # neither holds a newline

    def _statement(self, name: str, **values: Value) -> Statement:
        return self.keys.queries.statement(name, self.now, **values)


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value

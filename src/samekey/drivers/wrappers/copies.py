"""What a cache may hold, and how it is kept true: the rules, without any I/O.

A *copy* is the row of a completed record as the database gave it. Such a record changes in two ways only:
its retention ends, or an operator evicts its answer. So a copy is right if it is gone before the one and at
the other.

**Retention.** A copy's end is an absolute time of the cache's clock: what that clock said *before* the
database was asked, plus what the database said was left. The two clocks need not agree, only run at the
same pace; and it does not matter how late the copy arrives. No copy lives longer than ``LIFE`` in any case.

**Eviction.** A reader may hold the old row while an operator evicts it, and must not put it back. Each part
of the cache has an *epoch*, a random word. A reader is told the epoch before it asks the database, and its
copy is taken only while that epoch still stands. An eviction (``block``, COMMIT, ``drop``) leaves no gap:

- The reader looked before ``block``: the epoch has changed, its copy is refused, however long it slept.
- It looked between ``block`` and ``drop``: it found the blocker in the copy's place, and brings no copy.
- It looked after ``drop``: COMMIT was before that, so what it read is the new row.
- The evicting process died after COMMIT and never came to ``drop``: the blocker stays for ``BLOCK``, longer
  than a COMMIT takes, so who looks after it reads the new row too.
- The cache was emptied meanwhile: the epoch went with the blocker. A copy that was made between that and
  COMMIT is removed by ``drop``. If ``drop`` fails as well, ``LIFE`` bounds it.
- The cache cannot be reached for ``block``: the eviction fails, and nothing has changed.

**Nothing is believed.** A copy carries a digest over its content and the database, scope and key that it is
for. The scope and the key themselves are not in it. Whatever else lies under the name counts as nothing.

**In progress**, if that is switched on: the row of a claim that was won, for ``MARKER_LIFE`` at most and
never longer than its lease. It answers reservations only, is planted only by who won, and goes before the
outcome is recorded. If it cannot be removed, a duplicate is told "in progress" for that much longer;
nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from ...core.claim import scope_of
from ...core.program import Row, Statement
from ...core.record import COLUMNS
from ...core.states import State
from ...errors import SamekeyError, StoreUnavailable
from .cache_scripts import DROP, FILL, LOOK, MARK, PUT_BLOCK, Script

T = TypeVar("T")

LIFE: Final = 60_000
"""Milliseconds. A key that is asked for all the time costs the database one read a minute, which is next to
nothing, and no accident with the cache can last longer."""
MARKER_LIFE: Final = 5_000
"""A storm of duplicates comes in the first seconds. A marker that could not be removed is a 409 as long."""
LARGEST: Final = 256 * 1024
"""Bytes. What is larger takes the cache longer than the few milliseconds that it is given."""

READING: Final = frozenset({"find", "reserve"})
"""Statements that a copy may answer."""
EVICTING: Final = frozenset({"evict_answer", "reopen"})
"""Statements that change a completed record before its time. The cache must hear of it, or they fail."""
REPLACING: Final = frozenset(
    {
        "reuse",
        "expire",
        "found_executed",
        "recall",
        "found_not_executed",
        "close_dead",
        "make_room",
        "atomic_commit",
        "atomic_outcome",
        "accept",
    }
)
"""Statements after which nothing that was cached before is of use. They leave no live copy behind: what they
change has expired, or was not completed. Removing it all the same costs little, for they are rare."""
ENDING: Final = frozenset(
    {
        "complete",
        "fail",
        "lose",
        "hold",
        "release",
        "end_lease",
        "retry",
        "resume",
        "regain",
        "let_go",
        "give_up",
    }
)
"""Statements that end what a marker says."""
HARMLESS: Final = frozenset(
    {
        "atomic_enter",
        "timeline",
        "former_lives",
        "stored_keys",
        "enqueue",
        "note_call",
        "complete_operation",
        "bury_operation",
        "store_input",
        "open_phase",
        "fence",
        "time_out",
    }
)
"""Statements that name a key and change no completed record. Whatever is in no list counts as a change."""

_DIGEST: Final = 20
_LAYOUT: Final = hashlib.sha256(",".join(COLUMNS).encode()).digest()[:16]
"""A copy of another layout, from before or after an upgrade, has another digest."""
_SCOPE, _KEY, _STATE, _LOCKED, _EXPIRES = (
    1 + COLUMNS.index(name) for name in ("scope", "key", "state", "locked_until", "expires_at")
)
"""Places in a row whose first value is the store's clock."""


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """To ask of the cache. The reply is None if it cannot be used; where it ``must``, that is an error."""

    script: Script
    keys: tuple[str, str]
    arguments: tuple[str | bytes | int, ...]
    must: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """To ask of the database."""

    statement: Statement


Flow: TypeAlias = Generator[CacheRequest | Fetch, Any, T]
"""Steps for the two shells in ``cached.py``, sync and async."""


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """Where the copy of one key lies: its name and its epoch's name; and what binds a copy to it."""

    keys: tuple[str, str]
    binding: bytes


@dataclass(frozen=True, slots=True)
class Touched:
    """A key whose copy must go when the transaction commits."""

    scope: str
    key: str
    must: bool


class Copies:
    """The rules for one database. ``identity`` is the statement that names it, ``namespace`` its user."""

    def __init__(
        self,
        identity: Statement,
        *,
        schema: str,
        namespace: str = "",
        in_progress: bool = False,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._identity = identity
        self._schema = schema
        self._namespace = namespace
        self._in_progress = in_progress
        self._clock = clock
        self._database: tuple[str, ...] | None = None

    # Reading

    def read(self, statement: Statement) -> Flow[Sequence[Row]]:
        """A copy if there is one; else what the database says, and a copy of it for the next one."""
        scope, key = str(statement.parameters["scope"]), str(statement.parameters["key"])
        place = yield from self._place(scope, key)
        rows: Sequence[Row]
        if place is None:
            rows = yield Fetch(statement)
            return rows
        reply = yield CacheRequest(LOOK, place.keys, (secrets.token_hex(8),))
        match reply:
            case bytes(found):
                copy = decode(found, place.binding, scope, key)
                if copy is None:
                    yield CacheRequest(DROP, place.keys, ("", 0))  # damaged: make room
                elif self._answers(copy, statement):
                    return [_reply(copy, statement)]
            case [0, bytes(epoch), int(clock)]:
                rows = yield Fetch(statement)
                yield from self._fill(place, epoch, clock, _record(statement, rows), scope, key)
                return rows
        # Blocked, of no use to this statement, no reply, or nonsense.
        rows = yield Fetch(statement)
        return rows

    def _fill(
        self,
        place: CopyPlace,
        epoch: bytes,
        clock: int,
        found: tuple[Sequence[Any] | None, bool],
        scope: str,
        key: str,
    ) -> Flow[None]:
        row, won = found
        life = 0 if row is None else self._life(row, won, scope, key)
        value = encode(row, place.binding) if row is not None and life > 0 else None
        if value is not None:
            yield CacheRequest(FILL, place.keys, (epoch, value, clock + life, int(won)))

    def _answers(self, copy: list[Any], statement: Statement) -> bool:
        given = statement.parameters.get("now")
        now = given if isinstance(given, int) else self._clock()
        if copy[_STATE] == State.COMPLETED:
            # This node's clock is never trusted to accept a copy, only to refuse one.
            return isinstance(copy[_EXPIRES], int) and copy[_EXPIRES] > now
        # Only a claim may be told "in progress". Who asks what became of its own work must hear the truth.
        return self._in_progress and copy[_STATE] == State.IN_PROGRESS and statement.name == "reserve"

    def _life(self, row: Sequence[Any], won: bool, scope: str, key: str) -> int:
        """How long a copy of this row may live, in milliseconds; 0 for not at all."""
        if (row[_SCOPE], row[_KEY]) != (scope, key):
            return 0
        if row[_STATE] == State.COMPLETED:
            return min(LIFE, int(row[_EXPIRES]) - int(row[0]))
        if won and self._in_progress and row[_STATE] == State.IN_PROGRESS:
            return min(MARKER_LIFE, int(row[_LOCKED]) - int(row[0]))
        return 0

    # Changing

    def ends(self, statement: Statement) -> bool:
        """Whether a marker must go before this statement."""
        return self._in_progress and statement.name in ENDING

    def touched(self, statement: Statement, rows: Sequence[Row]) -> list[Touched]:
        """The keys whose copies are of no use any more once this statement has been committed."""
        name, parameters = statement.name, statement.parameters
        if name in EVICTING:
            return [Touched(str(row[_SCOPE]), str(row[_KEY]), must=True) for row in rows]
        scope, key = parameters.get("scope"), parameters.get("key")
        if name in READING or name in ENDING or name in HARMLESS:
            return []
        if name in REPLACING and "seen" in parameters and parameters["seen"] is None:
            return []  # there was nothing before
        if isinstance(scope, str) and isinstance(key, str):
            return [Touched(scope, key, must=False)]
        if name in REPLACING:
            return [Touched(str(row[_SCOPE]), str(row[_KEY]), must=False) for row in rows]
        return []

    def end_marker(self, statement: Statement) -> Flow[None]:
        """Before an outcome is recorded: whoever asks from here on asks the database."""
        place = yield from self._place(str(statement.parameters["scope"]), str(statement.parameters["key"]))
        if place is not None:
            yield CacheRequest(DROP, place.keys, ("", 0))

    def block(self, touched: Sequence[Touched]) -> Flow[None]:
        """Right before COMMIT, for what the cache must hear of. ``StoreUnavailable`` if it cannot."""
        for one in touched:
            if one.must:
                place = yield from self._place(one.scope, one.key)
                if place is None:
                    raise StoreUnavailable("The database did not say which it is. Nothing was changed.")
                yield CacheRequest(PUT_BLOCK, place.keys, (secrets.token_hex(8),), must=True)

    def drop(self, touched: Sequence[Touched]) -> Flow[None]:
        """After COMMIT."""
        for one in touched:
            place = yield from self._place(one.scope, one.key)
            if place is not None:
                yield CacheRequest(DROP, place.keys, (secrets.token_hex(8), int(one.must)))

    # Names

    def _place(self, scope: str, key: str) -> Flow[CopyPlace | None]:
        if self._database is None:
            try:
                rows = yield Fetch(self._identity)
            except SamekeyError:
                return None  # no tables yet, or no database: the statement itself will tell, if there is one
            if not rows or None in rows[0]:
                return None
            self._database = (self._namespace, *map(str, rows[0]), self._schema)
        text = scope_of(*self._database, scope, key)
        binding = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        name = binding.hex()[:40]
        # One hash tag for both: on a Cluster a script's keys must lie in one slot.
        part = f"samekey:cache:{{{name[:2]}}}"
        return CopyPlace((f"{part}:{name[2:]}", f"{part}:epoch"), binding)


def _reply(copy: list[Any], statement: Statement) -> Row:
    """A copy in the shape in which the database would have given it."""
    now = statement.parameters.get("now")
    # The clock is that of the moment when it was copied. Whether it has expired since, its own life says.
    clock = now if isinstance(now, int) else copy[0]
    return [clock, *copy[1:]] if statement.name == "find" else [clock, 0, *copy[1:]]


def _record(statement: Statement, rows: Sequence[Row]) -> tuple[Sequence[Any] | None, bool]:
    """The store's clock and the record in a reply, if there is one; and whether this claim has won it."""
    if not rows:
        return None, False
    clock, *rest = rows[0]
    won = False
    if statement.name == "reserve":
        won = rest.pop(0) == 1
    if len(rest) != len(COLUMNS) or rest[0] is None:
        return None, False
    return [clock, *rest], won


def encode(row: Sequence[Any], binding: bytes) -> bytes | None:
    """A row as it is cached, without its scope and key; None if it is too large."""
    blobs: list[bytes] = []
    values: list[object] = []
    for place, value in enumerate(row):
        if isinstance(value, bytes | memoryview):
            blobs.append(bytes(value))
            values.append([len(value)])
        else:
            values.append(None if place in (_SCOPE, _KEY) else value)
    payload = b"\n".join((json.dumps(values, separators=(",", ":")).encode(), b"".join(blobs)))
    if len(payload) > LARGEST:
        return None
    return b"".join((MARK, _digest(payload, binding), payload))


def decode(found: bytes, binding: bytes, scope: str, key: str) -> list[Any] | None:
    """The row in what was found, if that is a copy for this very place; else None."""
    if not found.startswith(MARK):
        return None
    begin = len(MARK) + _DIGEST
    payload = found[begin:]
    if not hmac.compare_digest(found[len(MARK) : begin], _digest(payload, binding)):
        return None
    head, _, blobs = payload.partition(b"\n")
    row: list[Any] = []
    begin = 0
    for value in json.loads(head):
        if isinstance(value, list):
            row.append(blobs[begin : begin + value[0]])
            begin += value[0]
        else:
            row.append(value)
    row[_SCOPE], row[_KEY] = scope, key
    return row


def _digest(payload: bytes, binding: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST, key=binding, salt=_LAYOUT).digest()

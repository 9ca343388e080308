"""What is kept for a key: the record, its lease and its answer. Data only; the rules stand elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from ..errors import CorruptRecord, Sealed
from .claim import AfterExpiry, TtlFrom, downstream_key
from .program import Decrypted, NotNow, Row, Undecryptable, Unsealed, at_home, home_of
from .states import Mode, State

T = TypeVar("T")

Headers = tuple[tuple[bytes, bytes], ...]

ANSWER_VERSION: Final = 1
"""The layout of a stored answer. A record with another one is refused, never guessed at."""

LAST_TIME: Final = 253_402_300_799_999
"""The end of the year 9999, in milliseconds: the last moment that HTTP and ISO dates can name."""

HEARD_MS: Final = 3_600_000
"""How long an answer is kept at least, unless its whole retention is shorter. Where retention counts from
creation, it may be over before there is an answer, and a retry must still find that."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

CLOCK_TOLERANCE_MS: Final = 5_000
"""How far a provider's clock may be from ours; it may also tick in whole seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: what the first request got and what every retry gets."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    def header(self, name: bytes) -> bytes | None:
        """The first value under that (lower-case) name."""
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run one operation, fenced by an attempt id that never repeats."""

    scope: str
    key: str
    attempt: str
    duration_ms: int


_MOVED = "-"


def nobodys(attempt: str) -> str:
    """The id that an attempt has once somebody else than its holder has moved the record: whatever the holder
    still says changes nothing, and it cannot take what was found out for its own doing."""
    return attempt + _MOVED


def run_of(attempt: str) -> str:
    """The run that an attempt id stands for, as its holder had it or as others have left it."""
    return attempt.rstrip(_MOVED)


@dataclass(frozen=True, slots=True)
class OpenEffect:
    """The one effect of an operation whose end is not known."""

    step: str
    downstream_key: str | None
    """The key that it was sent with; None: none was asked for."""
    provider_id: str | None
    """The provider's id of it, where that was noted."""
    source: str | None
    """Whom it was sent to, where the code says so."""


@dataclass(slots=True)
class Question:
    """One question to a lookup."""

    looked_since: bool = False
    """Whether it has asked from when on to look."""


@dataclass(frozen=True, slots=True)
class Record:
    """One key in one scope, as the store holds it. Times are milliseconds by the store's clock."""

    id: str
    """Of this life of the key: what runs after expiry is another operation."""
    life: int
    """The how-manieth life of its key this is, as far as the store remembers."""
    scope: str
    key: str
    tenant: str
    endpoint: str
    fingerprint: bytes
    fingerprint_version: str
    state: State
    mode: Mode
    attempt: str
    attempts: int
    recovery_point: str | None
    """Of phased work, the phase that its run came to last, whether or not that has its result: the run goes
    on there. Which effect has none is in ``open_effect``."""
    locked_until: int | None
    answer: Answer | None
    """None while there is no final answer, and where it could not be stored (see ``withheld``)."""
    withheld: bool
    """The operation completed but its answer was streamed or too large to keep."""
    error_code: str | None
    downstream: str | None
    provider_id: str | None
    reconcile_after: int | None
    created_at: int
    last_run_at: int
    completed_at: int | None
    ttl_ms: int
    """How long it is kept once it is settled, as it was declared when this life began."""
    ttl_from: TtlFrom
    after_expiry: AfterExpiry
    """What follows expiry; no later setting changes it."""
    expires_at: int
    """When retention ends. Provisional until the record is settled: what is not settled never expires."""
    open_effect: OpenEffect | None = None
    """What a lookup is asked about: its finding is about this effect, and about no other. None: the operation
    as a whole; nothing of it was noted, or more than one effect is open."""
    asking: Question | None = field(default=None, compare=False, repr=False)
    """Set where a lookup is asked about it."""

    @property
    def since(self) -> datetime:
        """Nothing that this operation has sent is older, by the store's clock or by one that is far off: a
        former life has made nothing for twice as long before this one. What the provider made earlier under
        the same key is a former life's: a lookup must not give that, and one that has asked for this is
        believed not to."""
        if self.asking is not None:
            self.asking.looked_since = True
        return _EPOCH + timedelta(milliseconds=self.created_at - min(HEARD_MS, self.ttl_ms) // 2)

    @property
    def since_ms(self) -> int:
        """A former life that left no trace ended a whole retention earlier, which bounds the tolerance."""
        return self.created_at - min(CLOCK_TOLERANCE_MS, self.ttl_ms // 2)

    def downstream_key(self, step: str = "") -> str:
        """The key that this operation sends to a provider at that step: what a lookup asks for."""
        return downstream_key(self.scope, self.key, step)

    @property
    def run(self) -> str:
        """Which run of its handler it shows, whoever has moved it since."""
        return run_of(self.attempt)

    def lease(self, duration_ms: int) -> Lease:
        return Lease(self.scope, self.key, self.attempt, duration_ms)


COLUMNS: Final = (
    "id",
    "life",
    "scope",
    "key",
    "tenant",
    "endpoint",
    "fingerprint",
    "fingerprint_version",
    "state",
    "mode",
    "attempt",
    "attempts",
    "recovery_point",
    "locked_until",
    "answer_version",
    "answer_status",
    "answer_headers",
    "answer_body",
    "error_code",
    "downstream",
    "provider_id",
    "reconcile_after",
    "created_at",
    "last_run_at",
    "completed_at",
    "ttl_ms",
    "ttl_from",
    "after_expiry",
    "expires_at",
)
"""The columns of a record in the order in which every query returns them."""


def expiry_of(now: int, created_at: int, ttl_ms: int, ttl_from: TtlFrom) -> int:
    """When a record that is settled now ends."""
    if ttl_from == "completion":
        return now + ttl_ms
    return max(created_at + ttl_ms, now + min(ttl_ms, HEARD_MS))


def encode_headers(headers: Headers) -> bytes:
    """Headers as they are stored: repeated names and their order survive."""
    pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
    return json.dumps(pairs, separators=(",", ":")).encode("ascii")


def decode_headers(stored: bytes) -> Headers:
    """The headers that ``encode_headers`` made these bytes of; ``ValueError`` or ``TypeError`` otherwise."""
    pairs = json.loads(stored.decode("ascii"))
    if not isinstance(pairs, list):
        raise TypeError("the stored headers are not a list")
    return tuple(_header(pair) for pair in pairs)


def _header(pair: object) -> tuple[bytes, bytes]:
    # Checked, not converted: a pair is also what unpacking makes of "ab", of {"a": 1, "b": 2} and of [1, 2].
    if not isinstance(pair, list) or len(pair) != 2:
        raise TypeError("a stored header is not a pair")
    name, value = pair
    return _text(name).encode("latin-1"), _text(value).encode("latin-1")


def decode_record(row: Row) -> Record:
    """A row in the order of ``COLUMNS``, or ``CorruptRecord``: never a guess, never a second run.

    ``Sealed`` if its answer is there and cannot be read just now."""
    try:
        return _decode(dict(zip(COLUMNS, with_own_answer(row), strict=True)))
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptRecord(
            "A stored record cannot be read by this version of samekey; the operation was not run. "
            f"Was it written by a newer version? ({type(error).__name__}: {error})"
        ) from error


def with_own_answer(row: Row) -> Row:
    """The row, whose answer is ``Undecryptable`` where it was encrypted for another record, or not at all."""
    if not any(isinstance(value, Decrypted | Unsealed) for value in row[_HEADERS : _BODY + 1]):
        return row
    values = [*row]
    record_id, scope, key = (values[place] for place in _IDENTITY)
    for place in (_HEADERS, _BODY):
        column = COLUMNS[place]
        values[place] = at_home(values[place], home_of(column, record_id), home_of(column, scope, key))
    return values


_HEADERS, _BODY = COLUMNS.index("answer_headers"), COLUMNS.index("answer_body")
_IDENTITY = [COLUMNS.index(name) for name in ("id", "scope", "key")]


def _decode(row: dict[str, str | int | bytes | None]) -> Record:
    state = State(_text(row["state"]))
    version, status = _optional(_int, row["answer_version"]), _optional(_int, row["answer_status"])
    answer: Answer | None = None
    if state is State.COMPLETED:
        if version != ANSWER_VERSION:
            raise ValueError(f"answer version {version}")
        if status is not None:
            headers = decode_headers(_bytes(row["answer_headers"]))
            if not 100 <= status <= 999:
                raise ValueError(f"{status} is not an HTTP status")
            answer = Answer(status, headers, _bytes(row["answer_body"]))
        elif row["answer_headers"] is not None or row["answer_body"] is not None:
            raise ValueError("an answer without a status")
    return Record(
        id=_text(row["id"]),
        life=_int(row["life"]),
        scope=_text(row["scope"]),
        key=_text(row["key"]),
        tenant=_text(row["tenant"]),
        endpoint=_text(row["endpoint"]),
        fingerprint=_bytes(row["fingerprint"]),
        fingerprint_version=_text(row["fingerprint_version"]),
        state=state,
        mode=Mode(_text(row["mode"])),
        attempt=_text(row["attempt"]),
        attempts=_int(row["attempts"]),
        recovery_point=_optional(_text, row["recovery_point"]),
        locked_until=_optional(_time, row["locked_until"]),
        answer=answer,
        withheld=state is State.COMPLETED and answer is None,
        error_code=_optional(_text, row["error_code"]),
        downstream=_optional(_text, row["downstream"]),
        provider_id=_optional(_text, row["provider_id"]),
        reconcile_after=_optional(_time, row["reconcile_after"]),
        created_at=_time(row["created_at"]),
        last_run_at=_time(row["last_run_at"]),
        completed_at=_optional(_time, row["completed_at"]),
        ttl_ms=_int(row["ttl_ms"]),
        ttl_from=_known(_TTL_FROM, row["ttl_from"], "retention counted from"),
        after_expiry=_known(_AFTER_EXPIRY, row["after_expiry"], "after expiry"),
        expires_at=_time(row["expires_at"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {type(value).__name__}")
    return value


def _int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"integer expected, not {type(value).__name__}")
    return value


_UNREADABLE = (
    "it cannot be decrypted, or was encrypted for another record, or not at all; was an encryption key "
    "removed before its records had expired?"
)


def _bytes(value: object) -> bytes:
    if isinstance(value, NotNow):
        raise Sealed
    if isinstance(value, Undecryptable):
        raise TypeError(_UNREADABLE)
    if isinstance(value, memoryview):
        return bytes(value)
    if not isinstance(value, bytes):
        raise TypeError(f"bytes expected, not {type(value).__name__}")
    return value


_TTL_FROM: Final[dict[object, TtlFrom]] = {"completion": "completion", "creation": "creation"}
_AFTER_EXPIRY: Final[dict[object, AfterExpiry]] = {"new": "new", "ask": "ask", "gone": "gone"}


def _known(words: Mapping[object, T], value: object, what: str) -> T:
    if value not in words:
        raise ValueError(f"{what} {value!r}")
    return words[value]


def _optional(read: Callable[[object], T], value: object) -> T | None:
    return None if value is None else read(value)


def _time(value: object) -> int:
    # A time that cannot be written as a date would fail later, in the middle of an answer.
    if not 0 <= (time := _int(value)) <= LAST_TIME:
        raise ValueError(f"{time} is not a time in milliseconds")
    return time

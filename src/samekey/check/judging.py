"""What an answer to a second request means: was it the first one's again, or did something run?"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .variants import leaves
from .wire import RawAnswer, RawExchange

MARKERS = ("idempotent-replayed", "idempotency-replayed", "x-idempotent-replayed", "x-idempotency-replayed",
           "idempotent-replay", "x-idempotent-replay")  # fmt: skip
"""Headers by which servers mark a replay."""

_TELLING = ("id", "uuid", "guid", "reference", "number", "key")
"""Ends of member names that name an operation, rather than its time."""


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"(^|_)(at|on|ts|now|time|date|timestamp|created|updated|expires|processed)$")


class Sight(StrEnum):
    """What a request with a used key led to."""

    REPLAYED = "replayed"
    RAN = "ran"
    REFUSED = "refused"
    FAILED = "failed"
    UNCLEAR = "unclear"
    """It succeeded, and nothing tells a replay from a run."""


def document_of(answer: RawAnswer | None) -> Any:
    """The JSON of an answer; None if it is none."""
    if answer is None:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def alike(one: RawExchange, two: RawExchange) -> bool:
    """The same answer: status and bytes, or the same JSON in other bytes."""
    if one.answer is None or two.answer is None or one.status != two.status:
        return False
    document = document_of(one.answer)
    return one.answer.body == two.answer.body or (
        document is not None and document == document_of(two.answer)
    )


def is_marked(answer: RawAnswer | None) -> bool:
    """Whether the answer says of itself that it is a replay."""
    values = [answer.header(name) for name in MARKERS] if answer is not None else []
    return any(value is not None and value.strip().lower() in ("true", "1", "yes", "?1") for value in values)


def is_of_unknown_outcome(answer: RawAnswer | None) -> bool:
    """Whether the answer says that nobody knows what became of the operation."""
    said = answer.body.lower() if answer is not None else b""
    return b"unknown" in said or b"not known" in said


@dataclass(frozen=True, slots=True)
class Identity:
    """Where two operations' answers differ, so that one operation can be told from another."""

    members: frozenset[str] = frozenset()
    """Pointers into JSON answers."""
    location: bool = False
    whole: bool = False
    """The answers are no JSON, and differ."""

    def __bool__(self) -> bool:
        return bool(self.members) or self.location or self.whole

    def of(self, answer: RawAnswer) -> dict[str, Any]:
        """What names the operation in this answer."""
        found: dict[str, Any] = {}
        if self.members:
            values = _values(answer)
            found = {name: values[name] for name in self.members if name in values}
        if self.location and answer.header("location") is not None:
            found["Location"] = answer.header("location")
        if self.whole and not self.members:
            found["body"] = answer.body
        return found

    def same(self, first: RawAnswer, second: RawAnswer) -> bool | None:
        """Whether two answers speak of one operation; None if nothing tells."""
        one, two = self.of(first), self.of(second)
        found = {one[name] == two[name] for name in one.keys() & two.keys()}
        return found.pop() if len(found) == 1 else None  # members that disagree tell nothing


def _values(answer: RawAnswer) -> dict[str, Any]:
    document = document_of(answer)
    return {leaf.name: leaf.value for leaf in leaves(document)} if isinstance(document, dict | list) else {}


def identity_of(first: RawAnswer, second: RawAnswer, same: str | None, sent: Collection[Any]) -> Identity:
    """From the answers of two operations that are known to be two.

    ``sent``: what an answer may merely repeat, such as the key; it would name a second run by the same name.
    So would what is made of it.
    """
    words = frozenset(word.casefold() for text in sent if isinstance(text, str) for word in _made_of(text))
    if same is not None:
        return Identity(members=frozenset({same}))
    one, two = _values(first), _values(second)
    members = {
        name
        for name in one.keys() & two.keys()
        if one[name] != two[name]
        and one[name] not in sent
        and not _is_coarse(one[name], name)
        and not _is_made_of(one[name], words)
    }
    telling = {name for name in members if _names_it(name)}
    location = first.header("location"), second.header("location")
    echoed = any(isinstance(word, str) and word and word in (location[0] or "") for word in sent)
    echoed = echoed or _is_made_of((location[0] or "").rpartition("/")[2], words)
    return Identity(
        members=frozenset(telling or members),
        location=None not in location and location[0] != location[1] and not echoed,
        whole=not one and not two and first.body != second.body,
    )


def _made_of(text: str) -> Iterator[str]:
    """A text that was sent, and what servers usually make of one; short words say nothing."""
    plain = text.strip('"')
    if len(plain) < 8:
        return
    raw = plain.encode("utf-8", "surrogatepass")
    yield from (plain, plain.replace("-", ""))
    for digest in (hashlib.md5, hashlib.sha1, hashlib.sha256):
        yield digest(raw, usedforsecurity=False).hexdigest()[:10]
    for space in (uuid.NAMESPACE_DNS, uuid.NAMESPACE_URL, uuid.NAMESPACE_OID, uuid.NAMESPACE_X500):
        yield from (uuid.uuid5(space, plain).hex[:10], uuid.uuid3(space, plain).hex[:10])


def _is_made_of(value: Any, words: Collection[str]) -> bool:
    """Whether a name is derived: from one of the words, or, as its own version says, from something else."""
    if not isinstance(value, str):
        return False
    folded = value.casefold()
    if any(word in folded or word in folded.replace("-", "") for word in words):
        return True
    found = _UUID.search(folded)
    return found is not None and found[1] in "35"


def _is_coarse(value: Any, pointer: str) -> bool:
    """A time in whole seconds: two operations may have the same."""
    if isinstance(value, str):
        return re.fullmatch(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:?\d\d)?)?", value) is not None
    return isinstance(value, int) and _TIME.search(pointer.rpartition("/")[2].lower()) is not None


def _names_it(pointer: str) -> bool:
    return pointer.rpartition("/")[2].lower().endswith(_TELLING)


def seen(identity: Identity, first: RawExchange, second: RawExchange, effects: int | None) -> Sight:
    """What the second request led to. ``effects`` is what the count has risen by; None if nobody counts."""
    if second.failed:
        return Sight.FAILED
    assert second.answer is not None
    if not second.succeeded:
        return Sight.RAN if effects else Sight.REFUSED
    same = identity.same(first.answer, second.answer) if first.answer is not None else None
    if effects:
        return Sight.RAN
    if effects == 0:
        return Sight.UNCLEAR if same is False else Sight.REPLAYED  # a new name without a new effect
    if same is not None:
        return Sight.REPLAYED if same else Sight.RAN
    return Sight.UNCLEAR  # that it is marked as a replay is what the server says, and not what was seen

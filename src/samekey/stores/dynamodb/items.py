"""A record as an item of the table, and the attributes that only DynamoDB needs.

An attribute has the name of its column; a column without a value is no attribute. Beside them an item has:

``pk``            where it lies: the digest of scope and key that downstream keys begin with
``queue, due``    its place in the index of what waits for somebody: which queue, and when it is due
``by_provider``   a digest of the provider's id, for the other index
``forget_after``  when DynamoDB may delete it, in seconds; only on settled records
``made``          what the provider has made for it, in all its attempts: a set of JSON texts
``kept_s``        how long after it is settled that is, in seconds: DynamoDB can add, and not divide
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from ...core.claim import downstream_base
from ...core.program import Row, Value
from ...core.record import COLUMNS, LAST_TIME
from ...core.states import State

Item: TypeAlias = Mapping[str, Mapping[str, Any]]
"""As DynamoDB spells it: ``{"state": {"S": "completed"}}``."""

LEASES: Final = "leases"
UNKNOWN: Final = "unknown"
DEAD: Final = "dead"
SETTLED: Final = "settled"
TOMBSTONES: Final = "tombstones"

QUEUES: Final[Mapping[State, str]] = {
    State.IN_PROGRESS: LEASES,  # due when the lease ends
    State.UNKNOWN: UNKNOWN,  # due when somebody should ask
    State.DEAD_LETTER: DEAD,  # due since it was given up
    State.COMPLETED: SETTLED,  # due when retention ends
    State.FAILED_RETRYABLE: SETTLED,
    State.EXPIRED: TOMBSTONES,
}
"""Where a record of that state waits. ``pending`` is not there: no key store carries deferred work."""

SHARDS: Final = "0123456789abcdef"
"""A queue is spread over this many partitions of the index, by the first digit of ``pk``: one partition
takes a thousand writes a second, and every claim writes to one."""

POINTER_KEPT: Final = 400 * 86_400
"""How long an item is kept that leads from a provider's id to its record, in seconds: providers send the last
events about an object within months."""
KEPT_BEYOND: Final = 30 * 86_400_000
"""How long after its expiry a record stays where no reaper runs, in milliseconds: as long as a reaper would
keep its tombstone."""


def pk_of(scope: str, key: str) -> str:
    """Where the record of a key lies."""
    return downstream_base(scope, key)


def pointer_pk(pk: str, digest: str) -> str:
    """Where an item lies that says no more than that this record has noted a provider's id of this digest."""
    return f"{pk}~{digest}"


def pointed_to(pk: str) -> str:
    """Where the record lies that an entry of the index of provider ids is about."""
    return pk.partition("~")[0]


def is_pk(text: str) -> bool:
    """Whether it could be one. What comes from a URL may be anything, and DynamoDB refuses long keys."""
    return len(text) == len(SHARDS) * 2 and all(digit in SHARDS for digit in text)


def place(state: State, pk: str) -> str:
    """The queue of a record, with its shard."""
    return shard_of(QUEUES[state], pk[0])


def shard_of(queue: str, digit: str) -> str:
    return f"{queue}-{digit}"


def provider_digest(provider_id: str) -> str:
    """A provider's id as an index can hold it, whatever its length."""
    return hashlib.sha256(provider_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def forget_after(expires_at: int, after_expiry: str) -> int:
    """When DynamoDB may delete a record of that expiry, in seconds; a key that is "gone" stays for good."""
    return (LAST_TIME if after_expiry == "gone" else expires_at + KEPT_BEYOND) // 1000


def kept_seconds(ttl_ms: int, after_expiry: str) -> int:
    """How long after a record is settled DynamoDB may delete it: ``forget_after`` is always counted from the
    moment from which the same write counts the record's expiry."""
    return forget_after(ttl_ms, after_expiry) + 1  # both ends are whole seconds, and none may come early


def encode(value: Value) -> dict[str, Any]:
    """A value as DynamoDB spells it."""
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, int):
        return {"N": str(value)}
    if isinstance(value, bytes):
        return {"B": value}
    raise TypeError(f"DynamoDB items hold text, numbers and bytes, not {type(value).__name__}")


def encode_item(values: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
    """An item of these values; None is no attribute."""
    return {name: encode(value) for name, value in values.items() if value is not None}


def value_of(item: Item, name: str) -> Any:
    """An attribute's value; None where there is none. What is of another type than ours stays as it is."""
    spelt = item.get(name)
    if spelt is None:
        return None
    ((kind, value),) = spelt.items()
    if kind == "N":
        try:
            return int(value)
        except ValueError:
            return value  # a fraction: not one of ours, and refused as text where a number belongs
    return value


def row_of(item: Item) -> Row:
    """The row that programs expect, in the order of ``COLUMNS``."""
    return [value_of(item, name) for name in COLUMNS]


def row_for(item: Item, scope: str, key: str) -> Row:
    """The row of this key's record. Its place is a digest, so that is looked at again: whatever else lies
    there has a state that nobody knows, and is refused as every corrupt record is."""
    if (value_of(item, "scope"), value_of(item, "key")) != (scope, key):
        item = {**item, "state": encode("the record of another key")}
    return row_of(item)

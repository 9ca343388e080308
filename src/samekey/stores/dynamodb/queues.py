"""What waits for somebody, found by an index: leases to end, outcomes to ask about, records to forget.

The index is sparse, spread over sixteen partitions, and may be behind by a moment. That is safe: it only says
where to look. Whoever acts on an entry compares state and time again in the write itself, so an entry that is
stale is refused, and one that is missing is found by the next look, or by a retry of its key.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ...core.program import Row
from ...core.record import LAST_TIME
from ...core.states import State, StateEvent, target
from .items import (
    DEAD,
    LEASES,
    QUEUES,
    SETTLED,
    SHARDS,
    TOMBSTONES,
    UNKNOWN,
    Item,
    forget_after,
    is_pk,
    place,
    row_of,
    shard_of,
    value_of,
)
from .plans import lease_ended, may_leave, one
from .requests import (
    Among,
    Asking,
    Condition,
    Is,
    NoneOf,
    Plan,
    Plus,
    Reply,
    Request,
    Term,
    TimeCome,
    Values,
    changed,
    delete,
    found,
    get,
    query,
    refused,
    scan,
    update,
)

DUE: Final = "due"
"""The index of queues; also the attribute that it is ordered by."""
READ_AT_ONCE: Final = 1000
"""Entries of a shard that are read together past the outcomes of endpoints that are left out; ``PAGES``: how
often at most."""
PAGES: Final = 50
MOST_NAMED: Final = 100
"""Values that DynamoDB takes in one list of a condition."""


def _pages(queues: Sequence[str], now: int | None, **arguments: Any) -> dict[str, Request]:
    """The first page of every shard of these queues, up to ``now``."""
    due: tuple[Condition, ...] = () if now is None else (TimeCome("due", now),)
    places = [shard_of(queue, digit) for queue in queues for digit in SHARDS]
    return {name: query(DUE, Is("queue", name), *due, **arguments) for name in places}


def entries(queues: Sequence[str], now: int | None, limit: int | None = None) -> Asking:
    """The entries of these queues that are due, oldest first; all of them if ``now`` is None."""
    first = {} if limit is None else {"Limit": limit}
    waiting = list(_pages(queues, now, **first).values())
    collected: list[Item] = []
    while waiting:
        replies = yield waiting
        waiting = _further(waiting, replies) if limit is None else []
        collected += [item for reply in replies for item in reply["Items"]]
    collected.sort(key=_due)
    return collected if limit is None else collected[:limit]


def _further(pages: Sequence[Request], replies: Sequence[Reply]) -> list[Request]:
    """The pages after these."""
    return [
        Request(page.operation, {**page.arguments, "ExclusiveStartKey": reply["LastEvaluatedKey"]})
        for page, reply in zip(pages, replies, strict=True)
        if "LastEvaluatedKey" in reply
    ]


def _due(entry: Item) -> int:
    return int(value_of(entry, "due"))


def _carried_out(requests: list[Request]) -> Asking:
    """All of them side by side; gives the items of those that were not refused."""
    replies = yield requests
    return [changed(reply) for reply in replies if not refused(reply)]


# ------------------------------------------------------------------ upkeep


def sweep(p: Values, now: int) -> Plan:
    waiting = yield from entries([LEASES], now, p["batch"])
    requests = [lease_ended(value_of(entry, "pk"), value_of(entry, "mode"), now) for entry in waiting]
    moved = yield from _carried_out([request for either in requests for request in either])
    return [[now, *row_of(item)] for item in moved]


def count_sweep(p: Values, now: int) -> Plan:
    waiting = yield from entries([LEASES], now)
    return _counted(waiting, "mode")


def reap(p: Values, now: int) -> Plan:
    """Deletes or buries, each record as it says itself: what may not be deleted is refused, then buried."""
    waiting = yield from entries([SETTLED, TOMBSTONES], now, p["batch"])
    expired = str(target(StateEvent.EXPIRE))
    tombstones = [value_of(entry, "pk") for entry in waiting if value_of(entry, "state") == expired]
    settled = [value_of(entry, "pk") for entry in waiting if value_of(entry, "state") != expired]
    deletions = [_deletion(pk, now, "new", "ask") for pk in tombstones]
    if not p["soft"]:
        deletions += [_deletion(pk, now, "new") for pk in settled]
    gone = yield from _carried_out(deletions)
    buried: list[Item] = []
    for kinds, until in ((["gone"], LAST_TIME), (["new", "ask"], now + p["keep_ms"])):
        left = [pk for pk in settled if pk not in {value_of(item, "pk") for item in (*gone, *buried)}]
        buried += yield from _carried_out([_burial(pk, now, kinds, until) for pk in left])
    return [[value_of(item, "id")] for item in (*gone, *buried)]


def _deletion(pk: str, now: int, *kinds: str) -> Request:
    return delete(pk, may_leave(StateEvent.REAP), TimeCome("expires_at", now), Among("after_expiry", kinds))


def _burial(pk: str, now: int, kinds: list[str], until: int) -> Request:
    """Keeps the fact and drops the answer. After "gone" the tombstone stays for good."""
    state = target(StateEvent.EXPIRE)
    change: dict[str, Term] = {
        "state": str(state),
        "answer_version": None,
        "answer_status": None,
        "answer_headers": None,
        "answer_body": None,
        "expires_at": until,
        "queue": place(state, pk),
        "due": until,
        "forget_after": forget_after(until, kinds[0]),
    }
    return update(
        pk, change, may_leave(StateEvent.EXPIRE), TimeCome("expires_at", now), Among("after_expiry", kinds)
    )


def count_reap(p: Values, now: int) -> Plan:
    return _counted((yield from entries([SETTLED, TOMBSTONES], now)), "state")


def _counted(items: list[Item], name: str) -> list[Row]:
    counts = Counter(str(value_of(item, name)) for item in items)
    return [[value, count] for value, count in sorted(counts.items())]


# ------------------------------------------------------------------ finding out, and looking


def take_unknown(p: Values, now: int) -> Plan:
    without = json.loads(p["without"])
    if without:
        waiting = yield from _of_others(without, p["batch"], now)
    else:
        waiting = yield from entries([UNKNOWN], now, p["batch"])
    places = [value_of(entry, "pk") for entry in waiting]
    change = {**_asked_after(now + p["lease_ms"]), "reconcile_tries": Plus("reconcile_tries", 1)}
    taken = yield from _carried_out([update(pk, change, *_is_due(now)) for pk in places])
    return [[value_of(item, "reconcile_tries"), *row_of(item)] for item in taken]


def _of_others(without: list[str], batch: int, now: int) -> Asking:
    """Entries of outcomes that are due, of none of these endpoints. Those that stand before them are read
    past and left as they are: another process may be able to ask about them."""
    chosen = [
        NoneOf("endpoint", without[start : start + MOST_NAMED])
        for start in range(0, len(without), MOST_NAMED)
    ]
    waiting = list(_pages([UNKNOWN], now, chosen=chosen, Limit=READ_AT_ONCE).values())
    collected: list[Item] = []
    for _ in range(PAGES):
        if not waiting or len(collected) >= batch:
            break
        replies = yield waiting
        waiting = _further(waiting, replies)
        collected += [item for reply in replies for item in reply["Items"]]
    return sorted(collected, key=_due)[:batch]


def _is_due(now: int) -> tuple[Condition, Condition]:
    return Is("state", str(State.UNKNOWN)), TimeCome("reconcile_after", now)


def _asked_after(when: int) -> dict[str, Term]:
    return {"reconcile_after": when, "due": when}


def list_keys(p: Values, now: int) -> Plan:
    """Newest first. By state alone it reads an index; for anything else, the whole table."""
    queue = QUEUES.get(State(p["state"])) if p["state"] in list(State) else None
    if queue is None or any(p[name] is not None for name in ("tenant", "key", "endpoint")):
        items = yield from _scanned(p)
    else:
        items = yield from _listed(p, queue)
    return [[now, *row_of(item)] for item in items]


def _listed(p: Values, queue: str) -> Asking:
    waiting = yield from entries([queue], None)
    chosen = [entry for entry in waiting if value_of(entry, "state") == p["state"] and _in_time(entry, p)]
    replies = yield [get(value_of(entry, "pk")) for entry in _newest(chosen, p["limit"])]
    there = [item for item in map(found, replies) if item is not None]
    return [item for item in there if value_of(item, "state") == p["state"]]


def _scanned(p: Values) -> Asking:
    conditions = [Is(name, p[name]) for name in ("state", "tenant", "key", "endpoint") if p[name] is not None]
    newest: list[Item] = []
    page = scan(*conditions)
    while True:
        reply = yield from one(page)
        records = [item for item in reply["Items"] if is_record(item) and _in_time(item, p)]
        newest = _newest([*newest, *records], p["limit"])
        if "LastEvaluatedKey" not in reply:
            return newest
        page = scan(*conditions, ExclusiveStartKey=reply["LastEvaluatedKey"])


def is_record(item: Item) -> bool:
    """And not one that only leads to a record."""
    return is_pk(str(value_of(item, "pk")))


def _in_time(item: Item, p: Values) -> bool:
    made, after, before = int(value_of(item, "created_at")), p["created_after"], p["created_before"]
    return (after is None or made >= after) and (before is None or made < before)


def _newest(items: list[Item], limit: int) -> list[Item]:
    by_age = sorted(items, key=lambda item: (-int(value_of(item, "created_at")), str(value_of(item, "pk"))))
    return by_age[:limit]


def overview(p: Values, now: int) -> Plan:
    """The figures in the order of ``Overview``. How many records there are is DynamoDB's own count, which
    is some hours old; how many are past retention is counted a page for each shard, and may be more."""
    table = yield from one(Request("DescribeTable", {}))
    unknown = yield from entries([UNKNOWN], None)
    dead = yield from entries([DEAD], None)
    ended = yield from entries([LEASES], now)
    first_lease = yield from _first([LEASES])
    first_expiry = yield from _first([SETTLED, TOMBSTONES])
    past = yield list(_pages([SETTLED, TOMBSTONES], now, Select="COUNT").values())
    return [
        [
            now,
            int(table["Table"].get("ItemCount", 0)),
            len(unknown),
            min((value_of(entry, "last_run_at") for entry in unknown), default=None),
            len(dead),
            len(ended),
            first_lease,
            sum(int(reply["Count"]) for reply in past),
            0,  # live jobs
            None,
            0,  # dead jobs
            0,  # pending
            first_expiry,
            0,  # ended phased
            None,
            first_lease,
            min((value_of(entry, "due") for entry in unknown), default=None),
            None,
        ]
    ]


def _first(queues: Sequence[str]) -> Asking:
    """When the first entry is due, past or to come."""
    replies = yield list(_pages(queues, None, Limit=1).values())
    return min((value_of(item, "due") for reply in replies for item in reply["Items"]), default=None)

"""What must hold of every key of the store, looked at from outside."""

from __future__ import annotations

from typing import Any

from samekey.core.states import StateEvent, sources
from samekey.stores.redis.finding import INDEXES, _index_of

SCORES = {
    "leases": "locked_until",
    "unknown": "reconcile_after",
    "dead": "last_run_at",
    "settled": "expires_at",
}


def names(client: Any, prefix: str = "samekey") -> list[str]:
    return sorted(name.decode() for name in client.scan_iter(match=f"{prefix}:*", count=1000))


def records(client: Any, prefix: str = "samekey") -> dict[str, dict[str, bytes]]:
    """Every record's columns, by the name of its hash."""
    there = {name: client.hgetall(name) for name in names(client, prefix) if client.type(name) == b"hash"}
    return {
        name: {column.decode(): value for column, value in columns.items()} for name, columns in there.items()
    }


def assert_in_order(client: Any, prefix: str = "samekey") -> int:
    """Each record stands in one index, in the right place, and only what is settled has a time to live."""
    found = records(client, prefix)
    for name, columns in found.items():
        home, _, base = name.rpartition(":")
        state = columns["state"].decode()
        where = _index_of(state)
        for index in INDEXES:
            score = client.zscore(f"{home}:{index}", base)
            expected = float(columns[SCORES[where]]) if index == where else None
            assert score == expected, f"{name} ({state}) in {index}"
        lives = client.pttl(name)
        # That a key is gone is kept for ever.
        ends = state in sources(StateEvent.REAP) and columns.get("after_expiry") != b"gone"
        assert (lives > 0) == ends, f"{name} ({state}) lives for {lives} ms"
    return len(found)

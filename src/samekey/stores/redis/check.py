"""The start-up check: whether these servers can be trusted with keys. Pure: what they say in, sentences out.

A key that Redis forgets is a key that can run again. It forgets under memory pressure if it may evict, and
with its process if it writes nothing down. The first is refused unless the URL says ``unsafe=warn``; the
second is said aloud, and refused with ``unsafe=refuse``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...core.program import Program
from ...errors import ConfigurationError, SchemaMismatch
from ..identity import NOBODYS, must_agree
from .scripts import NOWHERE, RedisStatements

OLDEST: Final = (7, 0)
"""Redis 7.0 (every Valkey is newer): the oldest that the scripts are tried on."""
LAYOUT: Final = 1
"""The version of the key layout."""

Facts = Mapping[str, Mapping[str, str]]
"""By server, what it says of itself; under the empty name, the settings of the URL."""


@dataclass(frozen=True, slots=True)
class Weakness:
    """Something that can lose keys, and what to do about it."""

    code: str
    says: str
    advice: str
    refused: bool
    """Unless the URL says otherwise."""

    def __str__(self) -> str:
        return f"{self.says} {self.advice}"


def check(statements: RedisStatements) -> Program[list[str]]:
    """Refuses what cannot be used; gives the sentences that somebody should read."""
    facts = yield from server_facts(statements)
    settings = facts[""]
    for server, found in facts.items():
        if server and _version(found) < OLDEST:
            raise ConfigurationError(
                f"Redis {found.get('redis_version', '')} at {server} is too old: samekey needs Redis "
                f"{OLDEST[0]}.{OLDEST[1]} or newer, or Valkey. Upgrade the server."
            )
    yield from _check_rights(statements)
    yield from _check_layout(statements, settings["partitions"])
    weaknesses = list(weaknesses_of(facts))
    unsafe = settings["unsafe"]
    refused = [
        weakness
        for weakness in weaknesses
        if (unsafe == "refuse" and weakness.code != "unseen") or (weakness.refused and unsafe != "warn")
    ]
    if refused:
        raise ConfigurationError(
            " ".join(map(str, refused)) + " To run all the same, add unsafe=warn to the URL."
        )
    return [str(weakness) for weakness in weaknesses]


def server_facts(statements: RedisStatements) -> Program[Facts]:
    """What every master says of itself."""
    rows = yield statements.server_facts()
    facts: dict[str, dict[str, str]] = {}
    for server, name, value in rows:
        facts.setdefault(str(server), {})[str(name)] = str(value)
    return facts


def weaknesses_of(facts: Facts) -> Iterator[Weakness]:
    """What can make these servers forget."""
    for server, found in facts.items():
        if server:
            yield from _eviction(server, found)
            yield from _persistence(server, found)


def _eviction(server: str, found: Mapping[str, str]) -> Iterator[Weakness]:
    policy = found.get("maxmemory_policy")
    if policy not in (None, "noeviction"):
        yield Weakness(
            "eviction",
            f"Redis at {server} may evict keys (maxmemory-policy {policy}): under memory pressure it forgets "
            "operations, and their retries run again.",
            "Set maxmemory-policy noeviction.",
            refused=True,
        )


def _persistence(server: str, found: Mapping[str, str]) -> Iterator[Weakness]:
    if found.get("aof_enabled") == "1":
        if found.get("appendfsync", "always") != "always":
            lost = "the last second" if found["appendfsync"] == "everysec" else "some seconds"
            yield Weakness(
                "fsync",
                f"Redis at {server} writes to disk a little later (appendfsync {found['appendfsync']}): a "
                f"crash of the machine loses {lost} of claims and answers.",
                "Set appendfsync always, or wait for a replica (wait=1 in the URL).",
                refused=False,
            )
    elif found.get("save"):
        yield Weakness(
            "snapshots",
            f"Redis at {server} keeps snapshots only (appendonly no): a crash loses every claim and answer "
            "since the last one.",
            "Set appendonly yes.",
            refused=False,
        )
    elif "save" in found:
        yield Weakness(
            "persistence",
            f"Redis at {server} writes nothing to disk (no AOF, no RDB): a restart forgets every operation, "
            "and their retries run again.",
            "Set appendonly yes.",
            refused=False,
        )
    if "save" not in found:
        yield Weakness(
            "unseen",
            f"Redis at {server} does not let us read its settings (CONFIG GET), so how it persists could not "
            "be checked.",
            "See that it has an AOF (appendonly yes), or allow +config|get.",
            refused=False,
        )


def _version(found: Mapping[str, str]) -> tuple[int, ...]:
    words = found.get("redis_version", "").split(".")
    return tuple(int(word) for word in words[:2] if word.isdecimal())


def agree(statements: RedisStatements, mark: str | None) -> Program[None]:
    """Writes down whose keys these are where nobody has; ``SchemaMismatch`` if they are another's."""
    rows = yield statements.statement("note_identity", None, at=NOWHERE, identity=mark or NOBODYS)
    must_agree(str(rows[0][1]), mark)


def _check_rights(statements: RedisStatements) -> Program[None]:
    """A script that is refused half-way leaves half of what it writes: so all is asked for before."""
    rows = yield statements.statement("missing_rights", 0, at=NOWHERE)
    if rows:
        lacking = " ".join(f"+{row[1]!s}" for row in rows)
        raise ConfigurationError(
            f"This user of Redis lacks rights that the scripts need: {lacking}. Grant them: ACL SETUSER name "
            f"{lacking}. Nothing was written; docs/stores/redis.md has the whole list."
        )


def _check_layout(statements: RedisStatements, partitions: str) -> Program[None]:
    """The number of partitions is part of every key's name: with another one, no key would be found again."""
    ours = f"{LAYOUT} {partitions}"
    rows = yield statements.statement("note_layout", None, at=NOWHERE, layout=ours)
    there = str(rows[0][1])
    if there == ours:
        return
    version, _, number = there.partition(" ")
    if version != str(LAYOUT):
        raise SchemaMismatch(
            f"The keys in this Redis have layout {version}, and this samekey knows layout {LAYOUT}. Use the "
            "version of samekey that wrote them, or another prefix."
        )
    raise SchemaMismatch(
        f"The keys in this Redis lie in {number} partitions, and the URL says {partitions}: no key would be "
        f"found again. Write partitions={number} in the URL, or use another prefix."
    )

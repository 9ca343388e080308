"""The table: its definition, how it is made, and what is said if it is not as it must be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...core.program import Program, Row
from ...errors import SchemaMismatch, StoreUnavailable
from ..identity import NOBODYS, must_agree
from ..statements import Statements
from .items import encode_item, value_of
from .plans import BY_PROVIDER, one
from .queues import DUE
from .requests import Asking, Plan, Request, Values, get, insert, scan

CREATED: Final = "ResourceInUseException"
"""How DynamoDB says that the table is there already."""
MISSING: Final = "ResourceNotFoundException"
FORGET: Final = "forget_after"
IDENTITY: Final = "~identity"
"""Where it stands whose keys these are. No record lies there: their places are digests."""

PATIENCE: Final = 150
"""How often a new table is looked at, once in two seconds: making one takes ten of them, or a minute."""


def _key(hashed: str, ranged: str | None = None) -> list[dict[str, str]]:
    key = [{"AttributeName": hashed, "KeyType": "HASH"}]
    return key if ranged is None else [*key, {"AttributeName": ranged, "KeyType": "RANGE"}]


DEFINITION: Final[Mapping[str, Any]] = {
    "AttributeDefinitions": [
        {"AttributeName": "pk", "AttributeType": "S"},
        {"AttributeName": "queue", "AttributeType": "S"},
        {"AttributeName": "due", "AttributeType": "N"},
        {"AttributeName": "by_provider", "AttributeType": "S"},
    ],
    "KeySchema": _key("pk"),
    "GlobalSecondaryIndexes": [
        {
            "IndexName": DUE,
            "KeySchema": _key("queue", "due"),
            # All of these only change together with the key of the index, so they cost no write of their own.
            "Projection": {
                "ProjectionType": "INCLUDE",
                "NonKeyAttributes": ["state", "mode", "created_at", "last_run_at", "endpoint"],
            },
        },
        {
            "IndexName": BY_PROVIDER,
            "KeySchema": _key("by_provider"),
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        },
    ],
    "BillingMode": "PAY_PER_REQUEST",
}
"""All but the name."""


def as_json(table: str) -> str:
    """The definition for ``aws dynamodb create-table --cli-input-json``."""
    return json.dumps({"TableName": table, **DEFINITION}, indent=2) + "\n"


# ------------------------------------------------------------------ the statements


def create_table(p: Values, now: int) -> Plan:
    """A row if it was made; none if it was there."""
    reply = yield from one(Request("CreateTable", DEFINITION, frozenset({CREATED})))
    return [] if "Error" in reply else [[reply["TableDescription"]["TableName"]]]


def forget_old(p: Values, now: int) -> Plan:
    """Has DynamoDB delete what is long past retention. A row if that was not so before."""
    reply = yield from one(Request("DescribeTimeToLive", {}))
    there = reply["TimeToLiveDescription"]
    if there["TimeToLiveStatus"] in ("ENABLED", "ENABLING"):
        if there.get("AttributeName") != FORGET:
            raise SchemaMismatch(
                f"DynamoDB deletes items of this table by {there.get('AttributeName')!r}. It must be "
                f"{FORGET!r}, or records that are still needed may go: change the table's time to live."
            )
        return []
    setting = {"TimeToLiveSpecification": {"Enabled": True, "AttributeName": FORGET}}
    yield from one(Request("UpdateTimeToLive", setting))
    return [[1]]


def note_identity(p: Values, now: int) -> Plan:
    """Whose keys these are, written down by whoever comes first to a new table. Gives what stands there."""
    reply = yield from one(get(IDENTITY))
    if "Item" not in reply:
        if p["identity"] == NOBODYS or (yield from one(scan(Limit=1)))["Items"]:
            return [[NOBODYS]]
        yield from one(insert(encode_item({"pk": IDENTITY, "identity": p["identity"]})))
        reply = yield from one(get(IDENTITY))
    return [[str(value_of(reply["Item"], "identity"))]]


def describe_table(p: Values, now: int) -> Plan:
    """What matters about the table, as pairs. No row if there is none."""
    table = yield from _described(p.get("pause_ms") or 0)
    return [] if table is None else _facts(table)


def _described(pause_ms: int) -> Asking:
    request = Request("DescribeTable", {}, frozenset({MISSING}), pause=pause_ms / 1000)
    reply = yield from one(request)
    return None if "Error" in reply else reply["Table"]


def _facts(table: Mapping[str, Any]) -> list[Row]:
    types = {one["AttributeName"]: one["AttributeType"] for one in table.get("AttributeDefinitions", [])}
    indexes = table.get("GlobalSecondaryIndexes") or []
    facts: dict[str, str] = {
        "name": table["TableName"],
        "status": table["TableStatus"],
        "key": _spelt(table["KeySchema"], types),
        # Several regions that all take writes, where the last one wins: a claim could be won twice.
        "regions": str(len(table.get("Replicas") or [])),
        "consistency": table.get("MultiRegionConsistency", "EVENTUAL"),
    }
    for index in indexes:
        facts[f"index {index['IndexName']}"] = _spelt(index["KeySchema"], types)
        facts[f"status of {index['IndexName']}"] = index.get("IndexStatus", "ACTIVE")
        facts[f"missing in {index['IndexName']}"] = ", ".join(_missing(index))
    return [[name, value] for name, value in facts.items()]


def _missing(index: Mapping[str, Any]) -> list[str]:
    """What an index of ours must hold beside its keys, and does not."""
    ours = [one for one in DEFINITION["GlobalSecondaryIndexes"] if one["IndexName"] == index["IndexName"]]
    wanted = [name for one in ours for name in one["Projection"].get("NonKeyAttributes", ())]
    there = index["Projection"]
    return (
        []
        if there["ProjectionType"] == "ALL"
        else [name for name in wanted if name not in there.get("NonKeyAttributes", ())]
    )


def _spelt(schema: list[Mapping[str, str]], types: Mapping[str, str]) -> str:
    """A key in a few words: ``queue S, due N``."""
    ordered = sorted(schema, key=lambda part: part["KeyType"])  # HASH before RANGE
    return ", ".join(f"{part['AttributeName']} {types.get(part['AttributeName'])}" for part in ordered)


EXPECTED: Final = {"key": "pk S", f"index {DUE}": "queue S, due N", f"index {BY_PROVIDER}": "by_provider S"}

_ANY_TIME: Final = 0
"""These statements do not look at a clock, so none has to be asked for."""

# ------------------------------------------------------------------ the programs


def check(statements: Statements) -> Program[list[str]]:
    """Raises a sentence where the table cannot be used as it is; gives what should be said aloud."""
    facts = _known((yield statements.statement("describe_table", _ANY_TIME)))
    if not facts:
        raise SchemaMismatch("The DynamoDB table is missing. Run: samekey migrate URL")
    table = f"The DynamoDB table {facts['name']!r}"
    if facts["key"] != EXPECTED["key"]:
        raise SchemaMismatch(
            f"{table} has the key ({facts['key']}) and not ({EXPECTED['key']}): it is not samekey's. Name "
            "another table in the URL and run: samekey migrate URL"
        )
    for name, key in EXPECTED.items():
        if facts.get(name) != key:
            raise SchemaMismatch(
                f"{table} has no {name} on ({key}). Add it as docs/stores/dynamodb.md shows, or name another "
                "table in the URL and run: samekey migrate URL"
            )
    if missing := facts[f"missing in {DUE}"]:
        raise SchemaMismatch(
            f"{table} has no {missing} in its index {DUE}. Make that index anew as docs/stores/dynamodb.md "
            "shows, or name another table in the URL and run: samekey migrate URL"
        )
    unready = [name for name in facts if name.startswith("status") and facts[name] not in _READY]
    if unready:
        raise StoreUnavailable(f"{table} is not ready yet: {unready[0]} is {facts[unready[0]]}.")
    if facts["regions"] != "0" and facts["consistency"] != "STRONG":
        return [
            f"{table} is a global table in which the last writer wins. Have one region only write to it: a "
            "key that is claimed in two regions at once would be run in both."
        ]
    return []


def agree(statements: Statements, mark: str | None) -> Program[None]:
    """Writes down whose keys these are where nobody has; ``SchemaMismatch`` if they are another's."""
    rows = yield statements.statement("note_identity", _ANY_TIME, identity=mark or NOBODYS)
    must_agree(str(rows[0][0]), mark)


def _known(rows: Sequence[Row]) -> dict[str, str]:
    return {str(name): str(value) for name, value in rows}


_READY: Final = ("ACTIVE", "UPDATING")


def migrate(statements: Statements) -> Program[list[str]]:
    """Makes the table if it is not there; gives what was done. Safe to run twice, and two at once."""
    done = []
    if (yield statements.statement("create_table", _ANY_TIME)):
        done.append("created the table")
    pause_ms = 0
    for _ in range(PATIENCE):
        facts = _known((yield statements.statement("describe_table", _ANY_TIME, pause_ms=pause_ms)))
        statuses = [facts[name] for name in facts if name.startswith("status")]
        if statuses and all(status in _READY for status in statuses):
            break
        pause_ms = 2_000
    yield from check(statements)
    if (yield statements.statement("forget_old", _ANY_TIME)):
        done.append("had DynamoDB delete what is long past retention")
    return done

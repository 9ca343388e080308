"""Requests to DynamoDB, built by pure functions: what to call, with which arguments.

A statement is a *plan*: a generator that yields requests (those of one list may be made at the same time),
is sent a reply for each, and returns rows. A reply is what DynamoDB's API gives, in its own shape; so is a
refusal that a plan asked to see (``Request.answers``). The driver knows how to make requests and nothing of
what they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ...core.program import Query, Row, Value
from .items import Item, encode

REFUSED: Final = "ConditionalCheckFailedException"
INVALID: Final = "ValidationException"


@dataclass(frozen=True, slots=True)
class Request:
    """One call of DynamoDB's API."""

    operation: str
    arguments: Mapping[str, Any]
    """All but the name of the table, which the driver knows."""
    answers: frozenset[str] = frozenset()
    """Error codes that are an answer here; every other error is one."""
    pause: float = 0.0
    """Seconds to wait before it is made."""


Reply: TypeAlias = Mapping[str, Any]
Asking: TypeAlias = Generator[Sequence[Request], Sequence[Reply], Any]
Plan: TypeAlias = Generator[Sequence[Request], Sequence[Reply], Sequence[Row]]
Values: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedQuery(Query):
    """A named statement of this store. Its parameters come last, so that encryption can stand in between."""

    plan: Callable[[Values, int], Plan] = field(kw_only=True)
    """Of the parameters and of the time, which the driver knows."""


# ------------------------------------------------------------------ what to change


@dataclass(frozen=True, slots=True)
class Plus:
    """Another attribute's value plus a number."""

    attribute: str
    amount: int


@dataclass(frozen=True, slots=True)
class Unless:
    """This value, unless the attribute has one."""

    value: Value


@dataclass(frozen=True, slots=True)
class Also:
    """These texts, beside those that the set has."""

    values: Sequence[str]


Term: TypeAlias = Value | Plus | Unless | Also
"""What an attribute becomes. None removes it."""


# ------------------------------------------------------------------ and on which condition


@dataclass(frozen=True, slots=True)
class Is:
    attribute: str
    value: Value


@dataclass(frozen=True, slots=True)
class Among:
    attribute: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class NoneOf:
    """None of these values; DynamoDB takes a hundred of them at most."""

    attribute: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class TimeCome:
    """A time that has come: at most ``now``."""

    attribute: str
    now: int


@dataclass(frozen=True, slots=True)
class Both:
    first: Condition
    second: Condition


@dataclass(frozen=True, slots=True)
class Either:
    first: Condition
    second: Condition


@dataclass(frozen=True, slots=True)
class Absent:
    """The attribute has no value."""

    attribute: str


@dataclass(frozen=True, slots=True)
class Present:
    attribute: str


Condition: TypeAlias = Is | Among | NoneOf | TimeCome | Both | Either | Absent | Present


class _Expression:
    """Names and values of one request. Every name is given one of ours: DynamoDB reserves hundreds."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Any] = {}

    def name(self, attribute: str) -> str:
        self._names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def value(self, value: Value) -> str:
        placeholder = f":v{len(self._values)}"
        self._values[placeholder] = encode(value)
        return placeholder

    def condition(self, condition: Condition) -> str:
        match condition:
            case Is(attribute, value):
                return f"{self.name(attribute)} = {self.value(value)}"
            case Among(attribute, values):
                return f"{self.name(attribute)} IN ({', '.join(self.value(value) for value in values)})"
            case NoneOf(attribute, values):
                return f"NOT {self.condition(Among(attribute, values))}"
            case TimeCome(attribute, now):
                return f"{self.name(attribute)} <= {self.value(now)}"
            case Absent(attribute):
                return f"attribute_not_exists({self.name(attribute)})"
            case Present(attribute):
                return f"attribute_exists({self.name(attribute)})"
            case Both(first, second):
                return f"{self.condition(first)} AND {self.condition(second)}"
            case Either(first, second):
                return f"({self.condition(first)} OR ({self.condition(second)}))"

    def change(self, change: Mapping[str, Term]) -> str:
        sets = [
            f"{self.name(name)} = {self._term(name, term)}"
            for name, term in change.items()
            if term is not None and not isinstance(term, Also)
        ]
        adds = [
            f"{self.name(name)} {self._texts(term.values)}"
            for name, term in change.items()
            if isinstance(term, Also)
        ]
        removes = [self.name(name) for name, term in change.items() if term is None]
        parts = [f"SET {', '.join(sets)}"] if sets else []
        parts += [f"REMOVE {', '.join(removes)}"] if removes else []
        return " ".join([*parts, *([f"ADD {', '.join(adds)}"] if adds else [])])

    def _texts(self, values: Sequence[str]) -> str:
        placeholder = f":v{len(self._values)}"
        self._values[placeholder] = {"SS": [*values]}
        return placeholder

    def _term(self, name: str, term: Value | Plus | Unless) -> str:
        if isinstance(term, Plus):
            return f"{self.name(term.attribute)} + {self.value(term.amount)}"
        if isinstance(term, Unless):
            return f"if_not_exists({self.name(name)}, {self.value(term.value)})"
        return self.value(term)

    def arguments(self) -> dict[str, Any]:
        names = {"ExpressionAttributeNames": self._names} if self._names else {}
        return {**names, **({"ExpressionAttributeValues": self._values} if self._values else {})}


# ------------------------------------------------------------------ the requests


def get(pk: str) -> Request:
    """The record that lies there, as of now and not as of a moment ago."""
    return Request("GetItem", {"Key": {"pk": encode(pk)}, "ConsistentRead": True})


def insert(item: Item) -> Request:
    """Insert or nothing; refused with the item that is there."""
    return Request(
        "PutItem",
        {
            "Item": item,
            "ConditionExpression": "attribute_not_exists(pk)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        },
        frozenset({REFUSED}),
    )


def put(item: Item) -> Request:
    """Writes an item, whatever was there."""
    return Request("PutItem", {"Item": item})


def update(
    pk: str, change: Mapping[str, Term], *conditions: Condition, may_be_large: bool = False
) -> Request:
    """Compare and set; gives the whole item as it is then, or is refused with the item as it is."""
    expression = _Expression()
    return Request(
        "UpdateItem",
        {
            "Key": {"pk": encode(pk)},
            "UpdateExpression": expression.change(change),
            "ConditionExpression": " AND ".join(expression.condition(one) for one in conditions),
            **expression.arguments(),
            "ReturnValues": "ALL_NEW",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        },
        frozenset({REFUSED, INVALID} if may_be_large else {REFUSED}),
    )


def delete(pk: str, *conditions: Condition) -> Request:
    """Compare and delete; gives the item as it was."""
    expression = _Expression()
    return Request(
        "DeleteItem",
        {
            "Key": {"pk": encode(pk)},
            "ConditionExpression": " AND ".join(expression.condition(one) for one in conditions),
            **expression.arguments(),
            "ReturnValues": "ALL_OLD",
        },
        frozenset({REFUSED}),
    )


def query(index: str, *conditions: Condition, chosen: Sequence[Condition] = (), **arguments: Any) -> Request:
    """Entries of an index, which may be behind by a moment: whoever acts on one compares again. ``chosen``:
    of those that are read, and paid for, only these are given."""
    expression = _Expression()
    key = " AND ".join(expression.condition(one) for one in conditions)
    filtered = {"FilterExpression": " AND ".join(map(expression.condition, chosen))} if chosen else {}
    return Request(
        "Query",
        {
            "IndexName": index,
            "KeyConditionExpression": key,
            **filtered,
            **expression.arguments(),
            **arguments,
        },
    )


def scan(*conditions: Condition, **arguments: Any) -> Request:
    """A page of the whole table: it is read, and paid for, item by item."""
    expression = _Expression()
    chosen = " AND ".join(expression.condition(one) for one in conditions)
    filtered = {"FilterExpression": chosen, **expression.arguments()} if conditions else {}
    return Request("Scan", {"ConsistentRead": True, **filtered, **arguments})


# ------------------------------------------------------------------ and their replies


def refused(reply: Reply) -> bool:
    return "Error" in reply and reply["Error"].get("Code") == REFUSED


def invalid(reply: Reply) -> str | None:
    """DynamoDB's words, where it did not take a request as it was."""
    if "Error" not in reply or reply["Error"].get("Code") != INVALID:
        return None
    return str(reply["Error"].get("Message", ""))


def found(reply: Reply) -> Item | None:
    """The item in a reply to ``get``, or the one that a refusal shows."""
    return reply.get("Item") or None


def changed(reply: Reply) -> Item:
    """The item that an accepted ``update`` or ``delete`` gives."""
    item: Item = reply["Attributes"]
    return item

"""Loads the statements of the Redis store: a Lua file each, with the prelude in front.

As in SQL, braces keep what stands in one place elsewhere from being written again: ``{from:e}`` are the
states that event e may leave, as a set, ``{to:e}`` is the state that it enters, ``{state:s}`` and
``{mode:m}`` are names, ``{table:t}`` is a table made here. A script that writes a state declares its event
(``-- event: complete``, see ``stores/law.py``). A script's parameters are the ``p.name`` that it
mentions.

``at`` says which records a statement is about, by the digest of scope and key that names them: one, several,
or None for a question to every partition. Which key that is on which server is the driver's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from ...core.claim import downstream_base, located_by, locating_id
from ...core.disputes import MORE, MOST_DISPUTES, encode_yes
from ...core.program import Query, Statement, Value
from ...core.record import COLUMNS, HEARD_MS, LAST_TIME
from ...core.states import LEASE_END, Mode, State, StateEvent, sources, target
from ..law import check, events_of

_BRACES: Final = re.compile(r"\{(from|to|state|mode|table):([a-z_]+)\}")
_PARAMETER: Final = re.compile(r"\bp\.([a-z_]+)")
_BASE: Final = re.compile(r"[0-9a-f]{32}")
_DURABLE: Final = "-- durable\n"
_EVENT: Final = re.compile(r"^-- event: ([\w, ]+)$", re.MULTILINE)
_WRITES: Final = re.compile(r"(?<!local )\bstate(?:, [\w.]+)* = |\bremove\(")
"""The state of a record is set, or the record goes."""

NOWHERE: Final = "0" * 32
"""Names no record: where an id that is none of ours leads to."""

NUMBERS: Final = (
    "life",
    "attempts",
    "locked_until",
    "answer_version",
    "answer_status",
    "reconcile_after",
    "created_at",
    "last_run_at",
    "completed_at",
    "ttl_ms",
    "expires_at",
)
BINARY: Final = ("fingerprint", "answer_headers", "answer_body")

SERVER_FACTS: Final = Query("server_facts", "", {})
"""No script: what the servers say of themselves, which a script may not ask."""


class RedisStatements:
    """The statements of Redis, by name."""

    looks_first = False
    notes_along = True
    has_parts = False

    def __init__(self) -> None:
        self._queries = _load()
        self.events = {
            name: events for name, query in self._queries.items() if (events := _events(query.sql))
        }
        """The events of the statements that write a state."""
        self._needed = {name: _parameters(query.sql) for name, query in self._queries.items()}

    def operation_id(self, token: str, scope: str, key: str) -> str:
        return locating_id(token, scope, key)

    def statement(self, query: str, now: int | None, /, **values: Value) -> Statement:
        found = self._queries[query]
        missing = self._needed[query] - values.keys() - {"now"}
        if missing:
            raise TypeError(f"{query} needs {', '.join(sorted(missing))}")
        _, names = found.rendered["lua"]
        at = values["at"] if "at" in values else _at(values)
        # What the prelude could use and this statement has no value for.
        absent = dict.fromkeys(names)
        return Statement(found, {**absent, **values, "now": now, "at": at})

    def server_facts(self) -> Statement:
        return Statement(SERVER_FACTS, {})

    def __getitem__(self, name: str) -> Query:
        return self._queries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._queries)


def _at(values: Mapping[str, Value]) -> Value:
    """Which record a statement of the store's own names is about."""
    if "key_list" in values:
        scopes, keys = values["scopes"], values["key_list"]
        assert isinstance(scopes, list) and isinstance(keys, list)
        return [downstream_base(scope, key) for scope, key in zip(scopes, keys, strict=True)]
    if "scope" in values:
        return downstream_base(str(values["scope"]), str(values["key"]))
    if "downstream" in values:
        return _base(str(values["downstream"]))
    for name in ("id", "operation_id"):
        if name in values:
            return _base(located_by(str(values[name])))
    return None


def is_base(text: str) -> bool:
    """Whether this could name a record."""
    return _BASE.fullmatch(text) is not None


def _base(text: str) -> str:
    # It may come from a client's URL, and becomes part of a key's name.
    return text if is_base(text) else NOWHERE


@cache
def _load() -> Mapping[str, Query]:
    texts = {
        entry.name.removesuffix(".lua"): entry.read_text("utf-8")
        for entry in files(__package__).iterdir()
        if entry.name.endswith(".lua")
    }
    prelude = texts.pop("prelude")
    return {name: _query(name, prelude, body) for name, body in sorted(texts.items())}


def _events(body: str) -> tuple[StateEvent, ...]:
    declared = _EVENT.search(body)
    return events_of(None if declared is None else declared[1])


def _query(name: str, prelude: str, body: str) -> Query:
    check(
        name,
        _events(body),
        body,
        writes=_WRITES.search(body) is not None,
        deletes="remove(" in body and "state = " not in body,
    )
    names = ("now", *sorted((_parameters(prelude) | _parameters(body)) - {"now"}))
    # The first line also tells the driver, and whoever reads a slow log.
    kind = "durable" if body.startswith(_DURABLE) else "script"
    text = f"-- {kind}: samekey {name}\n{_expand(prelude, names)}\n{_expand(body, names)}"
    return Query(name, body, {"lua": (text, names)})


def _parameters(text: str) -> set[str]:
    return set(_PARAMETER.findall(text))


def _expand(text: str, names: tuple[str, ...]) -> str:
    tables = {
        "parameters": _table(f"{name} = argument({place})" for place, name in enumerate(names, 1)),
        "lease_end": _table(f"['{mode}'] = '{state}'" for mode, state in LEASE_END.items()),
        "settled": _set([State.COMPLETED, State.EXPIRED]),
        "columns": _table(f"'{name}'" for name in COLUMNS),
        "numbers": _set(NUMBERS),
        "binary": _set(BINARY),
        "heard": str(HEARD_MS),
        "for_ever": str(LAST_TIME),
        "most_disputes": str(MOST_DISPUTES),
        "more_disputes": f"'{encode_yes(MORE)}'",
    }

    def word(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "from":
            return _set(sources(StateEvent(name)))
        if kind == "to":
            return f"'{target(StateEvent(name))}'"
        if kind == "state":
            return f"'{State(name)}'"
        return f"'{Mode(name)}'" if kind == "mode" else tables[name]

    return _BRACES.sub(word, text)


def _set(names: Iterable[str]) -> str:
    return _table(f"['{name}'] = true" for name in names)


def _table(entries: Iterable[str]) -> str:
    return "({" + ", ".join(entries) + "})"

"""Loads the named statements of a dialect from its ``.sql`` files.

A query begins at ``-- name: reserve  event: claim`` and ends before the next; one that writes a state
declares its event (see ``stores/law.py``). Its ``:name`` parameters are turned into
``$1``, ``%s`` and ``?`` once, when a file is loaded; so are the braces, which keep what stands in one
place elsewhere (the states, the columns, the clock) from being written again in SQL. A line ``-- then``
begins what follows a change that cannot give rows back by itself (see ``Query.then``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from ...core.program import Dialect, Program, Query, Statement, Style, Value
from ...core.record import COLUMNS, HEARD_MS, LAST_TIME
from ...core.states import LEASE_END, Mode, State, StateEvent, sources, target
from ...errors import ConfigurationError
from ..law import check, events_of
from ..protocols import MANY

_NAME: Final = re.compile(r"^-- name: (\w+)(?: +event: ([\w, ]+?))?[ \t]*$", re.MULTILINE)
_WRITES: Final = re.compile(
    r"\b(?:insert (?:ignore )?into|delete (?:\w+ )?from) \{keys\}"
    r"(?!(?: select \* from \{keys\})? where 1 = 0)"
    r"|\bset\s(?:(?!\bwhere\b).)*?(?<![\w])(?:\w+\.)?state\s*=",
    re.DOTALL,
)
"""A record appears or goes, or its state is set; not what only asks whether that would be allowed."""
_INSERTS: Final = re.compile(r"\binsert (?:ignore )?into \{keys\}(?! select \* from \{keys\} where 1 = 0)")
_THEN: Final = re.compile(r"^-- then\s*$", re.MULTILINE)
_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)\b")
_BRACES: Final = re.compile(r"\{([a-z_:]+)\}")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

_CLOCK: Final[Mapping[Dialect, str]] = {
    # now() stands still within a transaction and clock_timestamp() cannot use an index.
    "postgres": "coalesce(:now::bigint, (extract(epoch from statement_timestamp()) * 1000)::bigint)",
    # unixepoch('subsec') is NULL before SQLite 3.42.
    "sqlite": "coalesce(:now, cast((julianday('now') - 2440587.5) * 86400000 as integer))",
    # Fixed for a statement, as now() is, and independent of the session's time zone, as unix_timestamp(now())
    # is not in the hour that a clock is put back.
    "mysql": "coalesce(:now, timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000)",
}
_TABLES: Final = ("keys", "inputs", "phases", "jobs", "effects", "made", "audit", "evidence", "limits")
_EVENT: Final = (
    "source",
    "event_id",
    "operation_id",
    "about",
    "provider_id",
    "outcome",
    "says",
    "state",
    "occurred_at",
    "received_at",
    "of_this_life",
)
_DURABLE: Final = (
    "(current_setting('synchronous_commit') <> 'off'"
    " or set_config('synchronous_commit', 'on', true) is not null)"
)

WAITS_MS: Final = 10_000
"""How long a claim may wait at the server before it takes its key. Whoever sent it has gone by then, or asks
again at once; it must be well below ``late.SETTLE``, for which a lost claim is looked for."""
_IN_TIME: Final = (
    "(clock_timestamp() < now() + interval '{ms} milliseconds'"
    " or current_setting('samekey.nested', true) = 'on')"
    " and set_config('lock_timeout', '{ms}', true) is not null"
)
"""While it waits for a lock a server does not look whether anybody is left to answer. A lock on the table is
waited for before the statement begins and after its transaction has; one on a row or a key, inside of it. It
is the server's own clock that counts, whatever others show, and no pooler has to keep a setting."""

SEES_TRIGGERS: Final = "may see triggers"
"""Among the names of what is there: without it nobody can tell whether a trigger is missing on MySQL."""
FEW: Final = 1000
"""Records past retention of which it is looked up whether they must stay."""
_SAME: Final = (
    "case when current_setting('samekey.attempt', true) = :attempt::text then true"
    " else exists (select from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    " and objsubid = 1 and ((classid::bigint << 32) | objid::bigint) = :lock::bigint) end"
)
"""This is still the transaction that took the lock. A setting of the transaction says so; where a handler has
reset all settings, the lock itself does, which only the transaction's end gives back."""


class Queries:
    """The statements of one dialect, by name: ``queries["reserve"](scope=…, key=…)``."""

    def __init__(self, dialect: Dialect, schema: str = "samekey") -> None:
        if not _IDENTIFIER.fullmatch(schema):
            raise ConfigurationError(
                f"{schema!r} cannot be the name of a schema: use letters, digits and underscores."
            )
        self.dialect = dialect
        self.schema = schema
        self._words = _words(dialect, schema)
        self._queries = {name: self.build(name, sql) for name, _, sql in _read(dialect)}
        self.events = {name: events for name, events, _ in _read(dialect) if events}
        """The events of the statements that write a state."""

    @property
    def looks_first(self) -> bool:
        # An insert of SQLite's takes the only write lock that there is, even if it inserts nothing.
        return self.dialect == "sqlite"

    @property
    def notes_along(self) -> bool:
        return False  # it has a table of its own

    @property
    def has_parts(self) -> bool:
        return True

    def operation_id(self, token: str, scope: str, key: str) -> str:
        return token  # an index finds it

    def __getitem__(self, name: str) -> Query:
        return self._queries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._queries)

    def __contains__(self, name: object) -> bool:
        """Whether this dialect needs, and has, a statement of that name."""
        return name in self._queries

    @property
    def names_actor_apart(self) -> bool:
        """Whether who acts is told by statements of their own, around the change, in one transaction."""
        return self.dialect != "postgres"

    def statement(self, query: str, now: int | None, /, **values: Value) -> Statement:
        """A statement with its parameters; ``now`` is for tests, else the store's clock rules."""
        return Statement(self._queries[query], {"now": now, **values})

    def act_as(self, actor: str) -> Program[None]:
        """Who acts from here on, in this transaction, where the statements do not say it themselves."""
        if self.names_actor_apart:
            yield self.statement("act_as", None, actor=actor, reason=None)

    def act_no_more(self) -> Program[None]:
        if self.names_actor_apart:
            yield self.statement("act_end", None)

    def column(self, name: str) -> str:
        """A column's name as this dialect spells it."""
        return _column(self.dialect, name)

    def expand(self, sql: str) -> str:
        """SQL with its braces filled in; parameters stay as they are."""
        return _BRACES.sub(lambda match: self._word(match[1]), sql)

    def build(self, name: str, sql: str) -> Query:
        """A query from SQL as it stands in a file."""
        first, *others = (_without_comments(part) for part in _THEN.split(self.expand(sql)))
        return self._query(name, first, tuple(self._query(name, other) for other in others))

    def _query(self, name: str, text: str, then: tuple[Query, ...] = ()) -> Query:
        return Query(name, text, {style: _render(text, style) for style in _STYLES[self.dialect]}, then)

    def _word(self, word: str) -> str:
        kind, _, event = word.partition(":")
        if kind == "from":
            return _states(StateEvent(event))
        if kind == "actor":
            # Read by the audit's trigger; it costs no statement of its own and ends with the transaction.
            return f"set_config('samekey.actor', '{event}', true) is not null"
        if kind == "to":
            return _to(StateEvent(event))
        return self._words[word]


_STYLES: Final[Mapping[Dialect, tuple[Style, ...]]] = {
    "postgres": ("numeric", "format"),
    "sqlite": ("qmark",),
    "mysql": ("format",),
}


def _to(event: StateEvent) -> str:
    return f"'{target(event)}'"


def _states(event: StateEvent) -> str:
    return ", ".join(f"'{state}'" for state in sources(event))


_OVER: Final = (
    "after_expiry <> 'gone' and (state in ({claim}) or (state in ({expire}) and expires_at <= {now}))"
    " and not {kept}"
)
"""The record's retention is over, nothing of its operation is left, and what follows is not 410."""

_PAST: Final = """past as (
    insert into {made} (operation_id, step, attempt, tenant, source, downstream_key, provider_id)
    select :id::text, m.step, 'past', :tenant::text, m.source, m.downstream_key, m.provider_id
    from former join {made} as m on m.operation_id = former.id
    union
    select
        :id::text, e.step, 'past', :tenant::text, e.source, e.downstream_key,
        coalesce(j.provider_id, e.provider_id)
    from former join {effects} as e on e.operation_id = former.id
    left join {jobs} as j on e.kind = 'job' and j.id = e.place
    where coalesce(j.provider_id, e.provider_id) is not null
    on conflict do nothing
)"""
"""PostgreSQL: what the provider has made for a former life is known as that life's. Whatever takes a former
life away to make room for the next one (``former``) says this; a test reads every statement for it."""

_OPEN_JOB: Final = "j.state in ('live', 'dead')"
"""It is to run, or an operator must see it."""
_OPEN_PHASE: Final = "k.state <> 'completed' and p.kind = 'effect' and p.done = 1"
"""An effect that stands, of an operation that has no answer. One without a result does not keep a key that is
free: only proof that it was not carried out has freed it."""
_OPEN_WORD: Final = (
    "(v.state in ('ambiguous', 'conflict') or (v.state = 'waiting' and k.state <> 'completed'))"
)
"""A provider's word that somebody must see to. One that waits about an answer that stands is no dispute."""


def _kept(dialect: Dialect, tables: Mapping[str, str], table: str) -> str:
    """Something of this operation is left to do, to find out or to be seen: whoever asks, reaper or retry,
    its record stays, its answer with it."""
    # "offset 0": see postgres/upkeep.sql. MySQL would read all jobs first, the records after that.
    head, end = {
        "postgres": ("select", " offset 0"),
        "mysql": ("select /*+ no_semijoin() */ 1", ""),
        "sqlite": ("select 1", ""),
    }[dialect]

    def has(part: str, alias: str, rule: str) -> str:
        rule = rule.replace("k.", f"{table}.")
        its = f"{alias}.operation_id = {table}.id"
        return f"exists ({head} from {tables[part]} as {alias} where {its} and {rule}{end})"

    looks = (has("jobs", "j", _OPEN_JOB), has("phases", "p", _OPEN_PHASE), has("evidence", "v", _OPEN_WORD))
    return f"({' or '.join(looks)})"


def _past_retention(dialect: Dialect, keys: str, *, unless: str = "", first: int = 0) -> str:
    """Every settled record past retention, tombstones too: one look for each index that the reaper goes by,
    since an index of some records leads to them only where their rule is said. ``first``: so many of each."""
    settled = f"k.state in ({_states(StateEvent.EXPIRE)})"
    rules = (
        (f"k.state in ({_states(StateEvent.REAP)})",)  # its index has all records
        if dialect == "mysql"
        else (
            f"{settled} and k.after_expiry = 'new'",
            f"{settled} and k.after_expiry <> 'new'",
            f"k.state = '{State.EXPIRED}'",
        )
    )
    looks = [
        f"select k.id, k.state, k.expires_at from {keys} as k"  # noqa: S608 - words of our own
        f" where {rule} and k.expires_at <= {_CLOCK[dialect]}{unless}"
        for rule in rules
    ]
    if first:
        looks = [f"select * from ({look} order by k.expires_at limit {first}) as oldest" for look in looks]  # noqa: S608
    return " union all ".join(looks)


def _expiry(dialect: Dialect, table: str) -> str:
    """When a record that has its answer now ends: by its own ttl. Counted from creation, that may be over
    already; its client must still be able to hear the answer."""
    latest, earliest = ("max", "min") if dialect == "sqlite" else ("greatest", "least")
    now, ttl = _CLOCK[dialect], f"{table}ttl_ms"
    after = f"{latest}({table}created_at + {ttl}, {now} + {earliest}({ttl}, {HEARD_MS}))"
    return f"case {table}ttl_from when 'creation' then {after} else {now} + {ttl} end"


def _column(dialect: Dialect, name: str) -> str:
    return f"`{name}`" if dialect == "mysql" else name  # "key" is a word of MySQL's own


def _words(dialect: Dialect, schema: str) -> Mapping[str, str]:
    nobodys = "concat(attempt, '-')" if dialect == "mysql" else "attempt || '-'"
    lease_end = " ".join(f"when '{mode}' then '{state}'" for mode, state in LEASE_END.items())
    words = {
        "record": ", ".join(COLUMNS),
        "event": ", ".join(_EVENT),
        "now": _CLOCK[dialect],
        # A provider's yes that waits keeps a key from being free, whatever its mode.
        "lease_end": f"case when disputed = 1 and mode <> 'phased' then {_to(StateEvent.DISPUTE)} else"
        f" case mode {lease_end} end end",
        "swept": ", ".join(f"'{mode}'" for mode in LEASE_END if mode is not Mode.PHASED),
        "durable": _DURABLE,
        "in_time": _IN_TIME.format(ms=WAITS_MS),
        "same": _SAME,
        "expiry": _expiry(dialect, ""),
        "expiry:k": _expiry(dialect, "k."),
        "open:j": _OPEN_JOB,
        "open:p": _OPEN_PHASE,
        "open:v": _OPEN_WORD,
        "for_ever": str(LAST_TIME),
        "few": str(FEW),
        "sees_triggers": SEES_TRIGGERS,
        "many": str(MANY),
        "nobodys": nobodys,
        "noted": f"case when state = '{State.IN_PROGRESS}' then attempt else {nobodys} end",
        "schema": schema,
    }
    if dialect == "postgres":
        # Quoted, so that any case works; schema-qualified, so that no search_path matters.
        quoted = f'"{schema}"'
        tables = {name: f"{quoted}.{name}" for name in _TABLES}
        words |= {"schema": quoted, "versions": f"{quoted}.schema_versions"}
        words["past"] = _PAST.format(**tables)
    else:
        tables = {name: f"samekey_{name}" for name in _TABLES}
        words["versions"] = "samekey_schema_versions"
    if dialect == "mysql":
        words["record"] = ", ".join(_column("mysql", name) for name in COLUMNS)
    kept = _kept(dialect, tables, tables["keys"])
    words["over"] = _OVER.format(
        claim=_states(StateEvent.CLAIM), expire=_states(StateEvent.EXPIRE), now=_CLOCK[dialect], kept=kept
    )
    kept_k = _kept(dialect, tables, "k")
    words["past_retention"] = _past_retention(dialect, tables["keys"])
    words["oldest_past"] = _past_retention(dialect, tables["keys"], first=FEW)
    words["reapable"] = _past_retention(dialect, tables["keys"], unless=f" and not {kept_k}")
    return {**words, **tables, "kept": kept, "kept:k": kept_k}


def _render(sql: str, style: Style) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        name = match[1]
        if style == "numeric":
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        names.append(name)
        return "%s" if style == "format" else "?"

    text = sql.replace("%", "%%") if style == "format" else sql
    return _PARAMETER.sub(placeholder, text), tuple(names)


@cache
def _read(dialect: Dialect) -> tuple[tuple[str, tuple[StateEvent, ...], str], ...]:
    found: list[tuple[str, tuple[StateEvent, ...], str]] = []
    for entry in sorted(files(__package__).joinpath(dialect).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".sql"):
            parts = _NAME.split(entry.read_text("utf-8"))[1:]
            for name, declared, sql in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                events, text = events_of(declared), _without_comments(sql)
                check(
                    name,
                    events,
                    text,
                    writes=_writes(text),
                    inserts=_INSERTS.search(text) is not None,
                    deletes=_writes(text) and "delete" in text and "insert" not in text,
                )
                found.append((name, events, sql.strip()))
    return tuple(found)


def _writes(sql: str) -> bool:
    """Whether a statement writes the state of a record."""
    return "{keys}" in sql and _WRITES.search(sql) is not None


def _without_comments(sql: str) -> str:
    lines = (line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip()


@cache
def queries_for(dialect: Dialect, schema: str = "samekey") -> Queries:
    """The loaded queries, shared: they never change."""
    return Queries(dialect, schema)

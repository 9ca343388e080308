"""What an SQL text does to the transaction and the session on MySQL and MariaDB, as its first words tell.

It looks at what a handler sends, which may hold what a client sent: each character is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

_LOOKED_AT: Final = 5
"""Words: ``create or replace temporary table`` is the longest that decides."""

_ALWAYS: Final = frozenset(
    {
        "alter",
        "cache",
        "change",
        "commit",
        "flush",
        "grant",
        "install",
        "optimize",
        "rename",
        "repair",
        "reset",
        "revoke",
        "stop",
        "truncate",
        "uninstall",
        "unlock",
        "xa",
    }
)
"""What commits whatever follows, or must not be done inside of a transaction at all."""

_WITH: Final = {
    "analyze": frozenset({"table", "tables", "local", "no_write_to_binlog"}),  # not MariaDB's ANALYZE SELECT
    "check": frozenset({"table", "tables", "view"}),
    "load": frozenset({"index"}),  # not LOAD DATA
    "lock": frozenset({"table", "tables", "instance"}),
    "start": frozenset({"transaction", "slave", "replica", "all", "group_replication"}),
}
"""What commits if this follows."""


def ends_transaction(sql: str | bytes) -> bool:
    """Whether this text plainly ends a transaction. What it misses, the proof at the end finds."""
    text = sql if isinstance(sql, str) else bytes(sql).decode("latin-1")
    words = _words(text)
    found = [*islice(words, _LOOKED_AT), "", ""]
    first, others = found[0], found[1:]
    if first in _ALWAYS:
        return True
    if first == "begin":
        return others[0] != "not"  # BEGIN NOT ATOMIC is MariaDB's compound statement
    if first == "rollback":
        return "to" not in others[:2]  # a savepoint is the handler's own
    if first in ("create", "drop"):
        return "temporary" not in others[:3]
    if first == "set":
        return others[0] == "password" or "autocommit" in others or "autocommit" in words
    return others[0] in _WITH.get(first, ())


_PLAIN: Final = frozenset(
    {
        "delete",
        "desc",
        "describe",
        "do",
        "explain",
        "insert",
        "release",
        "replace",
        "rollback",
        "savepoint",
        "select",
        "show",
        "table",
        "update",
        "values",
        "with",
    }
)
"""What leaves nothing in the session that a reset does not take back. No function or trigger can commit."""

_CERTAIN: Final = frozenset({"create", "deallocate", "drop", "handler", "load", "prepare", "use"})
"""What is not that plain and yet, where it is not refused, can end no transaction without showing it."""


def is_plain(sql: str | bytes) -> bool:
    """Whether nothing stays behind. Of anything else, a role say, no reset of the session takes back all."""
    text = sql if isinstance(sql, str) else bytes(sql).decode("latin-1")
    # What stands in a comment for some servers only may be there or not.
    return next(_words(text), "") in _PLAIN and "/*!" not in text and "/*M!" not in text


def may_hide_an_end(sql: str | bytes) -> bool:
    """Whether it may have ended the transaction and begun another: a procedure, a text out of a variable."""
    if is_plain(sql):
        return False
    text = sql if isinstance(sql, str) else bytes(sql).decode("latin-1")
    first, second = [*islice(_words(text), 2), "", ""][:2]
    hidden = "/*!" in text or "/*M!" in text
    return hidden or not (first in _CERTAIN or (first == "set" and second != "statement"))


def _words(text: str) -> Iterator[str]:
    """The words of it, in lower case; without comments, quoted strings, numbers and signs.

    What stands in a comment for servers only (``/*! … */``, ``/*M! … */``) is carried out, so it counts.
    """
    at, end = 0, len(text)
    while at < end:
        here = text[at]
        if here == "#" or (text.startswith("--", at) and text[at + 2 : at + 3] <= " "):
            at = _after(text, "\n", at)
        elif text.startswith(("/*!", "/*M!"), at):
            at = text.index("!", at) + 1
        elif text.startswith("/*", at):
            at = _after(text, "*/", at + 2)
        elif here in "'\"":
            at = _after_quoted(text, at)
        elif here.isalpha() or here in "_$":
            start = at
            while at < end and (text[at].isalnum() or text[at] in "_$"):
                at += 1
            yield text[start:at].lower()
        else:
            at += 1


def _after(text: str, mark: str, at: int) -> int:
    found = text.find(mark, at)
    return len(text) if found < 0 else found + len(mark)


def _after_quoted(text: str, at: int) -> int:
    """After a string. A quote in it is doubled, which reads as two strings, or stands behind a backslash."""
    quote, at = text[at], at + 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return at + 1

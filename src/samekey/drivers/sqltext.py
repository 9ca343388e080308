"""What a text of SQL would do to the transaction that it is sent in, as far as the text itself shows it.

Handlers send texts of their own over a connection that is lent to them. One that would end the transaction is
refused before it is sent; one whose traces no cheap statement can remove is remembered. PostgreSQL's lexical
rules only: no grammar. Its time is linear in the text.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final

from ..errors import CommitRefused

COMMIT_REFUSED: Final = (
    "samekey commits this transaction together with the answer, so the handler must not begin or end one. "
    "Remove the commit or rollback; to undo everything, raise an error; to undo a part, use a savepoint."
)
CLOSE_REFUSED: Final = (
    "This connection is lent to the handler for one operation, and samekey commits this transaction with the "
    "answer. Remove the close: it is given back when the operation ends."
)

_LETTER: Final = r"A-Za-z_\x80-\U0010ffff"
"""To PostgreSQL every character beyond ASCII is a letter."""
_TOKEN: Final = re.compile(rf"--|/\*|'|\"|\$(?:[{_LETTER}][{_LETTER}0-9]*)?\$|[{_LETTER}][{_LETTER}0-9$]*|;")
_END_OF_LINE: Final = re.compile(r"[\n\r]")
_CONTINUED: Final = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*+)*+[\n\r](?:[ \t\f\v\n\r]|--[^\n\r]*+[\n\r])*+'")
"""What stands between two pieces of one string."""
_PLAIN: Final = re.compile(r"\s*(?:select|insert|update|delete|with|savepoint|release)\b", re.IGNORECASE)
"""Statements of kinds that do nothing to the transaction or the session: most of them."""
_CACHED_UP_TO: Final = 2_000


class SideEffect(Enum):
    """What a text does beyond reading and writing rows."""

    NONE = "none"
    TRACES = "traces"
    """It leaves something in the session that is not worth removing: the connection is closed instead."""
    ENDS = "ends"
    """It begins, commits or rolls back a transaction."""


def effect_of(sql: str, *, backslashes: bool = False) -> SideEffect:
    """The strongest effect among the statements of a text.

    ``backslashes``: they escape in every string, as the session was told (standard_conforming_strings).
    """
    if _PLAIN.match(sql) is not None and not _has_second(sql):
        return SideEffect.NONE
    if backslashes:
        found = {_scan(sql, backslashes=True), _scan(sql)}
        return next(
            effect for effect in (SideEffect.ENDS, SideEffect.TRACES, SideEffect.NONE) if effect in found
        )
    return _remembered(sql) if len(sql) <= _CACHED_UP_TO else _scan(sql)


def _has_second(sql: str) -> bool:
    """Whether there may be a second statement."""
    first = sql.find(";")
    return first >= 0 and not sql[first + 1 :].isspace() and first + 1 < len(sql)


def leaves_traces(sql: str, *, backslashes: bool = False) -> bool:
    """Whether nobody else may use the session after this text. ``CommitRefused`` if it must not be sent."""
    effect = effect_of(sql, backslashes=backslashes)
    if effect is SideEffect.ENDS:
        raise CommitRefused(COMMIT_REFUSED)
    return effect is SideEffect.TRACES


def may_change_role(sql: str) -> bool:
    """Whether statements of ours may run with other rights after this text: it names a role, or calls a
    function that may take one (``select app.login($1)``). Where in doubt it may; then one is put back."""
    return _seems_to(sql) if len(sql) <= _CACHED_UP_TO else True


@lru_cache(maxsize=1_000)
def _seems_to(sql: str) -> bool:
    lower = sql.lower()
    called = _CALLED.findall(_FILLED.sub("", lower))
    return "role" in lower or "authorization" in lower or not all(map(_HARMLESS.fullmatch, called))


_FILLED: Final = re.compile(r"\binto\s+[\w.\"]+\s*(?=\()")
_CALLED: Final = re.compile(r"(?<![\w.\"])([\w.\"]+)\s*\(")
_HARMLESS: Final = re.compile(
    r"""all|and|any|array|as|between|by|cast|check|coalesce|conflict|distinct|else|except|exists|extract|filter|
    from|greatest|group|in|insert|intersect|interval|join|key|lateral|least|like|limit|not|nullif|on|or|order|
    over|partition|returning|row|select|set|some|then|union|using|values|when|where|with|within|
    abs|array_agg|avg|ceil|char|char_length|clock_timestamp|concat|concat_ws|count|current_setting|currval|
    date_part|date_trunc|decimal|floor|format|gen_random_uuid|generate_series|json_agg|json_build_object|
    jsonb_agg|jsonb_build_object|jsonb_set|lag|lead|length|lower|make_interval|max|md5|min|mod|nextval|now|
    numeric|octet_length|pg_sleep|position|random|rank|regexp_replace|replace|round|row_number|split_part|
    string_agg|substr|substring|sum|timestamp|to_char|to_json|to_jsonb|to_timestamp|trim|unnest|upper|varchar""",
    re.VERBOSE,
)
"""What may stand before a parenthesis and takes no role: words of the language, and common functions."""


def _scan(sql: str, *, backslashes: bool = False) -> SideEffect:
    found = SideEffect.NONE
    for words in _statements(sql, backslashes):
        effect = _of_statement(words)
        if effect is SideEffect.ENDS:
            return effect
        if effect is SideEffect.TRACES:
            found = effect
    return found


_remembered = lru_cache(maxsize=1_000)(_scan)


def _of_statement(words: list[str]) -> SideEffect:
    """By the first words of a statement; there are always three, maybe empty ones."""
    match words[:3]:
        case ["commit" | "end" | "abort" | "begin", *_]:
            return SideEffect.ENDS
        case ["start" | "prepare", "transaction", *_]:
            return SideEffect.ENDS
        case ["rollback", "to", _] | ["rollback", "work" | "transaction", "to"]:
            return SideEffect.NONE
        case ["rollback", *_]:
            return SideEffect.ENDS
        case ["prepare" | "deallocate" | "discard" | "load" | "listen", *_]:
            return SideEffect.TRACES
        case _:
            return SideEffect.NONE


def _statements(sql: str, backslashes: bool) -> list[list[str]]:
    """The first words of each statement, in lower case."""
    found: list[list[str]] = []
    words: list[str] = []
    position, last, depth = 0, "", 0
    while (token := _TOKEN.search(sql, position)) is not None:
        text, start, position = token.group(), token.start(), token.end()
        if text == "--":
            line = _END_OF_LINE.search(sql, position)
            position = len(sql) if line is None else line.end()
        elif text == "/*":
            position = _after_comment(sql, position)
        elif text == "'":
            escaped = backslashes or (start > 0 and sql[start - 1] in "eE" and last == "e")
            position = _after_escaped(sql, position) if escaped else _after(sql, "'", position)
        elif text == '"' or text[0] == "$":
            position = _after(sql, text, position)
            last = ""
        elif text == ";":
            if depth == 0:
                found.append([*words, "", "", ""])
                words = []
            last = ""
        else:
            word = text.lower()
            if len(words) < 4:
                words.append(word)
            # The body of a function in standard SQL has statements of its own, up to its END.
            if _makes_routine(words) and (depth > 0 or (word == "atomic" and last == "begin")):
                depth += word in ("atomic", "case")
                depth -= word == "end"
            last = word
    found.append([*words, "", "", ""])
    return found


def _makes_routine(words: list[str]) -> bool:
    return words[0] == "create" and ("function" in words or "procedure" in words)


def _after(sql: str, end: str, position: int) -> int:
    found = sql.find(end, position)
    return len(sql) if found < 0 else found + len(end)


_ESCAPED: Final = re.compile(r"[\\']")


def _after_escaped(sql: str, position: int) -> int:
    """The end of a string in which a backslash escapes, with all its pieces."""
    while (found := _ESCAPED.search(sql, position)) is not None:
        if found.group() == "'":
            more = _CONTINUED.match(sql, found.end())
            if more is None:
                return found.end()
            position = more.end()
            continue
        position = found.end() + 1
    return len(sql)


_COMMENT: Final = re.compile(r"/\*|\*/")


def _after_comment(sql: str, position: int) -> int:
    """The end of a block comment; they nest."""
    depth = 1
    while (found := _COMMENT.search(sql, position)) is not None:
        position = found.end()
        depth += 1 if found.group() == "/*" else -1
        if depth == 0:
            return position
    return len(sql)

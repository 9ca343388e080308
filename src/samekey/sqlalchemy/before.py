"""What a session may have done before the claim of an operation that it joins.

The transaction of that time ends where the session joins. A plain read loses nothing by that; a lock, a
setting or a row would be lost, and nobody told.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy.orm import FromStatement
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import ColumnClause
from sqlalchemy.sql.expression import SelectBase, TextClause
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import GenerativeSelect

_BEGINS: Final = re.compile(r"[\s(]*(?:select|with)\b", re.IGNORECASE)
_COMMENTS: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'")
_DOES_MORE: Final = re.compile(
    r"\b(?:insert|update|delete|merge|replace|truncate|into|lock|for\s+(?:no\s+key\s+|key\s+)?(?:update|share))\b|;\s*\S",
    re.IGNORECASE,
)
_CALLED: Final = re.compile(r"\b(\w+)\"?\s*\(")

_FUNCTIONS: Final = (
    "abs array_agg avg cast ceil char_length coalesce concat convert count cube cume_dist current_date "
    "current_setting current_time current_timestamp current_user date date_part date_trunc datetime "
    "dense_rank extract first_value floor format greatest group_concat grouping_sets ifnull json_agg "
    "json_build_object json_extract json_object jsonb_agg jsonb_build_object julianday lag last_value lead "
    "least left length localtime localtimestamp lower lpad ltrim max min mod mode now nullif octet_length "
    "percent_rank percentile_cont percentile_disc position power rank replace right rollup round row_number "
    "rpad rtrim session_user strftime string_agg strpos substr substring sum sysdate time to_char to_date "
    "to_timestamp total trim typeof unnest upper user utc_timestamp version"
)
_WORDS: Final = (
    "all and any as between by case char decimal distinct else end exists filter from group having in inner "
    "intersect interval is join lateral like limit materialized not numeric offset on or order outer over "
    "partition row select some then timestamp union using values varchar when where with within except"
)
_HARMLESS: Final = frozenset(f"{_FUNCTIONS} {_WORDS}".split())
"""What may stand before a bracket. Any other function may take a lock, or set something."""


def only_reads(clause: Any) -> bool:
    """Whether nothing is lost when the transaction of this statement ends, for all that it shows."""
    if isinstance(clause, FromStatement):
        clause = clause.element
    if isinstance(clause, TextClause):
        return _text_only_reads(clause.text)
    if not isinstance(clause, (SelectBase, FunctionElement)):
        return False
    return all(_is_harmless(part) for part in visitors.iterate(clause))


def _is_harmless(part: Any) -> bool:
    if isinstance(part, GenerativeSelect) and part._for_update_arg is not None:
        return False
    if isinstance(part, FunctionElement):
        return getattr(part, "name", "").lower() in _HARMLESS
    if isinstance(part, TextClause):
        return calls_nothing_else(part.text)
    if isinstance(part, ColumnClause) and part.is_literal:
        return calls_nothing_else(part.name)
    return not getattr(part, "is_dml", False)


def without_comments(text: str) -> str:
    return _COMMENTS.sub(" ", text)


def _text_only_reads(text: str) -> bool:
    said = without_comments(text)
    return _BEGINS.match(said) is not None and calls_nothing_else(said)


def calls_nothing_else(text: str) -> bool:
    """Whether a text has no word that writes or locks, and calls no function that may."""
    said = _QUOTED.sub("''", without_comments(text))
    return _DOES_MORE.search(said) is None and all(
        called.lower() in _HARMLESS for called in _CALLED.findall(said)
    )

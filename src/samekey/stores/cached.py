"""Which database a store is, for a cache that may stand in front of several.

Copies of two databases must never meet under one name. A URL does not tell databases apart: one has many (a
pooler, an alias, the other host after a failover), and two servers may each have a database ``app``. So the
database is asked: its name, and when its tables were made, which a standby and a failover keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..core.program import Statement
from .sql.queries import Queries

_IDENTITY: Final[Mapping[str, str]] = {
    "postgres": (
        "select current_database()::text, (extract(epoch from min(applied_at)) * 1000000)::bigint"
        " from {versions}"
    ),
    "mysql": "select database(), cast(unix_timestamp(min(applied_at)) as signed) from {versions}",
    "sqlite": (
        "select (select file from pragma_database_list where name = 'main'), min(applied_at) from {versions}"
    ),
}


def identity(queries: Queries) -> Statement:
    """A statement whose one row names the database: its name and when its tables were made."""
    return queries.build("identity", _IDENTITY[queries.dialect])()

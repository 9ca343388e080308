"""URLs of SQLAlchemy's kind, read as ours: ``postgresql+asyncpg://…``, ``sqlite+aiosqlite:///app.db``.

Which driver a URL names after the plus is the application's business: samekey has drivers of its own.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

_DRIVERS: Final = {
    "postgresql": frozenset({"asyncpg", "psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "pg8000"}),
    "mysql": frozenset({"pymysql", "aiomysql", "asyncmy", "mysqldb", "mysqlconnector"}),
    "sqlite": frozenset({"pysqlite", "aiosqlite"}),
}
_DATABASES: Final = {"postgres": "postgresql", "mariadb": "mysql"}

_TLS: Final = frozenset({"disable", "allow", "prefer", "require", "verify-ca", "verify-full"})
_THEIRS: Final = {
    "postgresql": frozenset(
        {"prepared_statement_cache_size", "prepared_statement_name_func", "statement_cache_size"}
    ),
    "mysql": frozenset({"charset", "use_unicode", "binary_prefix", "autocommit"}),
    "sqlite": frozenset({"check_same_thread", "timeout", "isolation_level", "cached_statements"}),
}
"""Options of a URL that say how the application's own driver works, and nothing of the database."""


def plain_url(url: str) -> str:
    """The same database without the driver; any other URL as it is."""
    scheme, colon, rest = url.partition(":")
    name, plus, driver = scheme.lower().partition("+")
    database = _DATABASES.get(name, name)
    if not plus or driver not in _DRIVERS.get(database, ()):
        return url
    parts = urlsplit(f"{database}{colon}{rest}")
    options = [
        # asyncpg spells it otherwise
        ("sslmode" if option == "ssl" and value in _TLS else option, value)
        for option, value in parse_qsl(parts.query, keep_blank_values=True)
        if option not in _THEIRS[database]
    ]
    if database == "sqlite" and parts.path in ("", "/"):
        return "sqlite:///:memory:"
    # By hand: urlunsplit would lose the slashes of sqlite:///app.db.
    query = f"?{urlencode(options)}" if options else ""
    return f"{database}://{parts.netloc}{parts.path}{query}"

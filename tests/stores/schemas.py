"""What a schema looks like from outside, so that two ways to make one can be compared."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg

COLUMNS = """
    select table_name, ordinal_position, column_name, data_type, is_nullable, column_default,
        collation_name
    from information_schema.columns where table_schema = %s order by 1, 2
"""
INDEXES = "select tablename, indexname, indexdef from pg_indexes where schemaname = %s order by 1, 2"
CONSTRAINTS = """
    select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
    where connamespace = %s::regnamespace order by 1, 2
"""


def execute(url: str, sql: str, parameters: Any = None) -> list[Any]:
    """SQL as any other tool would run it."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection, connection:
            return connection.execute(sql, parameters or ()).fetchall()
    with psycopg.connect(url, autocommit=True) as server:
        cursor = server.execute(sql.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def execute_script(url: str, script: str) -> None:
    """Many statements at once, as psql and the sqlite3 shell do."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
            connection.executescript(script)
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(script.encode())


def describe(url: str, schema: str = "samekey") -> dict[str, list[Any]]:
    """Every table, column, index and constraint, and which versions are noted."""
    if url.startswith("sqlite"):
        return {
            "tables": execute(url, "select type, name, tbl_name, sql from sqlite_master order by 1, 2"),
            "versions": execute(url, "select version, min_compatible from samekey_schema_versions"),
        }
    versions = f'select version, min_compatible from "{schema}".schema_versions order by 1'
    return {
        "columns": execute(url, COLUMNS, [schema]),
        "indexes": execute(url, INDEXES, [schema]),
        "constraints": execute(url, CONSTRAINTS, [f'"{schema}"']),
        "versions": execute(url, versions),
    }

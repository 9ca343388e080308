"""What a schema looks like from outside, so that two ways to make one can be compared."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg

from lab.servers.mariadb import connected

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
MYSQL = {
    "columns": """
        select table_name, ordinal_position, column_name, column_type, is_nullable, column_default,
            collation_name
        from information_schema.columns where table_schema = database() order by 1, 2
    """,
    "indexes": """
        select table_name, index_name, seq_in_index, column_name, non_unique
        from information_schema.statistics where table_schema = database() order by 1, 2, 3
    """,
    "triggers": """
        select trigger_name, event_manipulation, action_timing, action_statement
        from information_schema.triggers where trigger_schema = database() order by 1
    """,
    "versions": "select version, min_compatible from samekey_schema_versions order by 1",
}


def execute(url: str, sql: str, parameters: Any = None) -> list[Any]:
    """SQL as any other tool would run it."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection, connection:
            return connection.execute(sql, parameters or ()).fetchall()
    if url.startswith("mysql"):
        with connected(url) as there, there.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())
    with psycopg.connect(url, autocommit=True) as server:
        cursor = server.execute(sql.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def execute_script(url: str, script: str) -> None:
    """Many statements at once, as psql and the sqlite3 shell do."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
            connection.executescript(script)
    elif url.startswith("mysql"):
        _with_client(url, script)
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(script.encode())


def _with_client(url: str, script: str) -> None:
    """Through the client program: it has its own idea of where a statement ends."""
    parts = urlsplit(url)
    client = shutil.which("mariadb") or shutil.which("mysql")
    assert client is not None, "the client comes with the server"
    subprocess.run(
        [
            client,
            "--no-defaults",
            "--protocol=tcp",
            f"--host={parts.hostname}",
            f"--port={parts.port}",
            f"--user={parts.username}",
            parts.path.lstrip("/"),
        ],
        input=script,
        text=True,
        check=True,
        timeout=60,
    )


def describe(url: str, schema: str = "samekey") -> dict[str, list[Any]]:
    """Every table, column, index and constraint, and which versions are noted."""
    if url.startswith("sqlite"):
        return {
            "tables": execute(url, "select type, name, tbl_name, sql from sqlite_master order by 1, 2"),
            "versions": execute(url, "select version, min_compatible from samekey_schema_versions"),
        }
    if url.startswith("mysql"):
        return {name: execute(url, sql) for name, sql in MYSQL.items()}
    versions = f'select version, min_compatible from "{schema}".schema_versions order by 1'
    return {
        "columns": execute(url, COLUMNS, [schema]),
        "indexes": execute(url, INDEXES, [schema]),
        "constraints": execute(url, CONSTRAINTS, [f'"{schema}"']),
        "versions": execute(url, versions),
    }

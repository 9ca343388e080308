"""``samekey migrate URL``: create the tables, or bring them up to date."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

from ..drivers.run import run
from ..drivers.url import Drivers, drivers_for
from ..engine.migrating import WAIT, migrate_patiently
from ..engine.store import open_store
from ..errors import SamekeyError
from ..stores.dynamodb import table
from ..stores.dynamodb.statements import DynamoStatements
from ..stores.sql.migrations import Migration, check, code_version, migrate, script
from ..stores.sql.queries import Queries, queries_for
from .options import STORE_URL
from .speech import complain, pour, say
from .target import application, is_application


def migrate_command(
    url: Annotated[str | None, typer.Argument(envvar="SAMEKEY_URL", help=STORE_URL, metavar="[URL]")] = None,
    also_url: Annotated[
        str | None, typer.Option("--url", envvar="SAMEKEY_URL", help="The same, as other commands take it.")
    ] = None,
    schema: Annotated[
        str, typer.Option(envvar="SAMEKEY_SCHEMA", help="The PostgreSQL schema that holds the tables.")
    ] = "samekey",
    print_sql: Annotated[
        bool,
        typer.Option(
            "--print-sql",
            envvar="SAMEKEY_PRINT_SQL",
            help="Print the SQL and change nothing: for Alembic or Flyway.",
        ),
    ] = False,
    check_only: Annotated[
        bool,
        typer.Option(
            "--check", envvar="SAMEKEY_CHECK", help="Change nothing; fail if the tables do not fit."
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_MIGRATE_WAIT",
            min=0,
            help="Seconds to wait for whoever holds the tables. Traffic goes on meanwhile.",
        ),
    ] = WAIT,
) -> None:
    """Create samekey's tables, or bring them up to date. Safe to run twice, and two at once."""
    store = url or also_url
    if store is None:
        raise typer.BadParameter("which store? Give its URL, or your Idempotency as module:name.")
    try:
        if is_application(store):
            idempotency = application(store)
            store, schema = idempotency.engine.url, idempotency.engine.queries.schema
        _migrate(store, schema, print_sql=print_sql, check_only=check_only, wait=wait)
    except SamekeyError as error:
        complain(error)
        raise typer.Exit(1) from None


def _migrate(url: str, schema: str, *, print_sql: bool, check_only: bool, wait: float) -> None:
    drivers = drivers_for(url)
    if drivers.dialect == "redis":
        _nothing_to_migrate(url)
        return
    if drivers.dialect == "dynamodb":
        _migrate_dynamodb(drivers, url, print_definition=print_sql, check_only=check_only)
        return
    queries = queries_for(drivers.dialect, schema)
    if print_sql:
        pour(script(queries))
        return
    try:
        if not check_only:
            for migration in _apply(drivers, url, queries, wait):
                say(f"applied {migration.version:04d} {migration.name}")
        run(drivers.sync, lambda: check(queries))
        say(f"The tables have version {code_version(drivers.dialect)}.")
    finally:
        drivers.sync.close()


def _apply(drivers: Drivers, url: str, queries: Queries, wait: float) -> list[Migration]:
    if drivers.dialect == "sqlite":
        return run(drivers.sync, lambda: migrate(queries))
    return migrate_patiently(url, queries, wait=wait, tell=complain)


def _migrate_dynamodb(drivers: Drivers, url: str, *, print_definition: bool, check_only: bool) -> None:
    if print_definition:
        pour(table.as_json(urlsplit(url).path.removeprefix("/")))
        return
    statements = DynamoStatements()
    try:
        if not check_only:
            for done in run(drivers.sync, lambda: table.migrate(statements)):
                say(done)
        for sentence in run(drivers.sync, lambda: table.check(statements)):
            complain(sentence)
        say("The table is as it must be.")
    finally:
        drivers.sync.close()


def _nothing_to_migrate(url: str) -> None:
    """The server is looked at all the same: that is what a deployment runs this command for."""
    store = open_store(url)
    try:
        run(store.drivers.sync, store.check)
        say(f"{store.name} has no tables: there is nothing to migrate. The server can be used.")
    finally:
        store.drivers.sync.close()

"""What empties the tables of an alias empties samekey's with them: ``manage.py flush``, and every test case
that flushes, with ``serialized_rollback`` and ``available_apps`` too.

Its models are unmanaged, so Django leaves them alone. But a key whose rows are gone would be answered as if
they were there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction

from ..core.program import Program, Statement
from ..drivers.run import run_in
from ..errors import SamekeyError
from ..stores.sql.queries import Queries
from ..testing.kit_store import empty
from . import conf
from .schema import OnDjango


def flush_with(connection: Any, **_: Any) -> None:
    """Receives ``connection_created``: each thread's connection has operations of its own."""
    operations = connection.ops
    if "execute_sql_flush" in vars(operations):
        return
    execute = operations.execute_sql_flush

    def execute_sql_flush(statements: Sequence[str]) -> None:
        atomic = transaction.atomic(using=connection.alias, savepoint=connection.features.can_rollback_ddl)
        with atomic:
            execute(statements)
            _empty_ours(connection)

    operations.execute_sql_flush = execute_sql_flush


def _empty_ours(connection: Any) -> None:
    try:
        is_ours = conf.read().alias == connection.alias
    except SamekeyError:
        return  # a check says what is wrong with the settings; nobody has made tables with them
    if is_ours:
        session: Any = OnDjango(connection)
        run_in(session, _emptied(conf.the_idempotency().engine.queries))


def _emptied(queries: Queries) -> Program[None]:
    rows = yield Statement(queries["schema_exists"], {"schema_name": queries.schema})
    if rows[0][0]:
        yield from empty(queries)

"""The tables, made by Django's ``migrate``: samekey's own migrations on the schema editor's connection."""

from __future__ import annotations

from typing import Any

from ..drivers.run import run_in
from ..engine.engine import Engine
from ..stores.sql.migrations import migrate
from .conf import read, the_idempotency


def apply(apps: Any, editor: Any) -> None:
    """Brings the schema up to the version of this code, in the migration's own transaction."""
    alias = read().alias
    if alias is None or editor.connection.alias != alias:
        return
    engine: Engine = the_idempotency().engine
    session: Any = OnDjango(editor.connection)
    run_in(session, migrate(engine.queries))


class OnDjango:
    """A connection of Django's in a transaction, as a session that is not ours to end."""

    def __init__(self, wrapper: Any) -> None:
        self.connection = wrapper

    def execute(self, statement: Any) -> Any:
        from .driver import execute_on

        return execute_on(self.connection, statement)

"""An Engine or AsyncEngine in the place of a URL: what can carry samekey, and what is refused at start-up.

samekey connects by itself, to the database that the engine's URL names, and makes its connections what those
of the engine's pool are: the same listeners run on them. It does not take connections from that pool. A
request often holds one already when its handler is reached (it has looked up who calls); to wait for a second
one of the same pool while holding the first is how a pool comes to a standstill.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util import greenlet_spawn

from ..drivers.mysql.url import FOUND_ROWS
from ..drivers.url_kinds import plain_url
from ..engine.within import SharedTransaction
from ..errors import ConfigurationError, ConnectionLost, SamekeyError, StoreError
from .lent import adapted_asyncpg
from .past import watch

_DRIVERS: Final = {
    ("postgresql", False): ("psycopg",),
    ("postgresql", True): ("asyncpg",),
    ("mysql", False): ("pymysql",),
    ("mysql", True): ("asyncmy",),
    ("mariadb", False): ("pymysql",),
    ("mariadb", True): ("asyncmy",),
    ("sqlite", False): ("pysqlite",),
    ("sqlite", True): ("aiosqlite",),
}
"""By database, and whether the engine is async: SQLAlchemy's dialects that speak with connections of ours."""

_LEVELS: Final = {
    "postgresql": "READ COMMITTED",
    "mysql": "READ COMMITTED",
    "mariadb": "READ COMMITTED",
    "sqlite": "SERIALIZABLE",
}
"""Of samekey's transactions."""

_OURS_TO_SAY: Final = frozenset(
    {
        "application_name",
        "autocommit",
        "cached_statements",
        "charset",
        "check_same_thread",
        "command_timeout",
        "connect_timeout",
        "isolation_level",
        "prepare_threshold",
        "prepared_statement_cache_size",
        "prepared_statement_name_func",
        "read_timeout",
        "statement_cache_size",
        "timeout",
        "write_timeout",
    }
)
"""Arguments of a connect that say how a driver works, and nothing of where or as whom."""


class EngineBinding:
    """What samekey knows of the engine that it was given."""

    def __init__(self, given: object) -> None:
        self.is_async = isinstance(given, AsyncEngine)
        if isinstance(given, AsyncEngine):
            self.engine: Engine = given.sync_engine
        elif isinstance(given, Engine):
            self.engine = given
        else:
            raise ConfigurationError(
                "Idempotency takes a URL, or an Engine or AsyncEngine of SQLAlchemy's. This is a "
                f"{type(given).__name__}. (The engine of a session is session.get_bind().)"
            )
        self.given = given
        self.database = self.engine.dialect.name
        self._check_driver()
        self._check_isolation()
        self._check_arguments()
        self.url = plain_url(self.engine.url.render_as_string(hide_password=False))
        watch(self.engine)
        self.counts_found_rows = bool(self._own_arguments().get("client_flag", 0) & FOUND_ROWS)
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        """Connections on which every listener has run."""

    def _own_arguments(self) -> Mapping[str, Any]:
        """What the dialect connects with, whatever the URL says."""
        return self.engine.dialect.create_connect_args(self.engine.url)[1]

    def _check_driver(self) -> None:
        dialect = self.engine.dialect
        usable = _DRIVERS.get((dialect.name, self.is_async))
        kind = "AsyncEngine" if self.is_async else "Engine"
        if usable is None:
            raise ConfigurationError(
                f"samekey has no store on {dialect.name}: Idempotency takes an {kind} of PostgreSQL, MySQL, "
                "MariaDB or SQLite."
            )
        if dialect.driver not in usable:
            kinds = " or ".join(f"{dialect.name}+{one}://" for one in usable)
            raise ConfigurationError(
                f"samekey cannot lend its transactions to {dialect.name}+{dialect.driver}: make the {kind} "
                f"with {kinds}."
            )
        if dialect.name == "sqlite" and self.engine.url.database in (None, "", ":memory:"):
            raise ConfigurationError(
                "An SQLite database in memory belongs to the one connection that made it, so an operation "
                "could not see your tables. Give the engine a file: sqlite:///app.db."
            )
        if "uri" in self.engine.url.query or str(self.engine.url.database).startswith("file:"):
            raise ConfigurationError(
                "samekey takes the path of an SQLite file and no file: URI. Write sqlite:///app.db."
            )

    def _check_isolation(self) -> None:
        dialect: Any = self.engine.dialect
        declared = (
            getattr(dialect, "_on_connect_isolation_level", None),
            self.engine.get_execution_options().get("isolation_level"),
        )
        for level in declared:
            said = str(level or "").upper().replace("_", " ")
            if said == "AUTOCOMMIT":
                raise ConfigurationError(
                    "This engine is in AUTOCOMMIT: what its sessions write stands at once, so nothing could "
                    "commit together with an answer. Give Idempotency an engine without it, and keep this "
                    'one for what needs it (engine.execution_options(isolation_level="AUTOCOMMIT")).'
                )
            if said and said != _LEVELS[self.database]:
                raise ConfigurationError(
                    f"This engine's isolation level is {said}, and samekey's transactions on {self.database} "
                    f"are {_LEVELS[self.database]}: your handlers would run with less "
                    "than they were declared for. Give Idempotency an engine without isolation_level."
                )

    def _check_arguments(self) -> None:
        """What stands in connect_args and not in the URL would be there for some connections only."""
        creator = self.engine.pool._creator
        known = inspect.getclosurevars(creator).nonlocals if inspect.isfunction(creator) else {}
        dialect: Any = self.engine.dialect
        if "cparams" not in known or (dialect._has_events and list(dialect.dispatch.do_connect)):
            raise ConfigurationError(
                "This engine connects by a function of your own (creator, do_connect or pool), which samekey "
                "cannot call for each of its drivers. Give Idempotency an engine that connects by its URL."
            )
        _, by_url = dialect.create_connect_args(self.engine.url)
        more = {name for name, value in known["cparams"].items() if by_url.get(name, _NOTHING) != value}
        # What create_engine's own options make of it; the adapters of psycopg's connections we do carry over.
        _, usual = type(dialect)(dbapi=dialect.dbapi).create_connect_args(self.engine.url)
        more |= {name for name, value in by_url.items() if usual.get(name, _NOTHING) != value} - {"context"}
        unseen = sorted(more - _OURS_TO_SAY)
        if unseen:
            raise ConfigurationError(
                f"This engine has connect_args that its URL does not say: {', '.join(unseen)}. samekey "
                "connects by the URL and would not have them. Put them into the URL's query "
                "(?sslmode=verify-full&sslrootcert=… on PostgreSQL, ?ssl_ca=… on MySQL), or let a "
                'listener on the engine\'s "connect" event set them.'
            )

    # What samekey's own connections are made to be

    def ready(self, connection: Any) -> None:
        """Every listener of the engine's pool for a new connection; for one that is used again, whose session
        was reset in between, the user's own once more."""
        if not (self.is_async and self.database == "postgresql"):  # there sessions are lent asyncpg's
            self._listen(connection, connection)

    async def ready_async(self, connection: Any) -> None:
        """The same for asyncpg, whose listeners are given what SQLAlchemy makes of it."""
        if not self.is_async or not self._wanted(connection):
            return
        adapted = adapted_asyncpg(self.engine, connection)
        await greenlet_spawn(self._listen, connection, adapted)

    def _wanted(self, connection: Any) -> bool:
        return connection not in self._known or bool(self._users())

    def _users(self) -> list[Callable[..., Any]]:
        return [one for one in self.engine.pool.dispatch.connect if not _is_sqlalchemys(one)]

    def _listen(self, connection: Any, adapted: Any) -> None:
        if not self._wanted(connection):
            return
        new = connection not in self._known
        adapters = self._own_arguments().get("context") if new else None
        if adapters is not None:
            # psycopg's: json_serializer, json_deserializer, native_inet_types. No listener brings them, since
            # SQLAlchemy hands them to psycopg.connect(). Our own statements go by adapters of their own.
            connection._adapters = type(adapters)(adapters)
        listeners = list(self.engine.pool.dispatch.connect) if new else self._users()
        entry = _Entry(adapted)
        try:
            for listener in listeners:
                listener(adapted, entry)
            if adapted is not connection:
                adapted.commit()  # the adapter begins by itself: what was set shall stay
        except SamekeyError:
            raise
        except Exception as error:
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                raise ConnectionLost(f"The connection was lost while it was made ready: {error}") from error
            raise StoreError(
                f"A listener of the engine's \"connect\" event failed on a connection of samekey's, so "
                f"nothing was run: {error}"
            ) from error
        self._known.add(connection)

    # What it is used for

    def must_fit(self, function: Callable[..., Any]) -> None:
        is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        if is_async and not self.is_async:
            raise ConfigurationError(
                f"{_name(function)} is async, and Idempotency was given an Engine, whose sessions would "
                "block the event loop. Declare it with def, or give Idempotency an AsyncEngine "
                "(create_async_engine)."
            )
        if self.is_async and not is_async:
            raise ConfigurationError(
                f"{_name(function)} is not async (under WSGI none can be), and Idempotency was given an "
                "AsyncEngine, whose sessions must be awaited. Declare it with async def, or give "
                "Idempotency an Engine (create_engine)."
            )

    def session(self, transaction: SharedTransaction) -> Any:
        from .session import AsyncSession, Session

        if isinstance(self.given, AsyncEngine):
            return AsyncSession(self.given, expire_on_commit=False)
        return Session(self.engine)


class _Entry(ConnectionPoolEntry):
    """What a listener is given with a connection that is in no pool of SQLAlchemy's."""

    def __init__(self, adapted: Any) -> None:
        self.dbapi_connection = adapted
        self.info: dict[Any, Any] = {}
        self.record_info: dict[Any, Any] = {}

    @property
    def driver_connection(self) -> Any:  # type: ignore[override] # as SQLAlchemy's own have it
        return getattr(self.dbapi_connection, "driver_connection", self.dbapi_connection)

    @property
    def in_use(self) -> bool:
        return True

    def close(self) -> None:
        raise ConfigurationError("This connection is samekey's: a listener must not close it.")


_NOTHING: Final = object()


def _is_sqlalchemys(listener: Any) -> bool:
    return str(getattr(listener, "__module__", "")).partition(".")[0] == "sqlalchemy"


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))

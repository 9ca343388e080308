"""PostgreSQL for sync code, through psycopg 3.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import psycopg.conninfo
from psycopg.pq import TransactionStatus

from ...core.program import Row, Statement
from ...errors import ConnectionLost, ReadOnlyStore, StoreUnavailable
from ..pool import Pool
from ..protocol import LATE, SHORT, Ready
from ..spelled import Prepared
from .psycopg_session import BoundedConnection, Connection, PsycopgSession, bounded, execute, usable
from .sqlstate import OLDEST_SERVER, is_standby, servers_of, too_old, unreachable


class PsycopgDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for one statement of ours.

    ``beside``: closes what async code has opened, maybe in an event loop that is gone. It goes with ours.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        timeout: float = 5.0,
        prepared_statements: bool = True,
        beside: Callable[[], None] = lambda: None,
        ready: Ready | None = None,
    ) -> None:
        self._url = url
        self._ready = ready
        self._beside = beside
        self._servers = servers_of(url)
        self._prepared = Prepared()
        self._prepare = 5 if prepared_statements else None
        self._timeout = timeout
        self._statements = self._pool(pool_size)
        self._operations = self._pool(pool_size)

    def execute(self, statement: Statement) -> Sequence[Row]:
        connection = self._statements.take()
        try:
            return execute(connection, statement, self._timeout)
        except (ConnectionLost, ReadOnlyStore) as error:
            # Its siblings died of the same cause, or are connected to the same standby.
            self._statements.drop_idle()
            if isinstance(error, ReadOnlyStore):
                connection.close()
            raise
        finally:
            self._statements.give_back(connection)

    def open(self, connection: Any = None) -> PsycopgSession:
        late, short = self._prepared if connection is LATE else None, connection is SHORT
        if connection is not None and late is None and not short:
            return PsycopgSession(connection, pool=None, bound=self._timeout)
        try:
            return self._open(late, short)
        except ConnectionLost:
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            self._operations.drop_idle()
            return self._open(late, short)

    def _open(self, late: Prepared | None, short: bool) -> PsycopgSession:
        held, pool, bound = self._take(), self._operations, self._timeout
        try:
            return PsycopgSession(held, pool=pool, bound=bound, late=late, short=short, another=self._take)
        except BaseException:
            pool.give_back(held)
            raise

    def _take(self) -> Connection:
        held = self._operations.take()
        try:
            if self._ready is not None:
                with bounded(held, self._timeout):
                    self._ready.ready(held)
                    _set_back(held)
        except BaseException:
            self._operations.give_back(held)
            raise
        return held

    def close(self) -> None:
        self._statements.close()
        self._operations.close()
        self._beside()

    def _pool(self, size: int) -> Pool[Connection]:
        return Pool(
            self._connect,
            psycopg.Connection.close,
            size=size,
            keep=size,
            timeout=self._timeout,
            usable=usable,
        )

    def _connect(self) -> Connection:
        """A connection to the first server that can be written to; who was that last is asked first."""
        failed: StoreUnavailable | None = None
        for server in list(self._servers):
            settings: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(self._url, **server)
            settings.setdefault("connect_timeout", max(2, round(self._timeout)))
            # A peer that vanished without a word is noticed by the kernel.
            settings.setdefault("tcp_user_timeout", round(self._timeout * 1000))
            try:
                connection = BoundedConnection.connect(
                    psycopg.conninfo.make_conninfo(**settings), autocommit=True
                )
                self._set_up(connection)
            except psycopg.Error as error:
                # Not a lost connection: there was none, and trying again at once would only take longer.
                failed = unreachable(error.sqlstate, str(error))
                failed.__cause__ = error
            except StoreUnavailable as error:
                failed = error
            else:
                self._servers = sorted(self._servers, key=lambda other: other is not server)
                return connection
        assert failed is not None
        raise failed

    def _set_up(self, connection: BoundedConnection) -> None:
        """Refuses a server that cannot carry us, and finds out whether statements may be prepared on it."""
        try:
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED

    def _check(self, connection: BoundedConnection) -> None:
        version = connection.info.server_version
        if version < OLDEST_SERVER * 10_000:
            raise too_old(f"{version // 10_000}.{version % 10_000}")
        connection.prepare_threshold = connection.usual_threshold = None
        with bounded(connection, self._timeout):
            if connection.info.parameter_status("in_hot_standby") == "on":
                # A pooler may remember this from before the standby was promoted.
                row = connection.execute("select pg_is_in_recovery()").fetchone()
                if row is not None and row[0]:
                    raise is_standby()
            if self._prepare is not None:
                # Prepared statements belong to a server's session, and a pooler may change that under us:
                # then the name of one of ours may stand for a statement of somebody else's.
                row = connection.execute("select pg_backend_pid()").fetchone()
                if row is not None and row[0] == connection.info.backend_pid:
                    connection.prepare_threshold = connection.usual_threshold = self._prepare


def _set_back(connection: Connection) -> None:
    """Whatever was set on it: our transactions are begun by us."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        connection.commit()
    if not connection.autocommit:
        connection.autocommit = True
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED

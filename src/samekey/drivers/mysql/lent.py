"""What a sync handler is lent on MySQL: a PyMySQL connection that is cut when the operation ends.

The connection of the pool is never in a handler's hands. A handler gets an object of its own that speaks on
the same wire, and at the end the wire goes back: what the handler still holds then speaks to nobody, and what
it set on the object (converters, cursor classes, a character set) meets nobody.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

from pymysql.connections import Connection as PlainConnection  # type: ignore[import-untyped]
from pymysql.constants import CLIENT  # type: ignore[import-untyped]
from pymysql.cursors import Cursor  # type: ignore[import-untyped]
from pymysql.err import Error, OperationalError  # type: ignore[import-untyped]

from ...errors import CommitRefused, OperationOver
from ..loan import Loan
from .errors import AUTH_PLUGIN_ERROR, SSL_CONNECTION_ERROR
from .text import ends_transaction, is_plain, may_hide_an_end
from .url import COMMIT_REFUSED, unverified_tls
from .watched import Watched

_IN_CLEAR: Final = (b"mysql_clear_password", b"dialog")
"""Ways of logging in that send the password as it is. Whoever answers the connection may ask for them."""

_CHANGES: Final = re.compile(rb"\s*(?:insert|replace|update|delete)\b", re.IGNORECASE)
_WIRE: Final = ("_sock", "_rfile", "_next_seq_id", "_current_timeout", "_closed", "server_status")


class OurConnection(PlainConnection):  # type: ignore[misc]
    """A connection of ours. It counts what was written on it."""

    written = 0

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        # PyMySQL's own reads all of the machine's certificates for every connection, and then checks none.
        return sslp or unverified_tls()

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        if plugin_name in _IN_CLEAR and not self._knows_whom_it_talks_to():
            raise OperationalError(
                AUTH_PLUGIN_ERROR,
                "the server asks for the password in clear, and nothing proves that it is the right one",
            )
        return super()._process_auth(plugin_name, auth_packet, handler)

    def _knows_whom_it_talks_to(self) -> bool:
        """A socket of this machine, or TLS with a certificate that was checked."""
        if self.unix_socket:
            return True
        return bool(self._secure) and self.ctx.verify_mode is ssl.CERT_REQUIRED

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        affected = super()._read_query_result(unbuffered)
        if self._result.description is None and affected:
            self.written += 1
        return affected


class DemandingConnection(OurConnection):
    """For a URL that demands TLS: whoever strips it from the server's greeting learns not even the user."""

    def _request_authentication(self) -> None:
        if not (self.unix_socket or self.server_capabilities & CLIENT.SSL):
            raise OperationalError(SSL_CONNECTION_ERROR, "the server offers no TLS, and the URL demands it")
        super()._request_authentication()


class PyMySQLFace(Watched, OurConnection):
    """The handler's own object on the wire of one of ours."""

    def __init__(self, owner: OurConnection, loan: Loan) -> None:
        # Not the base's, which would connect.
        self.__dict__.update(owner.__dict__)
        self.encoders, self.decoders = dict(owner.encoders), dict(owner.decoders)
        self._read_timeout: float | None = None  # a handler's own statements may take as long as they take
        self._owner = owner
        self._loan = loan
        self._result: Any = None
        self._ours = False
        self._patience = owner._read_timeout
        self.traces = False
        """Whether it has seen what no reset takes back for certain: another database, a role."""

    # What samekey does with it.

    @contextmanager
    def ours(self) -> Iterator[None]:
        """While a statement of samekey's own runs on it."""
        with self._using():
            self._ours, before = True, self._ours
            try:
                yield
            finally:
                self._ours = before

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._loan.use(), super()._using():
            yield

    def _found_ended(self) -> None:
        # Every statement would commit by itself from here on, so none is sent any more.
        self._loan.lose()

    def hand_back(self, bound: float) -> OurConnection:
        """The wire goes back to its owner. Only once the loan is over and nobody is in the middle of it."""
        owner = self._owner
        self._user, self._read_timeout = threading.get_ident(), bound
        self._finish_reading()
        for name in _WIRE:
            setattr(owner, name, getattr(self, name))
        owner.written, owner._result = self.written, None
        self._sock = self._rfile = self._result = self._user = None
        self._closed = True
        return owner

    def _finish_reading(self) -> None:
        """Rows that the handler did not fetch would be taken for the answer to what comes next."""
        result = self._result
        if not self.open or result is None:
            return
        try:
            while result.unbuffered_active or result.has_next:
                if result.unbuffered_active:
                    result._finish_unbuffered_query()
                    # Who goes on to fetch must not take this for the end of the rows.
                    result._read_rowdata_packet_unbuffered = _over
                if result.has_next:
                    PlainConnection.next_result(self)
                    result = self._result
        except Exception:
            self._force_close()

    # What the handler does with it.

    def execute(self, sql: str, parameters: Any = None) -> Cursor:
        """A cursor that has run one statement; ``%s`` stands for a parameter."""
        cursor = self.cursor()
        cursor.execute(sql, parameters)
        return cursor

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        with self._using():
            if not self._ours:
                if ends_transaction(sql):
                    raise CommitRefused(COMMIT_REFUSED)
                self.traces = self.traces or not is_plain(sql)
                self.certain = self.certain and not may_hide_an_end(sql)
            self._loan.sent += 1
            text = sql.encode(self.encoding) if isinstance(sql, str) else sql
            try:
                affected = super().query(text, unbuffered)
                if self._result.description is not None and _CHANGES.match(text) is not None:
                    self.written += 1  # INSERT … RETURNING gives rows, as a question does
                return affected
            except Error:
                raise
            except BaseException:
                self._force_close()  # interrupted half-way: what comes next would be read as the answer
                raise

    def ping(self, reconnect: bool = False) -> None:
        with self._using():
            super().ping(False)

    def select_db(self, db: Any) -> None:
        with self._using():
            self.traces = True
            super().select_db(db)

    def show_warnings(self) -> Any:
        with self._using():
            return super().show_warnings()

    def set_character_set(self, charset: Any, collation: Any = None) -> None:
        with self._using():
            super().set_character_set(charset, collation)

    def connect(self, sock: Any = None) -> None:
        self._refuse()  # another session is another transaction

    def begin(self) -> None:
        self._refuse()

    def commit(self) -> None:
        self._refuse()

    def rollback(self) -> None:
        self._refuse()

    def autocommit(self, value: bool) -> None:
        self._refuse()

    def close(self) -> None:
        self._refuse()

    def __exit__(self, *exc_info: object) -> None:
        """Leaving a block would close it; the operation does."""

    def _refuse(self) -> NoReturn:
        if self._loan.over:
            raise OperationOver
        raise CommitRefused(COMMIT_REFUSED)


def _over() -> NoReturn:
    raise OperationOver


def sever(connection: Any) -> None:
    """Makes a statement that another thread waits for fail at once."""
    sock = connection._sock
    if sock is not None:
        with suppress(OSError):
            # Of the plain socket: TLS would take its own state away under the other thread's feet.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

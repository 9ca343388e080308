"""What the drivers of MySQL and MariaDB share: the URL, the text of a statement, how a connection is set up.

Statements are sent as plain ASCII text with every value as a number or in hexadecimal. So nothing that a
value holds can become SQL, and no character set, ``sql_mode`` or converter of a connection changes any.
"""

from __future__ import annotations

import re
import secrets
import ssl
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ...core.program import Query, Row, Statement, Value
from ...errors import ConfigurationError
from .errors import too_old

FOUND_ROWS: Final = 2
MULTI_STATEMENTS: Final = 1 << 16
"""The flag of a connection that takes several statements at once."""
IN_TRANSACTION: Final = 1
"""The bit of the server's status that says so."""
RESET_CONNECTION: Final = 0x1F
"""The command that makes a session as good as new: variables, temporary tables, locks, transaction."""

LOCK_SECONDS: Final = 1
"""How long a statement of ours waits for a row: MySQL's smallest. The rows of keys are locked for one short
commit at a time, so whoever waits longer has met a transaction that hangs, and is busy. (Not waiting at all,
which MariaDB knows, would answer 503 to a duplicate that comes in the same millisecond as the first.)"""

BINARY_CHARSET: Final = 63
COMMIT_REFUSED: Final = (
    "samekey commits this transaction together with the answer, so the handler must not end it, nor close "
    "its connection. Remove the commit, rollback or close; to undo everything, raise an error. CREATE, "
    "ALTER, DROP, RENAME, TRUNCATE and LOCK TABLES commit too: run them elsewhere."
)


# ------------------------------------------------------------------ the URL


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL names."""

    host: str
    port: int
    user: str
    password: str
    database: str
    unix_socket: str | None
    tls: ssl.SSLContext | None
    """Made once: reading certificates takes longer than all the rest of a connect."""
    demands_tls: bool = False
    """Nothing is said to a server that offers none."""

    def arguments(self) -> dict[str, Any]:
        """As both drivers take them."""
        found: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "database": self.database,
            "charset": "utf8mb4",
            "autocommit": None,  # set with the rest, in one statement
        }
        if self.unix_socket is not None:
            found["unix_socket"] = self.unix_socket
        if self.tls is not None:
            found["ssl"] = self.tls
        return found


def target_of(url: str) -> Target:
    """``mysql://user:password@host:3306/database``, with ``?unix_socket=`` or ``?ssl_ca=`` and the like."""
    parts = urlsplit(url)
    database = unquote(parts.path.lstrip("/"))
    try:
        port = parts.port or 3306
    except ValueError as error:
        raise ConfigurationError(f"The MySQL URL names no port number: {error}.") from None
    if not database or "/" in database:
        raise ConfigurationError("The MySQL URL names no database: write mysql://user@host:3306/database.")
    options = dict(parse_qsl(parts.query))
    socket = options.pop("unix_socket", None)
    mode = options.pop("ssl_mode", "preferred")
    if mode not in _SSL_MODES:
        raise ConfigurationError(f"ssl_mode in the MySQL URL must be one of {', '.join(_SSL_MODES)}.")
    unknown = sorted(set(options) - {"ssl_ca", "ssl_cert", "ssl_key"})
    if unknown:
        raise ConfigurationError(
            f"The MySQL URL has options that samekey does not know: {', '.join(unknown)}. It knows "
            "unix_socket, ssl_mode, ssl_ca, ssl_cert and ssl_key."
        )
    return Target(
        parts.hostname or "localhost",
        port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        database,
        socket,
        _tls(options) if options or mode == "verify_identity" else None,
        demands_tls=bool(options) or mode != "preferred",
    )


_SSL_MODES: Final = ("preferred", "required", "verify_identity")
"""As MySQL's own clients name them: TLS where the server offers it; always; always, to the right server."""


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    """The server's certificate and its name are checked; the client shows its own, if it has one."""
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"The certificates that the MySQL URL names cannot be used: {error}"
        ) from error
    # The certificates that MySQL makes for itself lack what the strict reading of newer Pythons asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def unverified_tls() -> ssl.SSLContext:
    """For a server that offers TLS where the URL says nothing of it: better than plain text, and no proof."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# ------------------------------------------------------------------ the text of a statement


def literal(value: Value) -> str:
    """A value as SQL. Text is sent as its UTF-8 bytes."""
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return f"x'{value.encode().hex()}'"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return ", ".join(literal(item) for item in value) or "null"


def _text(query: Query, parameters: dict[str, Value]) -> str:
    text, names = query.rendered["format"]
    return text % tuple(literal(parameters[name]) for name in names)


def packets(
    statement: Statement, *, joined: bool, alone: bool
) -> Generator[str, Sequence[Row] | None, Sequence[Row]]:
    """The texts to send, one after the other, for a statement and what follows it; returns its rows.

    It is sent the rows of each text, or None where there are none to have. ``joined``: the connection takes
    several statements at once. ``alone``: there is no transaction around; one is made where rows are locked.
    """
    parameters = {"mark": secrets.token_bytes(16), **statement.parameters}
    queries = (statement.query, *statement.query.then)
    begun = alone and any(map(_needs_locked, queries))
    waiting = ["start transaction"] if begun else []
    rows: Sequence[Row] = ()

    for query in queries:
        if _needs_locked(query):
            if "locked" not in parameters:
                rows = (yield from _send(waiting, joined)) or rows
                parameters["locked"] = [str(row[0]) for row in rows]
            if not parameters["locked"]:
                continue  # there is nothing to change
        waiting.append(_text(query, parameters))
    if begun:
        waiting.append("commit")
    answered = yield from _send(waiting, joined)
    return rows if answered is None else answered


def _needs_locked(query: Query) -> bool:
    return "locked" in query.rendered["format"][1]


def _send(waiting: list[str], joined: bool) -> Generator[str, Sequence[Row] | None, Sequence[Row] | None]:
    """Sends what waits, at once or one by one; gives the last rows among them."""
    found: Sequence[Row] | None = None
    texts = [";\n".join(waiting)] if joined and waiting else list(waiting)
    waiting.clear()
    for text in texts:
        rows = yield text
        found = found if rows is None else rows
    return found


def decode_text(value: bytes | str) -> str:
    """Our text columns hold bytes; what comes as text (a constant, a TEXT column) stays."""
    return value if isinstance(value, str) else value.decode()


# ------------------------------------------------------------------ setting up


def setup(version: str, *, short: bool) -> str:
    """The one statement that makes a session ours; a server that is too old is refused.

    ``short``: for our short statements. Elsewhere the user's statements run too, and wait as long as the
    server says.
    """
    isolation = isolation_variable(version)
    waits = f", session innodb_lock_wait_timeout = {LOCK_SECONDS}" if short else ""
    return (
        f"set names utf8mb4, session autocommit = 1, session {isolation} = 'READ-COMMITTED'{waits}, "
        "session sql_mode = concat(@@sql_mode, ',STRICT_TRANS_TABLES')"
    )


def as_found(version: str, *, own: bool) -> str:
    """Takes back what would reach our statements of all that a session can be set to: the clock that a record
    is born by, a limit of rows or time, how texts are sent. ``own``: a user's, whose texts are theirs."""
    clock = "timestamp = default, sql_select_limit = default"
    if own:
        return f"set {clock}"
    longest = "max_statement_time" if "mariadb" in version.lower() else "max_execution_time"
    return f"set names utf8mb4, {clock}, {longest} = default"


def isolation_variable(version: str) -> str:
    """How this server calls it; one that is too old is refused."""
    # MariaDB may put "5.5.5-" before its own number, for clients that are older than it.
    mariadb = "mariadb" in version.lower()
    plain = version.removeprefix("5.5.5-") if mariadb else version
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", plain)
    number = tuple(int(part) for part in match.groups()) if match else (0, 0, 0)
    if number < ((10, 6, 0) if mariadb else (8, 0, 29)):
        raise too_old(version)
    return "tx_isolation" if mariadb and number < (11, 1, 1) else "transaction_isolation"

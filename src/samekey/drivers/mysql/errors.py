"""What the error numbers of MySQL and MariaDB mean to samekey, for every driver alike."""

from __future__ import annotations

from typing import Final

from ...errors import (
    ConfigurationError,
    ConnectionLost,
    EscapedTransaction,
    ReadOnlyStore,
    SamekeyError,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StoreUnreachable,
    TransactionConflict,
)

DEADLOCK: Final = 1213
"""The server has rolled back the whole transaction: a deadlock, or on Galera a conflict found at COMMIT."""

AUTH_PLUGIN_ERROR: Final = 2061
"""The client's own: a way of logging in that it does not take part in."""
SSL_CONNECTION_ERROR: Final = 2026
"""The client's own: no TLS, or not to the right server."""

# 1020 is MariaDB's word for a row that changed under a snapshot, 3101 that of MySQL's group replication.
_CONFLICT: Final = {DEADLOCK, 1020, 3101}
_BUSY: Final = {1205, 3572}
_LOST: Final = {0, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2000, 2006, 2013, 2014, 2027, 2055, 4031}
_MISSING: Final = {1054, 1146, 1360}
_FORBIDDEN: Final = {1044, 1142, 1143, 1227, 1370}
_READ_ONLY: Final = {1290, 1792, 1836}
# Full, overloaded, shutting down, a Galera node without its group, a statement cut short by a limit.
_UNAVAILABLE: Final = {1021, 1037, 1040, 1041, 1047, 1114, 1180, 1203, 1226, 1317, 1969, 3024, 3168, 3169}
_PROOF_GONE: Final = "SAVEPOINT samekey_proof does not exist"

_GRANT: Final = (
    "Grant this user what samekey needs: grant select, insert, update, delete on DATABASE.* to USER. To "
    "migrate, a user also needs create, alter, index, drop and trigger."
)
_ADVICE: Final = {
    1044: "Grant this user the use of that database.",
    1045: "Check user and password in the URL.",
    1698: "Check user and password in the URL.",
    1049: "Create that database, or correct its name in the URL.",
    1040: "Every process needs up to 2 × pool_size connections: lower pool_size or raise max_connections.",
    2003: "Is the server running there, and are host and port in the URL right?",
    2005: "Check the host in the URL.",
    SSL_CONNECTION_ERROR: "Switch TLS on at the server, or take ssl_mode and ssl_ca out of the URL.",
    AUTH_PLUGIN_ERROR: "Ask for TLS and name the server's authority in the URL: ?ssl_ca=/etc/ca.pem",
}


def from_code(code: int | None, message: str) -> SamekeyError:
    """The error that a number of the server's, or of its client's, stands for."""
    if code is None or code in _LOST:
        if "timed out" in message or "read timeout" in message:
            return StoreUnavailable("MySQL did not answer in time.")
        return ConnectionLost(f"The connection to MySQL was lost: {message}")
    if code in _CONFLICT:
        return TransactionConflict(f"MySQL gave up this transaction: {message}")
    if code in _BUSY:
        return StoreBusy(f"MySQL could not have a lock: {message}")
    if code in _MISSING:
        return SchemaMismatch(
            f"The tables of samekey are missing or old ({message}). Run: samekey migrate URL"
        )
    if code in _FORBIDDEN:
        return ConfigurationError(f"MySQL refused ({message}). {_GRANT}")
    if code == 1419:
        return ConfigurationError(
            f"MySQL refused to create the audit triggers ({message}). Migrate as an administrator, or set "
            "log_bin_trust_function_creators=1 on the server while you do."
        )
    if code == 1665:
        return ConfigurationError(
            f"MySQL refused ({message}). samekey works at READ COMMITTED, which needs binlog_format=ROW or "
            "MIXED."
        )
    if code in _READ_ONLY:
        return ReadOnlyStore(f"MySQL refused to write ({message}). Is this a replica? Name the primary.")
    if code == 1305 and _PROOF_GONE in message:
        return EscapedTransaction(
            "The transaction was ended before samekey ended it, so its writes may stand without their "
            "record. Leave COMMIT and ROLLBACK to samekey; CREATE, ALTER, DROP, TRUNCATE and LOCK TABLES "
            "commit too."
        )
    if code in _UNAVAILABLE or code in _ADVICE or 2000 <= code < 3000:
        return StoreUnavailable(f"MySQL cannot do it now: {message}")
    return StoreError(f"MySQL refused a statement of samekey ({code}): {message}")


def unreachable(code: int | None, message: str) -> StoreUnreachable:
    """A connection that could not be had. It says what to do, as far as that can be told."""
    words = " ".join(message.split()).rstrip(".")
    advice = _ADVICE.get(code or 0, "Check host, port, database, user and password in the URL.")
    return StoreUnreachable(f"MySQL cannot be reached: {words}. {advice}")


def too_old(version: str) -> ConfigurationError:
    return ConfigurationError(
        f"The server's version {version} is too old: samekey needs MySQL 8.0.29 or MariaDB 10.6, or newer. "
        "Upgrade the server."
    )

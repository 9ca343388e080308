"""A real pgbouncer in transaction mode for tests, in front of a throwaway PostgreSQL.

In that mode a client has a server's connection only for the length of a transaction, so whatever outlives
one (prepared statements, LISTEN, session settings and locks) may meet a stranger. That is what tests want
to see. Nothing here may be used in production: anyone who can reach the port is let in.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit, urlunsplit

from lab.processes import LOOPBACK, PATIENCE, GuardedProcess, ProcessFailed, free_port, wait_until
from lab.servers.debian import install, why_not
from lab.servers.postgres import PostgresUnavailable, _identity, _make_directory

__all__ = ["PgBouncer", "PgBouncerUnavailable", "find_pgbouncer"]

# Where Debian puts it; an ordinary user's PATH often lacks that directory.
DEBIAN = Path("/usr/sbin/pgbouncer")

KEEPS_STATEMENTS = (1, 21)
"""The first version that can carry prepared statements from one server connection to another."""


class PgBouncerUnavailable(RuntimeError):
    """No pgbouncer could be had; the message says what was tried, in one line."""


def find_pgbouncer() -> Path:
    """The program: on PATH, or where Debian puts it, or freshly installed where that is allowed."""
    found = _there()
    if found is None and install("pgbouncer"):
        found = _there()
    if found is None:
        reason = why_not() or "installing it from Debian's packages failed"
        raise PgBouncerUnavailable(f"No pgbouncer was found on PATH or in {DEBIAN.parent}, and {reason}.")
    return found


def _there() -> Path | None:
    on_path = shutil.which("pgbouncer")
    if on_path:
        return Path(on_path)
    return DEBIAN if DEBIAN.is_file() else None


def version_of(program: Path) -> tuple[int, int]:
    """Such as (1, 18)."""
    said = subprocess.run([str(program), "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None:
        raise PgBouncerUnavailable(f"{program} does not say which version it is: {said!r}.")
    return int(found[1]), int(found[2])


class PgBouncer:
    """A pgbouncer of our own on 127.0.0.1, in front of one PostgreSQL server; gone when stopped.

    `server_connections` is how many connections it opens for each database: with fewer than there are
    clients, transactions wait for each other. `prepared_statements` lets it keep them for its clients,
    which takes version 1.21; without it, it behaves as all versions before did.
    """

    def __init__(self, url: str, *, server_connections: int = 20, prepared_statements: bool = False) -> None:
        program = find_pgbouncer()
        self.version = version_of(program)
        if prepared_statements and self.version < KEEPS_STATEMENTS:
            raise PgBouncerUnavailable("Only pgbouncer 1.21 and later can keep prepared statements.")
        self.port = free_port()
        self._owner = os.getpid()
        self._process: GuardedProcess | None = None
        identity = _identity()
        try:
            self.directory = _make_directory("pgbouncer", identity)
        except PostgresUnavailable as error:
            raise PgBouncerUnavailable(str(error)) from error
        settings = self.directory / "pgbouncer.ini"
        settings.write_text(self._settings(url, server_connections, prepared_statements))
        settings.chmod(0o644)
        atexit.register(self.stop)
        try:
            self._process = process = GuardedProcess(
                [str(program), str(settings)],
                log=self.directory / "pgbouncer.log",
                cwd=self.directory,
                env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
                identity=identity,
                end_signal=signal.SIGTERM,
                grace=1.0,
                remove=[self.directory],
            )
            wait_until(lambda: not process.running or self._answers(), PATIENCE)
        except (ProcessFailed, TimeoutError) as error:
            self.stop()
            raise PgBouncerUnavailable(f"pgbouncer could not be started: {error}") from error
        if not process.running:
            words = process.output()
            self.stop()
            raise PgBouncerUnavailable(f"pgbouncer ended at once: {words}")

    def _settings(self, url: str, server_connections: int, prepared_statements: bool) -> str:
        target = urlsplit(url)
        lines = [
            "[databases]",
            # One user for everybody, as `auth_type = any` wants it.
            f"* = host={target.hostname} port={target.port or 5432} user={target.username or 'postgres'}"
            + (f" password='{unquote(target.password)}'" if target.password else ""),
            "[pgbouncer]",
            f"listen_addr = {LOOPBACK}",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = any",
            "pool_mode = transaction",
            f"default_pool_size = {server_connections}",
            "max_client_conn = 500",
            "max_db_connections = 0",
            # Startup parameters beyond the few that it knows are refused by default; it stays so here.
            "log_connections = 0",
            "log_disconnections = 0",
            "stats_period = 3600",
        ]
        if self.version >= KEEPS_STATEMENTS:
            lines.append(f"max_prepared_statements = {200 if prepared_statements else 0}")
        return "\n".join(lines) + "\n"

    @classmethod
    def before(cls, url: str, *, server_connections: int = 20, prepared_statements: bool = False) -> Self:
        """Start one before the server of this URL; returns when it accepts connections."""
        return cls(url, server_connections=server_connections, prepared_statements=prepared_statements)

    def url_for(self, url: str) -> str:
        """The same database, reached through this pgbouncer."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{user}@{LOOPBACK}:{self.port}".removeprefix("@")))

    def output(self) -> str:
        """All that it has written to its log."""
        return "" if self._process is None else self._process.output()

    def stop(self) -> None:
        """End it at once and remove its files. May be repeated."""
        if os.getpid() != self._owner:
            return  # a fork that ends must not take its parent's pooler with it
        atexit.unregister(self.stop)
        if self._process is not None:
            # Newer versions take SIGTERM for "when all clients are gone"; nothing here is worth the wait.
            self._process.kill9()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1):
                return True
        except OSError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

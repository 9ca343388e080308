"""The processes of a run: app nodes, workers, the provider, the database, and a proxy in front of each link.

Everything that starts here ends here. All methods block; the run calls them from threads.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from examples.provider import Entry, Provider
from lab.processes import LOOPBACK, GuardedProcess, ProcessFailed, free_port, wait_until
from lab.proxy import FaultProxy
from lab.servers import mariadb, postgres

from .links import MySQLProxy
from .migration import migrate
from .mishaps import VARIABLE, Book, Order
from .outside import PROVIDERS, Outside
from .plan import Plan

Server: TypeAlias = postgres.NamedServer | mariadb.NamedServer

ACCOUNTS: Final = {"token-ada": "ada", "token-bob": "bob", "token-cleo": "cleo"}
"""The tenants, by their tokens."""
FALLS: Final = 30
"""A process that ends by itself so many times in a row cannot run here. Some ends are our own doing: whoever
starts while commits are being lost ends, and is started again."""
STEADY: Final = 10.0
"""Seconds after which a process has run, and its next end is a new story."""
READY_WITHIN: Final = 60.0
SHUTDOWN_WITHIN: Final = 20.0
"""Seconds for a database to shut down in order; then it is killed."""


class CouldNotRun(Exception):
    """There is no verdict: the torture could not be carried out."""


class Member:
    """One process of the service, with its own way to the database and to the provider."""

    def __init__(self, world: World, role: str, index: int) -> None:
        self.name = f"{role} {index}"
        self.role = role
        self.port = free_port() if role == "app" else None
        self.database_proxy = _proxy_before(world.database_url) if world.server is not None else None
        self.ways = {one.name: one.proxy() for one in world.providers}
        """To each provider."""
        self._world = world
        self._random = random.Random(f"skew {world.plan.seed} {self.name}")
        self._lock = threading.RLock()
        self._orders = world.directory / f"{role}-{index}.orders"
        self._book = Book(self._orders)
        self._process: GuardedProcess | None = None
        self._falls = 0
        self._launched = 0.0
        self._stopped = False

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        return self._world.directory / f"{self.name.replace(' ', '-')}.log"

    def environment(self) -> dict[str, str]:
        world = self._world
        database = world.database_url
        if self.database_proxy is not None:
            database = self.database_proxy.url_for(database)
        ways = {name: f"http://{LOOPBACK}:{proxy.port}" for name, proxy in self.ways.items()}
        found = world.environment(database, ways)
        return {**found, VARIABLE: str(self._orders)}

    def launch(self) -> None:
        """Starts it, each time with another error of its clock."""
        plan = self._world.plan
        module = plan.app.partition(":")[0]
        skew = str(round(self._random.uniform(-plan.skew, plan.skew), 1))
        command = [sys.executable, "-m", f"{__package__}.node", "--skew", skew]
        if self.role == "app":
            command += ["app", plan.app, "--port", str(self.port)]
        else:
            command += ["worker", f"{module}:idempotency", "--lease", str(plan.lease), "--grace", "2"]
            for service in ("completer", "sweeper", "reconciler"):
                command += [f"--{service}-interval", str(plan.cycle)]
            # So seldom that most keys are used again before it comes by, and some after.
            reaping = plan.cycle if plan.ttl is None else 2 * plan.ttl
            command += ["--no-ledger", "--reaper-interval", str(reaping)]
        with self._lock:
            if not self._stopped:
                self._launched = time.monotonic()
                self._process = GuardedProcess(
                    command, log=self.log, env=self.environment(), cwd=Path.cwd(), grace=10
                )

    def kill_and_launch(self) -> None:
        """SIGKILL in the middle of whatever it does, and a new start."""
        with self._lock:
            if self._process is not None:
                self._process.kill9()
            self._falls = 0
            self.launch()

    def look_after(self) -> None:
        """Starts it again if it has ended by itself, as a supervisor would."""
        with self._lock:
            if self._stopped or self._process is None or self._process.running:
                return
            steady = time.monotonic() - self._launched >= STEADY
            self._falls = 1 if steady else self._falls + 1
            if self._falls >= FALLS:
                raise CouldNotRun(f"{self.name} ends by itself:\n{self.last_words()}")
            self.launch()

    def order(self, order: Order) -> None:
        """Something shall go wrong inside it with its next requests."""
        self._book.write(order)

    def pause(self) -> None:
        if self._process is not None:
            self._process.send(signal.SIGSTOP, group=True)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send(signal.SIGCONT, group=True)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def listening(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port or 0), timeout=1):
                self._falls = 0
                return True
        except OSError:
            return False

    def calm(self) -> None:
        """Nothing stands in its way any more."""
        self.resume()
        self._book.write(None)
        for proxy in (self.database_proxy, *self.ways.values()):
            if proxy is not None:
                proxy.clear()
                proxy.flow()
                proxy.accept()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.end()
        for proxy in (self.database_proxy, *self.ways.values()):
            if proxy is not None:
                proxy.close()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""


class World:
    """All of it. Made by ``World.opened``."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.directory = directory
        self.providers: list[Outside] = []
        """Two, which count their events alike."""
        self.migrations = 0
        """New versions of samekey's tables so far."""
        self.server: Server | None = None
        self.database_url = f"sqlite:///{directory / 'payments.db'}"
        self.members: list[Member] = []
        self.encryption_keys: tuple[str, ...] = (_encryption_key(),)
        """As processes that start now are told: the first encrypts, all of them decrypt."""

    @classmethod
    @contextlib.contextmanager
    def opened(cls, plan: Plan) -> Iterator[World]:
        """Everything started and answering. Leaving it ends all of it."""
        with contextlib.ExitStack() as stack:
            directory = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="samekey-torture-", ignore_cleanup_errors=True)
                )
            )
            world = cls(plan, directory)
            try:
                world._start(stack)
            except (
                ProcessFailed,
                postgres.PostgresUnavailable,
                mariadb.MariaDBUnavailable,
                TimeoutError,
            ) as error:
                raise CouldNotRun(f"The service could not be started: {error}") from error
            yield world

    def _start(self, stack: contextlib.ExitStack) -> None:
        plan = self.plan
        if plan.store is None:
            scheme = (plan.url or "").partition(":")[0]
            raise CouldNotRun(
                f"The torture does not know the store {scheme!r}: use postgresql:, mysql: or sqlite:///."
            )
        if plan.store != "sqlite":
            self.server = self._server()
            stack.callback(self.server.stop)
            self.database_url = self.server.create_database()
        elif plan.url is not None:
            path = Path(plan.url.removeprefix("sqlite:///"))
            if path.exists():
                raise CouldNotRun(
                    f"{path} is there already. Name a file that is not: it is for this run alone."
                )
            self.database_url = f"sqlite:///{path.absolute()}"
        first_port = free_port()
        for name in PROVIDERS:
            secret, webhooks = secrets.token_hex(16), f"http://{LOOPBACK}:{first_port}/webhooks/{name}"
            process = Provider.start(
                self.directory / name,
                latency=plan.latency,
                window=plan.window,
                webhook_url=webhooks if plan.webhooks else None,
                webhook_secret=secret,
            )
            self.providers.append(Outside(name, stack.enter_context(process), secret))
        for role, count in (("app", plan.nodes), ("worker", plan.workers)):
            for index in range(count):
                member = Member(self, role, index)
                stack.callback(member.stop)
                self.members.append(member)
        self.nodes[0].port = first_port
        # The first alone: what is wrong with the service then shows once, and the tables are there.
        first, *rest = self.members
        first.launch()
        self._await(first, again=False)
        for member in rest:
            member.launch()
        for node in self.nodes[1:]:
            self._await(node)

    def _server(self) -> Server:
        url, mysql = self.plan.url, self.plan.store == "mysql"
        assert url is not None
        if self.plan.own_server:
            return mariadb.MariaDBServer.start() if mysql else postgres.PostgresServer.start()
        import psycopg
        import pymysql  # type: ignore[import-untyped]

        try:
            if mysql:
                with mariadb.connected(url):
                    return mariadb.NamedServer(url)
            psycopg.connect(url, connect_timeout=10).close()
        except (psycopg.Error, pymysql.err.Error) as error:
            raise CouldNotRun(f"The server cannot be reached: {' '.join(str(error).split())}") from error
        return postgres.NamedServer(url)

    def _await(self, node: Member, *, again: bool = True) -> None:
        """Until it listens. ``again``: a start that fails, while the database comes back, is tried again."""

        def up() -> bool:
            if again:
                node.look_after()
            elif not node.running:
                raise CouldNotRun(f"{node.name} does not start:\n{node.last_words()}")
            return node.listening

        try:
            wait_until(up, READY_WITHIN, interval=0.05)
        except TimeoutError:
            raise CouldNotRun(
                f"{node.name} did not listen within {READY_WITHIN:g} s:\n{node.last_words()}"
            ) from None

    @property
    def nodes(self) -> list[Member]:
        return [member for member in self.members if member.role == "app"]

    @property
    def workers(self) -> list[Member]:
        return [member for member in self.members if member.role == "worker"]

    def environment(self, database: str, ways: Mapping[str, str] | None = None) -> dict[str, str]:
        """What the service is told, and who may import it. ``ways``: where it finds the providers, if not
        where they are."""
        plan = self.plan
        providers: dict[str, str] = {}
        for one in self.providers:
            url = one.process.url if ways is None else ways[one.name]
            providers |= {f"{one.name.upper()}_URL": url, f"{one.name.upper()}_SECRET": one.secret}
        paths = [os.getcwd(), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "DATABASE_URL": database,
            **providers,
            "PAYMENTS_ACCOUNTS": json.dumps(ACCOUNTS),
            "PAYMENTS_LEASE": str(plan.lease),
            "PAYMENTS_CALL_TIMEOUT": str(plan.call_timeout),
            "PAYMENTS_ENCRYPTION_KEYS": " ".join(self.encryption_keys),
            **({} if plan.ttl is None else {"PAYMENTS_TTL": str(plan.ttl)}),
            **plan.environment,
        }

    def restart_database(self, *, crash: bool) -> None:
        """A new start on what its files say, after a crash or a shutdown in order."""
        server = self.server
        if isinstance(server, postgres.PostgresServer):
            server.restart("immediate" if crash else "fast")
            return
        assert isinstance(server, mariadb.MariaDBServer)
        if not crash:
            os.kill(server.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: not server.running, SHUTDOWN_WITHIN)
        server.kill()
        server.start_again()

    def rotation(self) -> Iterator[None]:
        """The two steps to a new encryption key; after each of them every process must start anew."""
        new = _encryption_key()
        self.encryption_keys = (*self.encryption_keys, new)
        yield
        self.encryption_keys = (new, *(key for key in self.encryption_keys if key != new))
        yield

    def migrate(self) -> None:
        """As an operator would, with everybody at work: the next version of the tables. It may fail, since
        the database may be away; then the next one brings both."""
        self.migrations += 1
        environment = self.environment(self.database_url)
        migrate(self.migrations, self.database_url, self.directory / "migrations.log", environment)

    def entries(self) -> list[Entry]:
        """What all ledgers say."""
        return [entry for one in self.providers for entry in one.process.entries()]

    def recognised(self) -> int:
        return sum(one.recognised() for one in self.providers)

    def look_after(self) -> None:
        """Starts again whoever has ended by himself."""
        for member in self.members:
            member.look_after()

    def calm(self) -> None:
        """The end of all faults: everybody runs, every link flows."""
        for member in self.members:
            member.calm()
        for provider in self.providers:
            provider.process.recover()
        self.look_after()
        for node in self.nodes:
            self._await(node)

    def keep_logs(self, directory: Path) -> None:
        """For whoever wants to know why."""
        for log in self.directory.glob("*.log"):
            with contextlib.suppress(OSError):
                shutil.copy(log, directory / log.name)
        for name in PROVIDERS:
            with contextlib.suppress(OSError):
                shutil.copytree(self.directory / name, directory / name, dirs_exist_ok=True)


def _encryption_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def _proxy_before(url: str) -> FaultProxy:
    """Of the kind that understands the store's protocol."""
    return (FaultProxy if url.startswith("postgres") else MySQLProxy).before(url)

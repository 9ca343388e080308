"""A primary and its standby for tests of failover: kill the one with -9, promote the other.

The standby is synchronous unless it is told otherwise: a commit is acknowledged when both have it. The link
between the two goes through a relay that a test can hold, which is how a standby falls behind. Nothing here
may be used in production: anyone who can reach the ports is let in.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self
from urllib.parse import urlsplit

from lab.processes import LOOPBACK, PATIENCE, children_of, wait_until
from lab.proxy import FaultProxy
from lab.servers.postgres import PostgresServer, PostgresUnavailable, Setting

__all__ = ["PostgresPair"]

STANDBY = "samekey_standby"

SETTINGS: Mapping[str, Setting] = {
    "wal_level": "replica",
    "hot_standby": True,
    # A standby asks again soon, and a hot standby reports soon: tests wait for both.
    "wal_retrieve_retry_interval": "100ms",
    "wal_receiver_status_interval": "1s",
}


class _Standby(PostgresServer):
    """A copy of a stopped server, which follows it once it runs again."""

    def __init__(self, primary: PostgresServer, conninfo: str) -> None:
        self._source = primary.data
        self._conninfo = conninfo
        super().__init__(
            binaries=primary.binaries,
            settings={**SETTINGS, "primary_conninfo": conninfo},
        )

    def _initialise(self) -> None:
        copied = subprocess.run(
            ["cp", "-a", str(self._source), str(self.data)],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.directory,
            **self._identity,
        )
        if copied.returncode != 0:
            raise PostgresUnavailable(f"The primary could not be copied: {copied.stderr.strip()}")
        for left_over in ("postmaster.pid", "server.log"):
            (self.data / left_over).unlink(missing_ok=True)
        (self.data / "standby.signal").touch()


class PostgresPair:
    """A primary and a standby of our own on 127.0.0.1, gone without a trace when stopped.

    `synchronous` is what a commit waits for: "on" for the standby's disk, "remote_apply" until it can be
    read there, None for nothing: then the standby may lack what was acknowledged.
    """

    def __init__(self, *, synchronous: str | None = "on") -> None:
        self._stack = ExitStack()
        try:
            self.primary = self._stack.enter_context(PostgresServer.start(settings=SETTINGS))
            self.link = self._stack.enter_context(FaultProxy.before(self.primary.url))
            assert self.primary._process is not None
            # A copy of a server that has shut down in order needs nothing but itself.
            self.primary._process.end(signal.SIGINT, grace=PATIENCE)
            through = urlsplit(self.link.url_for(self.primary.url))
            conninfo = (
                f"host={through.hostname} port={through.port} user=postgres sslmode=disable "
                f"gssencmode=disable application_name={STANDBY}"
            )
            self.standby = _Standby(self.primary, conninfo)
            self._stack.enter_context(self.standby)
            self.primary.start_again()
            self._synchronise(synchronous)
        except BaseException:
            self.stop()
            raise

    @classmethod
    def start(cls, *, synchronous: str | None = "on") -> Self:
        """Return when the standby follows the primary; some three seconds."""
        return cls(synchronous=synchronous)

    def create_database(self) -> str:
        """A fresh database on the pair: a URL that names both servers and asks for the one to write to."""
        return self.both(self.primary.create_database())

    def both(self, url: str) -> str:
        """The same database, wherever it can be written to."""
        path = urlsplit(url).path
        hosts = f"{LOOPBACK}:{self.primary.port},{LOOPBACK}:{self.standby.port}"
        return f"postgresql://postgres@{hosts}{path}?target_session_attrs=read-write"

    def at(self, server: PostgresServer, url: str) -> str:
        """The same database on one of the two."""
        return f"postgresql://postgres@{LOOPBACK}:{server.port}{urlsplit(url).path}"

    def kill_primary(self) -> None:
        """SIGKILL to every process of the primary at once, as when its machine loses power."""
        pid = self.primary.pid
        os.kill(pid, signal.SIGSTOP)  # so that it starts no further child while we list them
        for process in children_of(pid):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.primary.kill()

    def promote(self) -> None:
        """Make the standby a primary; return when it takes writes."""
        done = self._ask(self.standby, "select pg_promote(true, 60)")
        if not done:
            raise PostgresUnavailable("The standby could not be promoted.")

    def return_as_standby(self) -> None:
        """Start the killed primary again as something that can only be read, as a failover tool does.

        It has what it had when it was killed, and does not follow the new primary.
        """
        signal_file = self.primary.data / "standby.signal"
        signal_file.touch()
        owner = self.primary.data.stat()
        os.chown(signal_file, owner.st_uid, owner.st_gid)
        self.primary.start_again()

    def return_as_primary(self) -> None:
        """Start the killed primary again as it was: what must never happen, for a test of what it does."""
        self.primary.start_again()

    def _synchronise(self, synchronous: str | None) -> None:
        wanted = "async"
        if synchronous is not None:
            # Not on the command line, which nobody could change while it runs.
            self._ask(self.primary, f"alter system set synchronous_standby_names = '{STANDBY}'")
            self._ask(self.primary, f"alter system set synchronous_commit = '{synchronous}'")
            self._ask(self.primary, "select pg_reload_conf()")
            wanted = "sync"
        question = f"select count(*) from pg_stat_replication where sync_state = '{wanted}'"  # noqa: S608
        wait_until(lambda: self._ask(self.primary, question) == 1)

    def _ask(self, server: PostgresServer, sql: str) -> Any:
        import psycopg

        with psycopg.connect(server.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    def stop(self) -> None:
        """End both servers and remove their files. May be repeated."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

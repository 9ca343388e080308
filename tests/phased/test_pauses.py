"""A process that stands still: stopped by SIGSTOP at the worst moments, while another one goes on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.processes import Racers, Turn, resume, wait_until
from samekey.testing.crash import Points
from tests.edges.callers import Got
from tests.phased.crash_scenarios import PROVIDERS
from tests.phased.provider import Provider, ProviderClient
from tests.phased.world import World, column, count, execute, kept, now, ride_body, state_of

LEASE: dict[str, Any] = {"lease": 0.6, "max_run": 60}
"""Of the one that is paused."""
WORLDS = pytest.mark.parametrize(
    ("url", "style"), [("sqlite", "sync"), ("postgresql", "async")], indirect=["url"]
)


class Stops(Points):
    """Stops its whole process, threads and all, the first time that it has passed these points in order."""

    def __init__(self, *names: str) -> None:
        super().__init__("paused")
        self._names = list(names)

    def reach(self, name: str, *, io: bool = False) -> None:
        if self._names and name == self._names[0]:
            self._names.pop(0)
            if not self._names:
                # To this thread. Sent to the process, another might take it, and this one run on a little.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


BEFORE_THE_CHECK = ("after write_intent", "after commit")
"""The intent has just been committed."""
AFTER_THE_CHECK = ("before the call",)
"""The lease was good when it was looked at; the next thing is the call."""
IN_A_PHASE = ("before rides",)


def ride_in_a_process(_turn: Turn, url: str, style: str, provider_url: str, kind: str, *stop_at: str) -> Got:
    with World(url, style, points=Stops(*stop_at)) as world:
        world.define(ride_body(world, ProviderClient(provider_url), **PROVIDERS[kind]), **LEASE)
        return world.post("k1")


class Elsewhere:
    """One other process, kept for all tests: starting it takes longer than most of them."""

    def __init__(self) -> None:
        self._racers = Racers(1)
        self._threads = ThreadPoolExecutor(1)

    @contextmanager
    def paused(
        self, url: str, style: str, provider: Provider, kind: str, *stop_at: str
    ) -> Iterator[Callable[[], Got]]:
        """A ride there has stopped at this point, and its lease has run out since. Call it to wake it."""
        ride = self._threads.submit(
            self._racers.race, ride_in_a_process, url, style, provider.url, kind, *stop_at
        )
        try:
            wait_until(lambda: ride.done() or self._is_stopped())
            assert not ride.done(), ride.result()
            wait_until(lambda: column(url, "k1", "locked_until") < time.time() * 1000)
            yield lambda: self._wake(ride)
        finally:
            self._wake(ride)

    def _wake(self, ride: Future[list[Got]]) -> Got:
        resume(self._racers.pids[0])
        return ride.result(30)[0]

    def _is_stopped(self) -> bool:
        stat = Path(f"/proc/{self._racers.pids[0]}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def close(self) -> None:
        self._threads.shutdown()
        self._racers.close()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.close()


@pytest.fixture
def other(url: str, style: str) -> Iterator[World]:
    with World(url, style) as world:
        yield world


@pytest.fixture
def strict(provider: Provider) -> Provider:
    """It charges every time that it is called."""
    provider.deduplicates = False
    return provider


@WORLDS
def test_paused_before_the_check_and_overtaken(
    other: World, elsewhere: Elsewhere, style: str, strict: Provider, client: ProviderClient
) -> None:
    """Nobody can tell whether the first one will still call, so nobody calls; and it does not either."""
    other.define(ride_body(other, client))
    with elsewhere.paused(other.url, style, strict, "neither", *BEFORE_THE_CHECK) as wake:
        got = other.post("k1")
        assert (got.status, got.code) == (409, "outcome_unknown")
        assert state_of(other.url, "k1") == "unknown"
        late = wake()
        assert (late.status, late.code) == (409, "outcome_unknown")
    assert strict.calls == 0
    assert state_of(other.url, "k1") == "unknown"


@WORLDS
def test_paused_before_the_check_and_not_overtaken(
    other: World, elsewhere: Elsewhere, style: str, strict: Provider, client: ProviderClient
) -> None:
    """It finds its lease run out and does not call; or its heartbeat was faster, and it may. Never twice."""
    other.define(ride_body(other, client))
    with elsewhere.paused(other.url, style, strict, "neither", *BEFORE_THE_CHECK) as wake:
        late = wake()
    if late.status == 201:
        assert len(strict.journal()) == 1
    else:
        assert (late.status, late.code) == (409, "in_progress")
        assert strict.calls == 0
        assert kept(other.url)["phases"] == 1, "it did not call, so it did not mean to"
        wait_until(lambda: other.post("k1").status == 201)
    assert len(strict.journal()) == 1


@WORLDS
def test_paused_after_the_check_and_overtaken(
    other: World, elsewhere: Elsewhere, style: str, strict: Provider, client: ProviderClient
) -> None:
    """The pause that nobody can close: the call comes late. It is the only one, because nobody guessed; and
    its result counts for whoever goes on."""
    other.define(ride_body(other, client))
    with elsewhere.paused(other.url, style, strict, "neither", *AFTER_THE_CHECK) as wake:
        assert other.post("k1").code == "outcome_unknown"
        late = wake()
        assert (late.status, late.code) == (409, "in_progress")
    assert other.post("k1").json() == {"ride": "k1", "charge": "ch_1"}
    assert len(strict.journal()) == 1 and strict.calls == 1
    assert count(other.url, "receipts", "k1") == 1


@WORLDS
def test_paused_after_the_check_and_not_overtaken(
    other: World, elsewhere: Elsewhere, style: str, strict: Provider, client: ProviderClient
) -> None:
    """Its lease had run out, but nobody else has taken it: its result counts, and it goes on."""
    other.define(ride_body(other, client))
    with elsewhere.paused(other.url, style, strict, "neither", *AFTER_THE_CHECK) as wake:
        late = wake()
    assert (late.status, late.json()) == (201, {"ride": "k1", "charge": "ch_1"})
    assert len(strict.journal()) == 1 and count(other.url, "receipts", "k1") == 1
    assert other.post("k1").replayed


@WORLDS
def test_paused_after_the_check_with_a_provider_that_deduplicates(
    other: World, elsewhere: Elsewhere, style: str, provider: Provider, client: ProviderClient
) -> None:
    """Whoever takes over calls with the same key; the late call of the first is the same charge."""
    other.define(ride_body(other, client, provider_window=3600))
    with elsewhere.paused(other.url, style, provider, "deduplicates", *AFTER_THE_CHECK) as wake:
        got = other.post("k1")
        assert got.status == 201
        late = wake()
        assert late.replayed and late.body == got.body
    assert provider.calls == 2 and len(provider.journal()) == 1
    assert (count(other.url, "rides", "k1"), count(other.url, "receipts", "k1")) == (1, 1)


@WORLDS
def test_paused_before_a_lookup_could_be_believed(
    other: World, elsewhere: Elsewhere, style: str, strict: Provider, client: ProviderClient
) -> None:
    """Not found proves nothing while the first caller may still be calling; then it does call."""
    other.define(ride_body(other, client, lookup=True))
    with elsewhere.paused(other.url, style, strict, "can be asked", *AFTER_THE_CHECK) as wake:
        got = other.post("k1")
        assert (got.status, got.code) == (409, "in_progress")
        assert strict.looked_up == 1 and strict.calls == 0
        wake()
    assert len(strict.journal()) == 1
    execute(other.url, "update samekey.keys set locked_until = 1")
    assert other.post("k1").status == 201
    assert len(strict.journal()) == 1, "found"


@pytest.mark.parametrize(("url", "style"), [("sqlite", "async"), ("postgresql", "async")], indirect=["url"])
def test_paused_inside_a_phase_and_overtaken(
    other: World, elsewhere: Elsewhere, style: str, provider: Provider, client: ProviderClient
) -> None:
    """The fence is the last thing before COMMIT: of the two, one commit stands."""
    other.define(ride_body(other, client, provider_window=3600))
    with elsewhere.paused(other.url, style, provider, "deduplicates", *IN_A_PHASE) as wake:
        got = other.post("k1")
        assert got.status == 201
        late = wake()
        assert late.replayed and late.body == got.body
    assert (count(other.url, "rides", "k1"), count(other.url, "receipts", "k1")) == (1, 1)
    assert len(provider.journal()) == provider.calls == 1


@pytest.mark.parametrize(("url", "style"), [("postgresql", "sync")], indirect=["url"])
def test_paused_after_its_writes_and_overtaken(
    other: World, elsewhere: Elsewhere, style: str, provider: Provider, client: ProviderClient
) -> None:
    """PostgreSQL: its uncommitted rows stand in nobody's way, and go when it wakes. (On SQLite they would
    hold the one write lock of the file, and everybody would get 503 until it wakes.)"""
    other.define(ride_body(other, client, provider_window=3600))
    with elsewhere.paused(other.url, style, provider, "deduplicates", "inside rides") as wake:
        assert other.post("k1").status == 201
        assert wake().replayed
    assert count(other.url, "rides", "k1") == 1


# ------------------------------------------------------------------ a phase that ends its own transaction


def define_ride(world: World, statements: list[str], behind: Callable[[Any], Any]) -> None:
    """A ride whose only phase sends statements of its own after its row."""
    insert = world.insert("rides")

    async def write_async(connection: Any) -> None:
        await insert(connection, "k1")
        for statement in statements:
            await behind(connection).execute(statement)

    def write_sync(connection: Any) -> None:
        insert(connection, "k1")
        for statement in statements:
            behind(connection).execute(statement)

    async def ride(op: Any, _input: Any) -> None:
        await now(op.transaction("ride_created", write_async if world.is_async else write_sync))

    world.define(ride)


@pytest.mark.parametrize("statements", [["commit"], ["commit", "begin"]])
def test_a_phase_that_commits_by_itself_is_refused(
    world: World, client: ProviderClient, statements: list[str]
) -> None:
    define_ride(world, statements, lambda connection: connection)
    got = world.post("k1")
    assert (got.status, state_of(world.url, "k1")) == (500, "failed_retryable")
    assert count(world.url, "rides", "k1") == 0
    assert kept(world.url)["phases"] == 0


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("statements", [["commit"], ["commit", "begin"]])
def test_a_phase_that_commits_by_itself_is_found_out(
    world: World, client: ProviderClient, statements: list[str]
) -> None:
    """Past the face of the connection that it was lent: its row stands without its recovery point."""
    hidden = "_target" if world.is_async else "_samekey_real"
    define_ride(world, statements, lambda connection: getattr(connection, hidden))
    got = world.post("k1")
    assert (got.status, got.code) == (409, "outcome_unknown")
    assert state_of(world.url, "k1") == "unknown"
    assert column(world.url, "k1", "error_code") == "EscapedTransaction"
    assert world.post("k1").code == "outcome_unknown"  # nobody may run it again
    assert count(world.url, "rides", "k1") == 1
    assert kept(world.url)["phases"] == 0


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_phase_that_swallowed_an_error_of_the_database_cannot_commit(world: World) -> None:
    """PostgreSQL has given the transaction up; that is no reason to call it unknown."""
    insert = world.insert("rides")

    async def write_async(connection: Any) -> None:
        await insert(connection, "k1")
        try:
            await connection.execute("select 1 / 0")
        except Exception:
            return

    def write_sync(connection: Any) -> None:
        insert(connection, "k1")
        try:
            connection.execute("select 1 / 0")
        except Exception:
            return

    async def ride(op: Any, _input: Any) -> None:
        await now(op.transaction("ride_created", write_async if world.is_async else write_sync))

    world.define(ride)
    assert world.post("k1").status == 500  # a bug of the handler's, which a retry meets again
    assert state_of(world.url, "k1") == "failed_retryable"
    assert count(world.url, "rides", "k1") == 0 and kept(world.url)["phases"] == 0

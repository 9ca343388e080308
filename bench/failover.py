"""``python -m bench.failover``: the primary is killed with -9 under load, the standby is promoted.

Two processes, one with psycopg and threads, one with asyncpg and tasks, place orders: atomic ones, whose row
commits with their answer, and leased ones, whose effect is a line in a provider's ledger outside of the
database. Each order has a key, and a client that asks again with the same key until it is told something
final. Then the clients' histories are held against the rows and the ledger on the new primary.

``--async`` has a standby that no commit waits for, and lets it fall behind: what was acknowledged is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import psycopg

from lab.processes import PATIENCE, Spawned, spawn, wait_until
from lab.servers.postgres import PostgresServer
from lab.servers.postgres_pair import PostgresPair
from samekey import Idempotency, current_operation
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.errors import OutcomeUnknown
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for

Mode = Literal["atomic", "leased"]
MODES: Final[tuple[Mode, ...]] = ("atomic", "leased")
CLIENTS: Final = 3
"""Clients of each mode in each process: enough that some stand in every statement when the primary dies."""
TENANT: Final = "failover"
SETTLE: Final = 2 * PATIENCE
"""Seconds that a client goes on asking about one order. Leases and pauses of the breaker are shorter."""


# ------------------------------------------------------------------ what the clients do


@dataclass(frozen=True, slots=True)
class Shop:
    """Where orders are placed."""

    url: str
    directory: Path

    @property
    def stop(self) -> Path:
        """Once this file is there, clients end what they have begun and begin nothing more."""
        return self.directory / "stop"

    @property
    def ledger(self) -> Path:
        return self.directory / "ledger"

    def open(self) -> Idempotency:
        return Idempotency(self.url, timeout=2, pool_size=2 * CLIENTS)

    def charge(self, key: str) -> str:
        """The effect of a leased order: a line in the provider's ledger, whatever becomes of us."""
        run_id = secrets.token_hex(8)
        file = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{key} {run_id}\n".encode())
        finally:
            os.close(file)
        return run_id

    def charges(self) -> list[tuple[str, str]]:
        """Every effect: the key, and the run that had it."""
        if not self.ledger.exists():
            return []
        lines = self.ledger.read_text().splitlines()
        return [(key, run_id) for key, _, run_id in (line.partition(" ") for line in lines)]


@dataclass(slots=True)
class History:
    """What the clients of one process were told."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    """Which run of an order they were told about."""
    unknown: list[str] = field(default_factory=list)
    """Orders about which they were told that nobody can tell; these are not run again."""
    asked_again: int = 0
    changed: dict[str, str] = field(default_factory=dict)
    """Acknowledged orders that were not answered the same when asked for after the failover, and how."""


class Client:
    """Places orders one after the other; asks again until it is told something final."""

    def __init__(self, shop: Shop, idempotency: Idempotency, history: History, name: str, mode: Mode) -> None:
        self._shop = shop
        self._idempotency = idempotency
        self._history = history
        self._name = name
        self._mode: Mode = mode

    def keys(self) -> Iterator[str]:
        number = 0
        while not self._shop.stop.exists():
            number += 1
            yield f"{self._name}-{number}"

    def shop_here(self) -> None:
        for key in self.keys():
            deadline = time.monotonic() + SETTLE
            while not self._told(key, deadline):
                time.sleep(0.02)

    async def shop_async(self) -> None:
        for key in self.keys():
            deadline = time.monotonic() + SETTLE
            while True:
                try:
                    answer = await self._ask_async(key)
                except Exception as error:
                    if self._noted(key, error, deadline):
                        break
                    await asyncio.sleep(0.02)
                else:
                    self._history.acknowledged[key] = answer
                    break

    def _told(self, key: str, deadline: float) -> bool:
        try:
            self._history.acknowledged[key] = self._ask(key)
        except Exception as error:
            return self._noted(key, error, deadline)
        return True

    def _noted(self, key: str, error: Exception, deadline: float) -> bool:
        """Whether that was final. Any other error is a 500 or a 503 to a client, and it asks again."""
        if isinstance(error, OutcomeUnknown):
            self._history.unknown.append(key)
            return True
        if time.monotonic() > deadline:
            raise TimeoutError(f"{key} was never settled: {error!r}") from error
        self._history.asked_again += 1
        return False

    def _ask(self, key: str) -> str:
        work = self._insert if self._mode == "atomic" else self._charge
        answer: str = self._idempotency.once(
            tenant=TENANT, key=key, payload=key, mode=self._mode, run=lambda: work(key)
        )
        return answer

    async def _ask_async(self, key: str) -> str:
        async def insert() -> str:
            run_id = secrets.token_hex(8)
            await current_operation().connection.execute("insert into orders values ($1, $2)", key, run_id)
            return run_id

        async def charge() -> str:
            return self._shop.charge(key)

        answer: str = await self._idempotency.once_async(
            tenant=TENANT,
            key=key,
            payload=key,
            mode=self._mode,
            run=insert if self._mode == "atomic" else charge,
        )
        return answer

    def _insert(self, key: str) -> str:
        run_id = secrets.token_hex(8)
        current_operation().connection.execute("insert into orders values (%s, %s)", [key, run_id])
        return run_id

    def _charge(self, key: str) -> str:
        return self._shop.charge(key)


def threads(shop: Shop) -> History:
    """A process of sync clients."""
    idempotency, history = shop.open(), History()
    clients = [
        Client(shop, idempotency, history, f"sync-{mode}-{number}", mode)
        for mode in MODES
        for number in range(CLIENTS)
    ]
    failed: list[BaseException] = []

    def work(client: Client) -> None:
        try:
            client.shop_here()
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=work, args=[client]) for client in clients]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failed:
        raise failed[0]
    check(shop, history)
    idempotency.close()
    return history


def tasks(shop: Shop) -> History:
    """A process of async clients."""
    history = History()

    async def main() -> None:
        idempotency = shop.open()
        clients = [
            Client(shop, idempotency, history, f"async-{mode}-{number}", mode)
            for mode in MODES
            for number in range(CLIENTS)
        ]
        await asyncio.gather(*(client.shop_async() for client in clients))
        await asyncio.to_thread(check, shop, history)
        await idempotency.aclose()

    asyncio.run(main())
    return history


def check(shop: Shop, history: History) -> None:
    """Asks once more for everything that was acknowledged: the same answer, and nothing runs."""
    again = shop.open()

    def must_not_run() -> str:
        raise LookupError("an acknowledged order was about to run again")

    for key, run_id in history.acknowledged.items():
        mode: Mode = "atomic" if "-atomic-" in key else "leased"
        deadline = time.monotonic() + SETTLE
        while True:
            try:
                answer = again.once(tenant=TENANT, key=key, payload=key, mode=mode, run=must_not_run)
            except LookupError:
                history.changed[key] = "was forgotten: a retry would have run again"
            except OutcomeUnknown:
                history.changed[key] = "became unknown"
            except Exception as error:
                if time.monotonic() < deadline:
                    time.sleep(0.02)  # its record is on its way: the answer was sent while the store was away
                    continue
                history.changed[key] = f"was not answered: {error!r}"
            else:
                if answer != run_id:
                    history.changed[key] = "was answered by another run"
            break
    again.close()


# ------------------------------------------------------------------ what really happened


@dataclass(slots=True)
class Account:
    """The clients' histories against the rows and the ledger."""

    acknowledged: Counter[Mode] = field(default_factory=Counter)
    unknown: int = 0
    asked_again: int = 0
    twice: list[str] = field(default_factory=list)
    """Orders that took effect more than once."""
    lost: dict[str, str] = field(default_factory=dict)
    """Orders that were acknowledged and did not take effect, or are no longer remembered; and how."""
    outage: float = 0.0
    """Seconds without a new order."""

    @property
    def sound(self) -> bool:
        return not self.twice and not self.lost


def settle(shop: Shop, url: str, histories: list[History]) -> Account:
    """Counts on the server that the URL names."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("select key, run from orders").fetchall()
    effects: dict[str, list[str]] = {}
    for key, run_id in [*rows, *shop.charges()]:
        effects.setdefault(key, []).append(run_id)
    account = Account(twice=sorted(key for key, runs in effects.items() if len(runs) > 1))
    for history in histories:
        account.unknown += len(history.unknown)
        account.asked_again += history.asked_again
        account.lost.update(history.changed)
        for key, run_id in history.acknowledged.items():
            account.acknowledged["atomic" if "-atomic-" in key else "leased"] += 1
            if run_id not in effects.get(key, []):
                account.lost.setdefault(key, "had no effect")
    return account


# ------------------------------------------------------------------ the story


class Traffic:
    """The load on a pair of servers, and how far it has come."""

    def __init__(self, pair: PostgresPair, directory: Path) -> None:
        self.pair = pair
        url = pair.create_database()
        drivers = drivers_for(url)
        run(drivers.sync, lambda: migrate(queries_for("postgres")))
        drivers.sync.close()
        with psycopg.connect(pair.at(pair.primary, url), autocommit=True) as connection:
            # No constraint: a second run must be able to show.
            connection.execute("create table orders (key text, run text)")
        self.shop = Shop(url, directory)
        self._processes: list[Spawned[History]] = []

    def begin(self) -> None:
        self._processes = [spawn(threads, self.shop), spawn(tasks, self.shop)]

    def orders(self, server: PostgresServer) -> int:
        with psycopg.connect(self.pair.at(server, self.shop.url)) as connection:
            row = connection.execute("select count(*) from orders").fetchone()
        assert row is not None
        return int(row[0])

    def wait_for(self, server: PostgresServer, more: int) -> None:
        """Until that many more orders of each kind were placed."""
        rows, charges = self.orders(server), len(self.shop.charges())

        def come() -> bool:
            self.must_run()
            return self.orders(server) >= rows + more and len(self.shop.charges()) >= charges + more

        wait_until(come, SETTLE, interval=0.05)

    def must_run(self) -> None:
        for process in self._processes:
            if not process.running:
                process.result()  # says why
                raise AssertionError("clients ended before they were told to")

    def end(self) -> list[History]:
        self.shop.stop.touch()
        return [process.result(3 * SETTLE) for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            process.close()


@contextmanager
def traffic(*, synchronous: str | None = "on") -> Iterator[Traffic]:
    """A pair of servers with clients at work."""
    with PostgresPair.start(synchronous=synchronous) as pair, tempfile.TemporaryDirectory() as directory:
        made = Traffic(pair, Path(directory))
        try:
            made.begin()
            yield made
        finally:
            made.close()


def fail_over(made: Traffic, *, orders: int, behind: bool = False) -> Account:
    """Kills the primary in the middle of traffic, promotes the standby, lets the old one come back."""
    pair = made.pair
    made.wait_for(pair.primary, orders)
    if behind:
        pair.link.stall()
        made.wait_for(pair.primary, orders)
    killed = time.monotonic()
    pair.kill_primary()
    pair.link.cut_all()
    pair.promote()
    made.wait_for(pair.standby, 1)
    outage = time.monotonic() - killed
    made.wait_for(pair.standby, orders)
    # The old primary again, first in everybody's URL: it can only be read, so nobody may use it.
    pair.return_as_standby()
    before = made.orders(pair.primary)
    made.wait_for(pair.standby, orders)
    histories = made.end()
    account = settle(made.shop, pair.at(pair.standby, made.shop.url), histories)
    account.outage = outage
    if made.orders(pair.primary) != before:
        account.lost["the old primary"] = "was written to"
    return account


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="failovers, each on servers of its own")
    parser.add_argument("--orders", type=int, default=500, help="of each mode, before and after")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="no commit waits")
    parser.add_argument("--remote-apply", action="store_true", help="wait until it can be read there")
    options = parser.parse_args()
    waits = None if options.asynchronous else "remote_apply" if options.remote_apply else "on"
    print(f"standby: {'asynchronous, behind' if waits is None else f'synchronous_commit={waits}'}")
    sound = True
    for number in range(1, options.rounds + 1):
        with traffic(synchronous=waits) as made:
            account = fail_over(made, orders=options.orders, behind=options.asynchronous)
        sound = sound and account.sound
        print(
            f"failover {number}: acknowledged {account.acknowledged['atomic']:,} atomic and "
            f"{account.acknowledged['leased']:,} leased orders; asked again {account.asked_again:,} times; "
            f"outcome unknown {account.unknown}; {account.outage:.1f} s without new orders",
            flush=True,
        )
        print(f"            ran twice: {len(account.twice)}; acknowledged and lost: {len(account.lost)}")
        for fate, count in Counter(account.lost.values()).most_common():
            print(f"              {count:5} {fate}")
    raise SystemExit(0 if sound else 1)


if __name__ == "__main__":
    main()

"""Every operation exactly once: through a network that drops, delays, duplicates, reorders and cuts, a server
that dies, and a client that is killed. Without the client's discipline the same run shows the doubles."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import lab
from lab.processes import ServedApp, free_port, serve_asgi
from lab.unruly import UnrulyProxy
from samekey import Idempotency
from tests.chosen import whole

from .payer import TRY_AGAIN
from .wires import EVERY

PATIENCE = 280.0


@dataclass(frozen=True)
class Run:
    """What came of it."""

    paid: Counter[str]
    attempts: int
    replayed: int
    kills: int
    deaths: int
    befell: Counter[str]

    def __str__(self) -> str:
        return (
            f"{len(self.paid)} orders, {sum(self.paid.values())} payments, {self.attempts} attempts, "
            f"{self.replayed} replayed; client killed {self.kills} times, server died {self.deaths} times; "
            f"{dict(self.befell.most_common())}"
        )


def run(wire: str, count: int, folder: Path, *, discipline: str = "one-key", kills: int = 3) -> Run:
    database = folder / "shop.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table payments (order_name text not null)")
        connection.commit()
    Idempotency(f"sqlite:///{database}").close()
    port = free_port()
    environment = lab.environment(SHOP_DATABASE=str(database), SHOP_DEATHS=str(max(8, 800 // count)))

    def serve() -> ServedApp:
        options = ["--log-level", "critical", "--no-access-log"]
        return serve_asgi("tests.client.shop:app", environment, port=port, options=options)

    command = [sys.executable, "-m", "tests.client.payer", wire]
    books, killed, deaths, until = folder / "books", 0, 0, time.monotonic() + PATIENCE
    shop = serve()
    try:
        with UnrulyProxy(port, seed=7) as proxy:
            while time.monotonic() < until:
                payer = subprocess.Popen(
                    [*command, proxy.url, str(folder), str(count), discipline],
                    env=lab.environment(),
                    stderr=subprocess.PIPE,
                )
                # Killed when a part of the orders is in the books, wherever it is by then.
                enough = count * (killed + 1) // (kills + 1)
                while payer.poll() is None and time.monotonic() < until:
                    if not shop.running:
                        deaths += 1
                        shop.stop()
                        shop = serve()
                    if killed < kills and _lines(books) >= enough:
                        payer.kill()
                        killed += 1
                    time.sleep(0.005)
                payer.kill()
                _, told = payer.communicate()
                if payer.returncode == 0:
                    break
                assert payer.returncode in (-9, TRY_AGAIN), told.decode()
            else:
                raise AssertionError(f"The time is over: {_lines(books)} of {count} orders are in the books.")
    finally:
        shop.stop()
    with closing(sqlite3.connect(database)) as connection:
        paid = Counter(name for (name,) in connection.execute("select order_name from payments"))
    told_of = [line.split() for line in books.read_text().splitlines()]
    return Run(
        paid,
        sum(int(line[1]) for line in told_of),
        sum(int(line[2]) for line in told_of),
        killed,
        deaths,
        proxy.befell,
    )


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def assert_each_once(found: Run, count: int) -> None:
    print(found)
    assert found.paid == Counter({str(order): 1 for order in range(count)})
    assert found.attempts > count


def assert_some_twice(found: Run, count: int) -> None:
    print(found, "paid more than once:", sum(times > 1 for times in found.paid.values()))
    assert set(found.paid) == {str(order) for order in range(count)}
    assert sum(found.paid.values()) > count


def test_each_operation_is_carried_out_once(tmp_path: Path) -> None:
    assert_each_once(run("httpx2", 15, tmp_path, kills=1), 15)


@whole
@pytest.mark.parametrize("wire", [wire.name for wire in EVERY if wire.name != "httpx2"])
def test_each_operation_is_carried_out_once_on(wire: str, tmp_path: Path) -> None:
    assert_each_once(run(wire, 40, tmp_path, kills=3), 40)


@whole
def test_a_thousand_operations_are_carried_out_once_each(tmp_path: Path) -> None:
    assert_each_once(run("httpx2", 1000, tmp_path, kills=8), 1000)


@whole
def test_a_new_key_for_each_attempt_pays_twice(tmp_path: Path) -> None:
    assert_some_twice(run("httpx2", 40, tmp_path, discipline="new-keys", kills=3), 40)


if (
    __name__ == "__main__"
):  # python -m tests.client.test_exactly_once [COUNT]: on each, and without discipline
    import tempfile

    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for each in EVERY:
        with tempfile.TemporaryDirectory() as place:
            print(each.name, end=": ", flush=True)
            assert_each_once(run(each.name, wanted, Path(place), kills=8), wanted)
    with tempfile.TemporaryDirectory() as place:
        print("a new key for each attempt", end=": ", flush=True)
        assert_some_twice(run("httpx2", wanted, Path(place), discipline="new-keys", kills=8), wanted)

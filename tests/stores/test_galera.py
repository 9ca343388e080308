"""Three MariaDB nodes that all write (Galera): conflicts are found at COMMIT, and each key has one winner.

On demand only, because it takes three servers and half a minute: SAMEKEY_GALERA=1.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from lab.processes import LOOPBACK, Turn, free_port, race, wait_until
from lab.servers.mariadb import MariaDBServer, ask, connected
from samekey import Idempotency, ietf
from samekey.core.decide import Execute, Outstanding
from samekey.core.states import Mode
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.errors import StoreError
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance import new_claim
from tests.stores.crash_scenarios import PAID, effects, exchange_of, prepare, state_of

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
KEYS = SqlKeys(queries_for("mysql"))

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("SAMEKEY_GALERA") != "1",
        reason="three Galera nodes are started on demand only: set SAMEKEY_GALERA=1",
    ),
    pytest.mark.timeout(600),
]


def node(peers: list[int]) -> tuple[MariaDBServer, int]:
    """One node, and the port where its peers find it."""
    group, transfer, catch_up = free_port(), free_port(), free_port()
    settings = {
        "wsrep-on": "ON",
        "wsrep-provider": str(PROVIDER),
        "wsrep-cluster-address": "gcomm://" + ",".join(f"{LOOPBACK}:{peer}" for peer in peers),
        "wsrep-node-address": LOOPBACK,
        "wsrep-provider-options": (
            f"gmcast.listen_addr=tcp://{LOOPBACK}:{group};base_port={group};"
            f"ist.recv_addr={LOOPBACK}:{catch_up};gcache.size=16M"
        ),
        "wsrep-sst-method": "rsync",
        "wsrep-sst-receive-address": f"{LOOPBACK}:{transfer}",
        "binlog-format": "ROW",
        "innodb-autoinc-lock-mode": "2",
    }
    # Copying a node's files to another does not work as root.
    return MariaDBServer.start(settings=settings, user="mysql"), group


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """The same database, by each of three nodes."""
    if not PROVIDER.exists():
        pytest.fail("SAMEKEY_GALERA=1 needs Debian's package galera-4")
    with ExitStack() as running:
        servers: list[MariaDBServer] = []
        peers: list[int] = []
        for _ in range(3):
            server, group = node(peers)
            servers.append(running.enter_context(server))
            peers.append(group)
        for server in servers:
            wait_until(partial(joined, server), 60)
        first = servers[0].create_database()
        prepare(first)
        there = [
            urlunsplit(urlsplit(first)._replace(netloc=urlsplit(server.url).netloc)) for server in servers
        ]
        for url in there:
            wait_until(lambda: caught_up(url), 60)  # noqa: B023
        yield there


def joined(server: MariaDBServer) -> bool:
    status = dict(server.execute("show global status like 'wsrep_%'"))
    return (status["wsrep_ready"], status["wsrep_cluster_size"]) == ("ON", "3")


def caught_up(url: str) -> bool:
    """Whether all that was written anywhere before can be seen here."""
    with connected(url) as connection, connection.cursor() as cursor:
        cursor.execute("set session wsrep_sync_wait = 15")
        cursor.execute("show tables like 'effects'")
        return bool(cursor.fetchall())


def claim_somewhere(turn: Turn, urls: list[str], scope: str) -> str:
    drivers = drivers_for(urls[turn.racer % len(urls)])
    claim = new_claim(scope=scope, key=f"round {turn.round}")
    try:
        return type(run(drivers.sync, lambda: KEYS.claim(claim, ietf()))).__name__
    except StoreError as error:
        return type(error).__name__
    finally:
        drivers.sync.close()


def test_one_winner_a_key_across_nodes(urls: list[str]) -> None:
    told: Counter[str] = Counter()
    for results in race(claim_somewhere, 9, urls, secrets.token_hex(4), rounds=50, timeout=180):
        assert results.count("Execute") == 1, results
        told.update(results)
    print(f"nine processes on three nodes, 50 keys: {dict(told)}")


def begun(idempotency: Idempotency, label: str) -> Any:
    return idempotency.engine.begin(
        exchange_of(label), rules_from(idempotency.engine.policy, Mode.ATOMIC, {})
    )


def test_a_conflict_that_is_found_at_commit_is_503_and_a_retry_runs(urls: list[str]) -> None:
    ask(urls[0], "create table if not exists accounts (id int primary key, cents int) engine = InnoDB")
    ask(urls[0], "replace into accounts values (1, 0)")
    wait_until(lambda: ask(urls[1], "select count(*) from accounts")[0][0] == 1)
    label = secrets.token_hex(8)
    idempotency = Idempotency(urls[0])
    running = begun(idempotency, label)
    assert isinstance(running, Running)
    connection = running.operation.connection
    connection.execute(f"insert into effects values ('{label}')")
    connection.execute("update accounts set cents = cents + 1 where id = 1")
    ask(urls[1], "update accounts set cents = 100 where id = 1")  # another node was faster
    answer = idempotency.engine.finish(running, Handled(PAID)).answer
    assert answer is not None and answer.status == 503, answer
    assert effects(urls[0], label) == 0
    retried = begun(idempotency, label)
    assert isinstance(retried, Running), retried
    retried.operation.connection.execute(f"insert into effects values ('{label}')")
    answer = idempotency.engine.finish(retried, Handled(PAID)).answer
    assert answer is not None and answer.status == 201
    idempotency.close()
    for url in urls:
        wait_until(lambda: state_of(url, label) == "completed")  # noqa: B023
        assert effects(url, label) == 1


def test_a_holder_that_was_overtaken_on_another_node_commits_nothing(urls: list[str]) -> None:
    label = secrets.token_hex(8)
    here, there = Idempotency(urls[0]), Idempotency(urls[1])
    first = begun(here, label)
    assert isinstance(first, Running)
    first.operation.connection.execute(f"insert into effects values ('{label}')")
    wait_until(lambda: state_of(urls[1], label) == "in_progress")
    ask(urls[1], f"update samekey_keys set locked_until = 1 where key = '{label}'")
    second = begun(there, label)
    assert isinstance(second, Running), second
    second.operation.connection.execute(f"insert into effects values ('{label}')")
    with ThreadPoolExecutor(2) as threads:
        ends = [
            threads.submit(engine.engine.finish, running, Handled(PAID))
            for engine, running in ((here, first), (there, second))
        ]
        answers = [end.result().answer for end in ends]
    assert all(answer is not None and answer.status in (201, 409, 503) for answer in answers), answers
    for url in urls:
        wait_until(lambda: state_of(url, label) == "completed")  # noqa: B023
        assert effects(url, label) == 1
    here.close()
    there.close()


def test_a_claim_is_seen_by_every_node(urls: list[str]) -> None:
    claim = new_claim()
    drivers = [drivers_for(url) for url in urls]
    assert isinstance(run(drivers[0].sync, lambda: KEYS.claim(claim, ietf())), Execute)
    for other in drivers[1:]:
        again = new_claim(scope=claim.scope, key=claim.key)
        assert isinstance(run(other.sync, partial(KEYS.claim, again, ietf())), Outstanding)
    for one in drivers:
        one.sync.close()

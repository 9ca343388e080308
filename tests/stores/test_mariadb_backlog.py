"""MariaDB: a look for jobs reads as much with a long backlog as with a short one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from lab.servers.mariadb import NamedServer, ask
from samekey.core.program import Program
from samekey.drivers.mysql.driver import PyMySQLDriver
from samekey.drivers.run import run_in
from samekey.stores.sql.jobs import Jobs, Taking
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import queries_for
from tests.chosen import whole
from tests.stores.conftest import migrated

pytestmark = whole

T = TypeVar("T")

BACKLOG = 20_000
AHEAD = 100


@pytest.fixture(scope="module")
def backlog(mariadb_server: NamedServer) -> Iterator[str]:
    """One tenant's backlog of one kind, between kinds of which little waits."""
    url = mariadb_server.create_database()
    migrated(url).sync.close()
    for name, count in (("export", 10), ("import", BACKLOG), ("quick", 10)):
        ask(
            url,
            "insert into samekey_jobs (id, operation_id, scope, key, tenant, name, payload, answers, state,"
            f" attempts, due_at, created_at) select concat('{name}', seq), '', '', '', 'ann', '{name}', '',"
            f" 0, 'live', 0, seq, seq from seq_1_to_{count}",
        )
    yield url
    mariadb_server.drop_database(url)


def rows_read(url: str, program: Program[T]) -> tuple[T, int]:
    """What it gives, and how many rows or entries of an index the server has read for it."""
    driver = PyMySQLDriver(url)
    session = driver.open()
    cursor = session.connection.cursor()

    def read() -> int:
        cursor.execute("show session status like 'handler_read%'")
        return sum(int(count) for _, count in cursor.fetchall())

    try:
        before = read()
        own = read() - before
        found = run_in(session, program)
        return found, read() - before - 2 * own
    finally:
        session.rollback()
        driver.close()


def jobs() -> Jobs:
    return Jobs(SqlKeys(queries_for("mysql")))


@pytest.mark.parametrize("analysed", [False, True])
def test_asking_what_is_due_reads_one_job_of_each_kind(backlog: str, analysed: bool) -> None:
    if analysed:
        ask(backlog, "analyze table samekey_jobs")
    found, read = rows_read(backlog, jobs().due(now=50))
    assert found == {"export": -49, "import": -49, "quick": -49}
    assert read <= 20, read


@pytest.mark.parametrize("analysed", [False, True])
def test_a_look_beside_a_full_tenant_reads_no_deeper_than_it_is_told(backlog: str, analysed: bool) -> None:
    if analysed:
        ask(backlog, "analyze table samekey_jobs")
    taking = Taking("import", 5, full_tenants=["ann"], ahead=AHEAD)
    found, read = rows_read(backlog, jobs().take("t", taking, lease_ms=1000, now=10 * BACKLOG))
    assert not found
    assert read <= 4 * AHEAD, read


def test_a_batch_reads_no_more_than_it_takes(backlog: str) -> None:
    taken, read = rows_read(backlog, jobs().take("t", Taking("import", 5), lease_ms=1000, now=10 * BACKLOG))
    assert [job.id for job in taken] == [f"import{number}" for number in range(1, 6)]
    assert read <= 100, read

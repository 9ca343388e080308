"""The schema: made once, by any number of migrators, by any tool, and refused in words if it does not fit."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from lab import environment
from lab.processes import Turn, race
from lab.servers import mariadb
from lab.servers.postgres import NamedServer
from samekey import Idempotency, ietf
from samekey.core.decide import Execute
from samekey.core.record import Answer
from samekey.core.states import Mode, State
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.engine.handler.rules import rules_from
from samekey.errors import ConfigurationError, SchemaMismatch
from samekey.stores.sql import migrations as module
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.migrations import Migration, check, code_version, migrate, migrations, script
from samekey.stores.sql.queries import Queries, queries_for
from samekey.testing.conformance import new_claim
from tests.chosen import stores, whole
from tests.operator import command
from tests.operator.command import Ran
from tests.stores.crash_scenarios import exchange_of
from tests.stores.schemas import describe, execute, execute_script

STORES = ("sqlite", "postgres", "mariadb")


@pytest.fixture(params=stores(*STORES))
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def queries_of(url: str, schema: str = "samekey") -> Queries:
    return queries_for(drivers_for(url).dialect, schema)


@pytest.fixture
def another(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Callable[[], str]:
    """Makes more empty databases of the same kind."""
    kind = url.partition(":")[0]
    if kind == "sqlite":
        return lambda: f"sqlite:///{tmp_path / secrets.token_hex(4)}.db"
    server = request.getfixturevalue({"mysql": "mariadb_server", "postgresql": "postgres_server"}[kind])
    made: Callable[[], str] = server.create_database
    return made


def migrate_url(url: str, schema: str = "samekey") -> list[int]:
    # Whoever migrates at the same time is waited for, however slow the machine is.
    drivers, queries = drivers_for(url, timeout=60), queries_of(url, schema)
    try:
        return [migration.version for migration in run(drivers.sync, lambda: migrate(queries))]
    finally:
        drivers.sync.close()


def check_url(url: str, schema: str = "samekey") -> None:
    drivers, queries = drivers_for(url), queries_of(url, schema)
    try:
        run(drivers.sync, lambda: check(queries))
    finally:
        drivers.sync.close()


def versions_table(url: str) -> str:
    return queries_of(url).expand("{versions}")


def all_versions(url: str) -> list[int]:
    return [migration.version for migration in migrations(queries_of(url).dialect)]


# ------------------------------------------------------------------ making it


def test_a_fresh_database_gets_every_version(url: str) -> None:
    assert migrate_url(url) == all_versions(url)
    check_url(url)
    noted = [row[0] for row in describe(url)["versions"]]
    assert noted == all_versions(url) == list(range(1, code_version(queries_of(url).dialect) + 1))


def test_a_second_run_does_nothing(url: str) -> None:
    migrate_url(url)
    before = describe(url)
    assert migrate_url(url) == []
    assert describe(url) == before


def test_a_migration_keeps_the_records(url: str) -> None:
    migrate_url(url)
    drivers, claim = drivers_for(url), new_claim()
    keys = SqlKeys(queries_of(url))
    run(drivers.sync, lambda: keys.claim(claim, ietf()))
    migrate_url(url)
    record = run(drivers.sync, lambda: keys.read(claim.scope, claim.key))
    drivers.sync.close()
    assert record is not None and record.attempt == claim.attempt


def migrate_in_round(turn: Turn, urls: list[str]) -> list[int]:
    return migrate_url(urls[turn.round])


def make_engine_in_round(turn: Turn, urls: list[str]) -> bool:
    idempotency = Idempotency(urls[turn.round], timeout=60)
    idempotency.check()
    idempotency.close()
    return True


def test_migrators_at_once_on_postgresql(postgres_server: NamedServer) -> None:
    urls = [postgres_server.create_database() for _ in range(4)]
    for url, results in zip(urls, race(migrate_in_round, 3, urls, rounds=len(urls)), strict=True):
        assert sorted(results) == [[], [], all_versions(url)]
        check_url(url)
        postgres_server.drop_database(url)


@whole
def test_migrators_at_once_on_mariadb(mariadb_server: mariadb.NamedServer) -> None:
    urls = [mariadb_server.create_database() for _ in range(4)]
    for url, results in zip(urls, race(migrate_in_round, 3, urls, rounds=len(urls)), strict=True):
        assert sorted(results) == [[], [], all_versions(url)]
        check_url(url)
        mariadb_server.drop_database(url)


@whole
def test_migrators_at_once_on_sqlite(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / str(number)}.db" for number in range(12)]
    for url, results in zip(urls, race(migrate_in_round, 3, urls, rounds=len(urls)), strict=True):
        assert sorted(results) == [[], [], all_versions(url)]
        check_url(url)


def test_processes_that_start_at_once_on_a_new_sqlite_file(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / str(number)}.db" for number in range(12)]
    assert all(all(results) for results in race(make_engine_in_round, 3, urls, rounds=len(urls)))


# ------------------------------------------------------------------ by another tool


def test_the_script_makes_the_same_schema(url: str, another: Callable[[], str]) -> None:
    other = another()
    migrate_url(url)
    execute_script(other, script(queries_of(url)))
    assert describe(other) == describe(url)
    check_url(other)
    assert migrate_url(other) == []


def test_the_script_fits_another_schema(postgres_url: str) -> None:
    execute_script(postgres_url, script(queries_for("postgres", "Other")))
    check_url(postgres_url, "Other")
    migrate_url(postgres_url, "Another")
    ours, theirs = (repr(describe(postgres_url, name)) for name in ("Other", "Another"))
    assert ours == theirs.replace("Another", "Other")


MADE_UP = Migration(2, "made_up", 1, "alter table {keys} add column made_up bigint;\n")
"""A next version of the schema, on which code of version 1 still runs."""


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, this process is code of version 2."""

    def upgrade() -> None:
        first = {dialect: migrations(dialect) for dialect in ("sqlite", "postgres", "mysql")}
        monkeypatch.setattr(module, "migrations", lambda dialect: (*first[dialect], MADE_UP))

    return upgrade


def test_an_older_version_is_brought_up_to_date(url: str, next_version: Callable[[], None]) -> None:
    assert migrate_url(url) == [1]
    next_version()
    with pytest.raises(SchemaMismatch, match="have version 1, this code needs 2"):
        check_url(url)
    assert migrate_url(url) == [2]
    check_url(url)
    assert execute(url, queries_of(url).expand("select count(made_up) from {keys}")) == [(0,)]
    assert describe(url)["versions"] == [(1, 1), (2, 1)]


def test_old_code_runs_on_a_newer_schema_that_says_so(
    url: str, next_version: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    next_version()
    assert migrate_url(url) == [1, 2]
    monkeypatch.undo()
    check_url(url)
    drivers, claim = drivers_for(url), new_claim()
    keys = SqlKeys(queries_of(url))
    assert isinstance(run(drivers.sync, lambda: keys.claim(claim, ietf())), Execute)
    drivers.sync.close()


def test_the_script_brings_a_fresh_database_to_the_newest_version(
    url: str, another: Callable[[], str], next_version: Callable[[], None]
) -> None:
    next_version()
    other = another()
    migrate_url(url)
    execute_script(other, script(queries_of(url)))
    assert describe(other) == describe(url)


# ------------------------------------------------------------------ what the database itself refuses

CONSTRAINED = {
    ("keys", "state"): [str(state) for state in State],
    ("keys", "mode"): [str(mode) for mode in Mode],
    ("keys", "ttl_from"): ["completion", "creation"],
    ("keys", "after_expiry"): ["new", "ask", "gone"],
    ("jobs", "state"): ["live", "done", "dead", "cancelled", "discarded"],
}


@pytest.mark.parametrize(("table", "column"), CONSTRAINED)
def test_the_database_takes_the_known_words_and_no_other(url: str, table: str, column: str) -> None:
    migrate_url(url)
    execute(url, as_spelled(url, A_KEY))
    execute(url, as_spelled(url, A_JOB))
    change = queries_of(url).expand(f"update {{{table}}} set {column} = '%s'")
    for word in CONSTRAINED[table, column]:
        execute(url, change % word)
    for wrong in ("", "Completed", "completed ", "surprise"):
        with pytest.raises(Exception, match=r"(?i)check|constraint"):
            execute(url, change % wrong)


def test_the_database_takes_no_retention_of_nothing(url: str) -> None:
    migrate_url(url)
    execute(url, as_spelled(url, A_KEY))
    with pytest.raises(Exception, match=r"(?i)check|constraint"):
        execute(url, queries_of(url).expand("update {keys} set ttl_ms = 0"))


def as_spelled(url: str, sql: str) -> str:
    return queries_of(url).expand(sql.replace("key_column", queries_of(url).column("key")))


A_KEY = """
    insert into {keys} (
        scope, key_column, id, life, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
        attempts, created_at, last_run_at, ttl_ms, ttl_from, after_expiry, expires_at
    ) values (
        's', 'k', 'i', 1, 't', 'e', 'f', '1', 'completed', 'leased', 'a', 1, 1, 1, 1, 'completion', 'new', 1
    )
"""
A_JOB = """
    insert into {jobs} (
        id, operation_id, scope, key_column, tenant, name, payload, answers, state, attempts, due_at,
        created_at
    ) values ('j', 'i', 's', 'k', 't', 'n', 'p', 1, 'live', 0, 1, 1)
"""


# ------------------------------------------------------------------ when it does not fit


def test_missing_tables_are_named(url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"missing. Create them: samekey migrate URL"):
        check_url(url)


def test_old_tables_are_named(url: str) -> None:
    migrate_url(url)
    newest = all_versions(url)[-1]
    execute(url, f"delete from {versions_table(url)} where version = {newest}")
    with pytest.raises(SchemaMismatch, match=rf"version {newest - 1}, this code needs {newest}.*samekey mig"):
        check_url(url)


def test_tables_that_are_too_new_are_named(url: str) -> None:
    migrate_url(url)
    execute(url, f"insert into {versions_table(url)} (version, min_compatible) values (99, 98)")
    with pytest.raises(SchemaMismatch, match=r"version 99, which needs code of version 98.*Upgrade samekey"):
        check_url(url)


def test_newer_tables_that_still_carry_this_code_are_taken(url: str) -> None:
    migrate_url(url)
    ours = all_versions(url)[-1]
    execute(url, f"insert into {versions_table(url)} (version, min_compatible) values (98, 98), (99, {ours})")
    check_url(url)
    assert migrate_url(url) == []


@pytest.mark.parametrize("change", ["missing", "too old", "too new"])
def test_a_request_on_tables_that_do_not_fit_is_refused(postgres_url: str, change: str) -> None:
    idempotency = Idempotency(postgres_url)
    if change != "missing":
        migrate_url(postgres_url)
    table = versions_table(postgres_url)
    if change == "too old":
        execute(postgres_url, f"delete from {table}")
    if change == "too new":
        execute(postgres_url, f"insert into {table} (version, min_compatible) values (99, 99)")
    try:
        for mode in (Mode.LEASED, Mode.ATOMIC):
            answer = idempotency.engine.begin(
                exchange_of("key"), rules_from(idempotency.engine.policy, mode, {})
            )
            assert isinstance(answer, Answer)
            assert (answer.status, b"store_unavailable" in answer.body) == (503, True)
        with pytest.raises(SchemaMismatch):
            idempotency.check()
        if change == "too new":
            execute(postgres_url, f"delete from {table} where version = 99")
            idempotency.check()  # recovery needs no restart
    finally:
        idempotency.close()


# ------------------------------------------------------------------ another schema


def test_two_schemas_in_one_database_do_not_meet(postgres_url: str) -> None:
    for schema in ("samekey", "Tenant_2"):
        migrate_url(postgres_url, schema)
    drivers = drivers_for(postgres_url)
    claim = new_claim()
    for schema in ("samekey", "Tenant_2"):
        keys = SqlKeys(queries_for("postgres", schema))
        assert isinstance(run(drivers.sync, partial(keys.claim, claim, ietf())), Execute)
    drivers.sync.close()
    assert execute(postgres_url, 'select count(*) from "Tenant_2".keys') == [(1,)]


@pytest.mark.parametrize("name", ["", "1x", 'a"b', "a b", "a.b", "a;drop", "é", "x" * 64])
def test_a_name_that_cannot_be_a_schema_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a schema"):
        Queries("postgres", name)


# ------------------------------------------------------------------ rights


@pytest.fixture
def stranger(postgres_url: str) -> Iterator[str]:
    """The URL of the database for a role that may do nothing in it."""
    role = f"stranger_{secrets.token_hex(4)}"
    execute(postgres_url, f"create role {role} login")
    parts = urlsplit(postgres_url)
    host = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"{role}@{host}"))
    execute(postgres_url, f"drop owned by {role}")
    execute(postgres_url, f"drop role {role}")


def role_of(url: str) -> str:
    return urlsplit(url).username or ""


def test_a_role_that_may_not_create_gets_a_sentence(stranger: str) -> None:
    with pytest.raises(ConfigurationError, match=r"permission denied.*(?i:grant)") as refused:
        migrate_url(stranger)
    assert not isinstance(refused.value, SchemaMismatch)


def test_a_role_that_may_not_use_the_tables_gets_a_sentence(stranger: str, postgres_url: str) -> None:
    migrate_url(postgres_url)
    with pytest.raises(ConfigurationError, match=r"(?i)grant") as refused:
        check_url(stranger)
    assert "missing" not in str(refused.value), "the tables are there"


def test_a_role_with_the_least_rights_can_work(stranger: str, postgres_url: str) -> None:
    migrate_url(postgres_url)
    role = role_of(stranger)
    execute(postgres_url, f"grant usage on schema samekey to {role}")
    execute(postgres_url, f"grant select, insert, update, delete on all tables in schema samekey to {role}")
    check_url(stranger)
    drivers, claim = drivers_for(stranger), new_claim()
    keys = SqlKeys(queries_for("postgres"))
    assert isinstance(run(drivers.sync, lambda: keys.claim(claim, ietf())), Execute)
    drivers.sync.close()


def test_a_role_that_owns_the_schema_need_not_be_able_to_create_schemas(
    stranger: str, postgres_url: str
) -> None:
    execute(postgres_url, f"create schema samekey authorization {role_of(stranger)}")
    assert migrate_url(stranger) == all_versions(stranger)
    check_url(stranger)


# ------------------------------------------------------------------ the command


def samekey(*arguments: str, **environment: str) -> Ran:
    return command.samekey(*arguments, env={"NO_COLOR": "1", "TERM": "dumb", **environment})


def test_the_command_migrates_and_says_what_it_did(url: str) -> None:
    first = samekey("migrate", url)
    assert (first.code, first.err) == (0, "")
    lines = first.out.splitlines()
    names = [f"applied {m.version:04d} {m.name}" for m in migrations(queries_of(url).dialect)]
    version = code_version(queries_of(url).dialect)
    assert lines == [*names, f"The tables have version {version}."]
    second = samekey("migrate", SAMEKEY_URL=url)
    assert (second.code, second.out.splitlines()) == (0, lines[-1:])
    assert samekey("migrate", "--check", url).code == 0


def test_the_command_checks_without_changing(postgres_url: str) -> None:
    missing = samekey("migrate", "--check", postgres_url)
    assert (missing.code, missing.out) == (1, "")
    assert missing.err == ("samekey: The tables of samekey are missing. Create them: samekey migrate URL\n")
    assert execute(postgres_url, "select count(*) from pg_namespace where nspname = 'samekey'") == [(0,)]


def test_the_command_prints_its_sql_without_a_connection() -> None:
    """As a process of its own."""
    line = [
        sys.executable,
        "-m",
        "samekey.cli",
        "migrate",
        "--print-sql",
        "postgresql://nobody@127.0.0.1:1/none",
    ]
    printed = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert printed.stdout == script(queries_for("postgres"))


def test_the_command_takes_every_option_from_the_environment(postgres_url: str) -> None:
    assert samekey("migrate", SAMEKEY_URL=postgres_url, SAMEKEY_SCHEMA="theirs").code == 0
    check_url(postgres_url, "theirs")
    assert samekey("migrate", SAMEKEY_URL=postgres_url, SAMEKEY_CHECK="1").code == 1
    printed = samekey("migrate", SAMEKEY_URL=postgres_url, SAMEKEY_PRINT_SQL="1", SAMEKEY_SCHEMA="theirs")
    assert printed.out == script(queries_for("postgres", "theirs"))


def test_the_command_fails_with_a_sentence() -> None:
    for arguments, said in (
        (["mongodb://x/y"], "does not know the store"),
        (["mysql://nobody@127.0.0.1:1/none"], "Is the server running there"),
        (["mysql://nobody@127.0.0.1:1"], "names no database"),
        (["sqlite://app.db"], "three slashes"),
        (["postgresql://nobody@127.0.0.1:1/none"], "refused"),
        (["--schema", "a b", "postgresql://nobody@127.0.0.1:1/none"], "cannot be the name of a schema"),
    ):
        failed = samekey("migrate", *arguments)
        assert (failed.code, failed.out) == (1, ""), failed
        assert failed.err.startswith("samekey: ") and said in failed.err, failed.err
        assert "Traceback" not in failed.err


def test_the_command_without_a_url_is_a_usage_error() -> None:
    usage = samekey("migrate")
    assert usage.code == 2
    assert "Traceback" not in usage.err


def test_the_command_does_not_touch_tables_that_are_too_new(sqlite_url: str) -> None:
    migrate_url(sqlite_url)
    execute(sqlite_url, f"insert into {versions_table(sqlite_url)} (version, min_compatible) values (99, 99)")
    newer = samekey("migrate", sqlite_url)
    assert newer.code == 1, newer.out
    assert "Upgrade samekey" in newer.err

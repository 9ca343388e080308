"""The rights that the pages print: applied as printed, everything works under them, and one right less is
said at the start, by name. Nobody but the operator can take anything away from the audit."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from lab.servers.mariadb import NamedServer
from samekey import ConfigurationError, Executed, Idempotency, Response, ietf
from tests.chosen import whole
from tests.operator.command import samekey
from tests.operator.world import DAY, World
from tests.stores.schemas import execute

DOCS = Path(__file__).parents[2] / "docs" / "stores"
Execute = Callable[[str], Any]


def statements(page: str) -> list[str]:
    """Of the block with the grants, without its comments."""
    blocks = re.findall(r"```sql\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "audit" in block and "grant" in block]
    return [part.strip() for part in re.sub(r"--.*", "", block).split(";") if part.strip()]


def as_user(url: str, name: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{name}:pw@{host}"))


@pytest.fixture
def postgres_roles(postgres_url: str) -> Iterator[Callable[[str], str]]:
    """URLs of logins that have one of the page's roles."""
    Idempotency(postgres_url).engine.migrate()
    label = f"_{secrets.token_hex(4)}"
    names = ["samekey_app", "samekey_worker", "samekey_operator"]
    for statement in statements("postgresql.md"):
        execute(postgres_url, re.sub(r"\bsamekey_(app|worker|operator)\b", rf"samekey_\1{label}", statement))
    for name in names:
        execute(postgres_url, f"alter role {name}{label} login password 'pw'")
    yield lambda role: as_user(postgres_url, f"samekey_{role}{label}")
    for name in reversed(names):
        execute(postgres_url, f"drop owned by {name}{label}")
        execute(postgres_url, f"drop role {name}{label}")


@pytest.fixture
def mariadb_roles(mariadb_server: NamedServer, mariadb_url: str) -> Iterator[Callable[[str], str]]:
    Idempotency(mariadb_url).engine.migrate()
    label = f"_{secrets.token_hex(4)}"
    database = urlsplit(mariadb_url).path.lstrip("/")
    for role in ("app", "operator", "migrator"):
        mariadb_server.execute(f"create user {role}{label} identified by 'pw'")
    for statement in statements("mysql.md"):
        named = re.sub(r"to (\w+)$", rf"to \1{label}", statement.replace("shop.", f"{database}."))
        mariadb_server.execute(named)
        if named.endswith(f"to app{label}"):
            mariadb_server.execute(named.replace(f"app{label}", f"operator{label}"))
    yield lambda role: as_user(mariadb_url, f"{'app' if role == 'worker' else role}{label}")
    for role in ("app", "operator", "migrator"):
        mariadb_server.execute(f"drop user {role}{label}")


def everything(app_url: str, worker_url: str, operator_url: str) -> None:
    """A life of every kind of work, the commands that tend it, and those of an operator."""
    app = World(app_url, ietf(active_keys=100, new_keys_per_minute=100), migrates=False)
    app.engine.check()
    assert app.engine.once(tenant="t", key="a", run=lambda: {"n": 1}) == {"n": 1}
    assert app.engine.once(tenant="t", key="a", run=lambda: {"n": 2}) == {"n": 1}
    old = -3 * DAY
    app.completed(at=old)
    app.failed(at=old)
    app.phased(at=old)
    app.pending(at=old)
    unknown, (dead, job) = app.unknown(), app.dead_job()
    app.tell(Executed(Response(200, {})), operation_id=unknown.id)
    app.close()
    for command in (("sweep",), ("reap",), ("doctor",)):
        ran = samekey(*command, "--url", worker_url)
        assert ran.code == 0 or command == ("doctor",), ran
        assert "denied" not in ran.out + ran.err, ran
    for arguments in (
        ("keys", "list"),
        ("keys", "show", unknown.id),
        ("dead", "list"),
        ("dead", "discard", job, "--reason", "tried"),
        ("audit", "prune", "--older-than", "1000d", "--reason", "tried"),
    ):
        ran = samekey(*arguments, "--url", operator_url)
        assert ran.code == 0, (arguments, ran)
    assert dead.id


def _works(roles: Callable[[str], str]) -> None:
    everything(roles("app"), roles("worker"), roles("operator"))


def test_everything_works_under_the_grants_of_postgresql(postgres_roles: Callable[[str], str]) -> None:
    _works(postgres_roles)


@whole
def test_everything_works_under_the_grants_of_mysql(mariadb_roles: Callable[[str], str]) -> None:
    _works(mariadb_roles)


@pytest.mark.parametrize("role", ["app", "worker"])
@pytest.mark.parametrize("sql", ["delete from samekey.audit", "update samekey.audit set actor = 'me'"])
def test_nobody_but_the_operator_changes_the_audit(
    postgres_roles: Callable[[str], str], role: str, sql: str
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(postgres_roles(role), sql)


TABLES = ("keys", "inputs", "phases", "jobs", "effects", "evidence", "limits")


def test_one_right_less_is_named_by_postgresql(
    postgres_url: str, postgres_roles: Callable[[str], str]
) -> None:
    url = postgres_roles("app")
    rights = [(right, table) for table in TABLES for right in ("select", "insert", "update", "delete")]
    for right, table in [*rights, ("select", "audit"), ("insert", "audit"), ("insert", "made")]:
        role = urlsplit(url).username
        execute(postgres_url, f"revoke {right} on samekey.{table} from {role}")
        with pytest.raises(ConfigurationError, match=f"{right} on {table}"):
            Idempotency(url).check()
        execute(postgres_url, f"grant {right} on samekey.{table} to {role}")
    execute(postgres_url, "revoke execute on function samekey.keep_place from public")
    with pytest.raises(ConfigurationError, match="execute on function keep_place"):
        Idempotency(url).check()
    execute(postgres_url, "grant execute on function samekey.keep_place to public")
    Idempotency(url).check()


@whole
def test_one_right_less_is_named_by_mysql(
    mariadb_server: NamedServer, mariadb_url: str, mariadb_roles: Callable[[str], str]
) -> None:
    url = mariadb_roles("app")
    database, user = urlsplit(mariadb_url).path.lstrip("/"), urlsplit(url).username
    rights = [(right, table) for table in TABLES for right in ("insert", "update", "delete")]
    for right, table in [*rights, ("insert", "audit"), ("insert", "made"), ("delete", "made")]:
        mariadb_server.execute(f"revoke {right} on {database}.samekey_{table} from {user}")
        with pytest.raises(ConfigurationError, match=f"(?i){right} command denied.*samekey_{table}"):
            Idempotency(url).check()
        mariadb_server.execute(f"grant {right} on {database}.samekey_{table} to {user}")
    Idempotency(url).check()

"""What an engine must be for Idempotency(engine): the wrong pairing is refused when it is declared."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from samekey import Idempotency
from samekey.drivers.url_kinds import plain_url
from samekey.errors import ConfigurationError
from samekey.sqlalchemy import Session
from tests.chosen import whole
from tests.sqlalchemy.stacks import Base, Note, url_for

POSTGRES = "postgresql+psycopg://ann:secret@localhost/shop"


@pytest.mark.parametrize(
    ("url", "options", "sentence"),
    [
        ("sqlite://", {}, "in memory belongs to the one connection"),
        ("sqlite:///file:app.db?uri=true", {}, "no file: URI"),
        (POSTGRES, {"isolation_level": "AUTOCOMMIT"}, "in AUTOCOMMIT"),
        (POSTGRES, {"execution_options": {"isolation_level": "AUTOCOMMIT"}}, "in AUTOCOMMIT"),
        (POSTGRES, {"isolation_level": "SERIALIZABLE"}, "isolation level is SERIALIZABLE"),
        (POSTGRES, {"connect_args": {"options": "-csearch_path=other"}}, "connect_args .*: options"),
        (POSTGRES, {"creator": lambda: None}, "by a function of your own"),
    ],
)
def test_an_engine_that_cannot_carry_an_operation_is_refused(
    url: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Idempotency(create_engine(url, **options))


def test_an_async_engine_of_another_driver_is_refused() -> None:
    engine = create_async_engine("postgresql+psycopg://ann@localhost/shop")
    with pytest.raises(ConfigurationError, match=r"make the AsyncEngine with postgresql\+asyncpg://"):
        Idempotency(engine)


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="This is a sessionmaker"):
        Idempotency(sessionmaker())  # type: ignore[arg-type]


def test_what_says_nothing_of_the_database_is_no_reason_to_refuse_an_engine(tmp_path: Path) -> None:
    """Everybody who uses FastAPI with SQLite says check_same_thread."""
    engine = create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"check_same_thread": False})
    Idempotency(engine).close()


def test_a_handler_that_cannot_use_the_engines_sessions_is_refused_when_declared(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    threads = Idempotency(create_engine(url))
    loops = Idempotency(create_async_engine(url.replace("sqlite", "sqlite+aiosqlite")))

    async def in_a_loop() -> None: ...

    def in_a_thread() -> None: ...

    for declare in (threads.atomic, threads.deferred, threads.phased("p")):
        with pytest.raises(ConfigurationError, match="give Idempotency an AsyncEngine"):
            declare(in_a_loop)
    for declare in (loops.atomic, loops.deferred, loops.phased("p")):
        with pytest.raises(ConfigurationError, match=r"under WSGI none can be.* an Engine"):
            declare(in_a_thread)
    threads.leased(in_a_loop)
    loops.leased(in_a_thread)
    threads.close()
    loops.close()


def test_a_session_of_another_engine_is_refused_in_the_operation(tmp_path: Path) -> None:
    engine, other = (create_engine(f"sqlite:///{tmp_path}/{name}.db") for name in ("app", "other"))
    Base.metadata.create_all(engine)
    Base.metadata.create_all(other)
    idempotency = Idempotency(engine)

    def write() -> None:
        with Session(other) as session:
            session.add(Note(text="elsewhere"))
            session.commit()

    with pytest.raises(ConfigurationError, match="another engine than the one"):
        idempotency.once(tenant="ann", key="k", run=write, mode="atomic")
    with Session(other) as session:
        assert session.query(Note).count() == 0
    idempotency.once(tenant="ann", key="k", run=write, mode="leased")
    with Session(other) as session:
        assert session.query(Note).count() == 1
    idempotency.close()
    engine.dispose()
    other.dispose()


def test_an_idempotency_with_a_url_has_no_place_for_sessions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    engine, idempotency = create_engine(url), Idempotency(url)
    Base.metadata.create_all(engine)

    def write() -> None:
        with Session(engine) as session:
            session.add(Note(text="tea"))
            session.commit()

    with pytest.raises(ConfigurationError, match=r"Give it the engine .*: Idempotency\(engine\)"):
        idempotency.once(tenant="ann", key="k", run=write, mode="atomic")
    idempotency.close()
    engine.dispose()


def test_a_listener_that_fails_is_told_and_nothing_runs(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    idempotency = Idempotency(engine)

    def fail(*_: Any) -> None:
        raise ValueError("no such extension")

    event.listen(engine, "connect", fail)
    with pytest.raises(Exception, match=r"A listener of the engine.*no such extension"):
        idempotency.once(
            tenant="ann", key="k", run=lambda: Session(engine).scalar(text("select 1")), mode="atomic"
        )
    idempotency.close()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("postgresql+asyncpg://a:b%40c@h:5433/db", "postgresql://a:b%40c@h:5433/db"),
        ("postgresql+asyncpg://h/db?ssl=verify-full", "postgresql://h/db?sslmode=verify-full"),
        ("postgresql+psycopg://h/db?sslmode=require", "postgresql://h/db?sslmode=require"),
        ("postgresql+asyncpg://h/db?prepared_statement_cache_size=0", "postgresql://h/db"),
        ("sqlite+aiosqlite:///app.db", "sqlite:///app.db"),
        ("sqlite+pysqlite:////var/app.db", "sqlite:////var/app.db"),
        ("mysql+pymysql://h/db?charset=utf8mb4", "mysql://h/db"),
        ("mariadb+asyncmy://h/db?unix_socket=/s", "mysql://h/db?unix_socket=%2Fs"),
        ("redis+cluster://h", "redis+cluster://h"),
        ("postgresql+nonesuch://h/db", "postgresql+nonesuch://h/db"),
        ("sqlite:///app.db", "sqlite:///app.db"),
    ],
)
def test_urls_of_sqlalchemys_kind_are_understood(theirs: str, ours: str) -> None:
    assert plain_url(theirs) == ours


def test_a_connection_of_the_handlers_own_and_an_engine_exclude_each_other(tmp_path: Path) -> None:
    idempotency = Idempotency(create_engine(f"sqlite:///{tmp_path}/app.db"))
    with pytest.raises(ConfigurationError, match="was given an engine"):
        idempotency.atomic(connection=lambda scope: scope["connection"])
    idempotency.close()


@whole
def test_the_isolation_level_that_operations_have_may_be_said(postgres_url: str) -> None:
    engine = create_engine(url_for(postgres_url, is_async=False), isolation_level="READ COMMITTED")
    Base.metadata.create_all(engine)
    idempotency = Idempotency(engine)
    idempotency.migrate()

    def write(number: int) -> None:
        with Session(engine) as session:
            session.add(Note(text=f"tea {number}"))
            session.commit()

    for number in range(3):
        idempotency.once(tenant="ann", key=f"k{number}", run=partial(write, number), mode="atomic")
    with Session(engine) as session:
        assert session.query(Note).count() == 3
    idempotency.close()
    engine.dispose()

"""In an operation a session has the types that its engine was made with, as outside."""

from __future__ import annotations

import ipaddress
import json
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import JSON, Column, Engine, Integer, MetaData, Table, create_engine, insert, select, text

from samekey import Idempotency
from samekey.errors import ConfigurationError
from samekey.sqlalchemy import Session
from tests.chosen import stores
from tests.sqlalchemy.stacks import url_for

documents = Table("documents", MetaData(), Column("id", Integer, primary_key=True), Column("kept", JSON))


def _once(engine: Engine, work: Any) -> Any:
    idempotency = Idempotency(engine)
    try:
        idempotency.migrate()

        def run() -> Any:
            with Session(engine) as session:
                found = work(session)
                session.commit()
                return found

        return idempotency.once(tenant="t", key="k", run=run, mode="atomic")
    finally:
        idempotency.close()
        engine.dispose()


@pytest.mark.parametrize("store", stores("sqlite", "postgres", "mariadb"))
def test_the_engines_own_json_functions_hold(store: str, request: pytest.FixtureRequest) -> None:
    """Money that is read as a float here and as a Decimal there would be two prices."""
    engine = create_engine(
        url_for(request.getfixturevalue(f"{store}_url"), is_async=False),
        json_serializer=lambda value: json.dumps(value, default=float),
        json_deserializer=lambda said: json.loads(said, parse_float=Decimal),
    )
    documents.create(engine)

    def work(session: Session) -> str:
        session.execute(insert(documents).values(id=1, kept={"price": Decimal("1.5")}))
        return repr(session.scalar(select(documents.c.kept)))

    assert _once(engine, work) == "{'price': Decimal('1.5')}"


@pytest.mark.parametrize("native", [True, False])
def test_addresses_are_what_the_engine_makes_of_them(postgres_url: str, native: bool) -> None:
    engine = create_engine(url_for(postgres_url, is_async=False), native_inet_types=native)

    def work(session: Session) -> str:
        session.execute(text("create table touched (id integer)"))
        session.execute(text("insert into touched values (1)"))
        return type(session.scalar(text("select '10.0.0.1'::inet"))).__name__

    assert _once(engine, work) == (ipaddress.IPv4Address if native else str).__name__


def test_an_option_that_would_hold_outside_only_is_refused() -> None:
    engine = create_engine("postgresql+psycopg://ann@localhost/shop", client_encoding="latin1")
    with pytest.raises(ConfigurationError, match="client_encoding"):
        Idempotency(engine)

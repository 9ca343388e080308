"""What a handler does to its SQLite connection must not reach whoever uses that connection next."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from samekey import Idempotency
from samekey.core.record import Answer
from samekey.core.states import Mode
from samekey.drivers.run import run
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.errors import CommitRefused
from samekey.testing.conformance import new_claim
from samekey.testing.conformance_subject import executed
from tests.stores.crash_scenarios import PAID, effects, exchange_of, prepare, state_of

NOTHING: Callable[[Any], None] = lambda connection: None  # noqa: E731 - a value of the table below


@pytest.fixture
def url(sqlite_url: str) -> str:
    prepare(sqlite_url)
    return sqlite_url


@pytest.fixture
def idempotency(url: str) -> Iterator[Idempotency]:
    engine = Idempotency(url)
    yield engine
    engine.close()


def atomic(
    idempotency: Idempotency, label: str, meddle: Callable[[sqlite3.Connection], Any] = NOTHING
) -> Answer | None:
    begun = idempotency.engine.begin(
        exchange_of(label), rules_from(idempotency.engine.policy, Mode.ATOMIC, {})
    )
    if not isinstance(begun, Running):
        return begun
    try:
        connection: sqlite3.Connection = begun.operation.connection
        meddle(connection)
        connection.execute(f"insert into effects values ('{label}')")
    except Exception as error:
        return idempotency.engine.finish(begun, Handled(None, error)).answer
    return idempotency.engine.finish(begun, Handled(PAID)).answer


def leased(idempotency: Idempotency, label: str) -> Answer | None:
    begun = idempotency.engine.begin(
        exchange_of(label), rules_from(idempotency.engine.policy, Mode.LEASED, {})
    )
    assert isinstance(begun, Running)
    return idempotency.engine.finish(begun, Handled(PAID)).answer


def shout(connection: sqlite3.Connection) -> None:
    connection.text_factory = lambda data: data.decode().upper()


MEDDLING: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "rows as dicts": lambda c: setattr(c, "row_factory", lambda cursor, row: {"first": row[0]}),
    "rows as Row": lambda c: setattr(c, "row_factory", sqlite3.Row),
    "text as bytes": lambda c: setattr(c, "text_factory", bytes),
    "text in capitals": shout,
    "implicit transactions": lambda c: setattr(c, "isolation_level", "DEFERRED"),
    "functions of its own": lambda c: c.create_function("coalesce", 2, lambda a, b: 7),
    "a JSON of its own": lambda c: c.create_function("json_extract", 2, lambda a, b: 7),
    "a table in front of ours": lambda c: c.execute("create temp table samekey_keys (nothing)"),
    "read only": lambda c: c.execute("pragma query_only = on"),
    "no patience": lambda c: c.execute("pragma busy_timeout = 0"),
    "like with case": lambda c: c.execute("pragma case_sensitive_like = on"),
    "a trace": lambda c: c.set_trace_callback(lambda statement: None),
    "a progress handler": lambda c: c.set_progress_handler(lambda: 0, 1),
    "no authorizer": lambda c: c.set_authorizer(None),
    "a cursor left open": lambda c: c.execute("select 1 union all select 2").fetchone(),
    "a savepoint left open": lambda c: c.execute("savepoint mine"),
}


@pytest.mark.parametrize("name", MEDDLING)
def test_a_handler_does_not_reach_the_next_one(idempotency: Idempotency, url: str, name: str) -> None:
    first = secrets.token_hex(8)
    answer = atomic(idempotency, first, MEDDLING[name])
    done = effects(url, first)
    if answer is not None and answer.status == 201:
        assert (done, state_of(url, first)) == (1, "completed")
        # No override of the session may hide the record from the retry, nor change its words.
        replay = atomic(idempotency, first)
        assert replay is not None and (replay.status, replay.body) == (201, b"paid")
    else:
        assert done == 0, "it failed, so nothing may stand"
    for mode in ("atomic", "leased"):
        label = secrets.token_hex(8)
        again = atomic(idempotency, label) if mode == "atomic" else leased(idempotency, label)
        assert again is not None and again.status == 201, mode
        assert state_of(url, label) == "completed", f"{mode}: nobody else can see it"
    claim = new_claim()
    decision = run(
        idempotency.engine.drivers.sync,
        lambda: idempotency.engine.keys.claim(claim, idempotency.engine.policy),
    )
    lease = executed(decision).lease(claim.lease_ms)
    assert run(idempotency.engine.drivers.sync, lambda: idempotency.engine.keys.renew([lease])) == {
        lease.attempt
    }


ENDINGS: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "commit()": lambda c: c.commit(),
    "rollback()": lambda c: c.rollback(),
    "commit": lambda c: c.execute("commit"),
    "end": lambda c: c.execute("END TRANSACTION"),
    "rollback": lambda c: c.execute("rollback"),
    "a script": lambda c: c.executescript("insert into effects values ('stray');"),
    "a with block": lambda c: c.__enter__(),
    "autocommit": lambda c: setattr(c, "isolation_level", None),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_handler_cannot_end_the_transaction(idempotency: Idempotency, url: str, name: str) -> None:
    label = secrets.token_hex(8)
    refused: list[type[BaseException]] = []

    def write_then_end(connection: sqlite3.Connection) -> None:
        connection.execute(f"insert into effects values ('{label}')")
        try:
            ENDINGS[name](connection)
        except (CommitRefused, sqlite3.Error) as error:
            refused.append(type(error))
        assert connection.in_transaction, "the transaction was ended"
        raise ZeroDivisionError  # everything above must be undone

    atomic(idempotency, label, write_then_end)
    assert effects(url, label) == 0
    assert effects(url, "stray") == 0
    assert refused or name == "autocommit"
    answer = atomic(idempotency, label)
    assert answer is not None and answer.status == 201


def test_an_async_handler_does_not_reach_the_next_one(url: str) -> None:
    async def both() -> list[int]:
        engine = Idempotency(url)
        statuses = []
        for sql in ("pragma query_only = on", "select 1"):
            label = secrets.token_hex(8)
            rules = rules_from(engine.engine.policy, Mode.ATOMIC, {})
            begun = await engine.engine.begin_async(exchange_of(label), rules)
            assert isinstance(begun, Running)
            await begun.operation.connection.execute(sql)
            try:
                await begun.operation.connection.execute(f"insert into effects values ('{label}')")
                handled = Handled(PAID)
            except sqlite3.Error as error:
                handled = Handled(None, error)
            finished = await engine.engine.finish_async(begun, handled)
            statuses.append(0 if finished.answer is None else finished.answer.status)
        await engine.aclose()
        return statuses

    assert asyncio.run(both())[-1] == 201

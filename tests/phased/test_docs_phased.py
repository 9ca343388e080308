"""The code of the guide pages on phases and on ``once`` runs as it stands."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from samekey import Idempotency

DOCS = Path(__file__).parent.parent.parent / "docs"
PRELUDE = """
from datetime import timedelta
from flask import Flask, request
from starlette.applications import Starlette
from starlette.routing import Route
from samekey import (
    NOT_FOUND, Idempotency, OutcomeUnknown, Response, StillRunning, StoreUnavailable, current_operation,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant
by_user = single_tenant("ann")
"""


class Provider:
    """What ``provider`` stands for in the examples."""

    def __init__(self) -> None:
        self.charges: dict[str, dict[str, str]] = {}
        self.fails = False

    async def charge(self, _cents: int, card: str, *, idempotency_key: str, timeout: float) -> Any:
        assert 0 < timeout <= 30
        if card == "stolen":
            return {"id": "none", "declined": "stolen"}
        made = self.charges.setdefault(idempotency_key, {"id": f"ch_{len(self.charges) + 1}"})
        if self.fails:
            raise TimeoutError
        return made

    async def find(self, key: str, made_after: Any) -> Any:
        return self.charges.get(key)


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"__name__": "documentation"}
    exec(PRELUDE, found)
    yield found
    found["idempotency"].close()


def execute(sql: str, database: str = "rides.db") -> list[Any]:
    with closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(sql).fetchall()


def test_the_page_on_phases(names: dict[str, Any]) -> None:
    execute("create table rides (id integer primary key, drop_off text)")
    execute("create table receipts (ride integer, charge text)")
    provider = names["provider"] = Provider()
    names |= {"book": lambda _connection, room: room, "check": lambda _connection, room: None}
    code = blocks("phased.md")
    assert len(code) == 3, "a new block needs a test here"
    for block in code:
        exec(block, names)
    with TestClient(names["app"]) as client:
        sent = [ride(client, "k1") for _ in range(2)]
        assert [r.json() for r in sent] == [{"ride": 1, "charge": "ch_1"}] * 2
        assert sent[1].headers["Idempotent-Replayed"] == "true"
        assert ride(client, "k2", card="stolen").json() == {"reason": "stolen"}
        # A lost answer: the next attempt calls again, with the same key.
        provider.fails = True
        assert ride(client, "k3").json()["code"] == "in_progress"
        provider.fails = False
        execute("update samekey_keys set locked_until = 1 where state = 'in_progress'")
        assert ride(client, "k3").json() == {"ride": 3, "charge": "ch_2"}
        assert len(provider.charges) == 2
    assert execute("select ride, charge from receipts") == [(1, "ch_1"), (3, "ch_2")]
    assert names["idempotency"].find(provider_id="ch_2", tenant="ann") is not None
    assert {("book_room", 1), ("book_room", 2)} < names["idempotency"].engine.phases.definitions.keys()
    effect = type("Effect", (), {"key": "unheard of", "since": None})()
    assert asyncio.run(names["find_charge"](effect, "4242")) is names["NOT_FOUND"]


def ride(client: TestClient, key: str, card: str = "4242") -> Any:
    return client.post("/rides", headers={"Idempotency-Key": key}, json={"to": "Thun", "card": card})


def test_the_query_that_shows_old_versions(names: dict[str, Any]) -> None:
    (query,) = re.findall(r"^```sql\n(.*?)^```$", (DOCS / "phased.md").read_text(), re.MULTILINE | re.DOTALL)
    names["idempotency"] = Idempotency("sqlite:///rides.db")
    assert execute(query.replace("samekey.", "samekey_")) == []


def test_the_page_on_once(names: dict[str, Any]) -> None:
    ledger: list[Any] = []
    mails: list[Any] = []

    def add_to_ledger(event: Any) -> int:
        ledger.append(event)
        return len(ledger)

    class Mailer:
        async def send(self, to: str, *, key: str) -> None:
            mails.append((to, key))

    flask_app = names["Flask"]("webhooks")
    names |= {
        "idempotency": Idempotency("sqlite:///once.db"),
        "add_to_ledger": add_to_ledger,
        "mailer": Mailer(),
        "flask_app": flask_app,
    }
    execute("create table paid (charge text)", "once.db")
    code = blocks("once.md")
    assert len(code) == 4, "a new block needs a test here"
    for block in code:
        exec(block, names)
    assert [names["book"]({"id": "e1"}) for _ in range(2)] == [1, 1]
    message = {"id": "m1", "account": "acme", "to": "ann"}

    async def deliver() -> list[bool]:
        try:
            return [await names["consume"](message) for _ in range(2)]
        finally:
            await names["idempotency"].engine.drivers.aio.close()

    assert asyncio.run(deliver()) == [True, True]
    assert len(mails) == 1
    client, event = flask_app.test_client(), {"id": "evt", "type": "paid", "charge": "ch_1"}
    assert [client.post("/webhooks", json={**event, "try": n}).status_code for n in range(2)] == [200, 200]
    assert execute("select charge from paid", "once.db") == [("ch_1",)]


@pytest.mark.parametrize("page", ["phased.md", "once.md"])
def test_no_line_is_wider_than_the_others(page: str) -> None:
    lines = (DOCS / page).read_text().splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []

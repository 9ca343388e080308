"""Whose an operation is, and whether it has had its answer: journals are shared, names begun again."""

from __future__ import annotations

import contextvars
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import StringIO
from typing import Any

import httpx
import psycopg
import pytest
import requests
from psycopg.rows import dict_row
from urllib3.poolmanager import PoolManager

from samekey.client import STRIPE, FileJournal, Keyed, MemoryJournal, TableJournal, operation
from samekey.client.errors import JournalFailed, OperationChanged, Unsettled
from samekey.client.httpx import Client
from samekey.client.requests import KeyedAdapter, Session
from tests.client.scripted import Cut, Say, problem, scripted
from tests.client.test_transports import keyed

BODY = {"amount": 5}


Opened = Callable[..., Client]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Clients whose connections end with each answer, so that none outlives its server."""
    with ExitStack() as stack:
        yield lambda settings, **more: stack.enter_context(
            Client(keyed=settings, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0), **more)
        )


def _begin(client: Any, url: str, name: str = "pay 17") -> None:
    with pytest.raises(Unsettled), operation(name):
        client.post(f"{url}/payments", json=BODY)


def test_what_another_account_has_begun_is_not_listed(opened: Opened) -> None:
    journal = MemoryJournal()
    with scripted(Cut()) as server:
        one = opened(keyed(attempts=1, journal=journal, account="one"))
        two = opened(keyed(attempts=1, journal=journal, account="two"))
        _begin(one, server.url)
        assert (len(one.pending()), two.pending()) == (1, [])
        _begin(two, server.url)  # under the same name, which is another operation
        assert (len(one.pending()), len(two.pending())) == (1, 1)
    assert len(server.keys) == 2


def test_what_is_for_another_server_or_spelled_otherwise_is_not_listed(opened: Opened) -> None:
    journal = MemoryJournal()
    with scripted(Cut()) as shop, scripted(Say()) as other:
        settings = keyed(attempts=1, journal=journal)
        _begin(opened(settings, base_url=shop.url), shop.url)
        assert opened(settings, base_url=other.url).pending() == []
        assert opened(Keyed(journal=journal, dialect=STRIPE)).pending() == []
        assert len(opened(settings, base_url=f"{shop.url}/v1").pending()) == 1


@pytest.mark.parametrize("library", ["httpx", "requests"])
def test_nothing_is_finished_with_other_credentials_in_silence(library: str, opened: Opened) -> None:
    def client(token: str, **more: Any) -> Any:
        settings = keyed(attempts=1, journal=journal, **more)
        made: Any = opened(settings) if library == "httpx" else closing.enter_context(Session(keyed=settings))
        made.headers["Authorization"] = f"Bearer {token}"
        return made

    journal = MemoryJournal()
    with ExitStack() as closing, scripted(Cut()) as server:
        _begin(client("sk_one"), server.url)
        server.script[:] = [Say()]
        (one,) = client("sk_two").pending()
        with pytest.raises(OperationChanged, match=r"Keyed\(account="):
            one.finish()
        assert len(server.seen) == 1
        assert one.finish(anyway=True).status_code == 201
        server.script[:] = [Cut()]
        _begin(client("sk_one", account="shop"), server.url)
        server.script[:] = [Say()]
        (named,) = client("sk_new", account="shop").pending()
        assert named.finish().status_code == 201


@pytest.mark.parametrize("kind", ["memory", "file", "table"])
def test_what_was_refused_and_is_begun_again_is_pending_again(
    kind: str, tmp_path: Any, opened: Opened
) -> None:
    """The account was topped up, and the answer of the second try is lost."""
    kinds: dict[str, Callable[[], Any]] = {
        "memory": MemoryJournal,
        "file": lambda: FileJournal(tmp_path / "journal"),
        "table": lambda: TableJournal(f"sqlite:///{tmp_path / 'app.db'}"),
    }
    journal = kinds[kind]()
    script: list[Any] = [
        Say(402, b'{"error": "insufficient funds"}'),
        Cut(),
        Say(409, b'{"error": "a conflict of its own"}'),
        Say(201, b"{}", (("Idempotent-Replayed", "true"),)),
    ]
    with scripted(*script) as server:
        client = opened(keyed(attempts=2, journal=journal))
        with operation("pay 17"):
            assert client.post(f"{server.url}/payments", json=BODY).status_code == 402
        assert client.pending() == []
        _begin(client, server.url)
        (kept,) = client.pending()
        assert kept.finish().status_code == 201
        assert client.pending() == []
    assert len(server.keys) == 1


def test_a_503_is_no_proof_that_nothing_was_done(opened: Opened) -> None:
    """A server that lost its store in the moment of a COMMIT says so, too."""
    with scripted(problem(503, "store_unavailable")) as server:
        client = opened(keyed(attempts=2))
        _begin(client, server.url)
        assert len(client.pending()) == 1


class OwnPool(KeyedAdapter):
    """As the documentation of requests has it."""

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **more: Any) -> None:
        self.poolmanager = PoolManager(num_pools=connections, maxsize=maxsize, block=block)


class Doubles(KeyedAdapter):
    """Whatever stands in the place of the connections notes nothing."""

    def get_connection_with_tls_context(self, *args: Any, **more: Any) -> Any:
        raise requests.exceptions.ReadTimeout("after it was sent")


@pytest.mark.parametrize("adapter", [OwnPool, Doubles])
def test_a_mark_that_nobody_can_set_proves_nothing_by_its_absence(adapter: Any) -> None:
    settings = keyed(attempts=1)
    with scripted(Cut()) as server, requests.Session() as session:
        session.trust_env = False
        session.mount("http://", adapter(settings))
        with pytest.raises(Unsettled), operation("pay 17"):
            session.post(f"{server.url}/payments", json=BODY)
    assert len(settings.journal.pending()) == 1


def test_rows_of_a_lent_connection_may_be_anything(tmp_path: Any, postgres_url: str, opened: Opened) -> None:
    def as_dict(cursor: Any, row: Any) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    lent = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    lent.row_factory = as_dict
    with (
        psycopg.connect(postgres_url, row_factory=dict_row, autocommit=True) as other,
        scripted(Cut()) as server,
    ):
        for connection in (lent, other):
            journal = TableJournal(connection)
            client = opened(keyed(attempts=1, journal=journal))
            server.script[:] = [Cut()]
            _begin(client, server.url)
            server.script[:] = [Say()]
            assert [one.finish().status_code for one in client.pending()] == [201]
    lent.close()


def test_a_table_that_is_there_need_not_be_made(postgres_url: str) -> None:
    TableJournal(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        role = f"user_{owner.info.backend_pid}"
        owner.execute(f"create role {role} login")
        owner.execute("revoke create on schema public from public")
        owner.execute(f"grant select, insert, update, delete on samekey_operations to {role}")
        try:
            where = postgres_url.partition("@")[2]
            assert TableJournal(f"postgresql://{role}@{where}").pending() == []
        finally:
            owner.execute(f"drop owned by {role}")
            owner.execute(f"drop role {role}")


def test_a_name_that_reached_no_request_is_told(caplog: pytest.LogCaptureFixture, opened: Opened) -> None:
    with scripted(Say()) as server, caplog.at_level(logging.WARNING, "samekey"):
        client = opened(keyed())
        with operation("pay 17"):
            thread = threading.Thread(
                target=client.post, args=(f"{server.url}/payments",), kwargs={"json": BODY}
            )
            thread.start()
            thread.join()
        assert "copy_context" in caplog.text
        caplog.clear()
        with operation("pay 18"):
            client.post(f"{server.url}/payments", json=BODY)
        assert caplog.text == ""


def test_an_own_journal_that_fails_costs_no_answer(opened: Opened) -> None:
    class Fails(MemoryJournal):
        def finish(self, *_: Any) -> None:
            raise TypeError("somebody's own")

    with scripted(Say()) as server:
        client = opened(keyed(journal=Fails()))
        assert client.post(f"{server.url}/payments", json=BODY).status_code == 201


def test_a_body_that_is_read_as_text() -> None:
    with scripted(Say()) as server, Session(keyed=keyed()) as session:
        session.trust_env = False
        assert session.post(f"{server.url}/payments", data=StringIO('{"amount": 5}')).status_code == 201
    assert server.seen[0].body == b'{"amount": 5}'


def test_a_408_is_no_proof_that_nothing_was_done(opened: Opened) -> None:
    with scripted(Say(408, b"")) as server:
        client = opened(keyed(attempts=2))
        _begin(client, server.url)
        assert len(client.pending()) == 1


class Signs(httpx.Auth):
    """Sends a copy of the request: with a header more, or with a signature in its URL."""

    def __init__(self, where: str) -> None:
        self.where = where

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
        url = request.url.copy_add_param("sig", "1") if self.where == "url" else request.url
        yield httpx.Request(
            request.method, url, headers={**request.headers, "X-Sig": "1"}, content=request.content
        )


@pytest.mark.parametrize("where", ["header", "url"])
def test_a_copy_that_an_auth_flow_sends_is_the_operation(where: str, opened: Opened) -> None:
    """A payment never goes out without its key."""
    journal = MemoryJournal()
    with scripted(Cut()) as server:
        _begin(opened(keyed(attempts=1, journal=journal), auth=Signs(where)), server.url)
        server.script[:] = [Say()]
        with operation("pay 17"):
            client = opened(keyed(journal=journal), auth=Signs(where))
            assert client.post(f"{server.url}/payments", json=BODY).status_code == 201
    assert len(server.seen) == 2 and len(server.keys) == 1 and None not in server.keys


def test_what_outlives_its_name_does_not_go_out_under_it(opened: Opened) -> None:
    with scripted(Say()) as server:
        client = opened(keyed())
        with operation("pay 17"):
            context = contextvars.copy_context()
            client.post(f"{server.url}/payments", json=BODY)
        with pytest.raises(OperationChanged, match="has ended"):
            context.run(client.post, f"{server.url}/payments", json=BODY)
    assert len(server.seen) == 1


def test_a_journal_that_fails_after_it_has_saved(opened: Opened) -> None:
    """Whoever is told that nothing was sent sends it anew: what was saved must not be finished later."""

    class Loses(MemoryJournal):
        lost = False

        def begin(self, entry: Any) -> Any:
            found = super().begin(entry)
            if not self.lost:
                self.lost = True
                raise JournalFailed("the acknowledgement was lost")
            return found

    journal = Loses()
    with scripted(Say()) as server:
        client = opened(keyed(journal=journal))
        with pytest.raises(JournalFailed):
            client.post(f"{server.url}/payments", json=BODY)
        assert client.post(f"{server.url}/payments", json=BODY).status_code == 201
        assert client.pending() == []

"""Several callers of one operation, and one that is begun again: no journal, and no act of another in it,
makes an operation that may have been sent look like a new one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx2
import pytest

import samekey.client.httpx2
from samekey.client import (
    FileJournal,
    Journal,
    KeyExpired,
    MemoryJournal,
    OperationGone,
    TableJournal,
    Unsettled,
    operation,
    told,
)
from tests.chosen import whole

from .scripted import Cut, Say, Scripted, scripted
from .test_journals import NOW, entry
from .test_transports import BODY, keyed
from .wires import Wire, wire_named

Open = Callable[[], Journal]
"""The same journal, as another process has it."""


@pytest.fixture(params=["memory", "file", "sqlite", pytest.param("postgresql", marks=whole)])
def journals(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    match request.param:
        case "memory":
            one = MemoryJournal()
            return lambda: one
        case "file":
            return lambda: FileJournal(tmp_path / "operations")
        case "sqlite":
            return lambda: TableJournal(f"sqlite:///{tmp_path / 'app.db'}")
    url = request.getfixturevalue("postgres_url")
    return lambda: TableJournal(url)


@pytest.fixture(params=["httpx2", "requests", pytest.param("httpx-async", marks=whole)])
def wire(request: pytest.FixtureRequest) -> Wire:
    return wire_named(request.param)


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted(Say()) as server:
        yield server


def left_open(wire: Wire, server: Scripted, journal: Journal, name: str | None = "order 17") -> str:
    """An operation whose answer was lost; gives its key."""
    server.script[:] = [Cut()]
    with pytest.raises(Unsettled):
        wire.post(f"{server.url}/payments", BODY, keyed(attempts=1, journal=journal), name=name)
    server.script[:] = [Say()]
    (one,) = journal.pending()
    return one.key


SHORT = timedelta(milliseconds=1)


def test_what_is_finished_from_the_list_was_tried_before(
    wire: Wire, server: Scripted, journals: Open
) -> None:
    """It is too old to be sent; where nobody answers, or somebody refuses, it stays what it is."""
    key = left_open(wire, server, journals())
    sent = len(server.seen)
    with pytest.raises(KeyExpired):
        wire.finish_pending(keyed(journal=journals(), retention=SHORT))
    assert len(server.seen) == sent
    server.script[:] = [Say(401, b"")]
    (answer,) = wire.finish_pending(keyed(journal=journals()))
    assert (answer.status, answer.told.settled) == (401, False)
    server.stop()
    with pytest.raises(Unsettled):
        wire.finish_pending(keyed(journal=journals(), attempts=1))
    assert [one.key for one in journals().pending()] == [key]
    found = journals().begin(entry("order 17"))
    assert found is not None and found.key == key


@pytest.mark.parametrize("name", ["order 17", None])
def test_what_somebody_else_has_discarded_is_not_brought_back(
    server: Scripted, journals: Open, name: str | None
) -> None:
    left_open(wire_named("httpx2"), server, journals(), name)
    with (
        samekey.client.httpx2.Client(keyed=keyed(journal=journals()), trust_env=False) as one,
        samekey.client.httpx2.Client(keyed=keyed(journal=journals()), trust_env=False) as other,
    ):
        (mine,), (theirs,) = one.pending(), other.pending()
        theirs.discard()
        sent = len(server.seen)
        with pytest.raises(OperationGone, match="Nothing was sent"):
            mine.finish()
        assert len(server.seen) == sent and journals().pending() == []


def test_what_requests_finishes_must_still_be_there(server: Scripted, journals: Open) -> None:
    import samekey.client.requests

    left_open(wire_named("requests"), server, journals())
    with samekey.client.requests.Session(keyed=keyed(journal=journals())) as session:
        (mine,) = session.pending()
        mine.discard()
        sent = len(server.seen)
        with pytest.raises(OperationGone):
            mine.finish()
    assert len(server.seen) == sent


def test_a_name_that_is_in_use_again_is_not_the_one_that_was_listed(server: Scripted, journals: Open) -> None:
    left_open(wire_named("httpx2"), server, journals())
    with samekey.client.httpx2.Client(keyed=keyed(journal=journals()), trust_env=False) as client:
        (mine,) = client.pending()
        mine.discard()
        anew = left_open(wire_named("httpx2"), server, journals())
        with pytest.raises(OperationGone):
            mine.finish()
        mine.discard()
    assert [one.key for one in journals().pending()] == [anew]


def test_a_named_one_that_somebody_else_has_finished_gets_its_answer_again(
    server: Scripted, journals: Open
) -> None:
    key = left_open(wire_named("httpx2"), server, journals())
    with samekey.client.httpx2.Client(keyed=keyed(journal=journals()), trust_env=False) as client:
        (mine,) = client.pending()
        wire_named("httpx2").finish_pending(keyed(journal=journals()))
        server.script[:] = [Say(headers=(("Idempotent-Replayed", "true"),))]
        assert told(mine.finish()).replayed
        mine.discard()  # too late: its name must not get a new key
    assert server.keys == {f'"{key}"'}
    found = journals().begin(entry("order 17"))
    assert found is not None and found.key == key and found.finished_at is not None


@pytest.mark.parametrize("how", ["no connection", "401"])
def test_who_has_sent_nothing_does_not_undo_what_another_has_finished(
    server: Scripted, journals: Open, how: str
) -> None:
    """While the first caller hangs in its connect, a second one of the same name is paid."""

    class Meanwhile(httpx2.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            pay()
            if how == "401":
                return httpx2.Response(401)
            raise httpx2.ConnectTimeout("no answer to our SYN")

    def pay() -> None:
        wire_named("httpx2").post(f"{server.url}/payments", BODY, keyed(journal=journals()), name="order 17")

    first = samekey.client.httpx2.Client(
        keyed=keyed(attempts=1, journal=journals()), trust_env=False, transport=Meanwhile()
    )
    with first, operation("order 17"):
        if how == "401":
            assert first.post(f"{server.url}/payments", json=BODY).status_code == 401
        else:
            with pytest.raises(httpx2.ConnectTimeout):
                first.post(f"{server.url}/payments", json=BODY)
    pay()
    assert len(server.seen) == 2 and len(server.keys) == 1


def test_each_act_of_a_journal_changes_its_own_part_of_what_is_stored(journals: Open) -> None:
    mine, unnamed = entry("order 17"), entry()
    journals().begin(mine)
    journals().begin(entry("order 17"))
    journals().note(mine, NOW + 5)
    journals().note(mine, NOW + 9)
    journals().finish(mine, NOW, NOW + 7)
    journals().note(mine, NOW + 4)
    journals().finish(mine, NOW + 1)
    journals().drop(mine)
    journals().discard(mine)
    found = journals().begin(entry("order 17"))
    assert found is not None
    assert (found.key, found.joined, found.expires_at, found.finished_at) == (mine.key, True, NOW + 4, NOW)
    assert journals().join(unnamed) is None and journals().pending() == []
    assert journals().begin(unnamed) is None and journals().begin(unnamed) == unnamed
    journals().drop(unnamed)
    assert [one.key for one in journals().pending()] == [unnamed.key]


@pytest.mark.parametrize("busy_first", [False, True])
def test_a_finished_name_is_not_sent_when_the_server_has_forgotten_its_key(
    wire: Wire, server: Scripted, journals: Open, busy_first: bool
) -> None:
    """The life that is told with the final answer, or before it, is over."""
    over = (("Idempotency-Key-Expires", formatdate(time.time() - 5, usegmt=True)),)
    busy = Say(409, b'{"code": "in_progress"}', (("Idempotency-Key-Expires", formatdate(NOW * 2)),))
    server.script[:] = [busy, Say(headers=over)] if busy_first else [Say(headers=over)]
    wire.post(f"{server.url}/payments", BODY, keyed(journal=journals()), name="order 17")
    sent = len(server.seen)
    with pytest.raises(KeyExpired):
        wire.post(f"{server.url}/payments", BODY, keyed(journal=journals()), name="order 17")
    assert len(server.seen) == sent


def test_a_request_object_that_was_sent_is_not_sent_when_its_key_is_too_old(server: Scripted) -> None:
    server.script[:] = [Say(headers=(("Idempotency-Key-Expires", formatdate(time.time() - 5, usegmt=True)),))]
    with samekey.client.httpx2.Client(keyed=keyed(), trust_env=False) as client:
        request = client.build_request("POST", f"{server.url}/payments", json=BODY)
        client.send(request)
        with pytest.raises(KeyExpired):
            client.send(request)
    assert len(server.seen) == 1

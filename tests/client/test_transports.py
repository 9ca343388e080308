"""Each HTTP library against a server that cuts, refuses, delays and asks to wait: one key, the same bytes."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from email.utils import formatdate
from typing import Any

import httpx2
import pytest

import samekey.client.httpx2
from lab.processes import free_port
from samekey import Backoff
from samekey.client import (
    STRIPE,
    BodyRefused,
    Keyed,
    KeyExpired,
    MemoryJournal,
    OperationChanged,
    Patience,
    RedirectRefused,
    Unsettled,
    operation,
    told,
)
from tests.chosen import whole

from .scripted import MOST_DROPS, Cut, Hang, Say, Trickle, problem, scripted
from .wires import WIRES, Wire

QUICK = Backoff(first=timedelta(milliseconds=2), longest=timedelta(milliseconds=10))
BODY = {"amount": 450}


def keyed(deadline: float = 20, **more: Any) -> Keyed:
    patience = {name: more.pop(name) for name in ("retention", "follow", "attempts") if name in more}
    return Keyed(patience=Patience(deadline=timedelta(seconds=deadline), backoff=QUICK, **patience), **more)


ALWAYS = ("httpx2", "requests")


@pytest.fixture(
    params=[pytest.param(wire, id=wire.name, marks=() if wire.name in ALWAYS else whole) for wire in WIRES]
)
def wire(request: pytest.FixtureRequest) -> Wire:
    found: Wire = request.param
    return found


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(Cut(), id="cut"),
        pytest.param(Say(201, b"x" * 4000, cut_body=True), id="cut in the middle of its body"),
        pytest.param(Say(500, b""), id="500"),
        pytest.param(Say(502, b"<html>bad gateway</html>"), id="502"),
        pytest.param(Say(503, b"", (("retry-after", "0"),)), id="503"),
        pytest.param(Say(504, b""), id="504"),
        pytest.param(Say(408, b""), id="408"),
        pytest.param(Say(425, b""), id="425"),
        pytest.param(Say(429, b"", (("retry-after", "0"),)), id="429"),
        pytest.param(problem(409, "in_progress", retry_after="0"), id="in progress"),
        pytest.param(problem(409, "outcome_unknown"), id="outcome unknown"),
        pytest.param(Say(409, b'{"error": {"code": "idempotency_key_in_use"}}'), id="in use, Stripe"),
    ],
)
def test_the_same_request_goes_out_again_under_the_same_key(wire: Wire, first: Any) -> None:
    settings = keyed()
    replayed = Say(headers=(("Idempotent-Replayed", "true"),))
    with scripted(first, first, replayed) as server:
        answer = wire.post(f"{server.url}/payments?a=1", BODY, settings)
    assert (answer.status, json.loads(answer.body)) == (201, {"done": True})
    assert (answer.told.attempts, answer.told.replayed, answer.told.settled) == (3, True, True)
    assert server.keys == {f'"{answer.told.key}"'}
    assert {(one.path, one.body) for one in server.seen} == {("/payments?a=1", server.seen[0].body)}
    assert json.loads(server.seen[0].body) == BODY
    assert settings.journal.pending() == []


@pytest.mark.parametrize(
    "final",
    [
        Say(201),
        Say(400, b'{"code": "malformed"}'),
        Say(402),
        problem(422, "reused"),
        problem(410, "expired"),
        problem(409, "result_unavailable"),
        Say(409, b'{"detail": "sold out"}'),
        Say(501),
        Say(202, b"{}"),
        Say(303, b"", (("location", "/payments/1"),)),
    ],
    ids=lambda say: f"{say.status} {say.body.decode()[:24]}",
)
def test_a_final_answer_is_given_as_it_is_and_nothing_is_sent_again(wire: Wire, final: Say) -> None:
    settings = keyed()
    with scripted(final) as server:
        answer = wire.post(f"{server.url}/payments", BODY, settings)
    assert (answer.status, answer.body) == (final.status, final.body)
    assert len(server.seen) == 1 and settings.journal.pending() == []


def test_what_no_server_took_is_not_kept(wire: Wire) -> None:
    settings = keyed(attempts=2)
    with pytest.raises(wire.connect_error):
        wire.post(f"http://127.0.0.1:{free_port()}/payments", BODY, settings)
    assert settings.journal.pending() == []


def test_what_may_have_arrived_is_kept_and_finished_later(wire: Wire) -> None:
    settings = keyed(attempts=2)
    with scripted(Cut()) as server:
        with pytest.raises(Unsettled, match="is kept") as failed:
            wire.post(f"{server.url}/payments", BODY, settings, headers={"Authorization": "Bearer old"})
        assert failed.value.attempts >= 1 and not failed.value.outcome_unknown
        (kept,) = settings.journal.pending()
        assert "authorization" not in {name.lower() for name, _ in kept.headers}
        server.script[:] = [Say()]
        (answer,) = wire.finish_pending(
            keyed(journal=settings.journal), headers={"Authorization": "Bearer new"}
        )
    assert answer.status == 201 and server.keys == {f'"{kept.key}"'}
    assert server.seen[-1].headers["authorization"] == "Bearer new"
    assert {(one.body, one.headers["content-type"]) for one in server.seen} == {
        (server.seen[0].body, "application/json")
    }
    assert settings.journal.pending() == []


def test_an_outcome_that_the_server_does_not_know_is_waited_for_and_then_told(wire: Wire) -> None:
    settings = keyed(20)
    unknown = problem(409, "outcome_unknown", retry_after="30")
    with scripted(unknown) as server, pytest.raises(Unsettled, match="come back in 30 s") as failed:
        wire.post(f"{server.url}/payments", BODY, settings)
    assert failed.value.outcome_unknown and failed.value.answer is not None
    assert failed.value.answer.status == 409
    assert len(server.seen) == 1 and len(settings.journal.pending()) == 1


def test_a_202_is_followed_to_the_final_answer(wire: Wire) -> None:
    status = {"id": "op", "answer": None}
    final = {"status": 402, "headers": [["content-type", "text/plain"]], "body": "no", "encoding": "utf-8"}
    with scripted(
        Say(202, b"{}", (("location", "/idempotency/op"), ("retry-after", "0"))),
        Say(200, json.dumps({**status, "state": "pending"}).encode(), (("retry-after", "0"),)),
        Cut(),
        Say(200, json.dumps({**status, "state": "in_progress"}).encode()),
        Say(200, json.dumps({**status, "state": "completed", "answer": final}).encode()),
    ) as server:
        answer = wire.post(f"{server.url}/payments", BODY, keyed(), headers={"Authorization": "Bearer me"})
    assert (answer.status, answer.body, answer.headers["content-type"]) == (402, b"no", "text/plain")
    assert [(one.method, one.path, one.key is None) for one in server.seen] == [
        ("POST", "/payments", False),
        *[("GET", "/idempotency/op", True)] * 4,
    ]
    assert all(one.headers["authorization"] == "Bearer me" for one in server.seen)


def test_a_status_that_cannot_be_read_sends_the_request_again(wire: Wire) -> None:
    with scripted(
        Say(202, b"{}", (("location", "/idempotency/op"), ("retry-after", "0"))), Say(403), Say()
    ) as server:
        answer = wire.post(f"{server.url}/payments", BODY, keyed())
    assert answer.status == 201
    assert [one.method for one in server.seen] == ["POST", "GET", "POST"] and len(server.keys) == 1


def test_a_202_can_be_the_answer(wire: Wire) -> None:
    with scripted(Say(202, b"{}", (("location", "/idempotency/op"),))) as server:
        assert wire.post(f"{server.url}/payments", BODY, keyed(follow=False)).status == 202
    assert len(server.seen) == 1


def test_a_redirect_within_the_server_is_followed_with_the_key_and_no_further(wire: Wire) -> None:
    with scripted(Say()) as other, scripted(Say(308, b"", (("location", "/v2/payments"),)), Say()) as server:
        answer = wire.post(f"{server.url}/payments", BODY, keyed())
        assert answer.status == 201 and len(server.keys) == 1
        assert [one.path for one in server.seen] == ["/payments", "/v2/payments"]
        server.script[:] = [Say(307, b"", (("location", f"{other.url}/payments"),))]
        settings = keyed()
        with pytest.raises(RedirectRefused):
            wire.post(f"{server.url}/payments", BODY, settings, follow_redirects=True)
    assert other.seen == []


def test_a_401_in_the_middle_reaches_the_caller_and_the_operation_is_kept(wire: Wire) -> None:
    settings = keyed()
    with scripted(Cut(), Say(401, b"")) as server:
        answer = wire.post(f"{server.url}/payments", BODY, settings)
        assert (answer.status, answer.told.settled) == (401, False)
        (kept,) = settings.journal.pending()
        server.script[:] = [Say()]
        assert [one.status for one in wire.finish_pending(settings)] == [201]
    assert server.keys == {f'"{kept.key}"'}


def test_a_401_at_once_leaves_nothing_behind(wire: Wire) -> None:
    settings = keyed()
    with scripted(Say(401, b"")) as server:
        answer = wire.post(f"{server.url}/payments", BODY, settings)
    assert (answer.status, answer.told.settled) == (401, True)
    assert settings.journal.pending() == []


def test_whoever_answers_a_challenge_keeps_the_key(wire: Wire) -> None:
    """Digest: the library itself sends the request a second time, with credentials."""
    import httpx
    import requests

    auth: Any = {
        "httpx2": httpx2.DigestAuth,
        "httpx": httpx.DigestAuth,
        "requests": requests.auth.HTTPDigestAuth,
    }[wire.name.removesuffix("-async")]("me", "secret")
    challenge = Say(401, b"", (("www-authenticate", 'Digest realm="x", nonce="n", qop="auth"'),))
    with scripted(challenge, Cut(), Say()) as server:
        answer = wire.post(f"{server.url}/payments", BODY, keyed(), settings={"auth": auth})
    assert answer.status == 201 and len(server.seen) == 3
    assert len(server.keys) == 1


def test_a_named_operation_is_the_same_one_for_ever(wire: Wire) -> None:
    settings = keyed()
    with scripted(Say()) as server:
        for _ in range(2):
            assert wire.post(f"{server.url}/payments", BODY, settings, name="order 17").status == 201
        assert len(server.keys) == 1 and len(server.seen) == 2
        with pytest.raises(OperationChanged):
            wire.post(f"{server.url}/payments", {"amount": 451}, settings, name="order 17")
        with pytest.raises(OperationChanged):
            wire.post(f"{server.url}/refunds", BODY, settings, name="order 17")
        assert len(server.seen) == 2
        wire.post(f"{server.url}/payments", BODY, settings, name="order 18")
    assert len(server.keys) == 2


def test_a_key_of_the_callers_own_is_taken(wire: Wire) -> None:
    with scripted(Cut(), Say()) as server:
        answer = wire.post(f"{server.url}/payments", BODY, keyed(), headers={"Idempotency-Key": '"mine"'})
    assert answer.told.key == "mine" and server.keys == {'"mine"'}


def test_stripes_dialect_is_a_bare_value(wire: Wire) -> None:
    with scripted(Cut(), Say()) as server:
        answer = wire.post(f"{server.url}/charges", BODY, keyed(dialect=STRIPE))
    assert server.keys == {answer.told.key}


def test_other_methods_pass_untouched() -> None:
    with scripted(Say(503)) as server, samekey.client.httpx2.Client(keyed=keyed(), trust_env=False) as client:
        assert client.put(f"{server.url}/x", json={}).status_code == 503
        assert client.get(f"{server.url}/x").status_code == 503
    assert [one.key for one in server.seen] == [None, None]


def test_a_key_too_old_is_not_sent_again(wire: Wire) -> None:
    journal = MemoryJournal()
    with scripted(Cut()) as server:
        with pytest.raises(Unsettled):
            wire.post(f"{server.url}/payments", BODY, keyed(attempts=1, journal=journal))
        sent = len(server.seen)
        with pytest.raises(KeyExpired):
            wire.finish_pending(keyed(journal=journal, retention=timedelta(milliseconds=1)))
    assert len(server.seen) == sent and len(journal.pending()) == 1


def test_the_servers_own_word_about_the_life_of_a_key_counts(wire: Wire) -> None:
    """Its clock is an hour behind ours: what it says is read by its own date."""
    settings = keyed(20)
    import time

    theirs = time.time() - 3600
    dates = {
        "date": formatdate(theirs, usegmt=True),
        "idempotency_key_expires": formatdate(theirs, usegmt=True),
    }
    with scripted(problem(409, "in_progress", **dates)) as server, pytest.raises(KeyExpired):
        wire.post(f"{server.url}/payments", BODY, settings)
    assert len(server.seen) == 1 and len(settings.journal.pending()) == 1


def test_the_callers_own_time_out_is_for_each_attempt(wire: Wire) -> None:
    with scripted(Hang(), Say()) as server:
        assert wire.post(f"{server.url}/payments", BODY, keyed(), timeout=0.2).told.attempts >= 2


def test_the_deadline_is_for_all_of_it(wire: Wire) -> None:
    with scripted(Hang()) as server, pytest.raises(Unsettled):
        wire.post(f"{server.url}/payments", BODY, keyed(1.5), timeout=None)


def test_a_compressed_answer_is_read(wire: Wire) -> None:
    busy = gzip.compress(b'{"code": "in_progress"}')
    said = gzip.compress(b'{"done": true}')
    encoded = (("content-encoding", "gzip"), ("content-type", "application/json"))
    with scripted(Say(409, busy, encoded), Say(201, said, encoded)) as server:
        answer = wire.post(f"{server.url}/payments", BODY, keyed())
    assert json.loads(answer.body) == {"done": True}


def test_and_so_is_one_that_was_stored_compressed(wire: Wire) -> None:
    body = base64.b64encode(gzip.compress(b'{"done": true}')).decode()
    headers = [["content-encoding", "gzip"], ["content-type", "application/json"]]
    final = {"status": 201, "headers": headers, "body": body, "encoding": "base64"}
    with scripted(
        Say(202, b"{}", (("location", "/idempotency/op"), ("retry-after", "0"))),
        Say(200, json.dumps({"id": "op", "state": "completed", "answer": final}).encode()),
    ) as server:
        assert json.loads(wire.post(f"{server.url}/payments", BODY, keyed()).body) == {"done": True}


@pytest.mark.parametrize("wire", [wire for wire in WIRES if "async" not in wire.name], ids=lambda w: w.name)
def test_a_streamed_body_is_collected_and_a_large_one_refused(wire: Wire) -> None:
    def parts() -> Iterator[bytes]:
        yield from (b"one", b"two")

    with scripted(Cut(), Say()) as server:
        assert wire.post(f"{server.url}/files", parts(), keyed()).status == 201
        assert [one.body for one in server.seen] == [b"onetwo"] * 2
        with pytest.raises(BodyRefused):
            wire.post(f"{server.url}/files", parts(), keyed(max_body=5))
    assert len(server.seen) == 2


def test_an_async_stream_is_collected() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    wire = next(wire for wire in WIRES if wire.name == "httpx2-async")
    with scripted(Cut(), Say()) as server:
        assert wire.post(f"{server.url}/files", parts(), keyed()).status == 201
    assert [one.body for one in server.seen] == [b"onetwo"] * 2


def test_an_operation_that_was_cancelled_is_kept() -> None:
    settings = keyed(30)

    async def leave(url: str, server: Any) -> None:
        async with samekey.client.httpx2.AsyncClient(keyed=settings, trust_env=False) as client:
            task = asyncio.create_task(client.post(url, json=BODY))
            while not server.seen:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (one,) = client.pending()
            server.script[:] = [Say()]
            answer = await one.finish()
            assert answer.status_code == 201 and told(answer).attempts == 1

    with scripted(Hang()) as server:
        asyncio.run(leave(f"{server.url}/payments", server))
        assert len(server.keys) == 1


def test_one_request_object_is_one_operation() -> None:
    with scripted(Say()) as server, samekey.client.httpx2.Client(keyed=keyed(), trust_env=False) as client:
        request = client.build_request("POST", f"{server.url}/payments", json=BODY)
        client.send(request)
        client.send(request)
        client.post(f"{server.url}/payments", json=BODY)
    assert len(server.keys) == 2


def test_a_name_must_say_something() -> None:
    with pytest.raises(ValueError, match="not the answer"):
        told(httpx2.Response(200))
    from samekey import ConfigurationError

    with pytest.raises(ConfigurationError), operation(""):
        pass


@pytest.mark.parametrize("part", ["body", "head", "interim answers"])
def test_the_deadline_holds_against_an_answer_that_comes_in_drop_by_drop(wire: Wire, part: Any) -> None:
    """The server goes on for as long as it is listened to."""
    with scripted(Trickle(part)) as server, pytest.raises(Unsettled):
        wire.post(f"{server.url}/payments", BODY, keyed(1.0, attempts=1), timeout=None)
    assert server.drops < MOST_DROPS

"""Answers that follow a lost attempt: only one that proves to be the operation's own settles it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from samekey.client import Answer, Keyed, MemoryJournal, OperationChanged, Patience, Unsettled

from .scripted import Cut, Say, scripted
from .test_course import Drive, say
from .test_transports import BODY, QUICK, keyed, wire
from .wires import Wire

__all__ = ["wire"]

HTML = "text/html; charset=utf-8"


def replayed(status: int, location: str = "") -> Answer:
    return say(status, idempotent_replayed="true", location=location)


ITS_OWN = [
    say(200),
    say(201),
    say(204),
    say(303, location="/payments/1"),
    say(400, b'{"amount": "must be positive"}'),
    say(402, b'{"error": {"code": "card_declined"}}'),
    say(422, b'{"amount": "must be positive"}'),
    say(409, b'{"code": "result_unavailable"}'),
    replayed(404),
    replayed(409),
    replayed(302, location="/payments/1"),
]
ANYBODYS = [
    *(say(status) for status in (301, 302, 304, 401, 403, 404, 405, 406, 407, 410, 411, 412, 413, 414, 415)),
    *(say(status) for status in (417, 418, 421, 424, 426, 428, 431, 451, 501, 505)),
    say(400, b"<h1>Bad Request</h1>", content_type=HTML),
    say(422, b"<h1>Blocked</h1>", content_type=HTML),
    say(410, b'{"code": "expired"}'),
    say(422, b'{"code": "reused"}'),
    say(400, b'{"error": {"type": "idempotency_error"}}'),
]
CONFLICTS = [
    say(409),
    say(409, b'{"detail": "Request already pending"}'),
    say(409, b'{"name": "PREVIOUS_REQUEST_IN_PROGRESS"}'),
    say(409, b'{"code": "sold_out"}'),
    say(423),
    say(423, b'{"code": "locked"}'),
]


def _named(answer: Answer) -> str:
    return f"{answer.status} {answer.body[:40].decode()} {dict(answer.headers)}"


@pytest.mark.parametrize("answer", ITS_OWN, ids=_named)
def test_the_operations_own_answer_settles_it(answer: Answer) -> None:
    done = Drive(TimeoutError(), answer).run()
    assert (done.answer, done.settled, done.proven) == (answer, True, True)


@pytest.mark.parametrize("answer", ANYBODYS, ids=_named)
def test_one_that_anybody_may_have_given_is_told_and_settles_nothing(answer: Answer) -> None:
    done = Drive(TimeoutError(), answer).run()
    assert (done.answer, done.settled, done.happened, done.attempts) == (answer, False, True, 2)
    assert Drive(answer).run().settled


@pytest.mark.parametrize("conflict", CONFLICTS, ids=_named)
def test_a_conflict_in_words_that_nobody_knows_is_waited_for(conflict: Answer) -> None:
    assert Drive(conflict).run().answer == conflict
    done = Drive(TimeoutError(), conflict, conflict, say(201)).run()
    assert (done.answer.status, done.settled, done.attempts) == (201, True, 4)
    with pytest.raises(Unsettled):
        Drive(TimeoutError(), conflict).run()
    with pytest.raises(Unsettled):
        Drive(conflict, tried_before=True).run()


def test_an_operation_that_is_done_gets_its_conflict_again() -> None:
    done = Drive(say(409), tried_before=True, done_before=True).run()
    assert (done.answer.status, done.settled, done.attempts) == (409, True, 1)


@pytest.mark.parametrize("before", [[], [TimeoutError()]], ids=["at once", "after a lost attempt"])
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_failure_that_the_server_repeats_is_told_and_settles_nothing(
    status: int, before: list[Exception]
) -> None:
    done = Drive(*before, replayed(status)).run()
    assert (done.answer.status, done.replayed, done.settled, done.happened) == (status, True, False, True)


def test_a_202_that_is_repeated_is_followed_all_the_same() -> None:
    repeated = replayed(202, location="/operations/1")
    assert Drive(TimeoutError(), repeated, say(200, b"{}")).run().answer.status == 200


def test_each_library_waits_for_an_attempt_that_is_still_running(wire: Wire) -> None:
    settings = keyed()
    pending = Say(409, b'{"detail": "Request already pending"}')
    with scripted(Cut(), pending, Say(423), Say()) as server:
        answer = wire.post(f"{server.url}/payments", BODY, settings)
    assert (answer.status, answer.told.settled, len(server.keys)) == (201, True, 1)
    assert settings.journal.pending() == []


def test_each_library_keeps_what_the_server_says_has_failed(wire: Wire) -> None:
    settings = keyed()
    with scripted(Say(500, b"it broke", (("Idempotent-Replayed", "true"),))) as server:
        answer = wire.post(f"{server.url}/payments", BODY, settings)
    assert (answer.status, answer.body, answer.told.replayed) == (500, b"it broke", True)
    assert not answer.told.settled and len(server.seen) == 1
    assert len(settings.journal.pending()) == 1


MINE: dict[str, Any] = {"headers": {"Idempotency-Key": '"mine"'}}


def test_a_key_of_the_callers_own_under_a_name_is_never_replaced(wire: Wire) -> None:
    settings = Keyed(
        patience=Patience(deadline=timedelta(seconds=20), backoff=QUICK, attempts=1), journal=MemoryJournal()
    )
    with scripted(Cut(), Say()) as server:
        url = f"{server.url}/payments"
        with pytest.raises(Unsettled):
            wire.post(url, BODY, settings, name="order 17")
        with pytest.raises(OperationChanged, match="another key"):
            wire.post(url, BODY, settings, name="order 17", **MINE)
        assert len(server.seen) == 1
        assert wire.post(url, BODY, settings, name="order 17").status == 201
        for _ in range(2):
            assert wire.post(url, BODY, settings, name="order 18", **MINE).told.key == "mine"
        assert wire.post(url, BODY, settings, name="order 18").told.key == "mine"
    assert [one.key == '"mine"' for one in server.seen] == [False, False, True, True, True]

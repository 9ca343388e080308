"""The course of an operation, by a clock of the test's own: pauses, deadlines, and clocks that are set."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from email.utils import formatdate

import pytest

from samekey import Backoff, ConfigurationError
from samekey.client import IETF, Answer, KeyExpired, Patience, Request, Unsettled
from samekey.client.course import (
    Course,
    Done,
    Failed,
    Heard,
    Moment,
    NeverSent,
    Note,
    Pause,
    Send,
    Step,
    Went,
)

START = Moment(1000.0, 1_700_000_000.0, 0.5)
REQUEST = Request("POST", "https://api.example/payments", (("content-type", "application/json"),), b"{}")
BACKOFF = Backoff(first=timedelta(seconds=1), longest=timedelta(seconds=8))


def say(status: int = 201, body: bytes = b"", **headers: str) -> Answer:
    return Answer(status, tuple((name.replace("_", "-"), value) for name, value in headers.items()), body)


class Drive:
    """Answers a course from a script, and moves its clock: a request takes one second, a pause its time."""

    def __init__(self, *script: Answer | Exception, chance: float = 0.5, **settings: object) -> None:
        patience = Patience(
            deadline=timedelta(seconds=60),
            backoff=BACKOFF,
            **settings.pop("patience", {}),  # type: ignore[arg-type]
        )
        began = settings.pop("began", START)
        assert isinstance(began, Moment)
        self.now = replace(began, chance=chance)
        self.script = list(script)
        self.pauses: list[float] = []
        self.noted: list[float] = []
        self.sent: list[Send] = []
        more = {"begun_at": began.wall, **settings}
        self.course = Course(REQUEST, IETF, patience, self.now, **more)  # type: ignore[arg-type]

    def run(self) -> Done:
        steps = self.course.steps()
        step: Step = next(steps)
        while True:
            try:
                step = steps.send(self._do(step))
            except StopIteration as end:
                done: Done = end.value
                return done

    def _do(self, step: Step) -> Heard | Failed | Went:
        if isinstance(step, Pause):
            self.pauses.append(step.seconds)
            self.pass_time(step.seconds)
            return Went(self.now)
        if isinstance(step, Note):
            self.noted.append(step.expires_at)
            return Went(self.now)
        self.sent.append(step)
        self.pass_time(min(1.0, step.seconds))
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(said, ConnectionRefusedError):
            return Failed(said, self.now, left=False)
        return Failed(said, self.now) if isinstance(said, Exception) else Heard(said, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now = replace(self.now, monotonic=self.now.monotonic + seconds, wall=self.now.wall + seconds)


def test_pauses_grow_up_to_the_longest_and_are_drawn_from_nothing_up() -> None:
    drive = Drive(*[TimeoutError()] * 6, say(), chance=0.5)
    assert drive.run().attempts == 7
    assert drive.pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    drive = Drive(*[TimeoutError()] * 3, say(), chance=0.0)
    drive.run()
    assert drive.pauses == [0.0, 0.0, 0.0]


def test_everything_together_stays_within_the_deadline_and_no_attempt_gets_more_than_is_left() -> None:
    drive = Drive(TimeoutError(), chance=0.99)
    with pytest.raises(Unsettled):
        drive.run()
    assert drive.now.monotonic - START.monotonic <= 60
    assert all(one.seconds <= 60 for one in drive.sent) and drive.sent[-1].seconds < 60


@pytest.mark.parametrize(
    ("said", "pause"),
    [
        ("7", 7.5),
        (formatdate(START.wall - 3600 + 7, usegmt=True), 7.5),
        ("soon", 0.5),
        ("-3", 0.5),
        ("0", 0.5),
        (formatdate(START.wall - 9000, usegmt=True), 0.5),
    ],
)
def test_retry_after_is_obeyed_in_both_forms_by_the_servers_own_clock(said: str, pause: float) -> None:
    theirs = formatdate(START.wall - 3600, usegmt=True)
    drive = Drive(say(429, date=theirs, retry_after=said), say())
    drive.run()
    assert drive.pauses == [pytest.approx(pause, abs=0.01)]


@pytest.mark.parametrize("said", ["3600", "9" * 400, formatdate(START.wall + 10**9, usegmt=True)])
def test_who_asks_for_more_time_than_there_is_is_not_come_to_earlier(said: str) -> None:
    drive = Drive(say(409, b'{"code": "in_progress"}', retry_after=said))
    with pytest.raises(Unsettled, match="come back in"):
        drive.run()
    assert len(drive.sent) == 1 and drive.pauses == []


def test_a_refusal_to_look_at_it_is_the_answer_when_nothing_else_was_sent() -> None:
    done = Drive(say(429, retry_after="100")).run()
    assert (done.answer.status, done.settled, done.happened) == (429, True, False)
    with pytest.raises(Unsettled):
        Drive(TimeoutError(), say(429, retry_after="100")).run()


def test_what_never_left_is_proof_only_for_all_attempts_together() -> None:
    with pytest.raises(NeverSent):
        Drive(ConnectionRefusedError()).run()
    with pytest.raises(Unsettled):
        Drive(TimeoutError(), ConnectionRefusedError()).run()
    with pytest.raises(Unsettled):
        Drive(ConnectionRefusedError(), tried_before=True).run()


def test_a_bounded_number_of_attempts() -> None:
    drive = Drive(TimeoutError(), patience={"attempts": 2})
    with pytest.raises(Unsettled):
        drive.run()
    assert len(drive.sent) == 2


DAY = 24 * 3600.0


def test_an_operation_of_yesterday_is_not_sent_again() -> None:
    done = Drive(say(), begun_at=START.wall - 0.8 * DAY, tried_before=True).run()
    assert done.answer.status == 201
    drive = Drive(say(), begun_at=START.wall - 0.95 * DAY, tried_before=True)
    with pytest.raises(KeyExpired):
        drive.run()
    assert drive.sent == []


def test_a_clock_that_was_set_back_since_makes_no_key_younger() -> None:
    drive = Drive(say(), begun_at=START.wall + 3600, tried_before=True)
    with pytest.raises(KeyExpired, match="set back"):
        drive.run()
    assert drive.sent == []


def test_a_clock_that_is_set_while_we_run_neither_ends_the_deadline_nor_prolongs_a_key() -> None:
    drive = Drive(TimeoutError(), TimeoutError(), say())
    drive.now = replace(drive.now, wall=drive.now.wall - 10 * DAY)
    assert drive.run().attempts == 3
    short = {"retention": timedelta(seconds=2)}
    drive = Drive(TimeoutError(), TimeoutError(), TimeoutError(), say(), patience=short)
    drive.now = replace(drive.now, wall=drive.now.wall - 10 * DAY)
    with pytest.raises(KeyExpired):
        drive.run()


def test_the_servers_word_about_the_life_of_a_key_is_noted_by_our_clock() -> None:
    theirs = START.wall - 3600
    drive = Drive(
        say(
            409,
            b'{"code": "in_progress"}',
            date=formatdate(theirs, usegmt=True),
            idempotency_key_expires=formatdate(theirs + 1000, usegmt=True),
        ),
        say(),
    )
    drive.run()
    assert drive.noted == [pytest.approx(START.wall + 1 + 900, abs=1)]
    drive = Drive(say(), begun_at=START.wall - 30 * DAY, tried_before=True, expires_at=START.wall + 60)
    assert drive.run().answer.status == 201


def test_patience_of_none_is_refused() -> None:
    for wrong in ({"deadline": timedelta(0)}, {"retention": timedelta(0)}, {"attempts": -1}):
        with pytest.raises(ConfigurationError):
            Patience(**wrong)


@pytest.mark.parametrize("location", ["http://[bad/x", "//[::1", "http://h:99999/x", "http://h:abc/"])
def test_a_location_that_is_none_costs_no_answer(location: str) -> None:
    for status in (201, 307, 308):
        done = Drive(say(status, location=location)).run()
        assert (done.answer.status, done.settled, done.attempts) == (status, True, 1)
    assert Drive(say(202, location=location), say()).run().answer.status == 201
    led_on = (say(202, location="/status"), say(303, location=location), say())
    assert Drive(*led_on).run().answer.status == 201


MOVED = say(308, location="https://api.example/v2/payments")


BUSY = say(409, b'{"code": "in_progress"}')


@pytest.mark.parametrize("before", [TimeoutError(), BUSY], ids=["cut", "busy"])
def test_what_may_be_done_at_one_route_is_not_sent_on_to_another(before: Answer | Exception) -> None:
    drive = Drive(before, MOVED, say())
    done = drive.run()
    assert (done.answer.status, done.settled, done.happened) == (308, False, True)
    assert {one.request.url for one in drive.sent} == {REQUEST.url}


def test_nor_is_one_that_an_earlier_process_may_have_sent() -> None:
    assert Drive(MOVED, say(), tried_before=True).run().settled is False
    assert Drive(MOVED, say()).run().answer.status == 201


def test_a_slash_makes_no_other_route_and_an_attempt_there_is_repeated_there() -> None:
    slash = say(308, location=f"{REQUEST.url}/")
    assert Drive(TimeoutError(), slash, say()).run().answer.status == 201
    drive = Drive(MOVED, TimeoutError(), say())
    assert drive.run().answer.status == 201
    assert [one.request.url.rpartition("example")[2] for one in drive.sent] == [
        *("/payments", "/v2/payments", "/v2/payments")
    ]


def test_one_attempt_follows_a_202_too_and_is_not_made_twice() -> None:
    accepted = say(202, location="https://api.example/operations/1")
    drive = Drive(accepted, say(202), say(202), say(200, b"done"), patience={"attempts": 1})
    done = drive.run()
    assert (done.answer.body, done.attempts, len(drive.sent)) == (b"done", 1, 4)
    drive = Drive(accepted, say(403), say(), patience={"attempts": 1})
    with pytest.raises(Unsettled):
        drive.run()
    assert [one.request.method for one in drive.sent] == ["POST", "GET"]


@pytest.mark.parametrize(("life", "sent"), [(54.0, False), (86400.0, True)])
def test_a_short_life_bears_no_clock_that_was_set_back(life: float, sent: bool) -> None:
    """Two minutes after it began, by a clock that was set back by 200 seconds."""
    begun = START.wall + 80
    drive = Drive(say(), begun_at=begun, expires_at=begun + life, tried_before=True)
    if sent:
        assert drive.run().answer.status == 201
    else:
        with pytest.raises(KeyExpired):
            drive.run()

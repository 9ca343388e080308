"""How long a lease that ran out is left to its holder after the store was away."""

from __future__ import annotations

import pytest

from samekey.workers.weather import Weather

LEASE = 30.0


def seen(*outages: tuple[float, float]) -> Weather:
    """As by somebody who looks just before, and just as each is over."""
    weather = Weather(LEASE)
    weather.good(0)
    for began, ended in outages:
        weather.good(began)
        weather.bad(began)
        weather.good(ended)
    return weather


@pytest.mark.parametrize(
    ("outages", "now", "patience"),
    [
        ((), 100, 0),
        (((100, 700),), 700, 630),  # what ran out 30 s before it began had its time
        (((100, 700),), 710, 630),
        (((100, 700),), 729, 630),
        (((100, 700),), 730, 0),
        (((100, 101), (121, 122)), 122, 32),  # 20 s of good weather between them, 10 s before
        (((100, 101), (121, 122)), 132, 31),
        (((100, 101), (121, 122)), 152, 0),
    ],
)
def test_a_lease_of_good_weather_in_sum(
    outages: tuple[tuple[float, float], ...], now: float, patience: float
) -> None:
    weather = seen(*outages)
    assert weather.patience(now) == patience
    assert weather.patience(now) == patience, "asking changes nothing"


def test_an_outage_that_lasts_moves_the_time_with_it() -> None:
    weather = seen()
    weather.good(50)
    weather.bad(50)
    weather.bad(80)
    assert [weather.patience(now) for now in (50, 80, 100)] == [30, 60, 80]


def test_one_that_was_noticed_late_is_taken_to_have_begun_before() -> None:
    """In the middle between an answer and none; but those who hold leases ask every ten seconds."""
    weather = seen()
    weather.bad(100)
    weather.good(101)
    assert weather.patience(101) == 101 - 95 + LEASE
    weather.bad(105)
    weather.good(106)
    assert weather.patience(106) == 106 - 95 + LEASE - 2


def test_whoever_looks_finds_good_weather_between_two_outages() -> None:
    """However often the store is away: half of the time between an answer and the next error, at least."""
    weather = Weather(LEASE)
    for second in range(0, 200, 3):
        weather.good(second)
        weather.bad(second + 2)
    assert weather.patience(200) < 100


def test_old_outages_are_forgotten() -> None:
    weather = seen(*((at, at + 1) for at in range(0, 10_000, 50)))
    weather.patience(10_000)
    assert len(weather._bad) <= 2


def test_who_begins_does_not_know_what_was_before() -> None:
    """An outage may just be over: what ran out before is left alone for a lease, too, but not for ever."""
    weather = Weather(LEASE, began=1000)
    assert (weather.patience(1000), weather.patience(1029)) == (10 * LEASE, 10 * LEASE)
    assert weather.patience(1030) == 0
    weather.good(1031)
    weather.bad(1031)
    weather.good(1033)
    assert weather.patience(1033) == 2 + LEASE


def test_an_answer_that_took_long_is_an_outage_from_before_it_was_asked_for() -> None:
    """A store that stalls gives no error; nobody could renew anything in it."""
    weather = seen()
    weather.good(95)
    weather.good(107, asked=100)
    assert weather.patience(107) == 107 - 97.5 + LEASE
    assert weather.patience(107 + LEASE) == 0


def test_an_answer_that_took_no_longer_than_usual_is_none() -> None:
    weather = seen()
    weather.good(95)
    weather.good(101, asked=100)
    assert weather.patience(101) == 0

"""When to try again: exponential, with full jitter, and never beyond the longest pause."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samekey import Backoff
from samekey.errors import ConfigurationError

ALMOST_ONE = 0.999999999
spans = st.timedeltas(timedelta(0), timedelta(days=30))
fractions = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("attempts", "ceiling"),
    [(0, 1000), (1, 1000), (2, 2000), (3, 4000), (9, 256_000), (10, 300_000), (11, 300_000)],
)
def test_each_pause_may_be_twice_as_long_up_to_the_longest(attempts: int, ceiling: int) -> None:
    backoff = Backoff(first=timedelta(seconds=1), longest=timedelta(minutes=5))
    assert backoff.pause_ms(attempts, 0.0) == 0
    assert backoff.pause_ms(attempts, 0.5) == ceiling // 2
    assert ceiling - 1 <= backoff.pause_ms(attempts, ALMOST_ONE) <= ceiling


def test_the_defaults() -> None:
    assert Backoff() == Backoff(first=timedelta(seconds=1), longest=timedelta(minutes=5))


@pytest.mark.parametrize("attempts", [40, 41, 62, 63, 1000, 10**9])
def test_many_attempts_do_not_overflow(attempts: int) -> None:
    assert Backoff().pause_ms(attempts, 0.5) == 150_000


@pytest.mark.parametrize("attempts", range(100))
def test_a_long_first_pause_does_not_overflow(attempts: int) -> None:
    backoff = Backoff(first=timedelta(days=8), longest=timedelta(days=9))
    assert backoff.pause_ms(attempts, 0.5) <= 9 * 86_400_000 // 2


@given(spans, spans, st.integers(-5, 10**6), fractions)
def test_a_pause_is_never_negative_nor_longer_than_the_longest(
    first: timedelta, longest: timedelta, attempts: int, fraction: float
) -> None:
    pause = Backoff(first, longest).pause_ms(attempts, fraction)
    assert 0 <= pause <= longest / timedelta(milliseconds=1)


@given(spans, spans, st.integers(0, 100), fractions)
def test_later_pauses_are_not_shorter(
    first: timedelta, longest: timedelta, attempts: int, fraction: float
) -> None:
    backoff = Backoff(first, longest)
    assert backoff.pause_ms(attempts, fraction) <= backoff.pause_ms(attempts + 1, fraction)


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    backoff = Backoff()
    pauses = {backoff.pause_ms(8, number / 100) for number in range(100)}
    assert len(pauses) == 100


def test_numbers_are_seconds() -> None:
    """As everywhere else; what cannot be counted was met at the first failure, and cost its record."""
    made: Any = Backoff
    assert made(first=1, longest=0.5) == Backoff(timedelta(seconds=1), timedelta(seconds=0.5))


@pytest.mark.parametrize("span", ["1", None, -1, timedelta(seconds=-1), True, float("inf"), float("nan")])
def test_what_is_no_pause_is_refused_when_it_is_declared(span: Any) -> None:
    with pytest.raises(ConfigurationError, match="a number of seconds"):
        Backoff(first=span)
    with pytest.raises(ConfigurationError, match="a number of seconds"):
        Backoff(longest=span)

"""How old a request may be (T4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from samekey.core.freshness import SKEW, longest_fresh, read_timestamp, stale_reason

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
LIMIT = timedelta(minutes=5)


@pytest.mark.parametrize(
    "spelling",
    [
        str(int(NOW.timestamp())),
        f"{NOW.timestamp():.3f}",
        "2026-11-15T12:00:00Z",
        "2026-11-15T13:00:00+01:00",
        "2026-11-15T12:00:00",
        "Sun, 15 Nov 2026 12:00:00 GMT",
        "  2026-11-15T12:00:00Z  ",
    ],
)
def test_a_moment_may_be_spelled_in_several_ways(spelling: str) -> None:
    assert read_timestamp(spelling) == NOW
    assert stale_reason([spelling], NOW, LIMIT, "Request-Timestamp") is None


@pytest.mark.parametrize(
    "rubbish", ["", " ", "yesterday", "-1", "9" * 400, "1e9", "2026-13-45", "NaN", "\x00", "٣", "Sun, 15"]
)
def test_anything_else_is_refused_with_a_sentence(rubbish: str) -> None:
    assert read_timestamp(rubbish) is None
    reason = stale_reason([rubbish], NOW, LIMIT, "Request-Timestamp")
    assert reason is not None
    assert "Request-Timestamp" in reason


def test_old_future_and_missing_requests_are_refused() -> None:
    def at(moment: datetime) -> str | None:
        return stale_reason([moment.isoformat()], NOW, LIMIT, "Request-Timestamp")

    assert at(NOW - LIMIT) is None
    assert at(NOW + SKEW) is None
    assert "older" in (at(NOW - LIMIT - timedelta(seconds=1)) or "")
    assert "future" in (at(NOW + SKEW + timedelta(seconds=1)) or "")
    assert "needs its time" in (stale_reason([], NOW, LIMIT, "Request-Timestamp") or "")


def test_no_request_is_fresh_for_much_longer_than_its_limit() -> None:
    """A captured one must be old before its key is forgotten, whatever time it claims for itself."""
    for limit in (timedelta(seconds=5), LIMIT):
        for ahead in (timedelta(0), SKEW, limit, 2 * limit):
            sent = [(NOW + ahead).isoformat()]
            fresh = [
                age
                for age in range(0, 1200)
                if stale_reason(sent, NOW + timedelta(seconds=age), limit, "Request-Timestamp") is None
            ]
            if stale_reason(sent, NOW, limit, "Request-Timestamp") is None:
                assert timedelta(seconds=max(fresh)) <= longest_fresh(limit)


def test_a_timestamp_that_is_sent_twice_is_refused() -> None:
    reason = stale_reason([NOW.isoformat(), NOW.isoformat()], NOW, LIMIT, "Request-Timestamp")
    assert reason is not None and "more than once" in reason

"""A server that limits its requests: such a refusal is nobody's answer, and is never judged."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from .wire import RawExchange

LONGEST_PAUSE = 60.0
"""Seconds that a Retry-After may ask for."""
PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before the next attempts, where the server does not say how long."""


def is_limited(exchange: RawExchange) -> bool:
    """429, or a 503 that says when to come again."""
    if exchange.answer is None:
        return False
    return exchange.status == 429 or (
        exchange.status == 503 and exchange.answer.header("retry-after") is not None
    )


def asked_pause(exchange: RawExchange) -> float | None:
    """The seconds that Retry-After names, as a number or as a date; None if it names none."""
    text = (exchange.answer.header("retry-after") or "").strip() if exchange.answer is not None else ""
    if text.isdecimal() and text.isascii():
        return min(float(text), LONGEST_PAUSE)
    try:
        end = parsedate_to_datetime(text)
        left = (end if end.tzinfo else end.replace(tzinfo=UTC)) - datetime.now(UTC)
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(left.total_seconds(), 0.0), LONGEST_PAUSE)

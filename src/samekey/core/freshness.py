"""Whether a request is too old to be taken: a captured one must not be sent again after its key has expired.

Pure. The timestamp is the client's word, so it protects only where it is part of what the client signs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


SKEW: Final = timedelta(seconds=30)
"""How far a client's clock may be ahead. A request is fresh for so much longer than ``max_age``, so it is no
more than honest clocks need: whoever captures one that lies in the future could send it until then."""


def longest_fresh(max_age: timedelta) -> timedelta:
    """How long one request can be fresh; its key must be remembered for longer."""
    return max_age + min(SKEW, max_age)


def stale_reason(values: Sequence[str], now: datetime, max_age: timedelta, header: str) -> str | None:
    """Why a request with these timestamps is refused, as a sentence; None if it is fresh."""
    if not values:
        return f"This request needs its time in {header}: seconds since 1970, or a date. Nothing was done."
    if len(values) > 1:
        # Whoever adds one must not be the one who decides.
        return f"{header} was sent more than once. Send it once. Nothing was done."
    sent = read_timestamp(values[0])
    if sent is None:
        return f"{header} is neither seconds since 1970 nor a date. Nothing was done."
    if now - sent > max_age:
        return (
            f"The request is older than {max_age.total_seconds():g} s. Nothing was done now; retry with the "
            "same key and a fresh timestamp."
        )
    if sent - now > min(SKEW, max_age):
        return f"{header} lies in the future. Check the clock. Nothing was done."
    return None


def read_timestamp(value: str) -> datetime | None:
    """Seconds since 1970, ISO 8601 or an HTTP date; None for anything else."""
    text = value.strip()
    try:
        if _SECONDS.fullmatch(text):
            return _EPOCH + timedelta(seconds=float(text))
        moment = (
            datetime.fromisoformat(text)
            if text[:4].isascii() and text[:4].isdigit()
            else parsedate_to_datetime(text)
        )
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

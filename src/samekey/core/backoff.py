"""When to try again: exponential backoff with full jitter. Pure: the randomness comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Backoff:
    """``first`` is the longest first pause; each later one may be twice as long, up to ``longest``.

    Full jitter: the pause is anywhere between nothing and that, so that jobs which failed together do not
    come back together. Numbers are seconds.
    """

    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        for name in ("first", "longest"):
            span = getattr(self, name)
            if isinstance(span, int | float) and not isinstance(span, bool):
                try:
                    span = timedelta(seconds=span)
                except (OverflowError, ValueError):
                    span = None
                object.__setattr__(self, name, span)
            if not isinstance(span, timedelta) or span < timedelta(0):
                raise ConfigurationError(
                    f"Backoff({name}={span!r}): a pause is a timedelta, or a number of seconds, and not less "
                    "than nothing."
                )

    def pause_ms(self, attempts: int, random: float) -> int:
        """The pause after that many attempts; ``random`` is in [0, 1)."""
        doublings = min(max(attempts - 1, 0), 62)
        first, longest = (span // timedelta(milliseconds=1) for span in (self.first, self.longest))
        return int(min(first << doublings, longest) * random)

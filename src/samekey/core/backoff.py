"""When to try again: exponential backoff with full jitter. Pure: the randomness comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """``first`` is the longest first pause; each later one may be twice as long, up to ``longest``.

    Full jitter: the pause is anywhere between nothing and that, so that jobs which failed together do not
    come back together.
    """

    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=5)

    def pause_ms(self, attempts: int, random: float) -> int:
        """The pause after that many attempts; ``random`` is in [0, 1)."""
        doublings = min(max(attempts - 1, 0), 62)
        first, longest = (span // timedelta(milliseconds=1) for span in (self.first, self.longest))
        return int(min(first << doublings, longest) * random)

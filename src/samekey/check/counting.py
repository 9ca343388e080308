"""How many effects there have been, as a URL of the user's tells it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError
from .wire import RawExchange

NAMES = ("count", "total", "effects", "size", "length", "number", "n")
"""Members that hold a count, the most telling first."""
PATIENCE = 2.0
"""Seconds in which an effect must show: work in the background included."""
STEP = 0.02
COUNTED = (
    "replay.ran-again",
    "replay.reordered",
    "misuse.ran",
    "header.missing",
    "header.empty",
    "header.collision",
    "header.case",
    "header.spellings",
    "concurrency.ran-twice",
    "concurrency.mixed",
    "isolation.tenant",
    "loss.half-request",
    "loss.ran-again",
    "errors.ran-twice",
    "lifetime.forgotten",
)
"""Rules that rest on the count, where there is one."""


def number_in(exchange: RawExchange) -> int:
    """The number that an answer tells; a sentence if it tells none."""
    answer = exchange.answer
    url = exchange.request.url
    if answer is None or not exchange.succeeded:
        said = exchange.silence or f"it answered {exchange.status}"
        raise ConfigurationError(f"The count URL {url} tells no number: {said}.")
    try:
        found = _number(json.loads(answer.body))
    except (ValueError, RecursionError):
        found = None
    if found is None:
        raise ConfigurationError(
            f"The count URL {url} tells no number: answer with a number, a list, or an object with a count."
        )
    return found


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str):
        return int(value) if value.strip().isdecimal() else None
    if isinstance(value, list):
        return len(value)
    named = [value[name] for name in NAMES if _is_number(value.get(name))]
    if named:
        return _number(named[0])
    numbers = [item for item in value.values() if _is_number(item)]
    lists = [item for item in value.values() if isinstance(item, list)]
    if len(lists) == 1 and len(numbers) != 1:
        return len(lists[0])
    if len(numbers) == 1:
        return _number(numbers[0])
    inner = [
        found for item in value.values() if isinstance(item, dict) and (found := _number(item)) is not None
    ]
    return inner[0] if len(inner) == 1 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Counter:
    """Reads the count, and knows what one operation adds to it and how late."""

    def __init__(self, ask: Callable[[], RawExchange]) -> None:
        self._ask = ask
        self.unit = 0
        """What one operation adds; 0 until it has been seen."""
        self.lag = 0.0
        """Seconds after the answer until an effect shows."""

    def read(self) -> int:
        """The count now."""
        return number_in(self._ask())

    def settled(self) -> int:
        """The count, once what is under way has had the time to show."""
        if self.lag:
            time.sleep(min(2 * self.lag + STEP, PATIENCE))
        return self.read()

    def has_risen(self, before: int) -> bool:
        """Whether an operation after that shows, as late as it may."""
        end = time.monotonic() + PATIENCE
        while self.read() < before + self.unit:
            if time.monotonic() > end:
                return False
            time.sleep(STEP)
        return True

    def moves(self, seconds: float) -> bool:
        """Whether it changes while nothing is sent: others use it too."""
        before = self.settled()
        time.sleep(seconds)
        return self.read() != before

    def calibrate(self, before: int) -> None:
        """After an operation that is alone: how much it has added, and after how long."""
        began = time.monotonic()
        while True:
            self.unit = self.read() - before
            waited = time.monotonic() - began
            if self.unit > 0 or waited > PATIENCE:
                break
            time.sleep(STEP)
            self.lag = waited + STEP
        if self.unit <= 0:
            self.unit, self.lag = 0, 0.0

    @property
    def usable(self) -> bool:
        return self.unit > 0

    def operations(self, before: int, after: int) -> int:
        """How many operations explain the difference; a part of one counts as one."""
        return -(-max(after - before, 0) // self.unit)

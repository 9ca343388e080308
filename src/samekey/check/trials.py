"""Requests that a check has sent, and what they got: new operations, and those that failed on their way."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from .wire import RawExchange, RawRequest


@dataclass(slots=True)
class Trial:
    """A request with a key of its own, and its first answer."""

    key: str
    document: Any
    request: RawRequest
    exchange: RawExchange
    at: float = field(default_factory=time.monotonic)
    """When it was answered."""


@dataclass(slots=True)
class Incident:
    """A valid request with a new key that got a 5xx, and what its retries got."""

    request: RawRequest
    exchanges: list[RawExchange]
    effects: int | None = None

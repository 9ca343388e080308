"""What a phased operation is made of: its definition, its effects, and what is known about a provider."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..core.backoff import Backoff
from ..core.policy import milliseconds
from ..core.provider import ProviderId
from ..errors import OutcomeUnknown
from .rules import Rules


class _NotFound:
    """What a lookup returns when the provider knows nothing of the effect."""

    def __repr__(self) -> str:
        return "NOT_FOUND"


NOT_FOUND = _NotFound()


class NotSettled(OutcomeUnknown):
    """ "Not found" does not count yet: whoever tried first may still be calling."""

    def __init__(self, name: str, wait_ms: int) -> None:
        super().__init__(f"Whether {name!r} happened cannot be told for another {wait_ms / 1000:.1f} s.")
        self.wait_ms = wait_ms


@dataclass(frozen=True, slots=True)
class Definition:
    """A phased function under its name and version."""

    name: str
    version: int
    function: Callable[..., Any]
    rules: Rules
    model: Any
    max_attempts: int = 10
    """How often an operation that has begun to act is resumed before an operator must look."""
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def identity(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


class Effect:
    """One outside call: send ``key`` to the provider, and keep the provider's own id here."""

    provider_id = ProviderId()
    """Set it to the provider's own id, text; it is stored with the result and can be looked up."""

    def __init__(self, key: str, provider_id: str | None = None, timeout: float = 0.0) -> None:
        self.key = key
        self.provider_id = provider_id
        self.timeout = timeout
        """Seconds that are left for the call when it begins: the longest time-out to give your client."""

    def __repr__(self) -> str:
        return f"<Effect {self.key}>"


@dataclass(frozen=True, slots=True)
class EffectRules:
    """What is known about a provider."""

    window_ms: int | None
    settle_ms: int
    timeout_ms: int
    can_look_up: bool

    @property
    def can_be_settled(self) -> bool:
        """Whether a later attempt can find out by itself."""
        return self.window_ms is not None or self.can_look_up


def max_run_ms(rules: Rules) -> int:
    return milliseconds(rules.policy.max_run)


def effect_rules(
    window: timedelta | None, settle: timedelta, timeout: timedelta, *, can_look_up: bool
) -> EffectRules:
    return EffectRules(
        None if window is None else milliseconds(window),
        milliseconds(settle),
        milliseconds(timeout),
        can_look_up,
    )

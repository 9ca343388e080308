"""How one handler is guarded: its mode, its policy, and what its errors mean."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from ...core.outcome import Classifier, Ending, OnError, Outcome, judge
from ...core.policy import Policy
from ...core.states import Mode
from ...errors import ConfigurationError
from .options import Connections

logger = logging.getLogger("samekey")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a decorator, or the edge, declares about a handler."""

    policy: Policy
    mode: Mode = Mode.LEASED
    required: bool = True
    on_error: OnError = "unknown"
    """What a raised error means. ``"retry"`` is the optimistic reading, for work that is safe to repeat."""
    on_4xx: Literal["commit", "rollback"] = "rollback"
    strict: bool = False
    """Atomic: a handler that wrote nothing on its connection is an error, not a warning."""
    classify: Classifier | None = None
    connection: Connections | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("retry", "unknown"):
            raise ConfigurationError(f'on_error must be "retry" or "unknown", not {self.on_error!r}.')
        if self.on_4xx not in ("commit", "rollback"):
            raise ConfigurationError(f'on_4xx must be "commit" or "rollback", not {self.on_4xx!r}.')

    @property
    def refuses_without_key(self) -> bool:
        """Whether a request without a key is refused by now."""
        day = self.policy.required_from
        return self.required and (day is None or datetime.now(UTC) >= day)

    def judge(self, ending: Ending) -> Outcome:
        """The one judgement of a run. A classifier that fails proves nothing, so it frees no key."""
        try:
            return judge(
                ending, remember=self.policy.remember, on_error=self.on_error, classify=self.classify
            )
        except Exception:
            logger.exception("The classifier of a handler failed, so the outcome counts as unknown")
            return Outcome.UNKNOWN


def seconds(value: float | timedelta) -> timedelta:
    """A duration given as seconds or as a timedelta."""
    try:
        return value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(f"{value!r} is no duration: give seconds or a timedelta.") from None


_ATOMIC = frozenset({"required", "classify", "on_4xx", "strict", "connection"})
_LEASED = frozenset({"required", "classify", "on_error"})
_OPTIONS = {
    Mode.ATOMIC: _ATOMIC,
    Mode.DEFERRED: _ATOMIC,
    Mode.LEASED: _LEASED,
    Mode.REPEATABLE: _LEASED,
    Mode.PHASED: _LEASED,
}
_AT_THE_EDGE = frozenset(
    {"profile", "header", "methods", "status_path", "required_at_edge", "lookups_per_minute"}
)
"""Settings that are read before any handler is reached."""


def rules_from(policy: Policy, mode: Mode, given: Mapping[str, Any]) -> Rules:
    """Rules from a decorator's keywords: its own, and any setting of the policy that a handler can have."""
    own = {name: value for name, value in given.items() if name in _OPTIONS[mode]}
    options: Any = {name: value for name, value in given.items() if name not in own}
    for name in options:
        if name in _ATOMIC | _LEASED:
            raise ConfigurationError(f"{mode.article} handler has no {name!r}; it would have no effect.")
        if name in _AT_THE_EDGE:
            raise ConfigurationError(
                f"{name!r} is read before any handler is reached, so one handler cannot have its own. Set it "
                f"for all: Idempotency(url, policy=ietf({name}=…))."
            )
    merged = policy.override(**options)
    if mode is Mode.DEFERRED and own.get("required") is False:
        raise ConfigurationError("Deferred work needs a key: without one its outcome could not be asked for.")
    own.setdefault("required", merged.required or mode is Mode.DEFERRED)
    if mode in (Mode.DEFERRED, Mode.PHASED):
        if given.get("required_from") is not None:
            raise ConfigurationError(
                f"{mode.article} handler cannot do without a key, not even until some day."
            )
        merged = merged.override(required_from=None)
    elif given.get("required_from") is not None and not own["required"]:
        raise ConfigurationError(
            "required_from has no effect where required is False; leave one of them out."
        )
    if mode in (Mode.REPEATABLE, Mode.PHASED):
        # Safe to repeat by declaration; phases keep their effects apart from whatever else may fail.
        own.setdefault("on_error", "retry")
    return Rules(policy=merged, mode=mode, **own)

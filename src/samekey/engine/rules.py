"""How one handler is guarded: its mode, its policy, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from ..core.outcome import Classifier, OnError, Outcome, of_error, of_status
from ..core.policy import Policy
from ..core.states import Mode
from ..errors import ConfigurationError, NotExecuted, OutcomeUnknown

Connections = Callable[[Any], Any]
"""Gives the connection for atomic work from the ASGI scope or WSGI environ; may be async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a decorator, or the edge, declares about a handler."""

    policy: Policy
    mode: Mode = Mode.LEASED
    required: bool = True
    on_error: OnError = "retry"
    on_4xx: Literal["commit", "rollback"] = "commit"
    strict: bool = False
    """Atomic: a handler that wrote nothing on its connection is an error, not a warning."""
    classify: Classifier | None = None
    connection: Connections | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("retry", "unknown"):
            raise ConfigurationError(f'on_error must be "retry" or "unknown", not {self.on_error!r}.')
        if self.on_4xx not in ("commit", "rollback"):
            raise ConfigurationError(f'on_4xx must be "commit" or "rollback", not {self.on_4xx!r}.')

    def outcome(self, status: int | None, error: BaseException | None, *, routed: bool) -> Outcome:
        """What became of the operation, by the returned status, the raised error, or both.

        An error that the application turned into an answer below 500 is that answer.
        """
        if error is not None and (status is None or status >= 500):
            carried = _status_of(error)
            if carried is not None:
                # raise HTTPException(502) is another way to return a 502.
                status, error = carried, None
        answered = status is not None and (error is None or status < 500)
        if self.classify is not None:
            chosen = self.classify(status if answered or error is None else error)  # type: ignore[arg-type]
            if chosen is not None:
                return Outcome(chosen)
        if answered or (status is not None and self.policy.remember == "everything"):
            assert status is not None
            return of_status(status, self.policy.remember, routed=routed)
        assert error is not None
        said = isinstance(error, NotExecuted | OutcomeUnknown) or not isinstance(error, Exception)
        if self.policy.remember == "everything" and not said:
            return Outcome.REMEMBER
        return of_error(error, self.on_error)


def _status_of(error: BaseException) -> int | None:
    """The status of a framework's own HTTP error: Starlette's ``status_code``, Werkzeug's ``code``."""
    name = "code" if hasattr(error, "get_response") else "status_code"
    status = getattr(error, name, None)
    is_status = isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599
    return status if is_status and isinstance(error, Exception) else None


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
    {"profile", "header", "methods", "max_body", "status_path", "required_at_edge", "lookups_per_minute"}
)
"""Settings that are read before any handler is reached."""


def rules_from(policy: Policy, mode: Mode, options: dict[str, Any]) -> Rules:
    """Rules from a decorator's keywords: its own, and any setting of the policy that a handler can have."""
    own = {name: options.pop(name) for name in list(options) if name in _OPTIONS[mode]}
    for name in options:
        if name in _ATOMIC | _LEASED:
            raise ConfigurationError(f"A {mode} handler has no {name!r}; it would have no effect.")
        if name in _AT_THE_EDGE:
            raise ConfigurationError(
                f"{name!r} is read before any handler is reached, so one handler cannot have its own. Set it "
                f"for all: Idempotency(url, policy=ietf({name}=…))."
            )
    merged = policy.override(**options)
    own.setdefault("required", merged.required)
    return Rules(policy=merged, mode=mode, **own)

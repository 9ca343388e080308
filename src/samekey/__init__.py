"""samekey: idempotency keys done right. Same key, same answer, one effect."""

from .core.fingerprint import FingerprintRules
from .core.header import KeyRules
from .core.outcome import Outcome
from .core.policy import Policy, ietf, stripe, stripe_v2
from .engine.idempotency import Idempotency
from .engine.operation import Operation, current_operation
from .errors import (
    ConfigurationError,
    NotExecuted,
    OutcomeUnknown,
    SamekeyError,
    StoreUnavailable,
)

__all__ = [
    "ConfigurationError",
    "FingerprintRules",
    "Idempotency",
    "KeyRules",
    "NotExecuted",
    "Operation",
    "Outcome",
    "OutcomeUnknown",
    "Policy",
    "SamekeyError",
    "StoreUnavailable",
    "current_operation",
    "ietf",
    "stripe",
    "stripe_v2",
]

"""samekey: idempotency keys done right. Same key, same answer, one effect."""

from .core.backoff import Backoff
from .core.fingerprint import FingerprintRules
from .core.header import KeyRules
from .core.outcome import Outcome
from .core.policy import Policy, ietf, stripe, stripe_v2
from .engine.evidence.said import Resolution
from .engine.jobs import JobContext
from .engine.operation import Operation, current_operation
from .engine.phased.input import Input
from .engine.phased.phased import NOT_FOUND, Effect
from .engine.phased.phases import AsyncPhasedOperation, PhasedOperation
from .errors import (
    CallDeclined,
    ConfigurationError,
    KeyReused,
    LeaseLost,
    NotExecuted,
    OutcomeUnknown,
    ResultUnavailable,
    SamekeyError,
    StillRunning,
    StoreUnavailable,
)
from .evidence import Declined, Evidence, Executed, StillUnknown
from .idempotency import Idempotency
from .logs import disarm
from .response import Response

__all__ = [
    "NOT_FOUND",
    "AsyncPhasedOperation",
    "Backoff",
    "CallDeclined",
    "ConfigurationError",
    "Declined",
    "Effect",
    "Evidence",
    "Executed",
    "FingerprintRules",
    "Idempotency",
    "Input",
    "JobContext",
    "KeyReused",
    "KeyRules",
    "LeaseLost",
    "NotExecuted",
    "Operation",
    "Outcome",
    "OutcomeUnknown",
    "PhasedOperation",
    "Policy",
    "Resolution",
    "Response",
    "ResultUnavailable",
    "SamekeyError",
    "StillRunning",
    "StillUnknown",
    "StoreUnavailable",
    "current_operation",
    "ietf",
    "stripe",
    "stripe_v2",
]

disarm()
del disarm

"""``samekey check``: probes of a live HTTP endpoint, in whatever language, and a report of what they saw."""

from .bench import Limits
from .report import Finding, Report
from .rules import RULES, Rule, Severity
from .run import check
from .target import Target, Variation
from .wire import Unreachable

__all__ = [
    "RULES",
    "Finding",
    "Limits",
    "Report",
    "Rule",
    "Severity",
    "Target",
    "Unreachable",
    "Variation",
    "check",
]

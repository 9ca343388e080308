"""``samekey check``: probes of a live HTTP endpoint, in whatever language, and a report of what they saw."""

from .bench import Budget
from .endpoint import Endpoint, Variation
from .in_process import serving_asgi, serving_wsgi
from .report import Finding, Report
from .rules import RULES, Rule, Severity
from .run import check
from .wire import Unreachable

__all__ = [
    "RULES",
    "Budget",
    "Endpoint",
    "Finding",
    "Report",
    "Rule",
    "Severity",
    "Unreachable",
    "Variation",
    "check",
    "serving_asgi",
    "serving_wsgi",
]

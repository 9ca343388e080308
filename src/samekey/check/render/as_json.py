"""A report for scripts."""

from __future__ import annotations

from typing import Any

from ..masking import shown_answer, shown_request
from ..report import Finding, Report


def content(report: Report) -> dict[str, Any]:
    """One report, ready for ``json.dumps``."""
    return {
        "ok": report.ok,
        "url": report.url,
        "method": report.method,
        "profile": report.profile,
        "strict": report.strict,
        "findings": [_finding(report, finding) for finding in report.findings],
        "notes": [_finding(report, note) for note in report.notes],
        "passed": list(report.passed),
        "not_proven": [{"id": rule, "why": why} for rule, why in report.not_proven.items()],
        "facts": dict(report.facts),
        "requests": report.requests,
        "seconds": round(report.seconds, 3),
    }


def _finding(report: Report, finding: Finding) -> dict[str, Any]:
    rule = finding.rule
    return {
        "id": rule.id,
        "severity": str(rule.severity),
        "rule": rule.says,
        "source": rule.source,
        "detail": finding.detail,
        "fix": rule.fix,
        "exchanges": [
            {
                "request": shown_request(exchange, report.secrets),
                "answer": shown_answer(exchange, report.secrets),
            }
            for exchange in finding.exchanges
        ],
    }

"""Reports for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..masking import shown_answer, shown_request
from ..report import Finding, Report


def as_json(reports: Sequence[Report]) -> str:
    """One document: that of the only report, or all of them with their findings together."""
    return json.dumps(content(reports[0]) if len(reports) == 1 else together(reports), indent=2) + "\n"


def together(reports: Sequence[Report]) -> dict[str, Any]:
    """Several reports, ready for ``json.dumps``."""
    return {
        "ok": all(report.ok for report in reports),
        "findings": [
            {"url": report.url, **_finding(report, finding)}
            for report in reports
            for finding in report.findings
        ],
        "reports": [content(report) for report in reports],
    }


def content(report: Report) -> dict[str, Any]:
    """One report, ready for ``json.dumps``."""
    return {
        "ok": report.ok,
        "unchecked": report.unchecked or None,
        "url": report.url,
        "method": report.method,
        "name": report.name,
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

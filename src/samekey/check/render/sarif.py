"""Reports as SARIF 2.1.0, for tools that collect findings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from ..masking import shown_answer, shown_request
from ..report import Finding, Report
from ..rules import RULES


def as_sarif(reports: Sequence[Report]) -> str:
    """One run, with every rule and all findings and notes."""
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "samekey check", "rules": [_rule(name) for name in RULES]}},
                "invocations": [
                    {
                        "executionSuccessful": not any(report.unchecked for report in reports),
                        "toolExecutionNotifications": [
                            {"level": "error", "message": {"text": f"{report.url}: {report.unchecked}"}}
                            for report in reports
                            if report.unchecked
                        ],
                    }
                ],
                "results": [
                    _result(report, finding)
                    for report in reports
                    for finding in (*report.findings, *report.notes)
                ],
            }
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _rule(name: str) -> dict[str, Any]:
    rule = RULES[name]
    return {
        "id": name,
        "shortDescription": {"text": rule.says},
        "fullDescription": {"text": f"{rule.says} ({rule.source})"},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": str(rule.severity)},
    }


def _result(report: Report, finding: Finding) -> dict[str, Any]:
    return {
        "ruleId": finding.id,
        "ruleIndex": list(RULES).index(finding.id),
        "level": str(finding.rule.severity),
        "message": {"text": finding.detail},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(report.url)}}}],
        "properties": {
            "fix": finding.rule.fix,
            "exchanges": [
                [shown_request(exchange, report.secrets), shown_answer(exchange, report.secrets)]
                for exchange in finding.exchanges
            ],
        },
    }


def _uri(url: str) -> str:
    """What is masked in it is not ASCII."""
    return quote(url, safe="%/:?&=@[]#;+,~")

"""A report for people, as plain lines."""

from __future__ import annotations

from collections.abc import Iterator

from ..masking import shown_answer, shown_request
from ..report import Finding, Report


def lines(report: Report) -> Iterator[str]:
    """The findings first, each with what it rests on; then what else was seen."""
    name = f"{report.name}: " if report.name else ""
    yield f"{name}{report.method} {report.url}, profile {report.profile}{', strict' if report.strict else ''}"
    if report.unchecked:
        yield ""
        yield f"✗ not checked: {report.unchecked}"
        return
    for finding in report.findings:
        yield from _finding(report, finding)
    if report.notes:
        yield ""
        yield "Notes (no findings; --strict makes them so):"
        for note in report.notes:
            yield f"  · {note.id}: {note.detail} {note.rule.fix}"
    if report.not_proven:
        yield ""
        yield "Not proven:"
        reasons: dict[str, list[str]] = {}
        for rule, why in report.not_proven.items():
            reasons.setdefault(why, []).append(rule)
        for why, rules in reasons.items():
            yield f"  ? {', '.join(rules)}: {why}"
    if report.facts:
        yield ""
        yield from (f"  {name}: {value}" for name, value in report.facts.items())
    yield ""
    yield _summary(report)


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    rule = finding.rule
    yield ""
    yield f"✗ {rule.id} ({rule.severity}): {finding.detail}"
    yield f"  rule: {rule.says} [{rule.source}]"
    yield f"  fix:  {rule.fix}"
    for exchange in finding.exchanges:
        yield ""
        yield from (f"    > {line}" for line in shown_request(exchange, report.secrets).splitlines())
        yield from (f"    < {line}" for line in shown_answer(exchange, report.secrets).splitlines())


def _summary(report: Report) -> str:
    found = len(report.findings)
    said = "Nothing wrong was found" if not found else f"{found} {'finding' if found == 1 else 'findings'}"
    return (
        f"{said}; {len(report.passed)} rules held, {len(report.not_proven)} could not be proven "
        f"({report.requests} requests, {report.seconds:.1f} s)."
    )

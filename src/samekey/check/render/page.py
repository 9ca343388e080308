"""Reports as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ..masking import shown_answer, shown_request
from ..report import Finding, Report

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin-top: 2rem; } code, pre { font: 13px/1.4 ui-monospace, monospace; }
pre { background: #f5f5f5; padding: .6rem; overflow: auto; white-space: pre-wrap; word-break: break-word; }
.error { border-left: 4px solid #b00020; padding-left: 1rem; }
.warning { border-left: 4px solid #b26a00; padding-left: 1rem; }
.note { border-left: 4px solid #888; padding-left: 1rem; } .ok { color: #1b6e2e; } .dim { color: #666; }
"""


def as_page(reports: Sequence[Report]) -> str:
    """Everything on one page."""
    body = "\n".join(part for report in reports for part in _report(report))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<title>samekey check</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _report(report: Report) -> Iterator[str]:
    yield f"<h1>{escape(f'{report.method} {report.url}')}</h1>"
    yield (
        f'<p class="dim">profile {escape(report.profile)}{", strict" if report.strict else ""}; '
        f"{report.requests} requests, {report.seconds:.1f} s</p>"
    )
    if report.unchecked:
        yield f'<p class="error">Not checked: {escape(report.unchecked)}</p>'
        return
    if report.ok:
        yield '<p class="ok">Nothing wrong was found.</p>'
    for finding in report.findings:
        yield from _finding(report, finding)
    if report.notes:
        yield "<h2>Notes</h2>"
        for note in report.notes:
            yield from _finding(report, note)
    if report.not_proven:
        yield "<h2>Not proven</h2>\n<ul>"
        yield from (f"<li><code>{rule}</code>: {escape(why)}</li>" for rule, why in report.not_proven.items())
        yield "</ul>"
    yield f"<h2>Held</h2>\n<p>{', '.join(f'<code>{rule}</code>' for rule in report.passed)}</p>"
    if report.facts:
        yield "<h2>Facts</h2>\n<ul>"
        yield from (f"<li>{escape(name)}: {escape(value)}</li>" for name, value in report.facts.items())
        yield "</ul>"


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    rule = finding.rule
    yield f'<div class="{rule.severity}">\n<h2>{rule.id} ({rule.severity})</h2>'
    yield f"<p>{escape(finding.detail)}</p>"
    yield f'<p>{escape(rule.says)} <span class="dim">{escape(rule.source)}</span></p>'
    yield f"<p>→ {escape(rule.fix)}</p>"
    for exchange in finding.exchanges:
        yield f"<pre>{escape(shown_request(exchange, report.secrets))}</pre>"
        yield f"<pre>{escape(shown_answer(exchange, report.secrets))}</pre>"
    yield "</div>"

"""Reports as JUnit XML: one test case for each rule, as every continuous integration shows it."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from ..masking import shown_answer, shown_request
from ..report import Report, Verdict
from ..rules import RULES


def as_junit(reports: Sequence[Report]) -> str:
    """A rule that is broken fails, one that could not be proven is skipped."""
    root = ET.Element("testsuites", name="samekey check")
    for report in reports:
        _suite(root, report)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ET.Element, report: Report) -> None:
    if report.unchecked:
        suite = ET.SubElement(
            root, "testsuite", name=_text(f"{report.method} {report.url}"), tests="1", errors="1"
        )
        case = ET.SubElement(suite, "testcase", classname=f"samekey.check.{report.profile}", name="endpoint")
        ET.SubElement(case, "error", message=_text(report.unchecked))
        return
    verdicts = report.verdicts()
    suite = ET.SubElement(
        root,
        "testsuite",
        name=_text(f"{report.method} {report.url}"),
        tests=str(len(verdicts)),
        failures=str(len(report.findings)),
        skipped=str(sum(verdict is Verdict.NOT_PROVEN for verdict in verdicts.values())),
        time=f"{report.seconds:.3f}",
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in report.facts.items():
        ET.SubElement(properties, "property", name=_text(name), value=_text(value))
    findings = {finding.id: finding for finding in report.findings}
    for rule_id, verdict in verdicts.items():
        case = ET.SubElement(suite, "testcase", classname=f"samekey.check.{report.profile}", name=rule_id)
        if verdict is Verdict.FINDING:
            finding = findings[rule_id]
            failure = ET.SubElement(
                case, "failure", type=str(finding.rule.severity), message=_text(finding.detail)
            )
            shown = [
                part
                for exchange in finding.exchanges
                for part in (shown_request(exchange, report.secrets), shown_answer(exchange, report.secrets))
            ]
            failure.text = _text("\n\n".join([RULES[rule_id].says, RULES[rule_id].fix, *shown]))
        elif verdict is Verdict.NOT_PROVEN:
            ET.SubElement(case, "skipped", message=_text(report.not_proven[rule_id]))


def _text(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(
        char if char in "\n\t" or (char.isprintable() and char < "\ud800") else "�" for char in text
    )

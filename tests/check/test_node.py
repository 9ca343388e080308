"""A small server on Node: another language, another HTTP stack."""

from __future__ import annotations

import shutil

import pytest

from lab.peers.__main__ import HERE, report_of, served


def test_a_server_on_node_is_flagged_with_nothing() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is missing")
    with served([node, str(HERE / "server.mjs")]) as url:
        report = report_of(url)
    assert [(finding.id, finding.detail) for finding in report.findings] == []
    assert {"isolation.tenant", "loss.ran-again", "misuse.numbers"} <= set(report.passed)

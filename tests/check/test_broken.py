"""Every planted fault is found by its name, and nothing else is."""

from __future__ import annotations

import json

import pytest

from samekey.check import Limits, Report, Target, check
from tests.check.base import BODY, Server, serving
from tests.check.broken import BROKEN

CASES = [(rule, server) for rule, servers in BROKEN.items() for server in servers]


def report_of(server: Server, *, strict: bool = False, count: bool = True, version: str = "HTTP/1.0") -> Report:
    with serving(server, version=version) as url:
        target = Target(
            f"{url}/orders",
            json.loads(BODY),
            headers=(("Authorization", "Bearer ann"),),
            other_headers=(("Authorization", "Bearer bob"),),
            count_url=f"{url}/count" if count else None,
        )
        return check(target, server.profile, strict=strict, limits=Limits(rate=2000))


@pytest.mark.parametrize(("rule", "server"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_planted_fault_is_found_and_nothing_else(rule: str, server: type[Server]) -> None:
    report = report_of(server())
    assert [finding.id for finding in report.findings] == [rule]
    assert report.findings[0].exchanges

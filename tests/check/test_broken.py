"""Every planted fault is found by its name, and nothing else is."""

from __future__ import annotations

import json

import pytest

from samekey.check import Budget, Endpoint, Report, check
from samekey.check.profiles import PROFILES
from tests.check.base import BODY, Server, serving
from tests.check.broken import IgnoresKeys, NoFingerprint
from tests.check.broken_together import CheckThenInsert, GlobalKeys, ReplaysBeforeAuthentication
from tests.check.planted import BROKEN
from tests.check.right import RIGHT, ComparesTheItemOnly, OpaqueKeys
from tests.chosen import stores, whole

ALWAYS = {IgnoresKeys, NoFingerprint, CheckThenInsert, GlobalKeys, ReplaysBeforeAuthentication}
CASES = [
    pytest.param(rule, server, id=server.__name__, marks=() if server in ALWAYS else whole)
    for rule, servers in BROKEN.items()
    for server in servers
]


def report_of(
    server: Server, *, strict: bool = False, count: bool = True, version: str = "HTTP/1.0"
) -> Report:
    with serving(server, version=version) as url:
        endpoint = Endpoint(
            f"{url}/orders",
            json.loads(BODY),
            headers=(("Authorization", "Bearer ann"),),
            other_headers=(("Authorization", "Bearer bob"),),
            count_url=f"{url}/count" if count else None,
        )
        return check(endpoint, server.profile, strict=strict, budget=Budget(rate=2000))


@pytest.mark.parametrize(("rule", "server"), CASES)
def test_a_planted_fault_is_found_and_nothing_else(rule: str, server: type[Server]) -> None:
    report = report_of(server())
    assert [finding.id for finding in report.findings] == [rule]
    assert report.findings[0].exchanges


def test_there_are_many_faults() -> None:
    assert len(CASES) > 40


@pytest.mark.parametrize("count", [True, False], ids=["counted", "by answers"])
@pytest.mark.parametrize("profile", stores(*PROFILES, first=1))
def test_a_server_that_is_right_is_flagged_with_nothing(profile: str, count: bool) -> None:
    report = report_of(Server(profile), count=count, version="HTTP/1.1")
    assert [(finding.id, finding.detail) for finding in report.findings] == []
    assert len(report.passed) > 45
    assert ("loss.ran-again" in report.passed) is count


@whole
@pytest.mark.parametrize("count", [True, False], ids=["counted", "by answers"])
@pytest.mark.parametrize("server", RIGHT, ids=lambda server: server.__name__)
def test_a_server_that_is_right_in_its_own_way_is_flagged_with_nothing(
    server: type[Server], count: bool
) -> None:
    report = report_of(server(), count=count)
    assert [(finding.id, finding.detail) for finding in report.findings] == []


STRICTLY = {
    "header.spellings": OpaqueKeys,
    "header.repeated-taken": OpaqueKeys,
    "misuse.status": OpaqueKeys,
    "documentation.problem": OpaqueKeys,
    "misuse.partly": ComparesTheItemOnly,
}


@whole
@pytest.mark.parametrize("server", list(dict.fromkeys(STRICTLY.values())), ids=lambda server: server.__name__)
def test_what_the_draft_leaves_open_is_a_note_and_strictly_a_finding(server: type[Server]) -> None:
    wanted = {rule for rule, found in STRICTLY.items() if found is server}
    report = report_of(server())
    assert report.ok and wanted <= {note.id for note in report.notes}
    strict = report_of(server(), strict=True)
    assert wanted <= {finding.id for finding in strict.findings} and not strict.notes


@whole
def test_the_base_is_right_strictly_too() -> None:
    assert [finding.id for finding in report_of(Server(), strict=True).findings] == []

"""The plan of a run, its report and its picture."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lab.torture.service.evidence import Finding
from lab.torture.service.faults import Befell
from lab.torture.service.histories import Histories
from lab.torture.service.plan import DATABASE_FAULTS, RESTARTS, WEIGHTS, Plan, only, schedule
from lab.torture.service.report import Report
from tests.torture.test_oracle import good


def test_the_seed_decides() -> None:
    plan = Plan(seconds=600, url="postgresql:", seed=5)
    assert schedule(plan) == schedule(plan)
    assert schedule(plan) != schedule(replace(plan, seed=6))


def test_a_run_sees_every_kind_of_fault() -> None:
    planned = schedule(Plan(seconds=600, url="postgresql:", seed=1))
    assert {one.kind for one in planned} == set(WEIGHTS)
    assert planned[-1].at < 600
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(planned)]
    assert sum(gaps) / len(gaps) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    ("url", "never"),
    [
        (None, DATABASE_FAULTS),
        ("postgresql://db/x", RESTARTS),
        ("postgresql:", frozenset()),
        ("mysql://db/x", RESTARTS),
        ("mysql:", frozenset()),
    ],
)
def test_each_store_gets_what_it_can_be_given(url: str | None, never: frozenset[str]) -> None:
    seen = {one.kind for one in schedule(Plan(seconds=2000, url=url, seed=3))}
    assert seen == set(WEIGHTS) - never


def test_pauses_outlast_the_lease() -> None:
    plan = Plan(seconds=500, seed=2, faults=only("pause_node", "pause_worker"))
    assert min(one.seconds for one in schedule(plan)) > plan.lease


def test_no_faults_on_demand() -> None:
    assert schedule(Plan(fault_every=0)) == []


def _report(*findings: Finding) -> Report:
    run = good()
    return Report(
        plan=Plan(seed=42, url="postgresql:", seconds=3),
        store="postgresql",
        histories=Histories(run.intents, run.exchanges),
        befell=[Befell("kill_node", "app 0", 0.5, 0.6), Befell("decline", "provider", 1.0, float("inf"))],
        findings=findings,
        entries=Counter(entry.kind for entry in run.ledger),
        recognised=1,
        loaded=3.0,
        settled=0.5,
        seconds=4.0,
    )


def test_the_report_of_a_good_run(tmp_path: Path) -> None:
    report = _report()
    report.write(tmp_path)
    assert "held: one effect and one answer for every key" in (tmp_path / "report.txt").read_text()
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["held"] is True and content["faults"] == {"kill_node": 1, "decline": 1}
    assert content["requests"] == len(good().exchanges)
    root = ElementTree.fromstring((tmp_path / "timeline.svg").read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_a_broken_run_says_how_to_run_it_again() -> None:
    report = _report(Finding("effect_twice", "payment-1 was charged twice", "its whole story"))
    text = report.text()
    assert "its whole story" in text and "BROKEN: 1 effect_twice" in text
    assert "--url postgresql: --seconds 3 --seed 42" in text
    assert "--clients 24 --nodes 2 --workers 2 --fault-every 2 --app examples.payments.app:app" in text
    assert report.as_dict()["found"][0]["rule"] == "effect_twice"

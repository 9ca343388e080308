"""The torture can fail: with any one of samekey's mechanisms switched off, it finds what that one prevents.

Each mutant (``mutants.py``) gets a plan that looks where it hurts, so that a few seconds are enough. The
control is the same service and the same plan with nothing switched off.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.torture.service.evidence import counted
from lab.torture.service.mishaps import MISHAPS
from lab.torture.service.plan import Plan, load_of, only, with_second_lives
from lab.torture.service.run import torture_service
from tests.chosen import whole
from tests.torture.mutants import MUTANTS, VARIABLE

pytestmark = whole


FOCUSED = Plan(
    app="tests.torture.mutants:app",
    seconds=7,
    clients=16,
    workers=1,
    fault_every=1.0,
    margin=4,
    skew=60,
    compare=False,
)

# A slow provider, and nothing else: calls take up to three leases. It tells nothing by itself: its word
# would settle an operation whose lease was lost before anybody saw that.
SLOW = replace(
    FOCUSED,
    webhooks=False,
    load=load_of("transfer"),
    faults=only("delay"),
    fault_every=0.15,
    lease=1.5,
    call_timeout=5.5,
    cycle=1.5,
)

# A provider that recognises no key, and nobody who is late: a transfer that is asked for twice is made twice.
FORGETFUL = replace(FOCUSED, load=load_of("transfer"), window=0, webhooks=False, fault_every=0.4, seconds=5)

PLANS = {
    # A node that cannot reach the database takes back its claims when it can again; others hold the keys by
    # then, and are still calling.
    "fencing": replace(
        FOCUSED,
        load=load_of("transfer"),
        faults=only("refuse_database"),
        latency=0.8,
        call_timeout=3.0,
        lease=3.0,
        seconds=9,
    ),
    "heartbeat": SLOW,
    "fingerprint": replace(FOCUSED, seconds=3, faults={}),
    "atomic_commit": replace(FOCUSED, load=load_of("order"), faults=only("kill_node")),
    "persist_before_send": replace(FOCUSED, load=load_of("order"), faults=only("kill_node")),
    "downstream_key": replace(
        FOCUSED,
        load=load_of("payment"),
        faults=only("charge_then_drop", "malformed", "error_after"),
        seconds=5,
    ),
    "tenant": replace(FOCUSED, seconds=3, faults={}),
    "finish_twice": replace(FORGETFUL, faults=only("deadline_inside")),
    "judge_by_the_page": replace(FORGETFUL, faults=only("answer_broken")),
    "free_on_time_out": replace(FORGETFUL, faults=only("charge_then_time_out")),
    "lives": with_second_lives(replace(FOCUSED, load=load_of("order"), faults={}, seconds=12), ttl=4),
    # The first step's word is heard while the second one is under way, which then comes to nothing.
    "step": replace(FOCUSED, load=load_of("purchase"), faults=only("error_before"), fault_every=0.2),
}

ON_POSTGRESQL = {"fencing", "atomic_commit", "persist_before_send"}
"""Where the mechanism, or the fault that shows its lack, is PostgreSQL's. The others run on SQLite."""

CAUGHT_BY = {
    "fencing": {"row_twice", "money", "answers_differ"},
    "heartbeat": {"unknown_without_cause"},
    "fingerprint": {"rival_executed", "foreign_answer"},
    "atomic_commit": {"effect_twice"},
    "persist_before_send": {"success_without_effect", "answers_differ", "answer_forgotten"},
    "downstream_key": {"effect_twice"},
    "tenant": {"refused_without_cause", "success_without_effect", "tenant_leak"},
    "finish_twice": {"effect_twice"},
    "judge_by_the_page": {"effect_twice"},
    "free_on_time_out": {"effect_twice"},
    "lives": {"error_without_cause", "unsettled", "row_twice"},
    "step": {"success_without_effect", "wrong_effect", "money"},
}


SEEDS = (1, 2, 3)
"""Almost always the first is enough; a machine that crawls may have too little load to be caught at."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres_session_url") if name in ON_POSTGRESQL else None
    plan = replace(PLANS[name], url=url, environment={VARIABLE: name})
    for seed in SEEDS:
        report = torture_service(replace(plan, seed=seed))
        if CAUGHT_BY[name] & counted(report.findings).keys():
            return
    pytest.fail(f"{name} was not caught:\n{report.text()}", pytrace=False)


def test_the_control_holds() -> None:
    """The plan of the mutant that is told by waiting too long, with everything switched on."""
    report = torture_service(replace(SLOW, margin=60))
    assert report.held, report.text()


def test_nothing_is_asked_for_twice_of_a_provider_that_forgets() -> None:
    """The plans of the mutants of the request path together, with everything switched on."""
    faults = only(*MISHAPS, "charge_then_time_out", "charge_then_drop", "error_after", "malformed")  # type: ignore[arg-type]
    report = torture_service(replace(FORGETFUL, faults=faults, seconds=8, margin=60))
    assert report.held, report.text()

"""``samekey keys show`` lists what was sent, and nothing else: an operator searches a provider by it."""

from __future__ import annotations

import json

from samekey import OutcomeUnknown, current_operation
from samekey.core.record import Record
from tests.operator.command import samekey
from tests.operator.world import HOUR, World


def shown(world: World, record: Record, *more: str) -> str:
    return samekey("keys", "show", record.id, *more, env={"SAMEKEY_URL": world.url}).out


def test_a_named_step_is_shown_with_its_own_key(lite: World) -> None:
    def charge() -> None:
        current_operation().downstream_key("charge")
        raise OutcomeUnknown

    try:
        lite.engine.once(tenant="acme", key="k", run=charge)
    except OutcomeUnknown:
        pass
    record = lite.by_key("k")
    out = shown(lite, record)
    assert record.downstream_key("charge") in out
    assert record.downstream_key() not in out, "the plain key was never sent"
    described = json.loads(shown(lite, record, "--json"))["effects"]
    assert [(one["step"], one["downstream_key"]) for one in described] == [
        ("charge", record.downstream_key("charge"))
    ]


def test_where_a_process_died_no_key_is_made_up(lite: World) -> None:
    record = lite.claim(lease=1, at=-HOUR)
    lite.run(lambda: lite.upkeep.sweep(batch=1))
    out = shown(lite, record)
    assert record.downstream_key() not in out
    assert "is not known" in out and "--step STEP" in out
    assert record.downstream_key("charge") in shown(lite, record, "--step", "charge")


def test_a_job_that_was_never_begun_has_sent_nothing(lite: World) -> None:
    record, _ = lite.pending()
    assert record.downstream_key("settle") not in shown(lite, record)
    dead, _ = lite.dead_job()
    assert dead.downstream_key("settle") in shown(lite, dead)

"""``samekey keys show`` lists what was sent, and nothing else: an operator searches a provider by it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial

import pytest

from samekey import NotExecuted, OutcomeUnknown, current_operation
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


KILLED = """
import os, signal, sys
from samekey import Idempotency, current_operation

def charge():
    current_operation().downstream_key("quote")
    current_operation().downstream_key("charge")
    os.kill(os.getpid(), signal.SIGKILL)

Idempotency(sys.argv[1]).once(tenant="acme", key="k", run=charge, name="pay")
"""


def test_what_a_former_attempt_sent_does_not_pass_for_all_that_was_sent(lite: World) -> None:
    """The last attempt was killed right after it had been given its keys: they are not noted."""

    def pay(*steps: str, then: Exception | None = None) -> None:
        for step in steps:
            current_operation().downstream_key(step)
        if then is not None:
            raise then

    once = partial(lite.engine.once, tenant="acme", name="pay")
    once(key="another", run=partial(pay, "quote", "charge"))
    with pytest.raises(NotExecuted):
        once(key="k", run=partial(pay, "quote", then=NotExecuted()))
    killed = subprocess.run([sys.executable, "-c", KILLED, lite.url], check=False)
    assert killed.returncode == -signal.SIGKILL
    lite.run(lambda: lite.upkeep.sweep(batch=10, now=lite.now + HOUR))
    record = lite.by_key("k")
    assert (record.state, record.attempts) == ("unknown", 2)
    out = shown(lite, record)
    assert "by a former attempt" in out and "is not known" in out
    assert record.downstream_key("charge") in out, "another operation of this endpoint has asked for it"
    assert "by every downstream key above" not in out
    assert out.index("Say --not-executed only when") < out.index("--not-executed --reason")
    described = json.loads(shown(lite, record, "--json"))
    assert [(one["step"], one["former"]) for one in described["effects"]] == [("quote", True)]
    assert [one["step"] for one in described["may_have_been_sent"]] == ["charge", "quote"]


def test_a_job_that_was_never_begun_has_sent_nothing(lite: World) -> None:
    record, _ = lite.pending()
    assert record.downstream_key("settle") not in shown(lite, record)
    dead, _ = lite.dead_job()
    assert dead.downstream_key("settle") in shown(lite, dead)

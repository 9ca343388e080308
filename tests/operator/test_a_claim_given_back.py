"""A claim that is given back leaves what it found: only the claim that made a record takes it away again."""

from __future__ import annotations

import pytest

from samekey.core.decide import Execute
from samekey.core.record import Lease
from samekey.core.states import Mode, State
from samekey.engine.handler.rules import Rules
from samekey.engine.operation import Operation, Running
from samekey.stores.protocols import Actor
from tests.operator.world import DAY, MINUTE, TENANT, World, claim_of


@pytest.mark.parametrize("by", ["the store's program", "the engine"])
def test_phased_work_that_was_tried_again_keeps_what_it_has_done(world: World, by: str) -> None:
    """An operator has set its attempts back, so the next claim counts as the first; and runs nothing."""
    record = world.phased("k")
    lease = Lease(record.scope, record.key, record.attempt, MINUTE)
    assert world.run(lambda: world.phases.give_up(lease, error_code="the mail server is away"))
    assert world.run(lambda: world.operator.retry_dead_operation(record.id, Actor("ann", "it is back")))
    claim = claim_of("k", Mode.PHASED, MINUTE, DAY, TENANT, "POST /payments")
    decision = world.run(lambda: world.keys.claim(claim, world.engine.engine.policy))
    assert isinstance(decision, Execute) and decision.record.id == record.id
    assert decision.record.attempts == 1
    lease = decision.record.lease(MINUTE)
    before = world.count("phases"), world.count("inputs")
    if by == "the engine":
        rules = Rules(policy=world.engine.engine.policy, mode=Mode.PHASED)
        running = Running(claim, rules, Operation(claim, record.id), lease=lease)
        world.engine.engine.drive(world.engine.engine.phases.give_back(running))
    else:
        assert world.run(lambda: world.keys.give_back(lease, claim.id))
    found = world.read(record)
    assert (found.state, found.attempts) == (State.IN_PROGRESS, 0)
    assert (world.count("phases"), world.count("inputs")) == before


@pytest.mark.parametrize("mode", [Mode.LEASED, Mode.PHASED])
def test_a_claim_that_made_its_record_takes_it_away(world: World, mode: Mode) -> None:
    claim = claim_of("k", mode, MINUTE, DAY, TENANT, "POST /payments")
    decision = world.run(lambda: world.keys.claim(claim, world.engine.engine.policy))
    assert isinstance(decision, Execute)
    lease = decision.record.lease(MINUTE)
    assert world.run(lambda: world.keys.give_back(lease, claim.id))
    assert world.find(decision.record.id) is None

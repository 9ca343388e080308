"""What an operator is told of a key that was used before: what a former life made is not this one's."""

from __future__ import annotations

import pytest

from samekey import current_operation
from samekey.core.record import Record
from tests.operator.command import Ran, samekey
from tests.operator.conftest import ON_POSTGRES_TOO
from tests.operator.world import World

pytestmark = ON_POSTGRES_TOO


def keys(world: World, *arguments: str) -> Ran:
    return samekey("keys", *arguments, "--url", world.url)


@pytest.fixture
def second(world: World) -> Record:
    """The second life of a key, whose first one has made ch_1: nobody knows what became of its call."""

    def pay(*, answered: bool) -> str:
        current_operation().source = "cards"
        current_operation().downstream_key()
        if not answered:
            raise TimeoutError
        current_operation().provider_id = "ch_1"
        return "paid"

    once = world.engine.once
    once(tenant="acme", key="k", run=lambda: pay(answered=True))
    world.sql("update {keys} set expires_at = 1, created_at = 1, last_run_at = 1, completed_at = 1")
    with pytest.raises(TimeoutError):
        once(tenant="acme", key="k", run=lambda: pay(answered=False))
    record = world.by_key("k")
    assert (record.life, record.state) == (2, "unknown")
    return record


def test_it_is_not_found_by_what_the_former_one_has_made(world: World, second: Record) -> None:
    assert keys(world, "list", "--provider-id", "ch_1", "--json").json["records"] == []


def test_it_is_shown_with_what_the_former_one_has_made(world: World, second: Record) -> None:
    shown = " ".join(keys(world, "show", second.id).out.split())
    assert "life of its key 2" in shown and "made by former lives ch_1" in shown
    assert "is a former life's, and not this one's" in shown
    assert f"keys resolve {second.id} --executed --provider-id '…'" in shown
    assert keys(world, "show", second.id, "--json").json["record"]["life"] == 2


def test_what_is_found_for_it_must_be_named(world: World, second: Record) -> None:
    say = ("resolve", second.id, "--executed", "--result", '"paid"', "--reason", "found", "--actor", "ann")
    refused = keys(world, *say)
    assert refused.code == 1 and "--provider-id" in refused.err + refused.out
    assert keys(world, *say, "--provider-id", "ch_1").code == 2, "that is the former one's"
    assert world.read(second).state == "unknown"
    assert keys(world, *say, "--provider-id", "ch_2").code == 0
    assert world.read(second).state == "completed"

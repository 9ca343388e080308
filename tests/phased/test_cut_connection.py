"""The database is lost inside a phase: nothing was committed, so nothing is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from lab.proxy import FaultProxy, cut_before
from samekey import Response
from tests.phased.world import World, clear, count, now, state_of

INSERT = r"insert into rides[\s\S]*"


@pytest.mark.parametrize("before", [0, 1], ids=["first phase", "second phase"])
def test_a_cut_inside_a_phase_leaves_an_operation_that_goes_on(
    prepared_postgres: str, style: str, before: int
) -> None:
    """The user's code gets an error of the driver's that looks like one of a provider's. It is none."""
    clear(prepared_postgres)
    with (
        FaultProxy.before(prepared_postgres) as proxy,
        World(proxy.url_for(prepared_postgres), style) as world,
    ):

        async def ride(op: Any, input: Any) -> Response:
            if before:
                await now(op.transaction("noted", world.insert("receipts"), "k1"))
            await now(op.transaction("ride_created", world.insert("rides"), "k1"))
            return Response(201, {"ride": "k1"})

        world.define(ride)
        rule = proxy.on_statement(INSERT, cut_before)
        first = world.post("k1")
        assert rule.count == 1
        assert (first.status, first.code) == (503, "store_unavailable")
        assert state_of(prepared_postgres, "k1") != "unknown"
        assert world.post("k1").json() == {"ride": "k1"}
    assert count(prepared_postgres, "rides", "k1") == 1
    assert count(prepared_postgres, "receipts", "k1") == before


def test_a_time_out_inside_the_first_phase_is_not_unknown(world: World) -> None:
    """Elsewhere a time-out may have reached a provider; a database phase has been rolled back."""
    waits = [True]

    async def ride(op: Any, input: Any) -> Response:
        def write(connection: Any) -> str:
            if waits:
                waits.pop()
                raise TimeoutError("the database is slow today")
            return "written"

        await now(op.transaction("ride_created", write))
        return Response(201, {"ride": "k1"})

    world.define(ride)
    assert world.post("k1").status == 500
    assert state_of(world.url, "k1") == "failed_retryable"
    assert world.post("k1").json() == {"ride": "k1"}


def test_a_time_out_outside_of_a_phase_is_unknown(world: World) -> None:
    async def ride(op: Any, input: Any) -> Response:
        raise TimeoutError("a provider that should have been called in an effect")

    world.define(ride)
    assert world.post("k1").code == "outcome_unknown"
    assert state_of(world.url, "k1") == "unknown"

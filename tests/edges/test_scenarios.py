"""Drives the scenario table through every framework and both edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chosen import whole
from tests.edges.apps import BARE, FRAMEWORKS, Kind, Setup
from tests.edges.conftest import Build
from tests.edges.scenarios import SCENARIOS, Scenario
from tests.edges.world import Stores, World

ALWAYS: tuple[Kind, ...] = ("fastapi", "flask", "asgi", "wsgi")
"""Each scenario on both edges and on a framework of each; the others with the whole matrix."""


def _rows(*, postgres: bool = False) -> Iterator[pytest.ParameterSet]:
    for scenario in SCENARIOS:
        for mode in scenario.modes:
            bare = BARE if mode == "edge" and scenario.bare else ()
            for kind in (*FRAMEWORKS, *bare):
                if not postgres or (scenario.on_postgres and kind != "starlette"):
                    marks = () if kind in ALWAYS else (whole,)
                    yield pytest.param(kind, mode, scenario, id=f"{scenario.name}-{mode}-{kind}", marks=marks)


def _play(builder: Build, stores: Stores, kind: Kind, mode: str, scenario: Scenario) -> None:
    store = stores.get(scenario.profile, **scenario.policy)
    world = World(*scenario.script)
    options: Any = dict(scenario.options)
    setup = Setup(leased=options, atomic=options if mode == "atomic" else {}, routes=dict(scenario.routes))
    client = builder(kind, store, world, setup)
    for ask, expect in scenario.steps:
        expect.check(client.send(ask.request(f"/{mode}", world.name)))
    assert world.runs == scenario.runs


@pytest.mark.parametrize(("kind", "mode", "scenario"), list(_rows()))
def test_on_sqlite(kind: Kind, mode: str, scenario: Scenario, builder: Build, stores: Stores) -> None:
    _play(builder, stores, kind, mode, scenario)


@pytest.mark.parametrize(("kind", "mode", "scenario"), list(_rows(postgres=True)))
def test_on_postgres(
    kind: Kind, mode: str, scenario: Scenario, builder: Build, postgres_stores: Stores
) -> None:
    _play(builder, postgres_stores, kind, mode, scenario)

"""What the crash tests run: one whole ride, and what may happen afterwards. Importable by name, because the
processes that are killed import it."""

from __future__ import annotations

from typing import Any

from samekey.testing.crash import Points
from tests.edges.callers import Got
from tests.phased.provider import ProviderClient
from tests.phased.world import World, age_intents, end_lease, ride_body

PROVIDERS: dict[str, dict[str, Any]] = {
    "deduplicates": {"provider_window": 3600},
    "can be asked": {"lookup": True},
    "neither": {},
}
"""What is known about a provider, and so what may be done about an intent without a result."""


def ride(points: Points, url: str, style: str, provider_url: str, kind: str) -> Got:
    """One request for a ride, from the first look at its key to the answer."""
    with World(url, style, points=points) as world:
        world.define(ride_body(world, ProviderClient(provider_url), **PROVIDERS[kind]))
        got = world.post(points.label)
        points.reach("before the answer is sent")
        return got


def retried(world: World, key: str) -> Got:
    """The patient client: it sends its request again, and the dead process's lease has run out."""
    end_lease(world.url, key)
    age_intents(world.url, 120)
    return world.post(key)


def completed(world: World, key: str) -> int:
    """No client at all: a completer finds what was abandoned."""
    end_lease(world.url, key)
    age_intents(world.url, 120)
    return world.complete()

"""A crash at every point of a ride, then a retry or the completer: each phase's effect stands once, in order.

No list of points is kept by hand: the enumerator finds each statement, each BEGIN and each COMMIT on both
sides by itself, and the world names those around the outside call and inside the phases.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from samekey.testing.crash import Crashed, enumerate_crashes, enumerate_cuts, enumerate_kills
from tests.chosen import whole, without
from tests.phased.conftest import STORES, STYLES
from tests.phased.crash_scenarios import PROVIDERS, completed, retried, ride
from tests.phased.provider import Provider, ProviderClient
from tests.phased.world import World, clear, count, execute, kept, prepare, ride_body, state_of

pytestmark = whole


@pytest.fixture(scope="module")
def sqlite_rides(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('crashes') / 'rides.db'}"
    prepare(url)
    return url


@pytest.fixture(scope="module")
def postgresql_rides(prepared_postgres: str) -> str:
    clear(prepared_postgres)
    return prepared_postgres


@pytest.fixture(scope="module")
def mysql_rides(prepared_mysql: str) -> str:
    clear(prepared_mysql)
    return prepared_mysql


class Prepared(dict[str, str]):
    """One prepared database of each kind, made when it is asked for: every run has a key of its own."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__()
        self._request = request

    def __missing__(self, store: str) -> str:
        url: str = self._request.getfixturevalue(f"{store}_rides")
        return url


@pytest.fixture
def urls(request: pytest.FixtureRequest) -> Prepared:
    return Prepared(request)


@pytest.fixture
def strict_provider(tmp_path: Path) -> Iterator[Provider]:
    """It charges every time that it is called."""
    with Provider(tmp_path / "strict", deduplicates=False) as server:
        yield server


def stands(url: str, provider: Provider, key: str) -> tuple[int, int, int]:
    """What there is of a ride, in the order in which it must come to be."""
    return count(url, "rides", key), len(provider.journal(key)), count(url, "receipts", key)


def check_order(url: str, provider: Provider, crash: Crashed) -> tuple[int, int, int]:
    """Nothing twice, and nothing before what comes before it."""
    rides, charges, receipts = stands(url, provider, crash.label)
    assert 1 >= rides >= charges >= receipts, crash
    return rides, charges, receipts


def check_retried(world: World, provider: Provider, crash: Crashed) -> None:
    check_order(world.url, provider, crash)
    for _ in range(2):
        got = retried(world, crash.label)
        assert got.status == 201, (str(crash), got)
        assert stands(world.url, provider, crash.label) == (1, 1, 1), crash
    assert got.replayed, crash


def check_completed(world: World, provider: Provider, crash: Crashed) -> None:
    url, key = world.url, crash.label
    check_order(url, provider, crash)
    begun = execute(
        url,
        "select count(*) from samekey.inputs i join samekey.keys k on k.id = i.operation_id "
        f"where k.key = '{key}'",
    )[0][0]
    taken = completed(world, key)
    if begun:
        assert (taken, state_of(url, key)) == (1, "completed"), crash
    if state_of(url, key) == "completed":
        assert stands(url, provider, key) == (1, 1, 1), crash
        got = retried(world, key)
        assert got.replayed and got.status == 201, crash
    else:
        # Nobody had said yet what there was to do, so nothing has been done; the client's retry does it.
        assert (taken, stands(url, provider, key)) == (0, (0, 0, 0)), crash
        assert retried(world, key).status == 201, crash
    assert stands(url, provider, key) == (1, 1, 1), crash


CHECKS = {"retry": check_retried, "completer": check_completed}


def survivor(url: str, style: str, provider: Provider, kind: str = "deduplicates") -> World:
    """A process that was not there when the crash happened, and has no part of it in its memory."""
    world = World(url, style)
    world.define(ride_body(world, ProviderClient(provider.url), **PROVIDERS[kind]))
    return world


@without(then="retry", store="mysql", style="sync")
@without(then="completer", store="mysql", style="async")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("then", CHECKS)
def test_a_ride_survives_a_crash_at_every_point(
    urls: dict[str, str], provider: Provider, store: str, style: str, then: str
) -> None:
    url, seen = urls[store], []
    scenario = partial(ride, url=url, style=style, provider_url=provider.url, kind="deduplicates")
    with survivor(url, style, provider) as other:
        for crash in enumerate_crashes(scenario):
            CHECKS[then](other, provider, crash)
            seen.append(crash.point.name)
    assert kept(url) == {"inputs": 0, "phases": 0}, "something was left behind"
    # The enumerator went through the whole protocol, in its order.
    places = ["after store_input", "inside rides", "after write_phase", "after fence", "after write_intent"]
    places += ["before the call", "after the call", "after regain", "after write_effect", "inside receipts"]
    places += ["after complete", "after drop_phases", "before the answer is sent"]
    assert [seen.index(place) for place in places] == sorted(seen.index(place) for place in places)
    assert seen.count("before commit") == seen.count("after commit") == 5


def test_what_was_killed_is_finished_without_any_application(
    urls: dict[str, str], provider: Provider
) -> None:
    """The completer needs a definition and a store: no route, no middleware, no request."""
    url, finished = urls["sqlite"], 0
    scenario = partial(ride, url=url, style="sync", provider_url=provider.url, kind="deduplicates")
    with World(url, "sync") as bare:
        bare.define(ride_body(bare, ProviderClient(provider.url), provider_window=3600), path=None)
        for crash in enumerate_crashes(scenario):
            if crash.point.name in ("after the call", "after commit"):
                finished += completed(bare, crash.label)
                assert state_of(url, crash.label) == "completed"
                assert stands(url, provider, crash.label) == (1, 1, 1), crash
    assert finished == 5, "four commits and the call; the fifth commit was the last"


def test_a_ride_survives_sigkill_at_every_point(urls: dict[str, str], provider: Provider) -> None:
    """Real processes and a real server, which must notice by itself that its client is gone."""
    url, style = urls["postgresql"], "async"
    checks, crashes = list(CHECKS.values()), 0
    with survivor(url, style, provider) as other:
        for crash in enumerate_kills(ride, url, style, provider.url, "deduplicates"):
            checks[crashes % 2](other, provider, crash)
            crashes += 1
    assert crashes > 50


@without(store="mysql")
@pytest.mark.parametrize("store", STORES)
def test_a_provider_that_can_be_asked_is_charged_once(
    urls: dict[str, str], strict_provider: Provider, store: str
) -> None:
    """It does not deduplicate: a second call would be a second charge."""
    url, kind = urls[store], "can be asked"
    scenario = partial(ride, url=url, style="sync", provider_url=strict_provider.url, kind=kind)
    with survivor(url, "sync", strict_provider, kind) as other:
        for crash in enumerate_crashes(scenario):
            check_retried(other, strict_provider, crash)


@without(store="mysql")
@pytest.mark.parametrize("store", STORES)
def test_a_provider_of_which_nobody_can_tell_is_never_called_twice(
    urls: dict[str, str], strict_provider: Provider, store: str
) -> None:
    url, unknown = urls[store], 0
    scenario = partial(ride, url=url, style="sync", provider_url=strict_provider.url, kind="neither")
    with survivor(url, "sync", strict_provider, "neither") as other:
        for crash in enumerate_crashes(scenario):
            check_order(url, strict_provider, crash)
            intended = execute(
                url,
                "select done from samekey.phases p join samekey.keys k on k.id = p.operation_id "
                f"where k.key = '{crash.label}' and p.kind = 'effect'",
            )
            before = len(strict_provider.journal(crash.label))
            for _ in range(2):
                got = retried(other, crash.label)
                if intended == [(0,)]:
                    assert (got.status, got.code) == (409, "outcome_unknown"), crash
                    assert state_of(url, crash.label) == "unknown", crash
                    assert len(strict_provider.journal(crash.label)) == before, crash
                else:
                    assert got.status == 201, crash
                    assert stands(url, strict_provider, crash.label) == (1, 1, 1), crash
            unknown += intended == [(0,)]
    assert unknown > 3, "there are points between the intent and its result"


@pytest.mark.parametrize(("store", "style"), [("sqlite", "async"), ("postgresql", "sync")])
def test_a_ride_survives_a_cut_connection_at_every_point(
    urls: dict[str, str], provider: Provider, store: str, style: str
) -> None:
    """The process lives on and answers: 201 only if all of it stands."""
    url, answers = urls[store], []
    scenario = partial(ride, url=url, style=style, provider_url=provider.url, kind="deduplicates")
    with survivor(url, style, provider) as other:
        for cut in enumerate_cuts(lambda points: answers.append(scenario(points))):
            first = answers[-1]
            assert first.status in (201, 503), (str(cut), first)
            rides, charges, receipts = check_order(url, provider, cut)
            if first.status == 201:
                assert (rides, charges, receipts) == (1, 1, 1), cut
            elif rides:
                assert b"nothing was done" not in first.body, f"{cut}: it has begun"
            check_retried(other, provider, cut)

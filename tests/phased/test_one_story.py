"""What clients are told while a phased operation has not ended: one thing, whoever asks, and whenever.

``in_progress`` while the machine goes on with it; ``outcome_unknown`` once somebody must find out.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from samekey import Backoff, Effect, NotExecuted, Response, ietf
from tests.phased.provider import Provider, ProviderClient
from tests.phased.world import World, age_intents, count, end_lease, kept, now, ride_body, state_of

AT_ONCE = Backoff(first=timedelta(0))
LATER = Backoff(first=timedelta(hours=1), longest=timedelta(hours=1))
SETTLED_BY = [
    pytest.param({"provider_window": 3600}, id="window"),
    pytest.param({"lookup": True, "settle": 600}, id="lookup"),
]


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause is as long as it may be, so that nothing goes on between two looks."""
    monkeypatch.setattr("random.random", lambda: 1.0)


def told(world: World, key: str) -> set[Any]:
    """What a first client or a retry, another retry, and the status resource say."""
    answers = [world.post(key) for _ in range(2)]
    assert {answer.status for answer in answers} == {409}
    shown = world.status(answers[0].json()["operation"])
    assert shown.json()["state"] == state_of(world.url, key)
    return {*(answer.code for answer in answers), shown.json()["state"]}


@pytest.mark.parametrize("effect", SETTLED_BY)
def test_what_goes_on_by_itself_is_in_progress_from_the_first_answer_on(
    world: World, provider: Provider, client: ProviderClient, effect: dict[str, Any]
) -> None:
    provider.next.append("drop")
    world.define(ride_body(world, client, **effect), backoff=LATER)
    assert told(world, "k1") == {"in_progress"}
    end_lease(world.url, "k1")
    assert world.complete() == 1, "the completer goes on where the attempt stopped"
    assert world.post("k1").status == 201 and len(provider.journal()) == 1


def test_what_must_settle_first_is_in_progress_all_the_time(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    provider.next.append("fail")
    world.define(ride_body(world, client, lookup=True, settle=600), backoff=AT_ONCE, on_error="unknown")
    # The first answer is about a call that failed, the second about one that nobody finds yet.
    assert told(world, "k1") == {"in_progress"} and provider.looked_up == 1
    assert told(world, "k1") == {"in_progress"}
    end_lease(world.url, "k1")
    world.complete()
    assert told(world, "k1") == {"in_progress"}, "after the completer has asked in vain, too"
    age_intents(world.url, 700)
    end_lease(world.url, "k1")
    assert world.post("k1").status == 201 and len(provider.journal()) == 1


def test_with_202_for_what_runs_the_first_client_gets_one_too(
    make_world: Any, provider: Provider, client: ProviderClient
) -> None:
    world = make_world(policy=ietf(on_in_progress="accept"))
    provider.next.append("drop")
    world.define(ride_body(world, client, provider_window=3600), backoff=LATER)
    answers = [world.post("k1") for _ in range(2)]
    assert [answer.status for answer in answers] == [202, 202]
    assert answers[0].json() == answers[1].json()
    assert answers[0].json()["state"] == "in_progress" and answers[0].header("location")


def test_what_somebody_must_find_out_is_unknown_from_the_first_answer_on(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    provider.next.append("drop")
    world.define(ride_body(world, client))
    assert told(world, "k1") == {"outcome_unknown", "unknown"}
    assert world.complete() == 0 and provider.calls == 1


def test_nobody_is_told_to_retry_what_was_given_up(world: World) -> None:
    """The last attempt says that it was not executed, and no other will come."""

    def refuse(_effect: Effect) -> Any:
        raise NotExecuted("closed")

    async def ride(op: Any, _input: Any) -> Response:
        await now(op.transaction("ride_created", world.insert("rides"), "k1"))
        await now(op.effect("charge", world.outside(refuse)))
        raise AssertionError("unreachable")

    world.define(ride, max_attempts=2, backoff=AT_ONCE)
    assert world.post("k1").status == 503
    assert told(world, "k1") == {"outcome_unknown", "dead_letter"}


# ------------------------------------------------------------------ the word of a call inside


def inner_refusal(world: World, client: ProviderClient) -> Any:
    """An effect that charges, and then makes a guarded call, which says that *it* did nothing."""

    def refuse() -> Any:
        raise NotExecuted("the mail server is closed")

    async def refuse_async() -> Any:
        refuse()

    inner: Any = {"key": "mail", "payload": None, "tenant": "acme", "name": "mail"}

    def call(effect: Effect) -> Any:
        client.charge(effect, "k1")
        return world.engine.once(run=refuse, **inner)

    async def call_async(effect: Effect) -> Any:
        client.charge(effect, "k1")
        return await world.engine.once(run=refuse_async, **inner)

    return call_async if world.is_async else call


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_call_inside_does_not_speak_for_the_effect(
    world: World, provider: Provider, client: ProviderClient, swallowed: bool
) -> None:
    provider.deduplicates = False

    async def ride(op: Any, _input: Any) -> Response:
        try:
            return Response(201, await now(op.effect("charge", inner_refusal(world, client))))
        except NotExecuted:
            if swallowed:
                return Response(200, "nothing was charged")
            raise

    world.define(ride, backoff=AT_ONCE)
    assert told(world, "k1") == {"outcome_unknown", "unknown"}
    assert kept(world.url)["phases"] == 1, "the intent was not taken back: the card was charged"
    assert len(provider.journal()) == 1 and provider.calls == 1


def test_a_call_inside_does_not_speak_for_what_went_before_it(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    async def ride(op: Any, _input: Any) -> Response:
        await now(op.transaction("ride_created", world.insert("rides"), "k1"))
        await now(op.effect("charge", inner_refusal(world, client), provider_window=3600))
        raise AssertionError("unreachable")

    world.define(ride, backoff=LATER)
    assert told(world, "k1") == {"in_progress"}
    assert len(provider.journal()) == 1 and count(world.url, "rides", "k1") == 1

"""A definition that changes while operations are under way, and what is refused at start-up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from samekey import Backoff, ConfigurationError, Idempotency, Input, Response
from samekey.testing.crash import Crash
from tests.phased.provider import Provider, ProviderClient
from tests.phased.world import World, column, count, end_lease, execute, now, snapshot, state_of

AT_ONCE = Backoff(first=timedelta(0))
Steps = list[tuple[str, str]]
"""The phases of a definition: their kinds and names."""

V1: Steps = [("transaction", "ride"), ("effect", "charge"), ("transaction", "receipt")]


def stepwise(world: World, client: ProviderClient, steps: Steps, version: int, *, die_at: int = 99) -> Any:
    """A definition made of steps; the process that runs it dies at one of them."""

    async def run(op: Any, _input: Any) -> Response:
        for number, (kind, name) in enumerate(steps):
            if number == die_at:
                raise Crash(name)
            if kind == "transaction":
                await now(op.transaction(name, world.insert("rides"), name))
            else:
                await now(op.effect(name, world.outside(client.charge), name, provider_window=3600))
        return Response(200, {"version": version})

    return run


@pytest.fixture
def in_flight(url: str, style: str, client: ProviderClient) -> None:
    """An operation of version 1 that died before its last phase."""
    with World(url, style) as first:
        first.define(stepwise(first, client, V1, 1, die_at=2))
        with pytest.raises(Crash):
            first.post("k1")
    assert state_of(url, "k1") == "in_progress"
    end_lease(url, "k1")


def test_what_began_as_version_1_ends_as_version_1(
    make_world: Callable[..., World], provider: Provider, client: ProviderClient, in_flight: None
) -> None:
    """Version 2 is rolled out with version 1 still registered; the retry arrives at the new route."""
    world = make_world()
    world.define(stepwise(world, client, V1, 1), version=1, path=None)
    world.define(stepwise(world, client, [("transaction", "all_new")], 2), version=2)
    assert world.post("k1").json() == {"version": 1}
    assert (count(world.url, "rides", "receipt"), count(world.url, "rides", "all_new")) == (1, 0)
    assert world.post("k2").json() == {"version": 2}, "a new one begins as the new version"
    assert len(provider.journal()) == 1


def test_the_completer_finishes_old_versions_too(
    make_world: Callable[..., World], client: ProviderClient, in_flight: None
) -> None:
    world = make_world()
    world.define(stepwise(world, client, V1, 1), version=1, path=None)
    world.define(stepwise(world, client, [("transaction", "all_new")], 2), version=2)
    assert world.complete() == 1
    assert world.post("k1").json() == {"version": 1}


def refused_loudly(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = snapshot(world.url, "k1")
    for _ in range(2):
        got = world.post("k1")
        assert got.status == 500 and b"cannot go on yet" in got.body
    world.complete()
    assert snapshot(world.url, "k1") == before, "the operation was left as it was"
    assert "left as it was" in caplog.text
    # A process that has the old definition can still finish it.
    end_lease(world.url, "k1")


def test_a_version_that_is_not_there_any_more_is_refused(
    make_world: Callable[..., World],
    provider: Provider,
    client: ProviderClient,
    in_flight: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = make_world()
    world.define(stepwise(world, client, [("transaction", "all_new")], 2), version=2)
    refused_loudly(world, caplog)
    assert "began as 'ride' version 1" in caplog.text
    old = make_world()
    old.define(stepwise(old, client, V1, 1))
    assert old.post("k1").json() == {"version": 1}
    assert len(provider.journal()) == 1


CHANGED: dict[str, Steps] = {
    "renamed": [("transaction", "ride"), ("effect", "payment"), ("transaction", "receipt")],
    "reordered": [("effect", "charge"), ("transaction", "ride"), ("transaction", "receipt")],
    "another kind": [("transaction", "ride"), ("transaction", "charge"), ("transaction", "receipt")],
    "one before": [("transaction", "new"), ("transaction", "ride"), ("effect", "charge")],
    "one between": [("transaction", "ride"), ("transaction", "new"), ("effect", "charge")],
    "fewer": [("transaction", "ride")],
    "none": [],
}


@pytest.mark.parametrize("change", CHANGED)
def test_phases_that_changed_under_one_version_are_refused(
    make_world: Callable[..., World],
    provider: Provider,
    client: ProviderClient,
    in_flight: None,
    caplog: pytest.LogCaptureFixture,
    change: str,
) -> None:
    world = make_world()
    world.define(stepwise(world, client, CHANGED[change], 1))
    refused_loudly(world, caplog)
    assert execute(world.url, "select count(*) from rides")[0][0] == 1, "nothing new has run"
    old = make_world()
    old.define(stepwise(old, client, V1, 1))
    assert old.post("k1").json() == {"version": 1}
    assert len(provider.journal()) == 1


# ------------------------------------------------------------------ a handler that is phased no more


def of_another_mode(world: World, mode: str) -> list[str]:
    """The route again, with a handler of another mode; gives the list of its runs."""
    runs: list[str] = []

    def handle(*_: Any) -> Any:
        runs.append(mode)
        return _reply(world)

    async def handle_async(*_: Any) -> Any:
        return handle()

    handler: Any = handle_async if world.is_async else handle
    declare = {
        "leased": world.engine.leased,
        "repeatable": world.engine.leased(repeatable=True),
        "atomic": world.engine.atomic,
        "deferred": world.engine.deferred,
        "undecorated": lambda function: function,
    }[mode]
    world.route("/rides", declare(handler))
    return runs


def _reply(world: World) -> Any:
    if world.is_async:
        from starlette.responses import Response as Reply

        return Reply("done")
    return "done"


@pytest.mark.parametrize("mode", ["leased", "repeatable", "atomic", "deferred", "undecorated"])
def test_a_handler_that_is_phased_no_more_does_not_begin_from_the_start(
    make_world: Callable[..., World],
    provider: Provider,
    client: ProviderClient,
    in_flight: None,
    caplog: pytest.LogCaptureFixture,
    mode: str,
) -> None:
    world = make_world()
    runs = of_another_mode(world, mode)
    before = snapshot(world.url, "k1")
    for _ in range(2):
        got = world.post("k1")
        assert (got.status, runs) == (500, []), got.body
        assert b"nothing was done" in got.body
    assert snapshot(world.url, "k1") == before, "the operation was left as it was"
    assert "began as phased work and got as far as 'charge'" in caplog.text
    assert world.post("k2").status in (200, 500) and runs == [mode], "a new key is not concerned"
    old = make_world()
    old.define(stepwise(old, client, V1, 1))
    assert old.post("k1").json() == {"version": 1}
    assert len(provider.journal()) == 1


@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_nor_where_one_of_its_effects_was_found_not_executed(
    make_world: Callable[..., World], client: ProviderClient, in_flight: None, mode: str
) -> None:
    world = make_world()
    execute(
        world.url, "update samekey.keys set state = 'failed_retryable', locked_until = null where key = 'k1'"
    )
    runs, before = of_another_mode(world, mode), snapshot(world.url, "k1")
    assert (world.post("k1").status, runs) == (500, [])
    assert snapshot(world.url, "k1") == before
    old = make_world()
    old.define(stepwise(old, client, V1, 1))
    assert old.post("k1").json() == {"version": 1}


@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_what_failed_before_its_first_phase_may_run_in_another_mode(
    make_world: Callable[..., World], mode: str
) -> None:
    """Nothing was done, so nothing can be done twice."""
    first = make_world()
    first.define(_dies)
    with pytest.raises(Crash):
        first.post("k1")
    execute(
        first.url, "update samekey.keys set state = 'failed_retryable', locked_until = null where key = 'k1'"
    )
    assert column(first.url, "k1", "recovery_point") is None
    world = make_world()
    runs = of_another_mode(world, mode)
    world.post("k1")
    assert runs == [mode]


async def _dies(op: Any, input: Input) -> Response:
    raise Crash("before the first phase")


def test_a_leased_handler_that_becomes_phased_may_run_where_nothing_happened(
    make_world: Callable[..., World], client: ProviderClient
) -> None:
    from samekey import NotExecuted

    first = make_world()

    def fail(*_: Any) -> Any:
        raise NotExecuted("not sent")

    async def fail_async(*_: Any) -> Any:
        raise NotExecuted("not sent")

    first.route("/rides", first.engine.leased(fail_async if first.is_async else fail))
    assert first.post("k1").status == 503 and state_of(first.url, "k1") == "failed_retryable"
    world = make_world()
    world.define(stepwise(world, client, V1, 1))
    assert world.post("k1").json() == {"version": 1}


def test_more_phases_at_the_end_fit_what_was_recorded(
    make_world: Callable[..., World], client: ProviderClient, in_flight: None
) -> None:
    """Nothing of it has run yet, so nothing can be contradicted."""
    world = make_world()
    world.define(stepwise(world, client, [*V1, ("transaction", "survey")], 1))
    assert world.post("k1").status == 200
    assert count(world.url, "rides", "survey") == 1


def test_the_completer_does_not_come_back_at_once_to_what_it_cannot_run(
    make_world: Callable[..., World], client: ProviderClient, in_flight: None
) -> None:
    world = make_world()
    world.define(stepwise(world, client, CHANGED["renamed"], 1))
    assert [world.complete(), world.complete()] == [1, 0]


def test_a_retry_goes_on_with_the_input_of_the_first_request(make_world: Callable[..., World]) -> None:
    """Where the fingerprint leaves a field out, two requests may be the same and yet differ."""
    from samekey import FingerprintRules, ietf

    policy = ietf(fingerprint=FingerprintRules(exclude=("/trace",)))
    world, seen = make_world(policy=policy), []

    async def look(op: Any, input: Input) -> Response:
        seen.append(input.json()["trace"])
        await now(op.transaction("one", lambda _connection: None))
        return Response(503 if op.attempts == 1 else 200)

    world.define(look, backoff=AT_ONCE)
    assert world.post("k1", {"ride": 1, "trace": "first"}).status == 503
    assert world.post("k1", {"ride": 1, "trace": "second"}).status == 200
    assert seen == ["first", "first"]


@pytest.mark.parametrize(
    "damage",
    [
        "update samekey.inputs set payload = 'garbage'",
        "update samekey.phases set kind = 'magic' where position = 0",
        "update samekey.phases set result = 'garbage' where position = 0",
    ],
)
def test_what_cannot_be_read_is_never_guessed_at(
    make_world: Callable[..., World],
    provider: Provider,
    client: ProviderClient,
    in_flight: None,
    damage: str,
) -> None:
    world = make_world()
    world.define(stepwise(world, client, V1, 1))
    if world.url.startswith("sqlite"):
        damage = damage.replace("'garbage'", "cast('garbage' as blob)")
    execute(world.url, damage)
    before = snapshot(world.url, "k1")
    assert world.post("k1").status == 500
    world.complete()
    assert snapshot(world.url, "k1") == before
    assert len(provider.journal()) == 1 and count(world.url, "rides", "receipt") == 0


class Reversed:
    """A cipher that two processes may or may not share."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(self, data: bytes) -> bytes:
        return self._key + data[::-1]

    def decrypt(self, token: bytes) -> bytes:
        if not token.startswith(self._key):
            raise ValueError("another key")
        return token.removeprefix(self._key)[::-1]


def test_a_process_without_the_encryption_key_leaves_it_to_one_that_has_it(
    make_world: Callable[..., World], provider: Provider, client: ProviderClient
) -> None:
    first = make_world(encryption=Reversed(b"key 1"))
    first.define(stepwise(first, client, V1, 1, die_at=2))
    with pytest.raises(Crash):
        first.post("k1")
    end_lease(first.url, "k1")
    before = snapshot(first.url, "k1")
    assert b"ride" not in bytes(before[1][0][3]), "the input is unreadable at rest"
    stranger = make_world(encryption=Reversed(b"key 2"))
    stranger.define(stepwise(stranger, client, V1, 1))
    assert stranger.post("k1").status == 500
    stranger.complete()
    assert snapshot(first.url, "k1") == before
    end_lease(first.url, "k1")
    friend = make_world(encryption=Reversed(b"key 1"))
    friend.define(stepwise(friend, client, V1, 1))
    assert friend.post("k1").json() == {"version": 1}
    assert len(provider.journal()) == 1


# ------------------------------------------------------------------ refused at start-up


async def sample(op: Any, input: Input) -> None: ...


def sync_sample(op: Any, input: Input) -> None: ...


@pytest.fixture
def idempotency(sqlite_url: str) -> Any:
    made = Idempotency(sqlite_url)
    yield made
    made.close()


def test_two_definitions_of_one_version_are_refused(idempotency: Idempotency) -> None:
    idempotency.phased("ride", version=1)(sample)
    idempotency.phased("ride", version=2)(sample)
    with pytest.raises(ConfigurationError, match="'ride' version 2 is defined twice"):
        idempotency.phased("ride", version=2)(sample)


def test_versions_of_one_name_are_all_async_or_all_sync(idempotency: Idempotency) -> None:
    idempotency.phased("ride", version=1)(sync_sample)
    with pytest.raises(ConfigurationError, match="both be async or both be sync"):
        idempotency.phased("ride", version=2)(sample)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"version": 0}, "from 1 on"),
        ({"version": "2"}, "from 1 on"),
        ({"version": True}, "from 1 on"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"required": False}, "needs a key"),
        ({"on_4xx": "rollback"}, "no effect"),
    ],
)
def test_options_that_cannot_work_are_refused(
    idempotency: Idempotency, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        idempotency.phased("ride", **options)(sample)


def test_a_name_is_needed(idempotency: Idempotency) -> None:
    with pytest.raises(ConfigurationError, match="needs a name"):
        idempotency.phased("")(sample)


async def one_argument(op: Any) -> None: ...


async def of_a_dict(op: Any, input: dict[str, Any]) -> None: ...


async def of_nothing_known(op: Any, input: NoSuchModel) -> None: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (one_argument, r"two arguments, \(op, input\)"),
        (of_a_dict, "samekey.Input"),
        (of_nothing_known, "top of a module"),
    ],
)
def test_functions_that_cannot_be_phased_are_refused(
    idempotency: Idempotency, function: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        idempotency.phased("ride")(function)

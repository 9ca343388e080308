"""An outside call and its trouble: lost results, windows, lookups, errors of every kind, odd results."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lab.processes import free_port, wait_until
from samekey import NOT_FOUND, Backoff, Effect, Executed, NotExecuted, OutcomeUnknown, Resolution, Response
from samekey.core.outcome import Outcome
from samekey.errors import ConnectionLost
from samekey.testing.crash import Crash
from tests.phased.provider import Provider, ProviderClient, ProviderFailed
from tests.phased.world import (
    World,
    age_intents,
    column,
    count,
    end_lease,
    execute,
    kept,
    now,
    ride_body,
    state_of,
)

AT_ONCE = Backoff(first=timedelta(0))


def lost_result(world: World, provider: Provider, client: ProviderClient, **effect: Any) -> None:
    """A ride whose charge was made, and whose answer never came back: an intent without a result."""
    provider.next.append("drop")
    world.define(ride_body(world, client, **effect), backoff=AT_ONCE)
    got = world.post("k1")
    # Where the next attempt can find out, the operation goes on by itself.
    assert (got.status, got.code) == (409, "in_progress" if effect else "outcome_unknown")
    assert got.header("retry-after")
    assert len(provider.journal()) == 1


# ------------------------------------------------------------------ an intent without a result


def test_inside_the_window_it_is_called_again_with_the_same_key(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    lost_result(world, provider, client, provider_window=3600)
    assert state_of(world.url, "k1") == "in_progress", "it goes on by itself"
    assert world.post("k1").json() == {"ride": "k1", "charge": "ch_1"}
    assert provider.calls == 2 and len(provider.journal()) == 1


def test_outside_the_window_the_provider_is_asked_and_what_it_found_counts(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    lost_result(world, provider, client, provider_window=3600, lookup=True)
    age_intents(world.url, 3600)
    assert world.post("k1").json() == {"ride": "k1", "charge": "ch_1"}
    assert provider.calls == 1 and provider.looked_up == 1
    assert column(world.url, "k1", "provider_id") == "ch_1", "the lookup's id is kept"


def test_the_window_has_a_margin(world: World, provider: Provider, client: ProviderClient) -> None:
    """A call takes time to arrive, and clocks differ: the last minute of the window is not used."""
    lost_result(world, provider, client, provider_window=3600, lookup=True)
    age_intents(world.url, 3600 - 59)
    assert world.post("k1").status == 201
    assert provider.calls == 1


def test_not_found_is_not_believed_before_it_has_settled(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    provider.next.append("fail")
    world.define(
        ride_body(world, client, lookup=True, timeout=30, settle=600), backoff=AT_ONCE, on_error="unknown"
    )
    assert world.post("k1").status == 409
    assert provider.calls == 1 and not provider.journal()
    # Not found, but whoever tried first may still be calling.
    began = time.time()
    held = world.post("k1")
    took = time.time() - began
    assert (held.status, held.code) == (409, "in_progress")
    assert int(held.header("retry-after") or 0) > 0
    assert provider.calls == 1
    # It is held until the settling time, by the store's clock: nobody asks again before.
    until = column(world.url, "k1", "locked_until")
    intent = execute(world.url, "select intent_at from samekey.phases where kind = 'effect'")[0][0]
    assert -50 <= until - intent - 630_000 <= took * 1000 + 50
    again = world.post("k1")
    assert (again.status, again.code) == (409, "in_progress")
    assert world.complete() == 0
    assert provider.looked_up == 1
    # The settling time has come.
    age_intents(world.url, 630)
    end_lease(world.url, "k1")
    assert world.post("k1").status == 201
    assert len(provider.journal()) == 1 and provider.calls == 2


def test_the_settling_time_begins_anew_with_the_new_call(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    provider.next.extend(["fail", "drop"])
    world.define(ride_body(world, client, lookup=True, settle=600), backoff=AT_ONCE)
    assert world.post("k1").code == "in_progress"
    age_intents(world.url, 700)
    assert world.post("k1").code == "in_progress", "called again, and the answer was lost"
    assert world.post("k1").status == 201, "found"
    assert provider.calls == 2 and len(provider.journal()) == 1


def test_with_neither_window_nor_lookup_it_is_never_called_again(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    lost_result(world, provider, client)
    assert state_of(world.url, "k1") == "unknown"
    for _ in range(2):
        got = world.post("k1")
        assert (got.status, got.code) == (409, "outcome_unknown")
    assert world.complete() == 0
    assert provider.calls == 1
    assert kept(world.url)["phases"] == 2, "what is known stays for the operator"


def test_with_neither_a_crash_between_intent_and_result_is_unknown(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    def die(_effect: Effect, _label: str) -> Any:
        raise Crash("here")

    async def ride(op: Any, _input: Any) -> Response:
        await now(op.effect("charge_created", world.outside(die if op.attempts == 1 else client.charge), "k"))
        raise AssertionError("unreachable")

    world.define(ride, backoff=AT_ONCE)
    with pytest.raises(Crash):
        world.post("k1")
    assert world.post("k1").code == "outcome_unknown"
    assert provider.calls == 0


# ------------------------------------------------------------------ words about another effect


@pytest.mark.parametrize(
    ("named", "source", "safe"),
    [
        ("operation_id", "cards", "lookup"),
        ("provider_id", "cards", "window"),
        ("operation_id", None, "window"),
    ],
)
def test_a_word_about_what_is_done_does_not_stop_what_is_safe_to_send_again(
    world: World, named: str, source: str | None, safe: str
) -> None:
    """The charge is done and recorded, and its own event comes while the transfer is under way, at the same
    provider or at one that the code does not name. The transfer's reply is lost, and it must be sent once
    more."""
    told: list[Any] = []

    def charge(effect: Any) -> str:
        effect.provider_id = "ch_1"
        return "ch_1"

    def transfer(effect: Any, operation_id: str) -> str:
        if not told:
            about = {"operation_id": operation_id, "provider_id": "ch_1"}
            where: dict[str, Any] = {"source": "cards", "event_id": "e1", "tenant": "acme"}
            where[named] = about[named]
            at = datetime.now(UTC)
            told.append(
                world.engine.resolve(Executed("ch_1", "ch_1"), occurred_at=at, verify=lambda: True, **where)
            )
            raise ConnectionError("the reply was lost")
        effect.provider_id = "tr_1"
        return "tr_1"

    def find(_effect: Any, _operation_id: str) -> Any:
        return NOT_FOUND

    again: dict[str, Any] = {"provider_window": 3600}
    if safe == "lookup":
        again = {"lookup": world.outside(find), "settle": 0}

    async def ride(op: Any, _input: Any) -> Response:
        made = await now(op.effect("charged", world.outside(charge), source="cards"))
        moved = await now(op.effect("moved", world.outside(transfer), op.id, source=source, **again))
        return Response(201, {"charge": made, "transfer": moved})

    world.define(ride, backoff=AT_ONCE, on_error="unknown")
    world.post("k1")
    age_intents(world.url, 60)
    assert world.post("k1").json() == {"charge": "ch_1", "transfer": "tr_1"}
    assert told == [Resolution.KEPT]
    assert column(world.url, "k1", "disputed") == 0  # its own result has settled what the word was about


def test_a_word_from_before_an_effect_was_sent_is_about_the_one_that_was_done(world: World) -> None:
    told: list[Any] = []

    def charge(effect: Any) -> str:
        effect.provider_id = "ch_1"
        return "ch_1"

    def transfer(_effect: Any, operation_id: str) -> str:
        # Both are noted as they were some minutes ago; the transfer is sent only now.
        execute(world.url, "update samekey.keys set created_at = created_at - 600000")
        told.append(
            world.engine.resolve(
                Executed("ch_1", "ch_1"),
                source="cards",
                event_id="e1",
                tenant="acme",
                operation_id=operation_id,
                occurred_at=datetime.now(UTC) - timedelta(minutes=5),
                verify=lambda: True,
            )
        )
        raise ConnectionError("the reply was lost")

    async def ride(op: Any, _input: Any) -> Response:
        await now(op.effect("charged", world.outside(charge), source="cards"))
        await now(op.effect("moved", world.outside(transfer), op.id, source="cards"))
        return Response(201, {})

    world.define(ride, backoff=AT_ONCE, on_error="unknown")
    world.post("k1")
    assert told == [Resolution.TOO_LATE]
    assert column(world.url, "k1", "disputed") == 0


@pytest.mark.parametrize(
    ("named", "first", "source"),
    [
        ("operation_id", "cards", "cards"),
        ("provider_id", "cards", "cards"),
        ("operation_id", None, None),
        ("operation_id", "cards", None),
    ],
)
def test_one_object_may_stand_for_two_effects(
    world: World, named: str, first: str | None, source: str | None
) -> None:
    """A payment is authorised and then captured, and the capture's reply is lost: the only word about it is
    not burnt as one about what was done before."""
    ids: list[str] = []

    def authorise(effect: Any) -> str:
        effect.provider_id = "pi_1"
        return "pi_1"

    def capture(_effect: Any) -> str:
        raise TimeoutError("the reply was lost")

    async def ride(op: Any, _input: Any) -> Response:
        ids.append(op.id)
        await now(op.effect("authorised", world.outside(authorise), source=first))
        await now(op.effect("captured", world.outside(capture), source=source))
        return Response(201, {})

    def tell(says: Any, event_id: str, **about: Any) -> Resolution:
        where = {"source": "cards", "event_id": event_id, "tenant": "acme", **about}
        return world.engine.resolve(says, occurred_at=datetime.now(UTC), verify=lambda: True, **where)

    world.define(ride, backoff=AT_ONCE, on_error="unknown")
    assert world.post("k1").code == "outcome_unknown"
    about = {"operation_id": ids[0], "provider_id": "pi_1"}
    heard = tell(Executed({"captured": True}, "pi_1"), "e1", **{named: about[named]})
    assert heard is Resolution.UNPLACED
    # Until somebody has looked, nothing that says no is believed.
    time.sleep(0.01)
    assert tell(NotExecuted(), "e2", operation_id=ids[0], step="captured") is not Resolution.RESOLVED
    assert tell(Executed("cap", "pi_1"), "e3", operation_id=ids[0], step="captured") is Resolution.RESOLVED


# ------------------------------------------------------------------ lookups that misbehave


def test_a_lookup_that_finds_what_a_former_life_made_decides_nothing(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    """All lives of a key have the same downstream keys. The second one's call fails, and by its key the
    provider finds what the first has made."""
    world.define(ride_body(world, client, lookup=True), backoff=AT_ONCE, on_error="unknown")
    assert world.post("k1").json() == {"ride": "k1", "charge": "ch_1"}
    execute(world.url, "update samekey.keys set expires_at = 1")
    provider.next.append("fail")
    assert world.post("k1").status == 409
    got = world.post("k1")
    assert (got.status, got.code) == (409, "outcome_unknown")
    assert (provider.looked_up, column(world.url, "k1", "provider_id")) == (1, None)


@pytest.mark.parametrize("answer", [None, RuntimeError("the provider's search is down"), TimeoutError()])
def test_a_lookup_that_does_not_answer_decides_nothing(
    world: World, provider: Provider, client: ProviderClient, answer: Any
) -> None:
    answers = [answer]

    def find(effect: Effect, label: str) -> Any:
        if not answers:
            return client.find(effect, label)
        if isinstance(answers[0], Exception):
            raise answers.pop()
        return answers.pop()

    async def ride(op: Any, _input: Any) -> Any:
        return await now(
            op.effect("charge", world.outside(client.charge), "k1", lookup=world.outside(find), settle=0)
        )

    provider.next.append("drop")
    world.define(ride, backoff=AT_ONCE)
    assert world.post("k1").code == "in_progress"
    age_intents(world.url, 60)
    assert world.post("k1").status in (409, 500)
    assert provider.calls == 1 and state_of(world.url, "k1") == "in_progress"
    assert world.post("k1").json() == {"id": "ch_1"}, "asked again, and found"
    assert provider.calls == 1


# ------------------------------------------------------------------ errors of the call


def charge_only(world: World, call: Callable[..., Any], **effect: Any) -> Any:
    async def ride(op: Any, _input: Any) -> Any:
        return await now(op.effect("charge", world.outside(call), "k1", **effect))

    return ride


def test_not_executed_takes_the_intent_back(world: World, provider: Provider, client: ProviderClient) -> None:
    provider.next.append("refuse")
    world.define(charge_only(world, client.charge))
    refused = world.post("k1")
    assert refused.status == 503 and refused.header("retry-after")
    assert state_of(world.url, "k1") == "failed_retryable"
    assert kept(world.url)["phases"] == 0
    assert world.post("k1").json() == {"id": "ch_1"}
    assert provider.calls == 2 and len(provider.journal()) == 1


def test_not_executed_after_another_phase_is_resumed(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    provider.next.append("refuse")
    world.define(ride_body(world, client), backoff=AT_ONCE)
    refused = world.post("k1")
    assert refused.status == 503
    assert b"goes on" in refused.body or b"go on" in refused.body, "it must not say that nothing was done"
    assert state_of(world.url, "k1") == "in_progress"
    assert world.complete() == 1, "no client is needed"
    assert state_of(world.url, "k1") == "completed"
    assert (len(provider.journal()), count(world.url, "rides", "k1")) == (1, 1)


def test_a_call_that_could_not_connect_proves_nothing_by_itself(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    """Its client may have tried before and have lost the answer; the user's own word is needed."""
    nobody = ProviderClient(f"127.0.0.1:{free_port()}")

    async def ride(op: Any, _input: Any) -> Any:
        return await now(op.effect("charge", world.outside(nobody.charge), "k1"))

    world.define(ride)
    assert world.post("k1").code == "outcome_unknown" and state_of(world.url, "k1") == "unknown"
    assert provider.calls == 0


def test_a_second_caller_does_not_take_back_the_intent_of_the_first(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    """That the second never connected proves nothing about the first."""
    nobody = ProviderClient(f"127.0.0.1:{free_port()}")

    async def ride(op: Any, _input: Any) -> Any:
        call = nobody.charge if op.attempts == 2 else client.charge
        return await now(op.effect("charge", world.outside(call), "k1", provider_window=3600))

    provider.next.append("drop")
    world.define(ride, backoff=AT_ONCE)
    assert world.post("k1").code == "in_progress"
    assert world.post("k1").code == "in_progress"
    assert kept(world.url)["phases"] == 1
    assert world.post("k1").json() == {"id": "ch_1"}
    assert len(provider.journal()) == 1


@pytest.mark.parametrize(("effect", "then"), [({}, "unknown"), ({"provider_window": 3600}, "in_progress")])
def test_a_call_that_takes_too_long_has_no_certain_outcome(
    world: World, provider: Provider, client: ProviderClient, effect: Any, then: str
) -> None:
    provider.next.append("hang")
    seconds = [0.3, 30.0]  # for the call that hangs, and for the next one

    async def ride(op: Any, _input: Any) -> Any:
        call = world.outside(client.charge)
        return await now(op.effect("charge", call, "k1", timeout=seconds.pop(0), **effect))

    world.define(ride, backoff=AT_ONCE)
    got = world.post("k1")
    assert (got.status, got.code) == (409, "in_progress" if effect else "outcome_unknown")
    assert state_of(world.url, "k1") == then
    provider.release.set()
    assert world.post("k1").status == (200 if effect else 409)
    assert len(provider.journal()) == 1


def test_an_error_of_which_nothing_is_known_is_not_taken_for_a_failure(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    provider.next.append("fail")
    world.define(charge_only(world, client.charge))
    assert world.post("k1").code == "outcome_unknown"
    assert state_of(world.url, "k1") == "unknown"
    assert column(world.url, "k1", "error_code") == "ProviderFailed"


def test_the_users_own_rule_comes_first(world: World, provider: Provider, client: ProviderClient) -> None:
    provider.next.append("fail")

    def classify(status: int | None, result: BaseException | None) -> Outcome | None:
        return Outcome.FAIL if isinstance(result, ProviderFailed) else None

    world.define(charge_only(world, client.charge), classify=classify)
    assert world.post("k1").status == 500
    assert state_of(world.url, "k1") == "failed_retryable"
    assert world.post("k1").status == 200


def test_an_error_that_the_users_rule_remembers_is_final(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    provider.next.append("fail")
    world.define(
        charge_only(world, client.charge),
        classify=lambda _, error: Outcome.REMEMBER if isinstance(error, ProviderFailed) else None,
    )
    assert world.post("k1").status == 500
    again = world.post("k1")
    assert again.status == 500 and again.replayed
    assert provider.calls == 1


# ------------------------------------------------------------------ what a function may do about an error


def test_a_function_may_answer_for_its_own_error(world: World, provider: Provider) -> None:
    class CardDeclined(Exception):
        pass

    def decline(_effect: Effect, _label: str) -> Any:
        raise CardDeclined

    async def ride(op: Any, _input: Any) -> Response:
        try:
            await now(op.effect("charge", world.outside(decline), "k1"))
        except CardDeclined:
            return Response(402, "declined")
        raise AssertionError("unreachable")

    world.define(ride)
    assert [world.post("k1").status for _ in range(2)] == [402, 402]
    assert state_of(world.url, "k1") == "completed"


@pytest.mark.parametrize("error", [TimeoutError(), OutcomeUnknown("who knows"), ConnectionResetError()])
def test_a_function_cannot_answer_for_what_nobody_knows(world: World, error: Exception) -> None:
    def lose(_effect: Effect, _label: str) -> Any:
        raise error

    async def ride(op: Any, _input: Any) -> Response:
        try:
            await now(op.effect("charge", world.outside(lose), "k1"))
        except Exception:
            return Response(200, "all is well")
        raise AssertionError("unreachable")

    world.define(ride)
    for _ in range(2):
        got = world.post("k1")
        assert (got.status, got.code) == (409, "outcome_unknown")
    assert state_of(world.url, "k1") == "unknown"


def test_no_phase_may_begin_after_one_that_failed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Its place in the order would be empty, and no later attempt could tell what had been done."""

    def refuse(_effect: Effect, _label: str) -> Any:
        raise NotExecuted("closed")

    async def ride(op: Any, _input: Any) -> Response:
        await now(op.transaction("first", world.insert("rides"), "k1"))
        try:
            await now(op.effect("charge", world.outside(refuse), "k1"))
        except NotExecuted:
            pass
        await now(op.transaction("second", world.insert("receipts"), "k1"))
        raise AssertionError("unreachable")

    world.define(ride, backoff=AT_ONCE)
    got = world.post("k1")
    assert got.code == "in_progress" and "after another one had failed" in caplog.text
    assert count(world.url, "receipts", "k1") == 0
    assert state_of(world.url, "k1") == "in_progress"


def test_two_phases_of_one_name_would_share_a_downstream_key(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    async def twice(op: Any, _input: Any) -> Any:
        for _ in range(2):
            await now(op.effect("charge", world.outside(client.charge), "k1", provider_window=3600))

    world.define(twice)
    assert world.post("k1").code == "in_progress"
    assert provider.calls == 1, "the second was refused, not deduplicated away in silence"


def test_a_phase_inside_a_phase_is_refused(world: World, provider: Provider, client: ProviderClient) -> None:
    """It would be an outside call while a transaction is open."""

    async def nested(op: Any, _input: Any) -> Any:
        def write(_connection: Any) -> Any:
            return op.effect("charge", world.outside(client.charge), "k1")

        await now(op.transaction("outer", write))

    world.define(nested)
    assert world.post("k1").status == 500
    assert provider.calls == 0 and state_of(world.url, "k1") == "failed_retryable"


# ------------------------------------------------------------------ results that cannot be kept

UNKEPT: list[Any] = [object(), {"when": time.struct_time}, float("nan"), (1, 2), {1: "a"}, b"bytes", {"a"}]


def test_a_result_of_an_effect_that_cannot_be_kept_is_unknown(world: World) -> None:
    calls: list[str] = []

    async def ride(op: Any, input: Any) -> Any:
        label = input.json()["ride"]

        def call(effect: Effect) -> Any:
            calls.append(label)
            effect.provider_id = f"ch_{label}"
            return UNKEPT[int(label)]

        return await now(op.effect("charge", world.outside(call), provider_window=3600))

    world.define(ride)
    for number in range(len(UNKEPT)):
        for _ in range(2):
            got = world.post(str(number))
            assert (got.status, got.code) == (409, "outcome_unknown")
        assert column(world.url, str(number), "provider_id") == f"ch_{number}"
        assert column(world.url, str(number), "error_code") == "NotSerialisable"
    assert world.complete() == 0
    assert len(calls) == len(UNKEPT), "each has happened, once"


def test_a_result_of_a_transaction_that_cannot_be_kept_rolls_it_back(world: World) -> None:
    insert = world.insert("rides")

    async def ride(op: Any, input: Any) -> Any:
        label = input.json()["ride"]

        async def write_async(connection: Any) -> Any:
            await insert(connection, label)
            return UNKEPT[int(label)]

        def write_sync(connection: Any) -> Any:
            insert(connection, label)
            return UNKEPT[int(label)]

        if op.attempts == 1:
            return await now(op.transaction("ride", write_async if world.is_async else write_sync))
        return await now(op.transaction("ride", insert, label))

    world.define(ride)
    for key in map(str, range(len(UNKEPT))):
        assert world.post(key).status == 500
        assert count(world.url, "rides", key) == 0
        assert state_of(world.url, key) == "failed_retryable"
        assert world.post(key).status == 200, "once the code is mended"
        assert count(world.url, "rides", key) == 1


def test_an_answer_that_cannot_be_written_loses_nothing(world: World) -> None:
    answers: list[Any] = [{"when": object()}, {"when": "now"}]

    async def ride(op: Any, _input: Any) -> Response:
        await now(op.transaction("ride", world.insert("rides"), "k1"))
        return Response(201, answers.pop(0))

    world.define(ride, backoff=AT_ONCE)
    assert world.post("k1").code == "in_progress"
    assert world.post("k1").json() == {"when": "now"}
    assert count(world.url, "rides", "k1") == 1


# ------------------------------------------------------------------ the store in between


def test_a_result_that_cannot_be_stored_at_once_is_stored_soon(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    """The charge is made, and the store is away for a moment: the one who knows keeps trying to say so."""
    phases = world.engine.engine.phases.phases
    write_effect, broken = phases.write_effect, [True]

    def flaky(*args: Any, **kwargs: Any) -> Any:
        if broken:
            raise ConnectionLost("cut")
        return write_effect(*args, **kwargs)

    phases.write_effect = flaky  # type: ignore[method-assign]
    world.define(ride_body(world, client), lease=5)
    got = world.post("k1")
    assert got.status == 503 and b"has begun" in got.body
    broken.clear()
    wait_until(lambda: execute(world.url, "select 1 from samekey.phases where kind = 'effect' and done = 1"))
    end_lease(world.url, "k1")
    assert world.post("k1").status == 201, "without a second call, though nobody could have been asked"
    assert provider.calls == 1


# ------------------------------------------------------------------ misuse


def test_an_async_call_in_a_sync_operation_is_refused_before_anything_is_meant(url: str) -> None:
    async def call(_effect: Effect) -> None: ...

    def ride(op: Any, _input: Any) -> Any:
        return op.effect("charge", call)

    def write(op: Any, _input: Any) -> Any:
        return op.transaction("write", call)

    with World(url, "sync") as world:
        world.route("/rides", world.engine.phased("ride")(ride))
        world.route("/writes", world.engine.phased("write")(write))
        assert world.post("k1").status == world.post("k2", path="/writes").status == 500
        assert kept(url)["phases"] == 0


def test_a_lookup_that_finds_nothing_says_not_found(tmp_path: Path) -> None:
    assert repr(NOT_FOUND) == "NOT_FOUND"
    with Provider(tmp_path / "journal") as provider:
        assert ProviderClient(provider.url).find(Effect("k", timeout=5), "") is NOT_FOUND

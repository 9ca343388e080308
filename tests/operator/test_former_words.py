"""A provider's word is about one attempt: what it said of a former one settles no later one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Declined, Executed, Idempotency, NotExecuted, current_operation
from samekey import Response as Answer
from samekey.asgi import IdempotencyMiddleware
from samekey.core.effects import Sent, SentStep
from samekey.core.record import CLOCK_TOLERANCE_MS, Record
from samekey.engine.evidence.said import Resolution
from samekey.stores.protocols import Actor
from samekey.stores.sql.upkeep import Upkeep
from samekey.workers.reconciler import KEPT_BATCH, Reconciler
from samekey.workers.sweeper import Sweeper
from tests.operator.world import DAY, HOUR, MINUTE, SOURCE, World, moment_of

PAID = Executed(Answer(200, {"paid": 1}))


def sent(record: Record, provider_id: str | None = None) -> Sent:
    return Sent((SentStep("", record.downstream_key(), provider_id, SOURCE),))


def fail(world: World, record: Record, *, at: int, provider_id: str | None = None) -> None:
    noted = sent(record, provider_id)
    world.run(lambda: world.keys.fail(record.lease(MINUTE), "x", sent=noted, now=world.now + at))


def lose(world: World, record: Record, *, at: int, provider_id: str | None = None) -> None:
    noted = sent(record, provider_id)
    world.run(
        lambda: world.keys.lose(
            record.lease(MINUTE), "x", provider_id=provider_id, sent=noted, now=world.now + at
        )
    )


# ------------------------------------------------------------------ keys that were given up and taken again


def test_a_late_no_about_a_refused_attempt_does_not_free_the_next(store_url: str) -> None:
    """The handler sent its key, the provider refused, the client was told 429. What came of the next attempt
    is unknown, and the provider's word about the first one is not about that."""
    World(store_url).close()
    idempotency = Idempotency(store_url)
    keys: list[str] = []
    charges: list[str] = []
    plan = ["refused", "lost", "paid"]

    @idempotency.leased
    async def pay(request: Request) -> Response:
        operation = current_operation()
        operation.source = SOURCE
        keys.append(operation.downstream_key())
        step = plan.pop(0)
        if step == "refused":
            return JSONResponse({"error": "not now"}, status_code=429)
        charges.append(step)
        if step == "lost":
            raise TimeoutError("no answer of the provider's")
        return JSONResponse({"ok": 1}, status_code=201)

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda scope: "acme")
    with TestClient(app, raise_server_exceptions=False) as client:

        def post() -> int:
            return client.post("/pay", json={}, headers={"Idempotency-Key": "k"}).status_code

        world = World(store_url)
        refused_at = world.now
        assert post() == 429
        post()
        told = idempotency.resolve(
            NotExecuted,
            source=SOURCE,
            event_id="e1",
            tenant="acme",
            occurred_at=moment_of(refused_at),
            verify=lambda: True,
            downstream_key=keys[0],
        )
        assert told is Resolution.KEPT, "the two were less than the clocks' tolerance apart: nobody can tell"
        post()
        assert charges == ["lost"]
        world.close()


def test_a_key_under_which_nothing_was_sent_is_free_again(store_url: str) -> None:
    World(store_url).close()
    idempotency = Idempotency(store_url)

    @idempotency.leased
    async def pay(request: Request) -> Response:
        return JSONResponse({}, status_code=429)

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda scope: "acme")
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/pay", json={}, headers={"Idempotency-Key": "k"}).status_code == 429
    world = World(store_url)
    assert world.count("keys") == 0
    world.close()


@pytest.mark.parametrize("reaped", [False, True])
def test_an_event_of_a_former_life_does_not_complete_the_next(world: World, reaped: bool) -> None:
    former = world.completed("k", at=-3 * HOUR, ttl=HOUR)
    if reaped:
        assert world.run(lambda: Upkeep(world.engine.engine.store.tables.keys).reap(batch=10)) == 1
    record = world.unknown("k", at=-MINUTE)
    told = world.tell(PAID, "e1", at=-3 * HOUR, downstream_key=former.downstream_key())
    # Also where nothing is left of the former life: the audit knows that there was one.
    assert told is Resolution.TOO_LATE
    assert world.read(record).state == "unknown"
    assert world.run(world.engine.engine.store.tables.effects.unused) == []
    assert world.serve(Reconciler(world.engine.engine).run_once) == 0
    assert world.read(record).state == "unknown"


@pytest.mark.parametrize("evidence", [PAID, NotExecuted])
def test_a_clock_that_ticks_in_seconds_may_seem_to_be_before_the_claim(world: World, evidence: Any) -> None:
    record = world.unknown()
    assert world.tell(evidence, "e1", at=-999, operation_id=record.id) is Resolution.RESOLVED


@pytest.mark.parametrize("evidence", [PAID, NotExecuted])
def test_what_happened_long_before_the_claim_is_an_operator_s(world: World, evidence: Any) -> None:
    record = world.unknown()
    # By the operation's own id, that it happened would be certain whatever the time.
    by_key, by_id = {"downstream_key": record.downstream_key()}, {"operation_id": record.id}
    named: dict[str, Any] = by_key if evidence is PAID else by_id
    assert world.tell(evidence, "e1", at=-MINUTE, **named) is Resolution.UNPLACED
    assert world.read(record).state == "unknown"
    assert [event.event_id for event in world.run(world.engine.engine.store.tables.effects.unused)] == ["e1"]


# ------------------------------------------------------------------ clocks that are ahead


def test_a_no_that_had_come_before_the_attempt_began_is_not_about_it(world: World) -> None:
    """Whatever its provider's clock says: it was received while the first attempt was running."""
    first = world.claim("k")
    told = world.tell(NotExecuted, "e1", at=HOUR, downstream_key=first.downstream_key())
    assert told is Resolution.KEPT
    fail(world, first, at=0)
    second = world.claim("k", at=10_000)
    lose(world, second, at=10_000)
    assert world.run(lambda: world.engine.engine.resolver.apply_waiting(second.id)) is False
    assert world.read(second).state == "unknown"


def test_a_no_that_comes_again_counts_from_when_it_first_came(world: World) -> None:
    first = world.claim("k")

    def told() -> Resolution:
        return world.tell(NotExecuted, "e1", at=HOUR, downstream_key=first.downstream_key())

    assert told() is Resolution.KEPT
    fail(world, first, at=0)
    second = world.claim("k", at=10_000)
    lose(world, second, at=10_000)
    assert told() is Resolution.TOO_LATE
    assert world.read(second).state == "unknown"


def test_a_kept_no_frees_one_send_of_a_phase(store_url: str) -> None:
    """The word is used up with the send that it frees; the next one is asked about anew."""
    World(store_url).close()
    idempotency = Idempotency(store_url)
    sends: list[int] = []

    async def call(effect: Any) -> dict[str, int]:
        sends.append(len(sends))
        if len(sends) == 1:
            told = await idempotency.resolve_async(
                NotExecuted,
                source=SOURCE,
                event_id="e1",
                tenant=None,
                occurred_at=moment_of(2_000_000_000_000),
                verify=lambda: True,
                downstream_key=effect.key,
            )
            assert told is Resolution.KEPT
        raise ConnectionResetError("nobody knows")

    def lookup(effect: Any) -> Any:
        raise RuntimeError("the lookup is down")

    @idempotency.phased("pay", version=1)
    async def pay(op: Any, given: Any) -> Answer:
        return Answer(201, await op.effect("charge", call, lookup=lookup, source=SOURCE))

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda scope: "acme")
    with TestClient(app, raise_server_exceptions=False) as client:
        world = World(store_url)
        for _ in range(4):
            client.post("/pay", json={}, headers={"Idempotency-Key": "k"})
            # As if its pause were over.
            world.sql("update {keys} set locked_until = 1 where state = 'in_progress'")
        assert len(sends) == 2
        assert world.sql("select state from {evidence}")[0][0] in ("used", b"used")
        world.close()


# ------------------------------------------------------------------ objects of former attempts


@pytest.mark.parametrize("died", [False, True])
def test_a_no_about_what_a_former_attempt_made_does_not_free_the_next(world: World, died: bool) -> None:
    """The object of the first attempt failed, later than the second attempt began; that made another one."""
    first = world.claim("k", at=-MINUTE)
    fail(world, first, at=-MINUTE, provider_id="ch_1")
    second = world.claim("k", at=-2_000, lease=1_000)
    if died:
        world.serve(Sweeper(world.engine.engine).run_once)
    else:
        lose(world, second, at=-1_000)
    told = world.tell(NotExecuted, "e1", provider_id="ch_1", tenant="acme")
    assert told is Resolution.TOO_LATE, "it finds its operation, and is about a former attempt"
    assert world.read(second).state == "unknown"


def test_a_lookup_is_not_given_the_id_of_a_former_attempt(world: World) -> None:
    record = world.claim("k", at=-MINUTE)
    lose(world, record, at=-MINUTE, provider_id="ch_1")
    assert world.tell(NotExecuted, "e1", at=-MINUTE, operation_id=record.id) is Resolution.RESOLVED
    second = world.claim("k")
    assert (second.attempts, second.provider_id) == (2, None)


# ------------------------------------------------------------------ one event about several effects


def test_one_event_may_tell_of_several_operations(world: World) -> None:
    """A batch, or two accounts that both count their events from 1."""
    records = [world.unknown(), world.unknown()]
    for record in records:
        assert world.tell(PAID, "batch", operation_id=record.id) is Resolution.RESOLVED
        assert world.tell(PAID, "batch", operation_id=record.id) is Resolution.DUPLICATE
    assert world.states(records) == ["completed", "completed"]


def test_proof_that_waits_for_one_operation_is_not_moved_to_another(world: World) -> None:
    running, other = world.claim("c"), world.claim("d")
    assert world.tell(PAID, "batch", downstream_key=running.downstream_key()) is Resolution.KEPT
    assert world.tell(PAID, "batch", downstream_key=other.downstream_key()) is Resolution.KEPT
    assert world.tell(PAID, "batch", downstream_key=running.downstream_key()) is Resolution.DUPLICATE
    fail(world, running, at=0)
    assert world.run(lambda: world.engine.engine.resolver.apply_waiting(running.id)) is True
    assert world.states([running, other]) == ["completed", "in_progress"]
    waiting = world.run(world.engine.engine.store.tables.effects.unused)
    assert [event.operation_id for event in waiting] == [other.id]


def test_an_event_that_fits_two_operations_does_not_take_proof_from_a_third(world: World) -> None:
    third = world.claim("c")
    assert world.tell(PAID, "batch", downstream_key=third.downstream_key()) is Resolution.KEPT
    for key in ("a", "b"):
        lose(world, world.claim(key), at=0, provider_id="ch_1")
    assert world.tell(PAID, "batch", provider_id="ch_1", tenant="acme") is Resolution.AMBIGUOUS
    fail(world, third, at=0)
    assert world.run(lambda: world.engine.engine.resolver.apply_waiting(third.id)) is True
    effects = world.engine.engine.store.tables.effects
    assert [event.state for event in world.run(effects.unused)] == ["ambiguous", "ambiguous"]
    assert world.run(lambda: effects.dismiss(SOURCE, "batch", Actor("ann", "seen to"))) is True
    assert world.run(lambda: effects.dismiss(SOURCE, "batch", Actor("ann", "seen to"))) is False
    assert world.run(effects.unused) == []


def test_an_event_that_names_its_effect_in_another_way_is_the_same(world: World) -> None:
    record = world.claim("k", at=-MINUTE)
    lose(world, record, at=-MINUTE)
    assert world.tell(NotExecuted, "e1", operation_id=record.id) is Resolution.RESOLVED
    lose(world, world.claim("k", at=-1_000), at=-1_000)
    told = world.tell(NotExecuted, "e1", at=HOUR, downstream_key=record.downstream_key())
    assert told is Resolution.DUPLICATE
    assert world.read(record).state == "unknown"


# ------------------------------------------------------------------ clocks that differ, and tick in seconds

TOLERANCE = CLOCK_TOLERANCE_MS


def attempts(world: World, *, second_at: int, made: str | None = None) -> Record:
    """One that failed, then one whose outcome is unknown."""
    record = world.claim("k", at=second_at - 300)
    fail(world, record, at=second_at - 200)
    lose(world, world.claim("k", at=second_at), at=second_at, provider_id=made)
    return record


@pytest.mark.parametrize(
    ("after", "resolution", "state"),
    [
        (-TOLERANCE - 1, Resolution.TOO_LATE, "unknown"),
        (-TOLERANCE, Resolution.KEPT, "unknown"),
        (0, Resolution.KEPT, "unknown"),
        (2_000, Resolution.KEPT, "unknown"),
        (TOLERANCE, Resolution.KEPT, "unknown"),
        (TOLERANCE + 1, Resolution.RESOLVED, "failed_retryable"),
    ],
)
def test_a_no_counts_for_the_last_send_only_beyond_the_clocks_tolerance(
    world: World, after: int, resolution: Resolution, state: str
) -> None:
    """Within it, it may be about the one before: it is kept, and frees nothing."""
    record = attempts(world, second_at=-MINUTE, made="ch_2")
    told = world.tell(NotExecuted, at=-MINUTE + after, tenant="acme", provider_id="ch_2")
    # Where it happened even before the operation itself, the first attempt is not meant either.
    assert told is resolution or (after < -TOLERANCE and told is Resolution.UNPLACED)
    assert world.read(record).state == state


@pytest.mark.parametrize("named", ["operation_id", "downstream_key"])
@pytest.mark.parametrize(
    "provider_says", [NotExecuted, Declined(Answer(402, {}), "ch_9"), Declined(Answer(402, {}))]
)
def test_a_no_about_one_of_several_sends_counts_by_the_object_of_the_last_alone(
    world: World, provider_says: Any, named: str
) -> None:
    """All of them bear one key. The provider may cancel what the first has made after the last began."""
    record = attempts(world, second_at=-HOUR)
    given = {"operation_id": record.id, "downstream_key": record.downstream_key()}[named]
    assert world.tell(provider_says, at=-MINUTE, **{named: given}) is Resolution.KEPT
    assert world.read(record).state == "unknown"


@pytest.mark.parametrize("provider_says", [PAID, NotExecuted])
def test_a_word_in_whole_seconds_about_a_second_life_is_not_burnt(world: World, provider_says: Any) -> None:
    """The provider's clock ticks in seconds, or is behind: its true word seems to come from before."""
    world.completed("k", at=-2 * DAY)
    record = world.claim("k", at=-MINUTE)
    assert record.life == 2
    lose(world, record, at=-MINUTE)
    told = world.tell(provider_says, at=-MINUTE - 900, downstream_key=record.downstream_key())
    # What names nothing may be about what the first life made: it waits for a lookup, or an operator.
    assert told is Resolution.KEPT
    assert world.read(record).state == "unknown"
    made = Executed(PAID.response, "ch_2")
    told = world.tell(made, "e2", at=-MINUTE - 900, downstream_key=record.downstream_key())
    assert told is Resolution.RESOLVED


def test_a_yes_in_whole_seconds_stops_the_retry_of_a_second_life(world: World) -> None:
    world.completed("k", at=-2 * DAY)
    record = world.claim("k", at=-MINUTE)
    fail(world, record, at=-MINUTE)
    assert world.tell(PAID, at=-MINUTE - 900, downstream_key=record.downstream_key()) is Resolution.KEPT
    assert world.read(record).state == "unknown"


# ------------------------------------------------------------------ which event it was


@pytest.mark.parametrize("order", [("authorise", "capture"), ("capture", "authorise")])
@pytest.mark.parametrize("sources", [("cards", "cards"), ("cards", "bank")])
def test_of_several_steps_the_answer_is_that_of_the_last_one(
    world: World, order: tuple[str, str], sources: tuple[str, str]
) -> None:
    """Whichever came first, and if two providers count their events alike."""
    record = world.claim("k", at=-MINUTE)
    steps = tuple(SentStep(step, record.downstream_key(step)) for step in ("authorise", "capture"))
    same = sources[0] == sources[1]
    for number, (step, source) in enumerate(zip(order, sources, strict=True)):
        event = f"e{number}" if same else "1"
        said = Executed(Answer(201, {"step": step}))
        told = world.tell(said, event, source=source, downstream_key=record.downstream_key(step))
        assert told is Resolution.KEPT
    world.run(lambda: world.keys.fail(record.lease(MINUTE), "x", sent=Sent(steps)))
    assert world.read(record).state == "unknown"
    world.serve(Reconciler(world.engine.engine).run_once)
    settled = world.read(record)
    assert settled.answer is not None and settled.answer.body == b'{"step": "capture"}'


def test_evidence_that_cannot_be_used_does_not_keep_the_rest_waiting(lite: World) -> None:
    """It is looked at, and then it is the turn of others."""
    for number in range(KEPT_BATCH + 1):
        record = lite.phased(f"bad {number}")
        key = record.downstream_key("charge")
        assert lite.tell(Executed({"id": 1}), f"bad {number}", downstream_key=key) is Resolution.KEPT
        lite.run(partial(lite.phases.give_up, record.lease(MINUTE), error_code="x"))
    lite.sql("update {evidence} set outcome = ?", b"unreadable")
    record = lite.phased("good")
    key = record.downstream_key("charge")
    assert lite.tell(Executed({"id": 1}), "good", downstream_key=key) is Resolution.KEPT
    lite.run(lambda: lite.phases.give_up(record.lease(MINUTE), error_code="x"))
    lite.sql("update {evidence} set looked_at = 1 where event_id = 'good'")
    for _ in range(3):
        lite.serve(Reconciler(lite.engine.engine).run_once)
    assert lite.read(record).state == "in_progress"

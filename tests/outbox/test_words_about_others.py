"""What a provider says of one effect of an operation, held against the others: doubt frees nothing and stops
nothing that is certain; what contradicts what is known is shown to a person."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from samekey import Backoff, Declined, Executed, NotExecuted, Response
from samekey.asgi import IdempotencyMiddleware
from samekey.core.record import Answer
from samekey.drivers.run import run
from samekey.stores.protocols import Actor
from samekey.workers.completer import Completer
from samekey.workers.reconciler import Reconciler
from tests.edges.callers import AsgiClient
from tests.outbox.world import NO_PAUSE, Act, Outbox, order, tenant_of

LONG = Backoff(first=timedelta(hours=1), longest=timedelta(hours=1))


def tell(outbox: Outbox, evidence: Any, event_id: str = "evt_1", **named: Any) -> str:
    given = {"source": "acme", "tenant": "ann", "occurred_at": datetime.now(UTC), **named}
    told = outbox.idempotency.resolve_async(evidence, event_id=event_id, verify=lambda: True, **given)
    return str(outbox.run(told))


def to_see_to(outbox: Outbox) -> dict[str, int]:
    outbox.run(Reconciler(outbox.idempotency.engine).run_once())
    engine = outbox.idempotency.engine
    return run(engine.drivers.sync, engine.store.tables.effects.to_see_to)


class Provider:
    """It does not deduplicate, and loses its first reply."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.key = ""

    def charge(self, call: Any) -> str:
        self.key = call.key
        self.made.append(f"ch_{len(self.made) + 1}")
        if len(self.made) == 1:
            raise TimeoutError("the reply is lost")
        call.provider_id = self.made[-1]
        return self.made[-1]


class Rides:
    """Phased work that is given its effects."""

    def __init__(self, outbox: Outbox, work: Any) -> None:
        self.outbox = outbox
        ride = outbox.idempotency.phased("ride", version=1, backoff=NO_PAUSE)(work)
        app = Starlette(routes=[Route("/rides", ride, methods=["POST"])])
        app.add_middleware(IdempotencyMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
        self._client = AsgiClient(app, outbox.loop)

    def post(self, key: str = "k") -> Any:
        return self._client.send(replace(order(key), path="/rides"))

    def go_on(self) -> None:
        self.outbox.ask("update {keys} set locked_until = 1 where state = 'in_progress'")
        self.outbox.run(Completer(self.outbox.idempotency.engine).run_once())


# ------------------------------------------------------------------ made twice


@pytest.mark.parametrize("early", [False, True], ids=["after its end", "between the sends"])
@pytest.mark.parametrize("mode", ["job", "phased"])
def test_an_effect_that_was_made_twice_is_shown_once(
    outbox: Outbox, mode: str, early: bool, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider()
    if mode == "job":

        @outbox.idempotency.job("charge", backoff=NO_PAUSE, source="acme")
        async def charge(job: Any, payload: Any) -> Response:
            return Response(201, {"charge": provider.charge(job)})

        outbox.place("charge")
        outbox.work()
    else:

        async def call(effect: Any) -> str:
            return provider.charge(effect)

        async def ride(op: Any, input: Any) -> Response:
            window = timedelta(hours=1)
            return Response(
                201, {"charge": await op.effect("charged", call, source="acme", provider_window=window)}
            )

        rides = Rides(outbox, ride)
        rides.post()

    def event(number: int, charge: str) -> str:
        value = Response(201, {}) if mode == "job" else charge
        return tell(outbox, Executed(value, charge), f"evt_{number}", downstream_key=provider.key)

    if early and mode == "job":
        event(1, "ch_1")  # whose function does not take it, and sends again
    if mode == "job":
        outbox.work()
    else:
        rides.post()
    if early and mode == "phased":
        return  # there the word is the result, and nothing is sent twice
    with caplog.at_level(logging.ERROR, "samekey"):
        event(1, "ch_1")
        assert event(2, "ch_2") == "too_late"
        assert event(3, "ch_1") == "too_late", "it is shown already"
        assert to_see_to(outbox) == {"conflict": 1}
    assert provider.made == ["ch_1", "ch_2"]
    assert sum("'ch_1'" in record.getMessage() for record in caplog.records) == 1


def test_of_one_send_a_provider_may_name_several_objects(outbox: Outbox) -> None:
    keys = []

    @outbox.idempotency.job("charge", source="acme")
    async def charge(job: Any, payload: Any) -> Response:
        keys.append(job.key)
        job.provider_id = "pi_1"
        return Response(201, {})

    outbox.place("charge")
    outbox.work()
    assert tell(outbox, Executed(Response(201, {}), "ch_1"), downstream_key=keys[0]) == "too_late"
    assert to_see_to(outbox) == {}


# ------------------------------------------------------------------ about a sister


@pytest.mark.parametrize("source", [None, "acme"])
def test_a_decline_stands_although_a_word_about_another_job_waits(outbox: Outbox, source: str | None) -> None:
    @outbox.idempotency.job("charge", backoff=NO_PAUSE, source=source)
    async def charge(job: Any, payload: Any) -> Response:
        if job.attempts == 1:
            raise ConnectionError("once more")
        job.provider_id = "ch_9"
        return Response(402, {"error": "declined"})

    @outbox.idempotency.job("parcel", backoff=NO_PAUSE, source="acme")
    async def parcel(job: Any, payload: Any) -> None:
        job.provider_id = "p_1"

    client = outbox.client("async", Act(jobs=(("charge", {}), ("parcel", {}))))
    client.send(order("k"))
    outbox.work()
    assert tell(outbox, Executed(Response(200, {}), "p_1"), provider_id="p_1") == "kept"
    outbox.work()
    assert client.send(order("k")).status == 402
    assert to_see_to(outbox) == {}


def test_a_job_that_was_discarded_takes_no_other_ones_words(outbox: Outbox) -> None:
    @outbox.idempotency.job("charge", source="acme")
    async def charge(job: Any, payload: Any) -> Response:
        job.provider_id = "ch_1"
        return Response(201, {})

    @outbox.idempotency.job("report", max_attempts=1)
    async def report(job: Any, payload: Any) -> None:
        raise ValueError("a bug; it calls nobody")

    outbox.client("async", Act(jobs=(("charge", {}), ("report", {})))).send(order("k"))
    outbox.work()
    engine, who = outbox.idempotency.engine, Actor("ann", "a bug")
    (dead,) = [job for job in outbox.jobs() if job.state == "dead"]
    discard = engine.store.tables.operator.discard_dead_job
    assert run(engine.drivers.sync, lambda: discard(dead.id, Answer(500), who))
    assert tell(outbox, Executed(Response(200, {}), "ch_1"), provider_id="ch_1") == "too_late"


def test_one_event_may_tell_of_two_objects(outbox: Outbox) -> None:
    found_out = []

    def define(name: str, made: str) -> None:
        @outbox.idempotency.job(name, backoff=LONG, source="acme")
        async def call(job: Any, payload: Any, *, found: Any = None) -> Response:
            if found is None:
                job.provider_id = made
                raise ConnectionError("the reply is lost")
            found_out.append((name, found.provider_id))
            return Response(201, {name: found.provider_id})

    define("charge", "ch_1")
    define("transfer", "tr_1")
    client = outbox.client("async", Act(jobs=(("charge", {}), ("transfer", {}))))
    client.send(order("k"))
    outbox.work()
    for made in ("ch_1", "tr_1"):
        answer = Response(201, {"made": made})
        assert tell(outbox, Executed(answer, made), "batch_1", provider_id=made) == "kept"
        assert tell(outbox, Executed(answer, made), "batch_1", provider_id=made) == "duplicate"
    outbox.work()
    assert sorted(found_out) == [("charge", "ch_1"), ("transfer", "tr_1")]
    assert client.send(order("k")).json() == {"charge": "ch_1"}


# ------------------------------------------------------------------ phased work


@pytest.mark.parametrize("during", [True, False], ids=["during the call", "after it"])
def test_what_was_taken_back_is_sent_again_whatever_is_said_of_what_is_done(
    outbox: Outbox, during: bool
) -> None:
    transfers = []

    async def hear() -> None:
        await outbox.idempotency.resolve_async(
            Executed("ch_1", "ch_1"),
            source="acme",
            event_id="charged",
            tenant="ann",
            occurred_at=datetime.now(UTC),
            verify=lambda: True,
            provider_id="ch_1",
        )

    async def charge(effect: Any) -> str:
        effect.provider_id = "ch_1"
        return "ch_1"

    async def transfer(effect: Any) -> str:
        transfers.append(effect.key)
        if len(transfers) == 1:
            if during:
                await hear()
            raise NotExecuted("429: nothing was done")
        effect.provider_id = "tr_1"
        return "tr_1"

    async def ride(op: Any, input: Any) -> Response:
        await op.effect("charged", charge, source="acme")
        return Response(201, {"transfer": await op.effect("transferred", transfer, source="acme")})

    rides = Rides(outbox, ride)
    rides.post()
    if not during:
        outbox.run(hear())
    rides.go_on()
    assert rides.post().json() == {"transfer": "tr_1"}
    assert len(transfers) == 2 and to_see_to(outbox) == {}


def test_what_happened_before_an_effect_was_sent_is_not_its_result(outbox: Outbox) -> None:
    """One object for two effects: the authorisation's event, delivered late, is no capture. Nor is what
    happened after it, unless it names the effect: money that was set aside is not money that was taken."""
    keys = []

    async def authorise(effect: Any) -> str:
        effect.provider_id = "pi_1"
        return "pi_1"

    async def capture(effect: Any) -> str:
        keys.append(effect.key)
        effect.provider_id = "pi_1"  # known before the call
        raise ConnectionError("nobody knows whether it was sent")

    async def ride(op: Any, input: Any) -> Response:
        await op.effect("authorised", authorise, source="acme")
        return Response(201, {"captured": await op.effect("captured", capture, source="acme")})

    rides = Rides(outbox, ride)
    rides.post()
    for table, moment in (("keys", "created_at"), ("effects", "sent_at")):
        name = f"samekey.{table}" if outbox.dialect == "postgres" else f"samekey_{table}"
        minute = 60_000 if table == "effects" else -60_000
        where = "where step = 'captured'" if table == "effects" else ""
        outbox.ask(f"update {name} set {moment} = {moment} + {minute} {where}")
    assert tell(outbox, Executed("authorised", "pi_1"), provider_id="pi_1") == "too_late"
    assert outbox.states()[0][0] == "unknown"
    later = datetime.now(UTC) + timedelta(minutes=2)
    outbox.ask(f"update {name} set sent_at = sent_at - 60000 where step = 'captured'")
    captured = Executed("captured", "pi_1")
    assert tell(outbox, captured, "evt_2", provider_id="pi_1", occurred_at=later) == "unplaced"
    assert outbox.states()[0][0] == "unknown"
    assert tell(outbox, captured, "evt_2", downstream_key=keys[0], occurred_at=later) == "resolved"


def test_a_yes_after_a_decline_is_shown_also_while_the_work_goes_on(outbox: Outbox) -> None:
    keys = []

    async def charge(effect: Any) -> str:
        keys.append(effect.key)
        raise TimeoutError("the reply is lost")

    async def ride(op: Any, input: Any) -> Response:
        return Response(402, {"declined": await op.effect("charged", charge, source="acme")})

    rides = Rides(outbox, ride)
    rides.post()
    assert tell(outbox, Declined("no funds"), "failed", downstream_key=keys[0]) == "resolved"
    assert outbox.states()[0][0] == "in_progress"
    assert tell(outbox, Executed("paid", "ch_1"), "paid", downstream_key=keys[0]) == "too_late"
    assert to_see_to(outbox) == {"conflict": 1}


# ------------------------------------------------------------------ an object that several operations share


def test_an_event_that_tells_each_of_several_operations_what_it_knows_is_nobodys_to_see_to(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    @outbox.idempotency.job("renew", source="acme")
    async def renew(job: Any, payload: Any) -> Response:
        job.provider_id = "sub_42"
        return Response(201, {})

    for month in ("may", "june"):
        outbox.place("renew", {}, key=month)
    outbox.work()
    assert tell(outbox, Executed(Response(201, {}), "sub_42"), provider_id="sub_42") == "too_late"
    assert to_see_to(outbox) == {} and "fits" not in caplog.text


def test_an_event_that_fits_several_operations_stops_none_that_has_its_object_already(outbox: Outbox) -> None:
    async def customer(effect: Any) -> str:
        effect.provider_id = "cus_42"
        return "cus_42"

    async def charge(effect: Any) -> str:
        if len(charged) == 1:
            tell_now.append(
                await outbox.idempotency.resolve_async(
                    Executed("cus_42", "cus_42"),
                    source="acme",
                    event_id="customer_updated",
                    tenant="ann",
                    occurred_at=datetime.now(UTC),
                    verify=lambda: True,
                    provider_id="cus_42",
                )
            )
        charged.append(effect.key)
        return f"ch_{len(charged)}"

    async def mail(effect: Any) -> str:
        return "sent"

    async def ride(op: Any, input: Any) -> Response:
        await op.effect("customer", customer, source="acme")
        got = await op.effect("charged", charge, source="acme")
        await op.effect("mailed", mail, source="mail", provider_window=timedelta(hours=1))
        return Response(201, {"charge": got})

    charged: list[str] = []
    tell_now: list[Any] = []
    rides = Rides(outbox, ride)
    assert rides.post("first").json() == {"charge": "ch_1"}
    assert rides.post("second").json() == {"charge": "ch_2"}
    assert len(tell_now) == 1

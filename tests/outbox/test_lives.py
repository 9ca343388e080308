"""A key is not used again while something of its operation is left: a job to run, or one to be seen."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from samekey import Executed, Idempotency, Response, ietf
from samekey.cli.app import app as cli
from samekey.core.program import Program, Statement
from samekey.drivers.run import run
from samekey.stores.sql.upkeep import Upkeep
from samekey.workers.reaper import Reaper
from tests.outbox.world import NO_PAUSE, Act, Kind, Outbox, order, status_of

LATER = timedelta(days=3)
Reaped = Literal["not reaped", "reaped", "reaped softly"]


class Shop:
    """Charges, and gives a deposit back three days later; the provider recognises downstream keys."""

    def __init__(self, outbox: Outbox, kind: Kind = "async") -> None:
        self.outbox = outbox
        self.made: dict[str, str] = {}
        self.answers = True
        idempotency = outbox.idempotency

        @idempotency.job("charge", backoff=NO_PAUSE)
        async def charge(job: Any, _payload: Any) -> dict[str, int]:
            job.enqueue("deposit_back", {}, delay=LATER)
            return {"charged": 100}

        @idempotency.job("deposit_back", max_attempts=1, source="acme", backoff=NO_PAUSE)
        async def deposit_back(job: Any, _payload: Any) -> dict[str, str]:
            job.provider_id = self.made.setdefault(job.key, f"re_{len(self.made) + 1}")
            if not self.answers:
                raise ConnectionError("the answer was lost")
            job.enqueue("receipt", {}, delay=LATER)
            return {"id": job.provider_id}

        @idempotency.job("receipt", backoff=NO_PAUSE)
        async def receipt(_job: Any, _payload: Any) -> None:
            return None

        self.client = outbox.client(kind, Act(jobs=(("charge", {}),)))
        self.worker = outbox.worker()

    def work(self, *, due: bool = False) -> None:
        async def round_() -> None:
            await self.worker.run_once()
            await self.worker.drain()

        if due:
            self.outbox.make_due()
        self.outbox.run(round_())

    def wait_past_retention(self) -> None:
        day = int(timedelta(hours=25).total_seconds() * 1000)
        times = ("created_at", "last_run_at", "completed_at", "expires_at")
        self.outbox.ask(f"update {{keys}} set {', '.join(f'{name} = {name} - {day}' for name in times)}")

    def left(self) -> list[tuple[str, str]]:
        return sorted((job.name, job.state) for job in self.outbox.jobs() if job.state in ("live", "dead"))

    def operations(self) -> list[tuple[Any, ...]]:
        return self.outbox.ask("select state, life from {keys}")


def reap(outbox: Outbox, how: Reaped) -> None:
    if how != "not reaped":
        outbox.run(Reaper(outbox.idempotency.engine, soft=how == "reaped softly").run_once())


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("how", ["not reaped", "reaped", "reaped softly"])
def test_a_retry_gets_the_old_answer_while_a_job_is_to_run(outbox: Outbox, kind: Kind, how: Reaped) -> None:
    shop = Shop(outbox, kind)
    location = shop.client.send(order("k")).header("location")
    shop.work()
    answer = shop.client.send(order("k"))
    assert (answer.status, answer.replayed) == (200, True)
    shop.wait_past_retention()
    reap(outbox, how)
    again = shop.client.send(order("k"))
    assert (again.status, again.replayed, again.body) == (200, True, answer.body)
    assert shop.client.send(status_of(location)).status == 200
    other = shop.client.send(order("k", body={"item": "tea"}))
    assert other.status == 422, "the key still means what it meant"
    assert shop.left() == [("deposit_back", "live")]
    shop.work(due=True)
    assert shop.left() == [("receipt", "live")], "what a job of it enqueues after its retention keeps it, too"
    reap(outbox, how)
    assert shop.client.send(order("k")).body == answer.body
    shop.work(due=True)
    assert shop.left() == []
    assert list(shop.made.values()) == ["re_1"]
    reap(outbox, how)
    new = shop.client.send(order("k"))
    assert (new.status, new.replayed) == (202, False), "nothing of it is left: the key is free"
    assert len(shop.operations()) == 1


@pytest.mark.parametrize("how", ["not reaped", "reaped", "reaped softly"])
def test_a_dead_letter_keeps_its_key_and_hears_what_the_provider_says_of_it(
    outbox: Outbox, how: Reaped
) -> None:
    shop = Shop(outbox)
    shop.client.send(order("k"))
    shop.work()
    shop.answers = False
    shop.work(due=True)
    shop.wait_past_retention()
    reap(outbox, how)
    assert shop.left() == [("deposit_back", "dead")]
    assert shop.client.send(order("k")).replayed
    said = outbox.run(
        outbox.idempotency.resolve_async(
            Executed(Response(200, {"id": "re_1"})),
            source="acme",
            event_id="e1",
            tenant="ann",
            provider_id="re_1",
            occurred_at=datetime.now(UTC),
            verify=lambda: True,
        )
    )
    assert str(said) == "resolved"
    assert shop.left() == []
    assert shop.client.send(order("k")).status == 202


def test_the_end_of_a_key_that_is_to_be_gone_waits_as_well(
    outbox: Outbox,
) -> None:
    outbox.close()
    outbox.idempotency = Idempotency(outbox.url, policy=ietf(after_expiry="gone"))
    shop = Shop(outbox)
    shop.client.send(order("k"))
    shop.work()
    shop.wait_past_retention()
    reap(outbox, "reaped")
    assert shop.client.send(order("k")).status == 200
    for _ in range(2):
        shop.work(due=True)
    reap(outbox, "reaped")
    assert shop.client.send(order("k")).status == 410


def test_an_operator_is_shown_why_it_is_kept(outbox: Outbox) -> None:
    shop = Shop(outbox)
    shop.client.send(order("k"))
    shop.work()
    shop.wait_past_retention()
    found = CliRunner().invoke(cli, ["keys", "show", "--url", outbox.url, "--tenant", "ann", "--key", "k"])
    assert found.exit_code == 0, found.output
    assert "something of it is left: job 'deposit_back' is live" in " ".join(found.output.split())
    asked = ["keys", "show", "--url", outbox.url, "--tenant", "ann", "--key", "k", "--json"]
    told = json.loads(CliRunner().invoke(cli, asked).output)
    assert told["kept_by"] == [{"kind": "job", "name": "deposit_back", "state": "live"}]


def test_only_what_has_expired_is_asked_about(outbox: Outbox) -> None:
    """A key that is new or alive costs no statement more."""
    shop = Shop(outbox)
    said: list[str] = []
    driver = outbox.idempotency.engine.drivers
    engine = outbox.idempotency.engine
    shop.client.send(order("k"))
    shop.work()
    [(scope, key)] = outbox.ask("select scope, key from {keys}".replace("key f", _key(outbox) + " f"))

    def counted(program: Program[Any]) -> Program[Any]:
        answer: Any = None
        try:
            while True:
                step = program.send(answer)
                if isinstance(step, Statement):
                    said.append(step.name)
                answer = yield step
        except StopIteration as end:
            return end.value

    from samekey.testing.conformance import new_claim

    claim = new_claim(scope=_text(scope), key=_text(key))
    run(driver.sync, lambda: counted(engine.keys.look(claim, engine.policy)))
    assert said == ["find"]
    shop.wait_past_retention()
    said.clear()
    run(driver.sync, lambda: counted(engine.keys.look(claim, engine.policy)))
    assert said == ["find", "unfinished"]


def _key(outbox: Outbox) -> str:
    return outbox.idempotency.engine.queries.column("key")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_the_reaper_counts_only_what_may_go(outbox: Outbox) -> None:
    shop = Shop(outbox)
    shop.client.send(order("k"))
    shop.work()
    shop.wait_past_retention()
    upkeep = Upkeep(outbox.idempotency.engine.store.tables.keys)
    assert run(outbox.idempotency.engine.drivers.sync, upkeep.to_reap) == {}

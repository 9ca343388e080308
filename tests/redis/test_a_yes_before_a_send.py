"""Key stores too: once a provider has said that it happened, its key is never free, whoever would free it.

They keep no events. What they keep is that there was one, with the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import product

import pytest

from lab.servers.dynamodb import CREDENTIALS
from lab.servers.dynamodb import find_server as find_dynamodb
from lab.servers.redis_server import find_server as find_redis
from samekey import Executed, Idempotency, NotExecuted, Resolution, Response
from samekey.core.claim import Claim
from samekey.core.decide import Execute
from samekey.core.effects import NOTHING_SENT, Sent, SentStep
from samekey.core.record import Record
from samekey.core.states import Mode, State
from samekey.drivers.run import run
from samekey.errors import Contradicted
from samekey.stores.protocols import Actor
from tests.chosen import whole
from tests.dynamodb.conftest import migrated
from tests.operator.world import DAY, HOUR, MINUTE, claim_of

pytestmark = whole


OPERATOR = Actor("alice", "looked at the dashboard")
PAID = Executed(Response(201, {"paid": 1}))


@pytest.fixture(scope="module", params=["redis", "dynamodb"])
def node(request: pytest.FixtureRequest) -> Iterator[Idempotency]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        if request.param == "redis":
            with find_redis() as redis:
                made = Idempotency(redis.url)
                yield made
                made.close()
        else:
            with find_dynamodb() as dynamodb:
                made = Idempotency(migrated(dynamodb.url()))
                yield made
                made.close()


KINDS: dict[str, tuple[Mode, tuple[str, ...]]] = {
    "one step": (Mode.LEASED, ("",)),
    "repeatable": (Mode.REPEATABLE, ("",)),
    "two steps": (Mode.LEASED, ("authorise", "capture")),
    "nothing noted": (Mode.LEASED, ()),
}


class Work:
    def __init__(self, node: Idempotency, kind: str) -> None:
        self.node = node
        mode, self.steps = KINDS[kind]
        claim = claim_of(secrets.token_hex(8), mode, MINUTE, DAY, "acme", "POST /payments")
        self.claim = claim_with_id(node, claim)
        decision = run(
            node.engine.drivers.sync, lambda: node.engine.keys.claim(self.claim, node.engine.policy)
        )
        assert isinstance(decision, Execute)
        self.record = decision.record
        self.lease = self.record.lease(MINUTE)

    @property
    def sent(self) -> Sent:
        steps = [SentStep(step, self.record.downstream_key(step), None, "psp") for step in self.steps]
        return Sent(tuple(steps)) if steps else NOTHING_SENT

    def read(self) -> Record | None:
        return run(
            self.node.engine.drivers.sync,
            lambda: self.node.engine.keys.read(self.claim.scope, self.claim.key),
        )

    def tell(self, evidence: object, event_id: str, downstream_key: str) -> Resolution:
        return self.node.resolve(
            evidence,  # type: ignore[arg-type]
            source="psp",
            event_id=event_id,
            tenant=None,
            occurred_at=datetime.now(UTC),
            verify=lambda: True,
            downstream_key=downstream_key,
        )

    def told(self) -> None:
        """By a key of this operation's that nobody here knows."""
        resolution = self.tell(PAID, "yes", self.record.downstream_key("strange"))
        assert resolution in (Resolution.TOO_EARLY, Resolution.UNPLACED)

    def fail(self) -> None:
        run(
            self.node.engine.drivers.sync, lambda: self.node.engine.keys.fail(self.lease, "x", sent=self.sent)
        )

    def lose(self) -> None:
        run(
            self.node.engine.drivers.sync, lambda: self.node.engine.keys.lose(self.lease, "x", sent=self.sent)
        )

    def release(self) -> None:
        run(self.node.engine.drivers.sync, lambda: self.node.engine.keys.release(self.lease))

    def sweep(self) -> None:
        now = self.record.created_at + HOUR
        run(self.node.engine.drivers.sync, lambda: self.node.engine.store.tending.sweep(batch=1000, now=now))

    def an_operator(self) -> None:
        self.lose()
        record = self.read()
        assert record is not None
        with contextlib.suppress(Contradicted):
            run(
                self.node.engine.drivers.sync,
                lambda: self.node.engine.resolver.apply(record, NotExecuted, OPERATOR),
            )

    def another_event(self) -> None:
        self.lose()
        for step in self.steps or ("",):
            self.tell(NotExecuted, f"no {step}", self.record.downstream_key(step))

    def runs(self) -> bool:
        """Now, or after every retention, in whatever mode."""
        created, policy = self.record.created_at, self.node.engine.policy
        for mode, at in product((Mode.LEASED, Mode.REPEATABLE), (2 * HOUR, 40 * DAY)):
            claim = claim_of(self.claim.key, mode, MINUTE, DAY, "acme", "POST /payments")
            again = claim_with_id(self.node, claim)
            found = run(
                self.node.engine.drivers.sync,
                lambda again=again, at=at: self.node.engine.keys.claim(again, policy, now=created + at),  # type: ignore[misc]
            )
            if isinstance(found, Execute):
                return True
        return False


def claim_with_id(node: Idempotency, claim: Claim) -> Claim:
    return dataclasses.replace(claim, id=node.engine.keys.operation_id(claim.id, claim.scope, claim.key))


WAYS: dict[str, Callable[[Work], None]] = {
    "its holder says that nothing happened": Work.fail,
    "its holder releases it": Work.release,
    "its lease ends": Work.sweep,
    "nobody sees to it": lambda work: None,  # the retry itself finds that its lease has ended
    "an operator says so": Work.an_operator,
    "another event says so": Work.another_event,
}


@pytest.mark.parametrize(("kind", "way"), [*product(KINDS, WAYS)])
def test_a_yes_that_comes_while_it_runs(node: Idempotency, kind: str, way: str) -> None:
    work = Work(node, kind)
    work.told()
    WAYS[way](work)
    assert work.read() is not None
    assert not work.runs()


@pytest.mark.parametrize(("kind", "way"), [one for one in product(KINDS, WAYS) if "releases" not in one[1]])
def test_a_yes_that_comes_when_the_key_is_free(node: Idempotency, kind: str, way: str) -> None:
    work = Work(node, kind)
    WAYS[way](work)
    work.told()
    assert not work.runs()


def test_an_operator_names_the_event_that_he_sets_aside(node: Idempotency) -> None:
    work = Work(node, "two steps")
    work.fail()
    work.told()
    record = work.read()
    assert record is not None and record.state is State.UNKNOWN
    apply, driver = node.engine.resolver.apply, node.engine.drivers.sync
    with pytest.raises(Contradicted, match="'psp:yes'"):
        run(driver, lambda: apply(record, NotExecuted, OPERATOR, despite=["psp:another"]))
    assert run(driver, lambda: apply(record, NotExecuted, OPERATOR, despite=["psp:yes"])) is True
    assert work.runs()

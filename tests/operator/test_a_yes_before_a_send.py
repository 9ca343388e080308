"""A provider's yes is never ignored on the way to a send.

Every kind of work, every way in which an event can name it, every way in which its key could become free,
before the event or after it. Whatever combination that is: once a provider has said that it happened, nothing
is sent under that key, in any mode, and its record stays, until somebody has settled or dismissed the word.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from lab.processes import wait_until
from samekey import ConfigurationError, Evidence, Executed, NotExecuted, Resolution, Response
from samekey.core.decide import Execute
from samekey.core.effects import NOTHING_SENT, Sent, SentStep
from samekey.core.program import Program
from samekey.core.record import Record
from samekey.core.states import Mode
from samekey.drivers.run import run_in
from samekey.engine.evidence.said import Said
from samekey.errors import Contradicted
from samekey.stores.protocols import Actor
from samekey.stores.sql.phases import Disputed, StoredInput
from samekey.workers.reconciler import Reconciler
from tests.chosen import some, stores
from tests.operator.world import DAY, HOUR, MINUTE, SOURCE, World, claim_of

OPERATOR = Actor("alice", "looked at the dashboard")
ID = "ch_1"


class Work:
    """An operation whose attempt is under way. ``sent``: what it notes with its outcome."""

    mode = Mode.LEASED
    steps: tuple[str, ...] = ("",)

    def __init__(self, world: World, key: str = "k") -> None:
        self.world = world
        self.record = world.claim(key, mode=self.mode, at=-MINUTE, lease=2 * MINUTE)
        self.lease = self.record.lease(2 * MINUTE)

    @property
    def sent(self) -> Sent:
        steps = [SentStep(step, self.record.downstream_key(step), ID, SOURCE) for step in self.steps]
        return Sent(tuple(steps)) if steps else NOTHING_SENT

    @property
    def step(self) -> str:
        return self.steps[-1] if self.steps else ""

    def says_yes(self) -> Evidence:
        return Executed(Response(201, {"paid": 1}))

    def note(self) -> None:
        """What the provider made becomes known with the outcome."""

    # The ways in which a key becomes free

    def fail(self) -> None:
        self.world.run(lambda: self.world.keys.fail(self.lease, "x", sent=self.sent))

    def release(self) -> None:
        self.world.run(lambda: self.world.keys.release(self.lease))

    def lose(self) -> None:
        self.world.run(lambda: self.world.keys.lose(self.lease, "x", provider_id=ID, sent=self.sent))

    def sweep(self) -> None:
        self.world.run(lambda: self.world.upkeep.sweep(batch=10, now=self.world.now + HOUR))


class Repeatable(Work):
    mode = Mode.REPEATABLE


class TwoSteps(Work):
    steps = ("authorise", "capture")


class NothingNoted(Work):
    steps = ()


class Phased(Work):
    mode, steps, position = Mode.PHASED, ("capture",), 0

    def __init__(self, world: World, key: str = "k") -> None:
        super().__init__(world, key)
        stored = StoredInput("book", 1, b"{}")
        world.run(lambda: world.phases.begin(self.lease, self.record.id, stored, now=world.now - MINUTE))
        self.before()
        self.intend()

    def before(self) -> None:
        """What it has done before this effect."""

    def says_yes(self) -> Evidence:
        return Executed({"paid": 1})

    def intend(self) -> None:
        programs, operation, at = self.world.phases, self.record.id, self.world.now - MINUTE
        self.world.run(
            lambda: programs.intend(self.lease, operation, self.position, "capture", source=SOURCE, now=at)
        )

    def note(self) -> None:
        programs = self.world.phases
        self.world.run(lambda: programs.note_effect(self.lease, self.record.id, "capture", ID, SOURCE))

    def fail(self) -> None:
        """As a run does it whose call said that nothing happened."""
        world = self.world
        try:
            world.run(lambda: world.phases.take_back(self.lease, self.record.id, self.position, "capture"))
        except Disputed:
            world.run(lambda: world.phases.let_go(self.lease, pause_ms=0, error_code="x"))
        else:
            self.stop()

    def stop(self) -> None:
        self.world.run(lambda: self.world.keys.fail(self.lease, "x"))

    def release(self) -> None:
        self.world.run(lambda: self.world.phases.release(self.lease, self.record.id))

    def lose(self) -> None:
        self.world.run(lambda: self.world.keys.lose(self.lease, "x"))


class HalfDone(Phased):
    position = 1

    def before(self) -> None:
        programs, operation, at = self.world.phases, self.record.id, self.world.now - MINUTE
        world, lease = self.world, self.lease
        world.run(lambda: programs.intend(lease, operation, 0, "authorise", source=SOURCE, now=at))
        world.run(lambda: programs.write_effect(lease, operation, 0, "authorise", b"1", "au_1", now=at))

    def stop(self) -> None:
        self.world.run(lambda: self.world.phases.let_go(self.lease, pause_ms=0, error_code="x"))


KINDS: dict[str, type[Work]] = {
    "one step": Work,
    "repeatable": Repeatable,
    "two steps": TwoSteps,
    "nothing noted": NothingNoted,
    "phased": Phased,
    "half done": HalfDone,
}

NAMED: dict[str, Callable[[Work], dict[str, Any]]] = {
    "by its key": lambda work: {"downstream_key": work.record.downstream_key(work.step)},
    "by a key that nobody knows": lambda work: {"downstream_key": work.record.downstream_key("strange")},
    "by the operation": lambda work: {"operation_id": work.record.id},
    "by the provider's id": lambda work: {"provider_id": ID, "tenant": "acme"},
    "by an id that two have": lambda work: {"provider_id": ID, "tenant": "acme"},
}
BY_ID = ("by the provider's id", "by an id that two have")


# ------------------------------------------------------------------ who would free the key


def an_operator(work: Work) -> None:
    work.lose()
    record = work.world.read(work.record)
    with contextlib.suppress(Contradicted):
        work.world.run(lambda: work.world.engine.engine.resolver.apply(record, NotExecuted, OPERATOR))


def a_lookup(work: Work) -> None:
    """What the provider's own search says, against its own event."""
    work.lose()
    work.world.engine.lookup("POST /payments")(lambda record: NotExecuted)
    work.world.serve(Reconciler(work.world.engine.engine).run_once)


def another_event(work: Work) -> None:
    work.lose()
    work.world.tell(NotExecuted, "no", **NAMED["by its key"](work))


WAYS: dict[str, Callable[[Work], None]] = {
    "its holder says that nothing happened": lambda work: work.fail(),
    "its holder releases it": lambda work: work.release(),
    "its lease ends": lambda work: work.sweep(),
    "an operator says so": an_operator,
    "a lookup says so": a_lookup,
    "another event says so": another_event,
}

BEFORE = [
    (kind, named, way)
    for kind, named, way in product(KINDS, NAMED, WAYS)
    # Only phased work notes an id before its outcome.
    if named not in BY_ID or kind in ("phased", "half done")
]
AFTER = [
    (kind, named, way)
    for kind, named, way in product(KINDS, NAMED, WAYS)
    # What was released is gone. Where nothing was noted, also because the process died, there is no id.
    if way != "its holder releases it"
    and not (named in BY_ID and (kind == "nothing noted" or way == "its lease ends"))
]


def always(kind: str, named: str, way: str) -> bool:
    """How an event names its work, and how the key becomes free, hardly ever matter to each other."""
    return named == "by its key" or way == "an operator says so"


def told(work: Work, named: str) -> None:
    resolution = work.world.tell(work.says_yes(), "yes", **NAMED[named](work))
    assert resolution not in (Resolution.NOT_FOUND, Resolution.TOO_LATE), resolution


def made(world: World, kind: str, named: str) -> Work:
    work = KINDS[kind](world)
    work.note()
    if named == "by an id that two have":
        other = KINDS[kind](world, "other")
        other.note()
        other.fail()
    return work


def nothing_is_sent(work: Work) -> None:
    """Now, after every retention, and in whatever mode its route is declared meanwhile."""
    world = work.world
    if world.read(work.record).state == "completed":
        return  # settled
    world.run(lambda: world.upkeep.reap(batch=10, now=world.now + 30 * DAY))
    assert world.find(work.record) is not None, "what a provider says has happened is not forgotten"
    for mode, at in product(Mode, (2 * HOUR, 40 * DAY)):
        before = world.read(work.record)
        claim = claim_of(work.record.key, mode, MINUTE, DAY, "acme", "POST /payments")
        found = world.run(
            lambda claim=claim, at=at: world.keys.claim(  # type: ignore[misc]
                claim, world.engine.engine.policy, now=world.now + at
            )
        )
        if isinstance(found, Execute):
            assert (before.mode, before.state) == ("phased", "in_progress"), (mode, before.state)
            no_effect_is_sent(work, found.record)


def no_effect_is_sent(work: Work, record: Record) -> None:
    """Phased work goes on, and comes to its effect again: has that its result, or may it not be sent?"""
    assert isinstance(work, Phased)
    world, programs, lease = work.world, work.world.phases, record.lease(MINUTE)
    recorded = world.run(lambda: programs.load(record.id)).phases
    phase = next((one for one in recorded if one.position == work.position), None)
    if phase is not None and phase.done:
        return
    sends: list[Callable[..., Program[None]]] = [programs.intend]
    if phase is not None:
        sends = [programs.intend_again, programs.intend_anew]
    for send in sends:
        with pytest.raises(Disputed):
            world.run(lambda send=send: send(lease, record.id, work.position, "capture"))  # type: ignore[misc]
    world.run(lambda: programs.let_go(lease, pause_ms=0, error_code="x"))


def before(world: World, kind: str, named: str, way: str) -> None:
    work = made(world, kind, named)
    told(work, named)
    WAYS[way](work)
    nothing_is_sent(work)


def after(world: World, kind: str, named: str, way: str) -> None:
    work = made(world, kind, named)
    WAYS[way](work)
    told(work, named)
    nothing_is_sent(work)


@pytest.mark.parametrize(("kind", "named", "way"), some(BEFORE, always))
def test_a_yes_that_comes_while_it_runs(lite: World, kind: str, named: str, way: str) -> None:
    before(lite, kind, named, way)


@pytest.mark.parametrize(("kind", "named", "way"), some(AFTER, always))
def test_a_yes_that_comes_when_the_key_is_free(lite: World, kind: str, named: str, way: str) -> None:
    after(lite, kind, named, way)


@pytest.mark.parametrize(
    ("store_url", "kind", "way"),
    some(
        product(("postgres", "mariadb"), KINDS, WAYS),  # SQLite has heard of it above
        lambda store, kind, way: store == "postgres" and kind in ("one step", "half done"),
    ),
    indirect=["store_url"],
)
@pytest.mark.parametrize("when", [before, after])
def test_every_other_store_hears_of_it(world: World, when: Callable[..., None], kind: str, way: str) -> None:
    """How an event names its operation is not the store's business; what the statements do is."""
    named = "by a key that nobody knows"
    if (kind, named, way) in (BEFORE if when is before else AFTER):
        when(world, kind, named, way)


@pytest.mark.parametrize(
    ("kind", "way"), some(product(KINDS, WAYS), lambda kind, way: kind in ("one step", "half done"))
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_yes_whose_answer_cannot_be_used(world: World, when: str, kind: str, way: str) -> None:
    """What is wrong is the answer, and not that it happened."""
    if (kind, "by its key", way) not in (BEFORE if when == "before" else AFTER):
        return
    work = made(world, kind, "by its key")
    if when == "after":
        WAYS[way](work)
    wrong = Executed(Response(201) if work.mode is Mode.PHASED else {"paid": 1})
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            world.tell(wrong, "yes", **NAMED["by its key"](work))
    if when == "before":
        WAYS[way](work)
    assert world.read(work.record).state != "completed"
    nothing_is_sent(work)


# ------------------------------------------------------------------ and when somebody has seen to it


def test_what_an_operator_dismisses_stops_nobody_any_more(world: World) -> None:
    work = TwoSteps(world)
    work.fail()
    told(work, "by a key that nobody knows")
    assert world.read(work.record).state == "unknown"
    effects = world.engine.engine.store.tables.effects
    assert world.run(lambda: effects.dismiss(SOURCE, "yes", OPERATOR, work.record.id)) is True
    record = world.read(work.record)
    assert world.run(lambda: world.engine.engine.resolver.apply(record, NotExecuted, OPERATOR)) is True
    assert world.read(work.record).state == "failed_retryable"


def test_an_operator_may_say_otherwise_despite_events_that_he_names(world: World) -> None:
    work = TwoSteps(world)
    work.lose()
    told(work, "by its key")
    record, resolver = world.read(work.record), world.engine.engine.resolver
    with pytest.raises(Contradicted, match="'cards:yes'"):
        world.run(lambda: resolver.apply(record, NotExecuted, OPERATOR, despite=["cards:another"]))
    assert world.run(lambda: resolver.apply(record, NotExecuted, OPERATOR, despite=["cards:yes"])) is True
    assert world.read(work.record).state == "failed_retryable"
    assert world.tell(work.says_yes(), "yes", **NAMED["by its key"](work)) is Resolution.DUPLICATE
    assert world.read(work.record).state == "failed_retryable"


def test_a_lookup_that_contradicts_the_provider_s_event_is_a_dead_letter(world: World) -> None:
    work = TwoSteps(world)
    told(work, "by its key")
    a_lookup(work)
    assert world.read(work.record).state == "dead_letter"
    assert "contradicts" in str(world.timeline(work.record)[-1].reason)


def test_a_word_that_comes_before_the_reply_does_not_stop_what_comes_after(world: World) -> None:
    """The usual order: the webhook is faster than the provider's own answer."""
    work = Phased(world)
    told(work, "by its key")
    programs, lease, operation = world.phases, work.lease, work.record.id
    world.run(lambda: programs.write_effect(lease, operation, 0, "capture", b"1", ID))
    world.run(lambda: programs.intend(lease, operation, 1, "receipt"))
    assert world.run(world.engine.engine.store.tables.effects.unused) == []


def test_an_effect_that_was_taken_back_and_another_in_its_place(world: World) -> None:
    """Both may have been carried out: nothing more is sent, whatever is said of the second."""
    work = Phased(world)
    programs, lease, operation = world.phases, work.lease, work.record.id
    world.run(lambda: programs.take_back(lease, operation, 0, "capture"))
    world.run(lambda: programs.intend(lease, operation, 0, "fallback", source=SOURCE))
    world.run(lambda: world.keys.lose(lease, "x"))
    told(work, "by its key")
    sent = work.record.downstream_key("fallback")
    assert world.tell(NotExecuted, "no", at=MINUTE, downstream_key=sent) is Resolution.KEPT
    assert world.read(work.record).state == "unknown"


# ------------------------------------------------------------------ at the same time


# SQLite has one writer.
@pytest.mark.parametrize("store_url", stores("postgres", "mariadb", first=1), indirect=True)
@pytest.mark.parametrize("way", ["fail", "release"])
def test_a_yes_that_is_being_noted_while_the_key_becomes_free(world: World, way: str) -> None:
    """The word is not committed yet when the holder's statement begins: it waits, and sees it."""
    work = TwoSteps(world)
    said = Said(work.says_yes(), SOURCE, "yes", world.now, work.record.downstream_key("capture"))
    session = world.engine.engine.drivers.sync.open()
    assert run_in(session, world.engine.engine.resolver.receive(said, work.record.id)) is Resolution.KEPT
    freeing = threading.Thread(target=getattr(work, way), daemon=True)
    freeing.start()
    waiting = {
        "postgres": "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        " and datname = current_database()",
        "mysql": "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'",
    }[world.engine.engine.drivers.dialect]
    try:
        # InnoDB shows the same for a tenth of a second, however often it is asked within that.
        wait_until(lambda: world.sql(waiting)[0][0] > 0, interval=0.2)
    finally:
        session.commit()
    freeing.join(20)
    assert world.read(work.record).state == "unknown"
    nothing_is_sent(work)

"""Evidence × state, as one table for each kind of work: what a provider's event may do, and what it never
does.

Every cell is told once and once more, before its state and after it. The invariant: no effect twice, no
settled record moved, nothing foreign stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from samekey import Declined, Evidence, Executed, NotExecuted, Resolution, Response
from samekey.core.claim import downstream_key
from samekey.core.effects import Sent, SentStep
from samekey.core.program import BEGIN, Program
from samekey.core.record import Record
from samekey.core.states import Mode
from samekey.stores.protocols import Actor
from samekey.stores.sql.jobs import Job, Taking
from samekey.stores.sql.phases import Disputed, StoredInput
from samekey.workers.reconciler import Reconciler
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, SOURCE, World, claim_of

LEASED = """
    about          state      executed              declined              not executed
    right          running    kept                  kept                  kept
    right          unknown    resolved completed    resolved completed    resolved retryable
    right          dead       resolved completed    resolved completed    resolved retryable
    right          failed     resolved completed    resolved completed    too_late retryable
    right          completed  too_late completed    too_late completed    too_late completed
    other attempt  running    kept                  kept                  kept
    other attempt  unknown    resolved completed    too_late unknown      too_late unknown
    other attempt  dead       resolved completed    too_late dead_letter  too_late dead_letter
    other attempt  failed     resolved completed    too_late retryable    too_late retryable
    other attempt  completed  too_late completed    too_late completed    too_late completed
    other step     unknown    unplaced unknown      unplaced unknown      unplaced unknown
    other step     dead       unplaced dead_letter  unplaced dead_letter  unplaced dead_letter
    other step     failed     unplaced unknown      unplaced retryable    unplaced retryable
    other step     completed  too_late completed    too_late completed    too_late completed
    other tenant   unknown    not_found unknown     not_found unknown     not_found unknown
    other tenant   dead       not_found dead_letter not_found dead_letter not_found dead_letter
    other tenant   failed     not_found retryable   not_found retryable   not_found retryable
    other tenant   completed  not_found completed   not_found completed   not_found completed
    other source   unknown    unplaced  unknown     not_found unknown     not_found unknown
    other source   dead       unplaced  dead_letter not_found dead_letter not_found dead_letter
    other source   failed     unplaced  unknown     not_found retryable   not_found retryable
    other source   completed  not_found completed   not_found completed   not_found completed
"""
PHASED = """
    about          state      executed              declined              not executed
    right          running    kept                  kept                  kept
    right          unknown    resolved in_progress  resolved in_progress  resolved retryable
    right          dead       resolved in_progress  resolved in_progress  resolved retryable
    right          failed     resolved in_progress  resolved in_progress  too_late retryable
    right          completed  too_late completed    too_late completed    too_late completed
    other attempt  running    kept                  kept                  kept
    other attempt  unknown    resolved in_progress  too_late unknown      too_late unknown
    other attempt  dead       resolved in_progress  too_late dead_letter  too_late dead_letter
    other attempt  failed     resolved in_progress  too_late retryable    too_late retryable
    other attempt  completed  too_late completed    too_late completed    too_late completed
    other step     running    unplaced in_progress  unplaced in_progress  unplaced in_progress
    other step     unknown    unplaced unknown      unplaced unknown      unplaced unknown
    other step     dead       unplaced dead_letter  unplaced dead_letter  unplaced dead_letter
    other step     failed     unplaced unknown      unplaced retryable    unplaced retryable
    other step     completed  too_late completed    too_late completed    too_late completed
    other tenant   failed     not_found retryable   not_found retryable   not_found retryable
    other source   failed     unplaced  unknown     not_found retryable   not_found retryable
"""
HALF_DONE = """
    about          state      executed              declined              not executed
    right          running    kept                  kept                  kept
    right          unknown    resolved in_progress  resolved in_progress  resolved in_progress
    right          dead       resolved in_progress  resolved in_progress  resolved in_progress
    right          completed  too_late completed    too_late completed    too_late completed
    other attempt  running    kept                  kept                  kept
    other attempt  unknown    resolved in_progress  too_late unknown      too_late unknown
    other attempt  dead       resolved in_progress  too_late dead_letter  too_late dead_letter
    other attempt  completed  too_late completed    too_late completed    too_late completed
    other step     running    too_late in_progress  too_late in_progress  too_late in_progress
    other step     unknown    too_late unknown      too_late unknown      too_late unknown
    other step     dead       too_late dead_letter  too_late dead_letter  too_late dead_letter
    other step     completed  too_late completed    too_late completed    too_late completed
    other tenant   running    not_found in_progress not_found in_progress not_found in_progress
    other tenant   unknown    not_found unknown     not_found unknown     not_found unknown
    other tenant   dead       not_found dead_letter not_found dead_letter not_found dead_letter
    other source   running    unplaced  in_progress not_found in_progress not_found in_progress
    other source   unknown    unplaced  unknown     not_found unknown     not_found unknown
    other source   dead       unplaced  dead_letter not_found dead_letter not_found dead_letter
"""
DEFERRED = """
    about          state      executed              declined              not executed
    right          running    kept                  kept                  kept
    right          dead       resolved completed    resolved completed    kept dead_letter
    right          completed  too_late completed    too_late completed    too_late completed
    other attempt  running    kept                  kept                  kept
    other attempt  dead       resolved completed    too_late dead_letter  too_late dead_letter
    other attempt  completed  too_late completed    too_late completed    too_late completed
    other step     running    kept pending          kept pending          kept pending
    other step     dead       kept dead_letter      kept dead_letter      kept dead_letter
    other step     completed  kept completed        kept completed        kept completed
    other tenant   running    not_found pending     not_found pending     not_found pending
    other tenant   dead       not_found dead_letter not_found dead_letter not_found dead_letter
    other source   running    unplaced  pending     not_found pending     not_found pending
    other source   dead       unplaced  dead_letter not_found dead_letter not_found dead_letter
"""
"""What is told, and what the record is then. A kept word about running work is told what becomes of it
below."""

TABLES = {"leased": LEASED, "phased": PHASED, "half done": HALF_DONE, "deferred": DEFERRED}
SAID = ("executed", "declined", "not executed")


@dataclass(frozen=True, slots=True)
class Cell:
    work: str
    about: str
    state: str
    said: str
    resolution: str
    becomes: str | None

    def __str__(self) -> str:
        return f"{self.work}, {self.about}, {self.state}, {self.said}"


def cells() -> Iterator[Cell]:
    for work, table in TABLES.items():
        for line in table.strip().splitlines()[1:]:
            words = line.split()
            about = words.pop(0) if words[0] == "right" else f"{words.pop(0)} {words.pop(0)}"
            state = words.pop(0)
            for said in SAID:
                resolution = words.pop(0)
                becomes = (
                    None if state == "running" and resolution == "kept" and about != "other step" else ""
                )
                becomes = None if becomes is None else words.pop(0).replace("retryable", "failed_retryable")
                yield Cell(work, about, state, said, resolution, becomes)


CELLS = list(cells())


def evidence_of(work: str, said: str) -> Evidence:
    if said == "not executed":
        return NotExecuted
    kind = Executed if said == "executed" else Declined
    if work in ("phased", "half done"):
        return kind({"said": said})
    return kind(Response(201 if said == "executed" else 402, {"said": said}))


# ------------------------------------------------------------------ work, up to the moment that matters

BEFORE, AFTER = -HOUR, MINUTE
"""The first attempt was an hour ago, the present one begins now, and events about it happen after it
began."""


class Work:
    """One operation whose present attempt has been sent. ``end`` brings it into a state."""

    step: str
    other: str

    def __init__(self, world: World, attempts: int) -> None:
        self.world = world
        self.attempts = attempts

    record: Record

    def end(self, state: str) -> None:
        raise NotImplementedError

    def key(self, step: str) -> str:
        return downstream_key(self.record.scope, self.record.key, step)


class LeasedWork(Work):
    step, other = "", "another"

    def __init__(self, world: World, attempts: int) -> None:
        super().__init__(world, attempts)
        key = "leased-key"
        if attempts > 1:
            first = world.claim(key, at=BEFORE)
            sent = self.sent(first)
            world.run(lambda: world.keys.fail(first.lease(MINUTE), "x", sent=sent, now=world.now + BEFORE))
        self.record = world.claim(key, lease=DAY)

    def sent(self, record: Record) -> Sent:
        return Sent((SentStep("", record.downstream_key(), None, SOURCE),))

    def end(self, state: str) -> None:
        world, lease, sent = self.world, self.record.lease(MINUTE), self.sent(self.record)
        if state == "completed":
            world.run(lambda: world.keys.complete(lease, ANSWER, sent=sent))
        elif state == "failed":
            world.run(lambda: world.keys.fail(lease, "x", sent=sent))
        else:
            world.run(lambda: world.keys.lose(lease, "x", sent=sent))
            if state == "dead":
                world.run(lambda: world.operator.give_up(self.record.id, Actor("reconciler")))


class PhasedWork(Work):
    """One that has come to its first effect, or (``first``) has the result of another before that."""

    step, other, position, first = "capture", "authorise", 0, False

    def __init__(self, world: World, attempts: int) -> None:
        super().__init__(world, attempts)
        self.record = world.claim(mode=Mode.PHASED, at=BEFORE, lease=2 * DAY)
        self.lease = lease = self.record.lease(MINUTE)
        programs, stored, at = world.phases, StoredInput("book", 1, b"{}"), world.now + BEFORE
        operation, position = self.record.id, self.position
        world.run(lambda: programs.begin(lease, operation, stored, now=at))
        if self.first:
            world.run(lambda: programs.intend(lease, operation, 0, "authorise", source=SOURCE, now=at))
            world.run(lambda: programs.write_effect(lease, operation, 0, "authorise", b"1", "au_1", now=at))
        begun = at if attempts > 1 else world.now
        world.run(lambda: programs.intend(lease, operation, position, "capture", source=SOURCE, now=begun))
        if attempts > 1:
            world.run(lambda: programs.intend_again(lease, operation, position, "capture", now=world.now))

    def end(self, state: str) -> None:
        world, lease, operation, position = self.world, self.lease, self.record.id, self.position
        if state == "completed":
            world.run(lambda: world.phases.write_effect(lease, operation, position, "capture", b"2", "ca_1"))
            world.run(lambda: world.phases.complete(lease, operation, ANSWER))
        elif state == "failed":
            try:
                world.run(lambda: world.phases.take_back(lease, operation, position, "capture"))
            except Disputed:  # the intent stays, and whoever resumes finds the provider's word
                world.run(lambda: world.phases.let_go(lease, pause_ms=0, error_code="x"))
            else:
                world.run(lambda: world.keys.fail(lease, "x"))
        elif state == "dead":
            world.run(lambda: world.phases.give_up(lease, error_code="x"))
        else:
            world.run(lambda: world.keys.lose(lease, "x"))


class HalfDoneWork(PhasedWork):
    position, first = 1, True


class DeferredWork(Work):
    step, other = "settle", "notify"

    def __init__(self, world: World, attempts: int) -> None:
        super().__init__(world, attempts)
        self.record, self.job_id = world.pending("deferred-key", at=BEFORE, second=True)
        if attempts > 1:
            for job in self.take(BEFORE):
                self.give_back(job)
        self.jobs = {job.id: job for job in self.take(0)}

    def give_back(self, job: Job) -> None:
        at = self.world.now + BEFORE
        self.world.run(lambda: self.world.jobs.retry(job, pause_ms=0, error="x", now=at))

    def take(self, at: int) -> list[Job]:
        """Both jobs, begun."""
        world, now = self.world, self.world.now + at
        taken: list[Job] = []
        for name in (self.step, self.other):
            taking = Taking(name, 10)
            taken += world.run(
                lambda taking=taking: world.jobs.take(f"t{at}-", taking, lease_ms=DAY, now=now)  # type: ignore[misc]
            )
        world.run(lambda: world.jobs.enter(taken, now=now))
        return taken

    def end(self, state: str) -> None:
        world, job = self.world, self.jobs[self.job_id]
        if state == "completed":
            world.run(lambda: world.jobs.finish(job, ANSWER, "ch_1"))
        else:
            world.run(lambda: self.buried(job))

    def buried(self, job: Job) -> Program[bool]:
        """As the worker does it."""
        yield BEGIN
        yield from self.world.jobs.bury(job, error="x")
        return (yield from self.world.engine.engine.resolver.apply_waiting(job.operation_id))


WORK: dict[str, Callable[[World, int], Work]] = {
    "leased": LeasedWork,
    "phased": PhasedWork,
    "half done": HalfDoneWork,
    "deferred": DeferredWork,
}


def tell(work: Work, cell: Cell, event_id: str = "e1") -> Resolution:
    """The event of this cell."""
    world, about = work.world, cell.about
    return world.tell(
        evidence_of(cell.work, cell.said),
        event_id,
        at=BEFORE + MINUTE if about == "other attempt" else AFTER,
        source="another bank" if about == "other source" else SOURCE,
        tenant="mallory" if about == "other tenant" else "acme",
        downstream_key=work.key(work.other if about == "other step" else work.step),
    )


def made(world: World, cell: Cell) -> Work:
    return WORK[cell.work](world, 2 if cell.about == "other attempt" else 1)


# ------------------------------------------------------------------ the table


@pytest.mark.parametrize("cell", [c for c in CELLS if c.becomes is not None], ids=str)
def test_an_event_after_its_state(world: World, cell: Cell) -> None:
    work = made(world, cell)
    if cell.state != "running":
        work.end(cell.state)
    before, timeline = world.read(work.record), len(world.timeline(work.record))
    assert tell(work, cell) == cell.resolution
    after = world.read(work.record)
    assert after.state == cell.becomes
    if after.state == "unknown" != before.state:
        assert (cell.said, before.state) == ("executed", "failed_retryable"), (
            "a yes stops a retry, nothing else"
        )
    elif cell.resolution != "resolved":
        assert (after, len(world.timeline(work.record))) == (before, timeline), "nothing moved"
    if cell.resolution == "not_found":
        assert world.count("evidence") == 0, "nothing foreign is stored"
    again = tell(work, cell)
    assert again == ("not_found" if cell.resolution == "not_found" else "duplicate")
    assert world.read(work.record) == after, "the same event counts once"
    assert world.count("evidence") == int(cell.resolution != "not_found")


KEPT = [c for c in CELLS if c.becomes is None]
THEN = {
    "leased": ("unknown", "dead", "failed", "completed"),
    "phased": ("unknown", "dead", "failed", "completed"),
    "half done": ("unknown", "dead", "completed"),
}


@pytest.mark.parametrize("cell", KEPT, ids=str)
def test_the_order_of_arrival_does_not_matter(world: World, cell: Cell) -> None:
    """Told while it runs, then brought into each state: the end is that of the event which came after it."""
    for state in THEN.get(cell.work, ("dead", "completed")):
        (later,) = [
            c
            for c in CELLS
            if (c.work, c.about, c.said, c.state) == (cell.work, cell.about, cell.said, state)
        ]
        for table in ("keys", "jobs", "phases", "inputs", "effects", "evidence", "audit"):
            world.sql(f"delete from {{{table}}}")
        work = made(world, cell)
        assert tell(work, cell) is Resolution.KEPT
        assert tell(work, cell) is Resolution.DUPLICATE
        work.end(state)
        world.serve(Reconciler(world.engine.engine).run_once)
        found = world.read(work.record)
        assert found.state == later.becomes, (state, found.state)
        # A second delivery finds nothing left to do.
        tell(work, cell)
        assert world.read(work.record).state == found.state


def test_a_retry_does_not_run_what_the_provider_said_had_happened(world: World) -> None:
    """Between the failure and the reconciler's next look: the retry itself hears of it."""
    work = LeasedWork(world, 1)
    cell = next(c for c in KEPT if str(c) == "leased, right, running, executed")
    assert tell(work, cell) is Resolution.KEPT
    work.end("failed")
    claim = claim_of(work.record.key, Mode.LEASED, MINUTE, DAY, "acme", "POST /payments")
    assert world.read(work.record).state == "unknown", "nobody else may run it either"
    begun = world.engine.engine.drive(
        world.engine.engine._ways[Mode.LEASED].begin(claim, RULES(world), None, None)
    )
    assert type(begun).__name__ == "Replay"
    assert world.read(work.record).state == "completed"


def RULES(world: World):  # type: ignore[no-untyped-def]
    from samekey.engine.handler.rules import rules_from

    return rules_from(world.engine.engine.policy, Mode.LEASED, {})

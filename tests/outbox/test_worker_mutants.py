"""Workers with one promise switched off: each is found out, by the test that is named for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from lab.processes import wait_until
from samekey.stores.sql.jobs import Taking
from samekey.workers import apart, slots
from samekey.workers import outbox as outbox_module
from samekey.workers.outbox import OutboxWorker
from samekey.workers.performing import Performer
from samekey.workers.service import WorkerService
from tests.chosen import whole
from tests.edges.callers import LoopThread
from tests.outbox import test_fairness, test_not_begun, test_recording, test_stuck, test_worker
from tests.outbox.test_stuck import Gate
from tests.outbox.world import Outbox

pytestmark = whole


Patch = pytest.MonkeyPatch
Mutant = Callable[[Outbox, Patch], None]
Story = Callable[[Outbox, Patch], None]


def count_at_take(outbox: Outbox, patch: Patch) -> None:
    """An attempt counts when the job is taken."""
    jobs = outbox.idempotency.engine.outbox
    take, enter = jobs.take, jobs.enter

    def counting(token: str, taking: Any, *, lease_ms: int, now: int | None = None) -> Any:
        taken = yield from take(token, taking, lease_ms=lease_ms, now=now)
        yield from enter(taken)
        return taken

    patch.setattr(jobs, "take", counting)


def forget_what_was_not_begun(outbox: Outbox, patch: Patch) -> None:
    """Jobs whose beginning was not heard of are left to their leases."""
    give_back = OutboxWorker._give_back

    async def only_with_a_pause(self: OutboxWorker, jobs: Any, pause: timedelta, error: Any) -> None:
        if pause:
            await give_back(self, jobs, pause, error)

    patch.setattr(OutboxWorker, "_give_back", only_with_a_pause)


def blame_the_call(outbox: Outbox, patch: Patch) -> None:
    """A record that fails is the function's failure, at once."""

    async def once(self: Performer, job: Any, once: Any, longest: Any = None) -> Any:
        return await once()

    patch.setattr(Performer, "_patiently", once)


def free_at_time_out(outbox: Outbox, patch: Patch) -> None:
    """What hangs gives up its place when its time is over."""
    patch.setattr(slots.Slots, "_ended", _freed)


def _freed(self: slots.Slots, task: Any) -> None:
    piece = self._running.pop(task)
    self.places.leave(piece.kind, piece.tenant)
    self._changed()


def stuck_in_silence(outbox: Outbox, patch: Patch) -> None:
    """Only the outbox's own places are looked at."""
    told = WorkerService._end_if_stuck

    def partly(self: WorkerService, name: str, slots: Any) -> None:
        if name == "outbox":
            told(self, name, slots)

    patch.setattr(WorkerService, "_end_if_stuck", partly)


def shallow(outbox: Outbox, patch: Patch) -> None:
    """Others are looked for among the oldest thousand, and never deeper."""
    patch.setattr("samekey.workers.depths.DEEPER", 1)


def suspects_side_by_side(outbox: Outbox, patch: Patch) -> None:
    async def all_of_them(self: OutboxWorker, jobs: Any) -> Any:
        return jobs

    patch.setattr(OutboxWorker, "_without_spare_suspects", all_of_them)


def take_what_runs_here(outbox: Outbox, patch: Patch) -> None:
    """A lease that ran out unseen is taken by the very worker that still runs the job."""
    patch.setattr(outbox_module, "Taking", taking_with(here=()))


def impatient_after_an_outage(outbox: Outbox, patch: Patch) -> None:
    """Leases that ran out while nobody could renew one are taken at once."""
    patch.setattr(outbox_module, "Taking", taking_with(patience_ms=0))


def taking_with(**changed: Any) -> Callable[..., Taking]:
    return lambda *args, **options: Taking(*args, **{**options, **changed})


def full_of_lookups(outbox: Outbox, patch: Patch) -> None:
    gate = Gate(outbox)
    try:
        test_stuck.test_a_reconciler_full_of_lookups_that_hang_says_so_and_goes_on_when_they_end(
            outbox, gate, "sync"
        )
    finally:
        gate.open.set()


def full_of_jobs(outbox: Outbox, patch: Patch) -> None:
    gate = Gate(outbox)
    try:
        test_stuck.test_jobs_that_hang_are_never_more_than_their_places(outbox, gate, "async")
    finally:
        gate.open.set()


MUTANTS: list[tuple[Mutant, Story]] = [
    (count_at_take, test_worker.test_a_job_is_not_counted_before_its_function_is_entered),
    (
        forget_what_was_not_begun,
        test_not_begun.test_an_attempt_whose_beginning_was_not_heard_of_does_not_count,
    ),
    (
        blame_the_call,
        lambda outbox, patch: test_recording.test_a_write_that_meets_a_lock_is_made_again_and_the_call_is_not(
            outbox, "async", patch
        ),
    ),
    (free_at_time_out, full_of_jobs),
    (stuck_in_silence, full_of_lookups),
    (shallow, lambda outbox, _: test_not_begun.test_no_tenants_backlog_however_long_hides_the_others(outbox)),
    (
        suspects_side_by_side,
        lambda outbox, _: test_worker.test_suspects_share_one_place_and_idle_no_other(outbox),
    ),
    (
        take_what_runs_here,
        lambda outbox, _: test_fairness.test_a_worker_does_not_take_what_it_is_running(outbox),
    ),
    (
        impatient_after_an_outage,
        test_fairness.test_after_an_outage_lapsed_leases_are_left_to_those_who_live,
    ),
]


@pytest.fixture
def sqlite_outbox(sqlite_url: str, loop: LoopThread, threads: ThreadPoolExecutor) -> Iterator[Outbox]:
    """One store is enough: a mutant is one of the code around it."""
    found = Outbox(sqlite_url, loop, threads)
    yield found
    found.close()


def soon(predicate: Callable[[], Any], timeout: float = 0, *, interval: float = 0.005) -> Any:
    """What a mutant keeps from happening is not waited for as long as what only takes its time."""
    return wait_until(predicate, 6, interval=interval)


@pytest.mark.parametrize(("mutant", "story"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_worker_that_breaks_a_promise_is_found_out(
    sqlite_outbox: Outbox, monkeypatch: pytest.MonkeyPatch, mutant: Mutant, story: Story
) -> None:
    monkeypatch.setattr(apart, "FAREWELL", 0.02)
    for module in (test_stuck, test_not_begun, test_fairness):
        monkeypatch.setattr(module, "wait_until", soon)
    mutant(sqlite_outbox, monkeypatch)
    with pytest.raises((AssertionError, TimeoutError, KeyError)):
        story(sqlite_outbox, monkeypatch)

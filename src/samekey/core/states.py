"""Every rule about what may become what.

This is the only file that says which state follows which, and it is law: every statement that writes a state
declares its event, and is filled in from here or does not load (see ``stores/law.py``). The documentation
draws its diagram from here (``python -m samekey.core.states``); ``tests/law`` shows what each statement does.

``None`` stands for "no record": before the first claim, after a release, after the reaper.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a record stands."""

    PENDING = "pending"
    """Accepted and written down; a worker will do it."""
    IN_PROGRESS = "in_progress"
    """Somebody holds the lease and runs it."""
    COMPLETED = "completed"
    """There is a final answer, good or bad. It never changes."""
    FAILED_RETRYABLE = "failed_retryable"
    """It failed and provably nothing happened; one retry may run it again."""
    UNKNOWN = "unknown"
    """It may or may not have happened; nobody runs it again until somebody finds out."""
    DEAD_LETTER = "dead_letter"
    """The machine gave up finding out; an operator decides."""
    EXPIRED = "expired"
    """A tombstone: the key was used, its answer is gone."""


class Mode(StrEnum):
    """How an operation was declared to run; it decides what a lost lease means."""

    ATOMIC = "atomic"
    """Its writes and its answer commit in one transaction."""
    LEASED = "leased"
    """It has effects outside the database."""
    REPEATABLE = "repeatable"
    """Leased, and declared safe to repeat."""
    PHASED = "phased"
    """It resumes at its recovery point."""
    DEFERRED = "deferred"
    """Its writes and its job commit in one transaction; a worker does the job."""

    @property
    def article(self) -> str:
        """Its name as it begins a sentence: An atomic, A leased."""
        return f"{'An' if self is Mode.ATOMIC else 'A'} {self}"


class StateEvent(StrEnum):
    """What can happen to a record."""

    CLAIM = "claim"
    """A request takes a key that is new, or whose former life has expired."""
    ACCEPT = "accept"
    """A deferred operation is written down for a worker."""
    COMMIT = "commit"
    """Atomic work appears, finished, with its transaction."""
    RETRY = "retry"
    """One retry wins the right to run a failed operation again."""
    RESUME = "resume"
    """Phased work whose lease ran out goes on under a new attempt."""
    REGAIN = "regain"
    """The holder's late result of a phase proves what was unknown, and it goes on."""
    COMPLETE = "complete"
    """The holder stores its answer; for a deferred operation, the worker does."""
    FAIL = "fail"
    """The holder proves that nothing happened."""
    LOSE = "lose"
    """The outcome cannot be told."""
    RELEASE = "release"
    """The holder frees the key: the answer is not one to remember."""
    DISPUTE = "dispute"
    """A provider says that something happened of what is free to run again, or would be: nobody runs it until
    somebody has found out."""
    LEASE_END = "lease_end"
    """The lease ran out; what follows depends on the mode."""
    TIME_OUT = "time_out"
    """A pending operation that nobody started in time is closed with a 408."""
    FOUND_EXECUTED = "found_executed"
    """Somebody found out that it happened (also: that it was declined)."""
    FOUND_NOT_EXECUTED = "found_not_executed"
    """Somebody found out that it never happened."""
    REOPEN = "reopen"
    """An operator has a failure that was remembered as the answer tried again."""
    GO_ON = "go_on"
    """Somebody found out what became of one effect of phased work, and the rest goes on."""
    GIVE_UP = "give_up"
    """Finding out, or trying, has been exhausted."""
    REQUEUE = "requeue"
    """An operator has a dead job tried again."""
    REVIVE = "revive"
    """An operator leaves a dead phased operation to the completer again."""
    RECALL = "recall"
    """The provider, asked before a key that had expired runs again, knows its answer."""
    EXPIRE = "expire"
    """Retention is over; the fact stays, the answer goes."""
    REAP = "reap"
    """Retention is over; the record goes."""


LEASE_END: Final[Mapping[Mode, State]] = {
    Mode.ATOMIC: State.FAILED_RETRYABLE,  # its transaction was rolled back
    Mode.LEASED: State.UNKNOWN,  # the effect may be out there
    Mode.REPEATABLE: State.FAILED_RETRYABLE,  # the user said that repeating is safe
    Mode.PHASED: State.IN_PROGRESS,  # stays, and may be resumed at its recovery point
    Mode.DEFERRED: State.FAILED_RETRYABLE,  # rolled back; a job, once written, has its own lease
}
"""What a lease that ran out makes of a record, by its mode. It never means "safe to run again"."""


TRANSITIONS: Final[Mapping[tuple[State | None, StateEvent], State | None]] = {
    (None, StateEvent.CLAIM): State.IN_PROGRESS,
    (State.EXPIRED, StateEvent.CLAIM): State.IN_PROGRESS,
    (None, StateEvent.ACCEPT): State.PENDING,
    (State.IN_PROGRESS, StateEvent.ACCEPT): State.PENDING,
    (State.FAILED_RETRYABLE, StateEvent.ACCEPT): State.PENDING,
    (None, StateEvent.COMMIT): State.COMPLETED,
    (State.EXPIRED, StateEvent.COMMIT): State.COMPLETED,
    (State.FAILED_RETRYABLE, StateEvent.COMMIT): State.COMPLETED,
    (State.FAILED_RETRYABLE, StateEvent.RETRY): State.IN_PROGRESS,
    (State.IN_PROGRESS, StateEvent.RESUME): State.IN_PROGRESS,
    (State.IN_PROGRESS, StateEvent.REGAIN): State.IN_PROGRESS,
    (State.UNKNOWN, StateEvent.REGAIN): State.IN_PROGRESS,
    (State.PENDING, StateEvent.COMPLETE): State.COMPLETED,
    (State.IN_PROGRESS, StateEvent.COMPLETE): State.COMPLETED,
    # A late result of the holder, while nobody has run its operation again, is the truth: whoever gave it up,
    # or found that nothing had happened, did so before.
    (State.UNKNOWN, StateEvent.COMPLETE): State.COMPLETED,
    (State.FAILED_RETRYABLE, StateEvent.COMPLETE): State.COMPLETED,
    (State.DEAD_LETTER, StateEvent.COMPLETE): State.COMPLETED,
    (State.IN_PROGRESS, StateEvent.FAIL): State.FAILED_RETRYABLE,
    (State.UNKNOWN, StateEvent.FAIL): State.FAILED_RETRYABLE,
    (State.IN_PROGRESS, StateEvent.LOSE): State.UNKNOWN,
    # Atomic work that escaped its transaction has no record yet and still must not run again.
    (None, StateEvent.LOSE): State.UNKNOWN,
    (State.FAILED_RETRYABLE, StateEvent.LOSE): State.UNKNOWN,
    (State.EXPIRED, StateEvent.LOSE): State.UNKNOWN,
    # The holder comes late and knows what it has sent, or what the provider has made of it.
    (State.UNKNOWN, StateEvent.LOSE): State.UNKNOWN,
    (State.DEAD_LETTER, StateEvent.LOSE): State.UNKNOWN,
    (State.IN_PROGRESS, StateEvent.RELEASE): None,
    (State.UNKNOWN, StateEvent.RELEASE): None,
    # A yes that waits keeps a key from being free, whoever would free it.
    (State.IN_PROGRESS, StateEvent.DISPUTE): State.UNKNOWN,
    (State.FAILED_RETRYABLE, StateEvent.DISPUTE): State.UNKNOWN,
    (State.UNKNOWN, StateEvent.DISPUTE): State.UNKNOWN,
    # The tombstone of what failed: it must not matter whether the reaper was by.
    (State.EXPIRED, StateEvent.DISPUTE): State.UNKNOWN,
    (State.PENDING, StateEvent.TIME_OUT): State.COMPLETED,
    (State.UNKNOWN, StateEvent.FOUND_EXECUTED): State.COMPLETED,
    (State.DEAD_LETTER, StateEvent.FOUND_EXECUTED): State.COMPLETED,
    # The provider's word wins over everything short of an answer.
    (State.FAILED_RETRYABLE, StateEvent.FOUND_EXECUTED): State.COMPLETED,
    (State.UNKNOWN, StateEvent.GO_ON): State.IN_PROGRESS,
    (State.DEAD_LETTER, StateEvent.GO_ON): State.IN_PROGRESS,
    (State.FAILED_RETRYABLE, StateEvent.GO_ON): State.IN_PROGRESS,
    (State.UNKNOWN, StateEvent.FOUND_NOT_EXECUTED): State.FAILED_RETRYABLE,
    (State.DEAD_LETTER, StateEvent.FOUND_NOT_EXECUTED): State.FAILED_RETRYABLE,
    (State.COMPLETED, StateEvent.REOPEN): State.FAILED_RETRYABLE,
    (State.PENDING, StateEvent.GIVE_UP): State.DEAD_LETTER,
    (State.IN_PROGRESS, StateEvent.GIVE_UP): State.DEAD_LETTER,
    (State.UNKNOWN, StateEvent.GIVE_UP): State.DEAD_LETTER,
    (State.DEAD_LETTER, StateEvent.REQUEUE): State.PENDING,
    (State.DEAD_LETTER, StateEvent.REVIVE): State.IN_PROGRESS,
    (State.EXPIRED, StateEvent.RECALL): State.COMPLETED,
    (State.COMPLETED, StateEvent.EXPIRE): State.EXPIRED,
    (State.FAILED_RETRYABLE, StateEvent.EXPIRE): State.EXPIRED,
    (State.COMPLETED, StateEvent.REAP): None,
    (State.FAILED_RETRYABLE, StateEvent.REAP): None,
    (State.EXPIRED, StateEvent.REAP): None,
}
"""All legal transitions but the end of a lease, which ``LEASE_END`` gives by mode."""


class IllegalTransition(Exception):
    """An event that this state does not know. It is a bug in samekey, never a user's mistake."""


def sources(event: StateEvent) -> tuple[State, ...]:
    """The recorded states that an event may leave, in the order of ``State``."""
    if event is StateEvent.LEASE_END:
        return (State.IN_PROGRESS,)
    return tuple(state for state in State if (state, event) in TRANSITIONS)


def target(event: StateEvent) -> State:
    """The one state that an event leads to; an error for events that have several or delete."""
    targets = {after for (_, e), after in TRANSITIONS.items() if e is event}
    if len(targets) != 1 or None in targets:
        raise IllegalTransition(f"{event} has no single target state")
    found = targets.pop()
    assert found is not None
    return found


def diagram() -> str:
    """The transitions as a Mermaid state diagram, for ``docs/architecture.md``."""
    edges: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in TRANSITIONS.items():
        edge = ("[*]" if before is None else before, "[*]" if after is None else after)
        edges.setdefault(edge, []).append(event)
    for mode, after in LEASE_END.items():
        edges.setdefault((State.IN_PROGRESS, after), []).append(f"{StateEvent.LEASE_END} ({mode})")
    lines = ["stateDiagram-v2"]
    lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in edges.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(diagram(), end="")

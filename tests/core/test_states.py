"""The table of transitions (S1): every triple of state, event and mode, and the rules that it must obey.

The table itself is not written down a second time here. What is written are the rules of REQUIREMENTS, in
words, each checked against the whole table, so that a new state or event cannot slip past them.
"""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from samekey.core.states import (
    LEASE_END,
    TRANSITIONS,
    IllegalTransition,
    Mode,
    State,
    StateEvent,
    diagram,
    sources,
    target,
)

BEFORE: tuple[State | None, ...] = (None, *State)
TERMINAL = {State.COMPLETED, State.EXPIRED}
IN_FLIGHT = {State.PENDING, State.IN_PROGRESS}
UNSETTLED = {*IN_FLIGHT, State.UNKNOWN, State.DEAD_LETTER}


def edges(mode: Mode | None = None) -> set[tuple[State | None, StateEvent, State | None]]:
    """All edges, those of the end of a lease by mode included."""
    found = {(before, event, after) for (before, event), after in TRANSITIONS.items()}
    ends = LEASE_END.items() if mode is None else [(mode, LEASE_END[mode])]
    return found | {(State.IN_PROGRESS, StateEvent.LEASE_END, after) for _, after in ends}


def leaving(state: State | None) -> set[StateEvent]:
    return {event for before, event, _ in edges() if before == state}


def entering(state: State | None) -> set[StateEvent]:
    return {event for _, event, after in edges() if after == state}


def reachable(start: State | None, mode: Mode) -> set[State | None]:
    seen: set[State | None] = {start}
    while True:
        more = {after for before, _, after in edges(mode) if before in seen} - seen
        if not more:
            return seen
        seen |= more


# --- S1: one table, and nothing outside it -------------------------------------------------------


def test_the_states_are_those_of_the_requirements() -> None:
    assert [str(state) for state in State] == [
        "pending",
        "in_progress",
        "completed",
        "failed_retryable",
        "unknown",
        "dead_letter",
        "expired",
    ]


def test_the_end_of_a_lease_stands_in_its_own_table_only() -> None:
    assert not [event for _, event in TRANSITIONS if event is StateEvent.LEASE_END]
    assert set(LEASE_END) == set(Mode)


def test_every_event_is_used() -> None:
    assert {event for _, event, _ in edges()} == set(StateEvent)


@pytest.mark.parametrize("state", State)
def test_every_state_is_reachable_from_no_record(state: State) -> None:
    assert any(state in reachable(None, mode) for mode in Mode)


@pytest.mark.parametrize(("state", "mode"), list(itertools.product(State, Mode)))
def test_every_state_has_a_way_to_a_terminal_one(state: State, mode: Mode) -> None:
    assert reachable(state, mode) & TERMINAL


@pytest.mark.parametrize("event", StateEvent)
def test_sources_are_the_recorded_states_that_an_event_leaves(event: StateEvent) -> None:
    assert sources(event) == tuple(state for state in State if event in leaving(state))


@pytest.mark.parametrize("event", StateEvent)
def test_target_is_the_single_state_that_an_event_enters(event: StateEvent) -> None:
    targets = {after for _, e, after in edges() if e is event}
    if event is not StateEvent.LEASE_END and len(targets) == 1 and None not in targets:
        assert {target(event)} == targets
    else:
        with pytest.raises(IllegalTransition, match="no single target"):
            target(event)


# --- a completed record never changes (D3), a terminal failure is completed (S7) -----------------


def test_completed_leaves_only_when_its_retention_is_over_or_by_an_operators_word() -> None:
    """Reopening is for failures that were remembered, and is audited: tests/operator/test_cli_reopen.py."""
    assert leaving(State.COMPLETED) == {StateEvent.EXPIRE, StateEvent.REAP, StateEvent.REOPEN}


def test_there_is_no_separate_failed_state() -> None:
    assert "failed" not in {str(state) for state in State}


def test_a_new_life_begins_only_where_nothing_binds_any_more() -> None:
    """D1, D8: a claim takes a new key or an expired one, and no other."""
    assert {before for before, event, _ in edges() if event is StateEvent.CLAIM} == {None, State.EXPIRED}


def test_a_tombstone_is_left_by_a_new_life_the_reaper_or_the_providers_word_that_it_was_done() -> None:
    for before, event, after in edges():
        if before is State.EXPIRED and event is StateEvent.RECALL:
            assert after is State.COMPLETED
        elif before is State.EXPIRED and event is StateEvent.DISPUTE:
            assert after is State.UNKNOWN
        elif before is State.EXPIRED and event is not StateEvent.REAP:
            assert (None, event, after) in edges(), f"{event} treats a tombstone unlike a new key"


# --- S5: what a lease that ran out means ---------------------------------------------------------


def test_only_work_in_progress_has_a_lease_to_lose() -> None:
    assert sources(StateEvent.LEASE_END) == (State.IN_PROGRESS,)


@pytest.mark.parametrize("mode", Mode)
def test_the_end_of_a_lease_never_completes_or_forgets(mode: Mode) -> None:
    """S5: it never means "safe to run again" by itself: the record stays, and one compare and set decides."""
    after = LEASE_END[mode]
    assert after is not None
    assert after not in TERMINAL


def test_atomic_work_was_rolled_back_so_it_may_run_again() -> None:
    assert LEASE_END[Mode.ATOMIC] is State.FAILED_RETRYABLE


def test_leased_work_may_have_had_its_effect_so_it_is_unknown() -> None:
    assert LEASE_END[Mode.LEASED] is State.UNKNOWN


def test_work_declared_safe_to_repeat_becomes_retryable() -> None:
    assert LEASE_END[Mode.REPEATABLE] is State.FAILED_RETRYABLE


def test_phased_work_stays_and_is_resumed() -> None:
    assert LEASE_END[Mode.PHASED] is State.IN_PROGRESS
    assert TRANSITIONS[State.IN_PROGRESS, StateEvent.RESUME] is State.IN_PROGRESS


def test_deferred_work_may_go_on() -> None:
    """Its writes and its job commit together, so a lost lease either left a job to retry or nothing."""
    assert LEASE_END[Mode.DEFERRED] in {State.PENDING, State.FAILED_RETRYABLE}


# --- D5: failed with proof -----------------------------------------------------------------------


def test_a_retry_leaves_only_failed_retryable_and_takes_the_operation() -> None:
    assert sources(StateEvent.RETRY) == (State.FAILED_RETRYABLE,)
    assert target(StateEvent.RETRY) is State.IN_PROGRESS


def test_failed_retryable_is_entered_only_with_proof() -> None:
    """The holder's word, a finding, the end of a lease under a mode that proves it, or an operator who takes
    a remembered failure back."""
    assert entering(State.FAILED_RETRYABLE) == {
        StateEvent.FAIL,
        StateEvent.FOUND_NOT_EXECUTED,
        StateEvent.LEASE_END,
        StateEvent.REOPEN,
    }


def test_what_a_provider_says_has_happened_is_not_free_whoever_would_free_it() -> None:
    for state in (State.IN_PROGRESS, State.FAILED_RETRYABLE, State.UNKNOWN):
        assert TRANSITIONS.get((state, StateEvent.DISPUTE)) is State.UNKNOWN
    for state in set(State) - set(sources(StateEvent.DISPUTE)):
        assert (state, StateEvent.DISPUTE) not in TRANSITIONS


# --- D6, B5: the unknown ------------------------------------------------------------------------


def test_unknown_moves_only_by_a_finding_an_operator_or_its_holders_late_result() -> None:
    holder = {StateEvent.COMPLETE, StateEvent.FAIL, StateEvent.LOSE, StateEvent.RELEASE, StateEvent.REGAIN}
    reconciliation = {
        StateEvent.FOUND_EXECUTED,
        StateEvent.FOUND_NOT_EXECUTED,
        StateEvent.GO_ON,
        StateEvent.GIVE_UP,
    }
    assert leaving(State.UNKNOWN) <= holder | reconciliation | {StateEvent.DISPUTE}
    assert TRANSITIONS.get((State.UNKNOWN, StateEvent.DISPUTE)) is State.UNKNOWN
    assert reconciliation <= leaving(State.UNKNOWN)
    assert StateEvent.COMPLETE in leaving(State.UNKNOWN)


@pytest.mark.parametrize(
    "event", [StateEvent.CLAIM, StateEvent.ACCEPT, StateEvent.COMMIT, StateEvent.RETRY, StateEvent.RESUME]
)
@pytest.mark.parametrize("state", [State.UNKNOWN, State.DEAD_LETTER, State.COMPLETED])
def test_no_request_runs_what_is_unknown_given_up_or_done(state: State, event: StateEvent) -> None:
    assert (state, event) not in TRANSITIONS


def test_reconciliation_ends_in_one_of_three_ways() -> None:
    """B5: never created → failed_retryable; created, also declined → completed; exhausted → dead letter."""
    for state in (State.UNKNOWN, State.DEAD_LETTER):
        assert TRANSITIONS[state, StateEvent.FOUND_NOT_EXECUTED] is State.FAILED_RETRYABLE
        assert TRANSITIONS[state, StateEvent.FOUND_EXECUTED] is State.COMPLETED
    assert TRANSITIONS[State.UNKNOWN, StateEvent.GIVE_UP] is State.DEAD_LETTER


def test_a_dead_letter_moves_only_by_an_operators_word_or_what_its_holder_knows() -> None:
    assert leaving(State.DEAD_LETTER) == {
        StateEvent.COMPLETE,
        StateEvent.LOSE,
        StateEvent.FOUND_EXECUTED,
        StateEvent.FOUND_NOT_EXECUTED,
        StateEvent.GO_ON,
        StateEvent.REQUEUE,
        StateEvent.REVIVE,
    }


# --- B4: the reaper -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(UNSETTLED))
@pytest.mark.parametrize("event", [StateEvent.REAP, StateEvent.EXPIRE])
def test_unsettled_records_are_never_deleted_or_expired(state: State, event: StateEvent) -> None:
    assert (state, event) not in TRANSITIONS


def test_the_reaper_deletes_settled_records_and_nothing_else_does_but_their_holder() -> None:
    assert entering(None) == {StateEvent.REAP, StateEvent.RELEASE}
    assert set(sources(StateEvent.REAP)) == set(State) - UNSETTLED
    assert set(sources(StateEvent.RELEASE)) <= {State.IN_PROGRESS, State.UNKNOWN}


def test_an_abandoned_pending_key_first_becomes_a_stored_failure() -> None:
    assert sources(StateEvent.TIME_OUT) == (State.PENDING,)
    assert target(StateEvent.TIME_OUT) is State.COMPLETED


def test_what_expires_is_what_is_settled() -> None:
    assert set(sources(StateEvent.EXPIRE)) == {State.COMPLETED, State.FAILED_RETRYABLE}
    assert target(StateEvent.EXPIRE) is State.EXPIRED


# --- the diagram --------------------------------------------------------------------------------


def drawn(text: str) -> set[tuple[str, str, str]]:
    head, *lines = text.splitlines()
    assert head == "stateDiagram-v2"
    found = set()
    for line in lines:
        edge, _, events = line.strip().partition(": ")
        before, arrow, after = edge.split(" ")
        assert arrow == "-->"
        for event in events.split(", "):
            assert (before, after, event) not in found, f"{line} is drawn twice"
            found.add((before, after, event))
    return found


def test_the_diagram_draws_exactly_the_edges_of_the_table() -> None:
    def name(state: State | None) -> str:
        return "[*]" if state is None else str(state)

    expected = {(name(a), name(b), str(event)) for (a, event), b in TRANSITIONS.items()}
    expected |= {("in_progress", str(after), f"lease_end ({mode})") for mode, after in LEASE_END.items()}
    assert drawn(diagram()) == expected


def test_the_module_prints_its_diagram() -> None:
    command = [sys.executable, "-m", "samekey.core.states"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == diagram()

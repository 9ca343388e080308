"""The decision table (D): every combination of record, request and policy, against the rules in words.

``expected`` below is written from section D of REQUIREMENTS, not from the code: it answers the questions of
that section in its own order and with its own words.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import pytest

from samekey.core import decide as module
from samekey.core.claim import Claim
from samekey.core.decide import (
    Accepted,
    Ask,
    Decision,
    EndLease,
    Execute,
    Gone,
    Mismatch,
    ModeChanged,
    Move,
    Outstanding,
    Replay,
    Resume,
    Retry,
    Reuse,
    Uncertain,
    Unreadable,
    Verdict,
    Withheld,
    decide,
    has_expired,
)
from samekey.core.policy import Policy
from samekey.core.record import Answer, Record
from samekey.core.states import Mode, State

NOW = 1_700_000_000_000
FIRST = b"\x01" * 32
OTHER = b"\x02" * 32

OnMismatch = Literal["reject", "replay", "execute"]
Follows = Literal["new", "gone", "ask", "lookup", "asked"]


def record(state: State = State.COMPLETED, mode: Mode = Mode.LEASED) -> Record:
    completed = state is State.COMPLETED
    return Record(
        id="0" * 32,
        scope="6:=alice",
        key="k-1",
        tenant="=alice",
        endpoint="POST /payments",
        fingerprint=FIRST,
        fingerprint_version="1",
        state=state,
        mode=mode,
        attempt="a" * 32,
        life=1,
        ttl_ms=86_400_000,
        ttl_from="completion",
        after_expiry="new",
        attempts=1,
        recovery_point=None,
        locked_until=NOW + 1000 if state is State.IN_PROGRESS else None,
        answer=Answer(201, ((b"content-type", b"text/plain"),), b"done") if completed else None,
        withheld=False,
        error_code=None,
        downstream=None,
        provider_id=None,
        reconcile_after=None,
        created_at=NOW - 10_000,
        last_run_at=NOW - 10_000,
        completed_at=NOW - 5000 if completed else None,
        expires_at=NOW + 1,
    )


def claim(digest: bytes = FIRST, mode: Mode = Mode.LEASED, *, versions: tuple[str, ...] = ("1",)) -> Claim:
    digest_as: Callable[[str], bytes | None] = lambda v: digest if v in versions else None  # noqa: E731
    return Claim(
        id="1" * 32,
        attempt="b" * 32,
        scope="6:=alice",
        key="k-1",
        tenant="=alice",
        endpoint="POST /payments",
        fingerprint=digest,
        fingerprint_version="1",
        digest_as=digest_as,
        mode=mode,
        lease_ms=60_000,
        ttl_ms=86_400_000,
    )


class Case(NamedTuple):
    state: State
    mode: Mode
    same_request: bool
    known_version: bool
    expiry: int
    """Milliseconds from now until the record's retention ends."""
    lease: int | None
    """Milliseconds from now until its lease ends."""
    withheld: bool
    on_mismatch: OnMismatch
    follows: Follows
    """What the record says follows expiry. ``lookup``: nothing, but one is declared now. ``asked``: to ask,
    and that was done."""
    phased: bool
    """Whether the handler is made of phases now."""
    begun: bool
    """Whether a recovery point was passed."""


CASES = [
    Case(*values)
    for values in itertools.product(
        State,
        Mode,
        (True, False),
        (True, False),
        (1, 0, -1),
        (1, 0, -1, None),
        (False, True),
        get_args(OnMismatch),
        get_args(Follows),
        (True, False),
        (True, False),
    )
]


def expected(case: Case) -> type[object]:
    """Section D, read from the top."""
    settled = case.state in {State.COMPLETED, State.FAILED_RETRYABLE}
    if case.state is State.EXPIRED or (settled and case.expiry <= 0):
        # D8. What is not settled does not expire, however old it is (B4).
        # Whoever can tell is asked first: as the record says, or because a lookup is there now.
        return {"new": Reuse, "gone": Gone, "ask": Ask, "lookup": Ask, "asked": Reuse}[case.follows]
    # D2: "replay" looks at the key alone. The others compare, before any other answer.
    if case.on_mismatch in {"reject", "execute"}:
        if not case.known_version:
            return Unreadable
        if not case.same_request:
            return Mismatch
    if case.state is State.IN_PROGRESS:
        if case.lease is None:
            return Unreadable  # D9: nobody could ever end it
        if case.lease > 0:
            return Outstanding  # D4
        # D11: the last millisecond of a lease is the one before its end.
        if case.mode is not Mode.PHASED:
            return EndLease
        return Resume if case.phased else ModeChanged  # X3
    if case.state is State.FAILED_RETRYABLE and case.mode is Mode.PHASED and case.begun and not case.phased:
        return ModeChanged  # X3: what came before the effect that never happened stands
    if case.state is State.COMPLETED and case.withheld:
        return Withheld  # X8
    return {
        State.COMPLETED: Replay,  # D3
        State.FAILED_RETRYABLE: Retry,  # D5
        State.UNKNOWN: Uncertain,  # D6
        State.DEAD_LETTER: Uncertain,  # D6: an operator has not decided yet
        State.PENDING: Accepted,  # D7
    }[case.state]


def built(case: Case) -> tuple[Record, Claim, Policy]:
    completed = case.state is State.COMPLETED
    stored = replace(
        record(case.state, case.mode),
        expires_at=NOW + case.expiry,
        locked_until=None if case.lease is None else NOW + case.lease,
        recovery_point="ride_created" if case.begun else None,
        withheld=completed and case.withheld,
        answer=None if case.withheld or not completed else Answer(201, (), b"done"),
    )
    request = claim(
        FIRST if case.same_request else OTHER,
        Mode.PHASED if case.phased else Mode.LEASED,
        versions=("1",) if case.known_version else ("1:other",),
    )
    if case.follows == "gone":
        stored = replace(stored, after_expiry="gone")
    elif case.follows in ("ask", "asked"):
        stored = replace(stored, after_expiry="ask")
    request = replace(
        request,
        has_lookup=lambda endpoint: case.follows == "lookup" and endpoint == stored.endpoint,
        asked=stored.attempt if case.follows == "asked" else None,
    )
    return stored, request, Policy(on_mismatch=case.on_mismatch)


@pytest.mark.parametrize("state", State)
def test_the_whole_table(state: State) -> None:
    wrong = []
    for case in CASES:
        if case.state is state:
            stored, request, policy = built(case)
            decision = decide(stored, request, policy, NOW)
            if type(decision) is not expected(case):
                wrong.append((case, type(decision).__name__, expected(case).__name__))
            about_its_record(decision, stored)
    assert not wrong, f"{len(wrong)} cases, the first: {wrong[0]}"


def about_its_record(decision: object, stored: Record) -> None:
    """A verdict carries the record that it is about."""
    if isinstance(decision, Outstanding):
        assert (decision.operation_id, decision.expires_at) == (stored.id, stored.expires_at)
    elif isinstance(decision, Unreadable):
        assert decision.detail
        assert stored.key not in decision.detail
    else:
        assert decision.record is stored  # type: ignore[attr-defined]


def test_the_table_is_whole() -> None:
    assert len(CASES) == 7 * 5 * 2 * 2 * 3 * 4 * 2 * 3 * 5 * 2 * 2
    assert {expected(case) for case in CASES} == {*get_args(Verdict), *get_args(Move)}


def test_decide_never_says_execute() -> None:
    """Only a statement that compared and set may say so: between reading and deciding the record may move.

    That no case of the table decides so, the table itself shows: it knows no other answers than these.
    """
    assert Execute not in get_args(Verdict)
    assert Execute not in get_args(Move)
    assert set(get_args(Decision)) == {Execute, *get_args(Verdict)}


# --- rows that deserve their own sentence --------------------------------------------------------


@pytest.mark.parametrize("state", sorted(set(State) - {State.EXPIRED}))
@pytest.mark.parametrize("lease", [1, 0, -1])
def test_d2_a_different_request_is_refused_before_any_other_answer(state: State, lease: int) -> None:
    stored = replace(record(state), locked_until=NOW + lease)
    assert decide(stored, claim(OTHER), Policy(), NOW) == Mismatch(stored)


def test_d2_a_stored_fingerprint_of_another_length_is_a_mismatch() -> None:
    stored = replace(record(), fingerprint=b"")
    assert isinstance(decide(stored, claim(), Policy(), NOW), Mismatch)


def test_f1_the_digest_is_compared_under_the_version_of_the_record() -> None:
    """A new secret, or an upgrade, does not turn an honest retry into a mismatch."""
    stored = replace(record(), fingerprint_version="1:old", fingerprint=OTHER)
    digests = {"1:old": OTHER, "1:new": FIRST}
    request = replace(claim(), fingerprint_version="1:new", digest_as=digests.get)
    assert decide(stored, request, Policy(), NOW) == Replay(stored)


def test_d9_a_fingerprint_version_that_cannot_be_computed_is_unreadable() -> None:
    stored = replace(record(), fingerprint_version="7:gone")
    decision = decide(stored, claim(), Policy(), NOW)
    assert isinstance(decision, Unreadable)
    assert "'7:gone'" in decision.detail
    assert "secret" in decision.detail


@pytest.mark.parametrize("state", [State.FAILED_RETRYABLE, State.COMPLETED])
def test_d8_the_moment_of_expiry_itself_is_expired(state: State) -> None:
    stored = record(state)
    assert not has_expired(stored, stored.expires_at - 1)
    assert has_expired(stored, stored.expires_at)


@pytest.mark.parametrize(
    "state", sorted({State.PENDING, State.IN_PROGRESS, State.UNKNOWN, State.DEAD_LETTER})
)
def test_b4_what_is_not_settled_never_expires(state: State) -> None:
    assert not has_expired(record(state), NOW + 10**12)


def test_b4_a_tombstone_is_expired_whatever_its_time_says() -> None:
    assert has_expired(record(State.EXPIRED), 0)


@pytest.mark.parametrize("digest", [FIRST, OTHER])
def test_d8_after_expiry_the_fingerprint_binds_nobody(digest: bytes) -> None:
    stored = replace(record(), expires_at=NOW)
    assert decide(stored, claim(digest), Policy(), NOW) == Reuse(stored)
    gone = replace(stored, after_expiry="gone")
    assert decide(gone, claim(digest), Policy(), NOW) == Gone(gone)


@pytest.mark.parametrize("mode", Mode)
def test_d11_the_mode_that_counts_is_the_recorded_one(mode: Mode) -> None:
    """A deployment that changes a handler's mode does not change what its old leases mean."""
    phased = replace(record(State.IN_PROGRESS, Mode.PHASED), locked_until=NOW)
    taken_up = decide(phased, claim(mode=mode), Policy(), NOW)
    assert isinstance(taken_up, Resume if mode is Mode.PHASED else ModeChanged)
    leased = replace(record(State.IN_PROGRESS, Mode.LEASED), locked_until=NOW)
    assert isinstance(decide(leased, claim(mode=mode), Policy(), NOW), EndLease)


def test_decisions_are_closed_and_frozen() -> None:
    decisions = {*get_args(Decision), *get_args(Move)}
    defined = {
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    assert defined == decisions
    for kind in decisions:
        assert kind.__dataclass_params__.frozen
        assert kind.__doc__

"""The table of states as law: every statement that writes a state declares its event.

``-- name: retry  event: retry`` is the head of such a statement, in SQL and in Lua. The states that it may
leave and the one that it enters are filled in from ``core/states.py``. A statement does not load if it writes
a state and declares no event, if it uses another event's states, or if it names a state that its events know
neither as source nor as target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ..core.states import LEASE_END, TRANSITIONS, State, StateEvent, sources

_FILLED: Final = re.compile(r"\{(?:from|to):(\w+)\}")
_NAMED: Final = re.compile(r"'(" + "|".join(State) + r")'|\{state:(" + "|".join(State) + r")\}")

_SPARED: Final = re.compile(r"state (?:<> '\w+'|not in \([^)]*\))")


class Unlawful(Exception):
    """A statement that the table of states does not allow. It is a bug in samekey, never a user's mistake."""


def events_of(declared: str | None) -> tuple[StateEvent, ...]:
    """The events that a statement's head declares: ``claim``, or ``expire, claim``."""
    return tuple(StateEvent(name.strip()) for name in (declared or "").split(",") if name.strip())


def states_of(events: Iterable[StateEvent]) -> set[State]:
    """Every state that these events leave or enter."""
    known: set[State] = set()
    for event in events:
        known |= {*sources(event)}
        known |= {state for state in targets(event) if state is not None}
    return known


def targets(event: StateEvent) -> set[State | None]:
    """Every state that an event may enter; None if the record goes."""
    if event is StateEvent.LEASE_END:
        return {*LEASE_END.values()}
    return {after for (_, one), after in TRANSITIONS.items() if one is event}


def check(
    name: str,
    events: tuple[StateEvent, ...],
    text: str,
    *,
    writes: bool,
    inserts: bool = False,
    deletes: bool = False,
) -> None:
    """``Unlawful`` if a statement does, or could do, what its events do not.

    One that inserts begins where no record is, one that deletes ends there; one that uses ``{over}`` begins
    at a record whose retention is over, whether or not it was made a tombstone.
    """
    if bool(events) != writes:
        wrong = "declares no event" if writes else f"declares {', '.join(events)}"
        raise Unlawful(f"{name} {'writes a state' if writes else 'writes no state'} and {wrong}.")
    for filled in _FILLED.findall(text):
        if events and StateEvent(filled) not in events:
            raise Unlawful(f"{name} uses the states of {filled}, which is not its event.")
    for event in events:
        if inserts and (None, event) not in TRANSITIONS:
            raise Unlawful(f"{name} begins with no record, and {event} does not.")
        if deletes and targets(event) != {None}:
            raise Unlawful(f"{name} deletes a record, and {event} does not.")
        if "{over}" in text and (State.EXPIRED, event) not in TRANSITIONS:
            raise Unlawful(f"{name} begins at an expired record, and {event} does not.")
    known = states_of(events)
    # What a statement leaves alone it need not know.
    for named in _NAMED.findall(_SPARED.sub("", text)) if events else ():
        state = State(named[0] or named[1])
        if state not in known:
            raise Unlawful(f"{name} names {state}, which {' and '.join(events)} neither leaves nor enters.")

"""The statements of finding out: what reconciler, webhooks and operators do to records that are not settled.

Each reads the record, then compares and sets: what it becomes depends on what it is, and DynamoDB cannot
compute that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from ...core.agreement import ERRORS_FROM
from ...core.disputes import MORE, MOST_DISPUTES, encode_yes
from ...core.record import decode_record, expiry_of, nobodys
from ...core.states import State, StateEvent, sources, target
from .items import Item, forget_after, place, row_of, value_of
from .plans import NO_ANSWER, answered, item_of, moved_row, one, over, provider
from .requests import Absent, Is, Plan, Term, Values, changed, refused, update

_ROUNDS: Final = 8
"""How often a record is read again that moved between reading and writing."""


def ask_again(p: Values, now: int) -> Plan:
    after = now + p["pause_ms"]
    change: dict[str, Term] = {"reconcile_after": after, "due": after}
    return (yield from _found_out(p, now, [str(State.UNKNOWN)], lambda item: change))


def found_executed(p: Values, now: int) -> Plan:
    state = target(StateEvent.FOUND_EXECUTED)

    def change(item: Item) -> dict[str, Term]:
        return {
            **_settled(item, state, now),
            "completed_at": now,
            **provider(p),
            **({} if p["source"] is None else {"source": p["source"]}),
            **_by(p),
            **{name: p[name] for name in NO_ANSWER},
        }

    # Against a refusal each yes that waits must have been set aside.
    despite = p["despite"]
    return (
        yield from _found_out(
            p,
            now,
            _names(StateEvent.FOUND_EXECUTED),
            change,
            lambda item: despite is None or _is_set_aside(item, despite),
        )
    )


def recall(p: Values, now: int) -> Plan:
    """Read first, as the others: when it ends depends on the record. That must still be the attempt that was
    asked about."""
    item = yield from item_of(p["operation_id"])
    if item is None or value_of(item, "attempt") != p["seen"]:
        return []
    change: dict[str, Term] = {
        **_settled(item, target(StateEvent.RECALL), now),
        "attempt": p["attempt"],
        "completed_at": now,
        "error_code": None,
        **provider(p),
        **_by(p),
    }
    moved = yield from answered(value_of(item, "pk"), change, p, (Is("attempt", p["seen"]), *over(now)))
    return [] if moved is None else [[now, *row_of(moved)]]


def found_not_executed(p: Values, now: int) -> Plan:
    state = target(StateEvent.FOUND_NOT_EXECUTED)
    return (
        yield from _found_out(
            p,
            now,
            _names(StateEvent.FOUND_NOT_EXECUTED),
            lambda item: {
                **_settled(item, state, now),
                **_freed(item, p["event"]),
                **_by(p),
                "disputed": None,
            },
            lambda item: _is_set_aside(item, p["despite"]),
        )
    )


def dispute(p: Values, now: int) -> Plan:
    """A provider says that it happened, and that could not settle the record: it is not free any more, nor
    will be."""

    def change(item: Item) -> dict[str, Term]:
        if value_of(item, "state") not in (State.FAILED_RETRYABLE, State.EXPIRED):
            return {"disputed": _with_dispute(item, p["event"])}
        state = target(StateEvent.DISPUTE)
        queue = place(state, str(value_of(item, "pk")))
        moved: dict[str, Term] = {"state": str(state), "reconcile_after": now, "queue": queue, "due": now}
        return {"disputed": _with_dispute(item, p["event"]), **moved, "forget_after": None}

    def allowed(item: Item) -> bool:
        """Of tombstones, that of what never had an answer."""
        failed = value_of(item, "completed_at") is None and value_of(item, "after_expiry") != "gone"
        return failed or bool(value_of(item, "state") != State.EXPIRED)

    open_states = [str(state) for state in State if state is not State.COMPLETED]
    return (yield from _found_out(p, now, open_states, change, allowed))


def _with_dispute(item: Item, event: str) -> str:
    """The events that dispute it, with this one. Of those for which there is no room it is kept that there
    were some."""
    events = json.loads(value_of(item, "disputed") or "[]")
    added = event if len(events) < MOST_DISPUTES else encode_yes(MORE)
    return json.dumps(events if added in events else [*events, added])


def _is_set_aside(item: Item, despite: str | None) -> bool:
    """Whether every event that disputes it is among those that somebody sets aside."""
    return {*json.loads(value_of(item, "disputed") or "[]")} <= {*json.loads(despite or "[]")}


def disputed_by(p: Values, now: int) -> Plan:
    item = yield from item_of(p["operation_id"])
    event = None if item is None else value_of(item, "disputed")
    return [] if event is None else [[event]]


def _freed(item: Item, event: str | None) -> dict[str, Term]:
    """The event that frees an attempt is kept: should it come again, it frees no other."""
    if event is None:
        return {}
    return {"freed_by": json.dumps([*json.loads(value_of(item, "freed_by") or "[]"), event])}


def freed_by(p: Values, now: int) -> Plan:
    item = yield from item_of(p["operation_id"])
    return [] if item is None else [[value_of(item, "freed_by") or "[]"]]


def give_up_finding(p: Values, now: int) -> Plan:
    state = target(StateEvent.GIVE_UP)

    def change(item: Item) -> dict[str, Term]:
        queue = place(state, str(value_of(item, "pk")))
        attempt = nobodys(value_of(item, "attempt"))
        return {
            "state": str(state),
            "attempt": attempt,
            "reconcile_after": None,
            "queue": queue,
            "due": now,
            **_by(p),
        }

    return (yield from _found_out(p, now, [str(State.UNKNOWN)], change))


def evict_answer(p: Values, now: int) -> Plan:
    item = yield from item_of(p["operation_id"])
    if item is None or value_of(item, "answer_status") is None:
        return []
    change: dict[str, Term] = {**NO_ANSWER, **_by(p)}
    del change["answer_version"]
    request = update(
        value_of(item, "pk"),
        change,
        Is("attempt", value_of(item, "attempt")),
        Is("state", str(State.COMPLETED)),
    )
    return (yield from moved_row(request, now))


def extend(p: Values, now: int) -> Plan:
    """An operator keeps an answer for longer. What has ended meanwhile, or ends later already, stays."""
    item = yield from item_of(p["operation_id"])
    if item is None or not now < value_of(item, "expires_at") < p["kept_until"]:
        return []
    change: dict[str, Term] = {
        "expires_at": p["kept_until"],
        "due": p["kept_until"],
        "forget_after": forget_after(p["kept_until"], value_of(item, "after_expiry")),
        **_by(p),
    }
    request = update(
        value_of(item, "pk"),
        change,
        Is("attempt", p["attempt"]),
        Is("state", str(State.COMPLETED)),
        Is("expires_at", value_of(item, "expires_at")),
    )
    return (yield from moved_row(request, now))


def reopen(p: Values, now: int) -> Plan:
    """A failure that was remembered as the answer may be tried again; not while a provider says otherwise."""
    item = yield from item_of(p["operation_id"])
    status = None if item is None else value_of(item, "answer_status")
    if item is None or status is None or int(status) < ERRORS_FROM or not now < value_of(item, "expires_at"):
        return []
    change: dict[str, Term] = {
        **_settled(item, target(StateEvent.REOPEN), now),
        **NO_ANSWER,
        "completed_at": None,
        "error_code": "reopened",
        **_by(p),
    }
    same = (Is("attempt", p["attempt"]), Is("expires_at", value_of(item, "expires_at")), Absent("disputed"))
    request = update(value_of(item, "pk"), change, Is("state", str(State.COMPLETED)), *same)
    return (yield from moved_row(request, now))


def _names(event: StateEvent) -> list[str]:
    return [str(state) for state in sources(event)]


def _by(p: Values) -> dict[str, Term]:
    """Who settled it and why stays with the record: there is no audit table."""
    return {"actor": p["actor"], "reason": p["reason"]}


def _settled(item: Item, state: State, now: int) -> dict[str, Term]:
    """What a record becomes when somebody has found out. It is kept as long as it says itself."""
    record = decode_record(row_of(item))
    done = state is State.COMPLETED
    counted = record.ttl_from if done else "completion"
    expires_at = expiry_of(now, record.created_at, record.ttl_ms, counted)
    return {
        "state": str(state),
        "attempt": nobodys(record.attempt),
        "locked_until": None,
        "reconcile_after": None,
        "reconcile_tries": 0,
        "expires_at": expires_at,
        "queue": place(state, str(value_of(item, "pk"))),
        "due": expires_at,
        "forget_after": forget_after(expires_at, record.after_expiry),
    }


def _found_out(
    p: Values,
    now: int,
    states: list[str],
    change: Callable[[Item], dict[str, Term]],
    allowed: Callable[[Item], bool] = lambda _: True,
) -> Plan:
    """Reads, then compares and sets, and again if the record moved in between."""
    for _ in range(_ROUNDS):
        item = yield from item_of(p["operation_id"])
        if item is None or value_of(item, "state") not in states:
            return []
        attempt, state = value_of(item, "attempt"), value_of(item, "state")
        if (p["attempt"] is not None and p["attempt"] != attempt) or not allowed(item):
            return []
        said = value_of(item, "disputed")
        same = Absent("disputed") if said is None else Is("disputed", said)
        pk, conditions = value_of(item, "pk"), (Is("attempt", attempt), Is("state", state), same)
        wanted = change(item)
        if "answer_version" in wanted:
            moved = yield from answered(pk, wanted, p, conditions)
        else:
            reply = yield from one(update(pk, wanted, *conditions))
            moved = None if refused(reply) else changed(reply)
        if moved is not None:
            return [[now, *row_of(moved)]]
    return []

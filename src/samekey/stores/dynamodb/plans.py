"""The statements on keys, each as a plan: the same names, parameters and rows as those of the SQL stores.

Every change is one conditional write: it compares the attempt id and the states that ``core/states.py``
allows, so whoever comes second changes nothing. Reads are consistent reads of one item.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ...core.claim import located_by
from ...core.program import Row
from ...core.record import expiry_of, nobodys, run_of
from ...core.states import LEASE_END, Mode, State, StateEvent, sources, target
from ...errors import StoreError
from .items import (
    POINTER_KEPT,
    Item,
    encode_item,
    forget_after,
    is_pk,
    kept_seconds,
    pk_of,
    place,
    pointed_to,
    pointer_pk,
    provider_digest,
    row_for,
    row_of,
    value_of,
)
from .requests import (
    Absent,
    Also,
    Among,
    Asking,
    Both,
    Condition,
    Either,
    Is,
    Plan,
    Plus,
    Present,
    Request,
    Term,
    TimeCome,
    Unless,
    Values,
    changed,
    delete,
    found,
    get,
    insert,
    invalid,
    put,
    query,
    refused,
    update,
)

MOST_ALIKE: Final = 100
"""Operations of a tenant that are found by one id of the provider's. It should be one."""

BY_PROVIDER: Final = "by_provider"
"""The index of provider ids."""

LARGEST_ANSWER: Final = 390_000
"""Bytes of headers and body, as stored, that an answer may have. An item has 409,600, and the rest of a
record must find its place too. A larger answer is withheld; so is a smaller one if DynamoDB says that the
item is too large all the same."""

LARGEST_PAST: Final = 16_000
"""Characters of ids of former lives that an item carries along, which go where its answer would."""

NO_ANSWER: Final[Mapping[str, Term]] = {
    "answer_version": None,
    "answer_status": None,
    "answer_headers": None,
    "answer_body": None,
}


def may_leave(event: StateEvent) -> Condition:
    """The record is in a state that the event may leave."""
    return Among("state", [str(state) for state in sources(event)])


def one(request: Request) -> Asking:
    """One request, one reply."""
    (reply,) = yield [request]
    return reply


# ------------------------------------------------------------------ finding


def find(p: Values, now: int) -> Plan:
    item = found((yield from one(get(pk_of(p["scope"], p["key"])))))
    if item is None:
        return [[now, *row_of({})]]
    return [[now, *row_for(item, p["scope"], p["key"])]]


def find_by_id(p: Values, now: int) -> Plan:
    item = yield from item_of(p["id"])
    return [] if item is None else [[now, *row_of(item)]]


def item_of(operation_id: str) -> Asking:
    """The item of an operation: its id says where it lies."""
    pk = located_by(operation_id)
    if not is_pk(pk):
        return None
    item = found((yield from one(get(pk))))
    return item if item is not None and value_of(item, "id") == operation_id else None


def find_former(p: Values, now: int) -> Plan:
    """Whether the id is that of a former life of a key of this tenant's."""
    pk = located_by(p["id"])
    item = found((yield from one(get(pk)))) if is_pk(pk) else None
    if item is None or value_of(item, "id") == p["id"] or value_of(item, "tenant") != p["tenant"]:
        return []
    return [[now]]


def find_by_downstream(p: Values, now: int) -> Plan:
    if not is_pk(p["downstream"]):
        return []
    item = found((yield from one(get(p["downstream"]))))
    if item is None or value_of(item, "downstream") != p["downstream"]:
        return []
    return [[now, *row_of(item)]]


def find_by_provider_id(p: Values, now: int) -> Plan:
    """The index knows no tenant: all that have this id are looked at."""
    digest = provider_digest(p["provider_id"])
    rows: list[Row] = []
    page: dict[str, Any] = {}
    seen: set[str] = set()
    while len(rows) < MOST_ALIKE:
        reply = yield from one(query(BY_PROVIDER, Is("by_provider", digest), **page))
        for pk in [pointed_to(value_of(entry, "pk")) for entry in reply["Items"]]:
            if pk in seen:
                continue
            seen.add(pk)
            item = found((yield from one(get(pk))))
            if item is not None and value_of(item, "tenant") == p["tenant"]:
                rows += [[key, now, *row_of(item)] for key in _keys_under(item, p)]
        if "LastEvaluatedKey" not in reply:
            break
        page = {"ExclusiveStartKey": reply["LastEvaluatedKey"]}
    return rows


def _keys_under(item: Item, p: Values) -> list[str | None]:
    """The downstream keys of the effects that have this id of the provider's, whichever attempt noted it."""
    wanted, source = p["provider_id"], p["source"]
    noted = [(key, to) for made, _, _, key, to in made_by(item) if made == wanted]
    if noted:
        return sorted({key for key, to in noted if source in (None, to)}, key=str)
    its_own = value_of(item, "provider_id") == wanted and source in (None, value_of(item, "source"))
    return [None] if its_own else []


def made_by(item: Item) -> list[tuple[str, str, str, str | None, str | None]]:
    """What the provider has made: its id, the attempt, step, downstream key, source."""
    return [tuple(json.loads(one)) for one in sorted(value_of(item, "made") or [])]


def noted_steps(item: Item) -> list[tuple[str, str | None, str | None, str | None]]:
    """What a leased handler may have sent: steps, downstream keys, the provider's ids, and to whom."""
    return [tuple(one) for one in json.loads(value_of(item, "steps") or "[]")]


def effects_of(p: Values, now: int) -> Plan:
    item = yield from item_of(p["operation_id"])
    if item is None:
        return []
    attempt = value_of(item, "sent_attempt")
    sends, sent_at = value_of(item, "attempts"), value_of(item, "last_run_at")
    run = run_of(value_of(item, "attempt"))
    former = json.dumps(sorted({made for made, by, _, _, _ in made_by(item) if run_of(by) != run}))
    return [
        [step, "leased", str(place), attempt, source, key, provider_id, sends, sent_at, None, None, 0, former]
        for place, (step, key, provider_id, source) in enumerate(noted_steps(item))
    ]


# ------------------------------------------------------------------ claiming


def _attempt(p: Values, now: int, pk: str) -> dict[str, Term]:
    """What every new attempt sets: it holds the lease from now on."""
    state = target(StateEvent.CLAIM)
    locked_until = now + p["lease_ms"]
    return {
        "state": str(state),
        "mode": p["mode"],
        "attempt": p["attempt"],
        "locked_until": locked_until,
        "last_run_at": now,
        "reconcile_tries": 0,
        "queue": place(state, pk),
        "due": locked_until,
    }


def _life(p: Values, now: int, pk: str) -> dict[str, Term]:
    """What every new life of a key sets: it is an operation of its own."""
    given = ("id", "tenant", "endpoint", "fingerprint", "fingerprint_version", "downstream")
    retention = ("ttl_ms", "ttl_from", "after_expiry")
    return {
        **_attempt(p, now, pk),
        **{name: p[name] for name in (*given, *retention)},
        "attempts": 1,
        "created_at": now,
        "expires_at": now + p["ttl_ms"],
        "kept_s": kept_seconds(p["ttl_ms"], p["after_expiry"]),
    }


def reserve(p: Values, now: int) -> Plan:
    pk = pk_of(p["scope"], p["key"])
    item = encode_item(
        {
            "pk": pk,
            "scope": p["scope"],
            "key": p["key"],
            "life": 1,
            **_life(p, now, pk),  # type: ignore[dict-item]  # nothing but values in it
        }
    )
    reply = yield from one(insert(item))
    if not refused(reply):
        return [[now, 1, *row_of(item)]]
    there = found(reply) or found((yield from one(get(pk))))  # not every emulator shows what is there
    return [] if there is None else [[now, 0, *row_for(there, p["scope"], p["key"])]]


def retry(p: Values, now: int) -> Plan:
    pk = pk_of(p["scope"], p["key"])
    change: dict[str, Term] = {
        **_attempt(p, now, pk),
        "attempts": Plus("attempts", 1),
        "expires_at": Plus("ttl_ms", now),
        "error_code": None,
        "provider_id": None,  # it is that of the attempt that noted it
        "by_provider": None,
        "forget_after": None,
    }
    if p["downstream"] is not None:
        change["downstream"] = Unless(p["downstream"])
    return (
        yield from moved_row(update(pk, change, Is("attempt", p["seen"]), may_leave(StateEvent.RETRY)), now)
    )


def resume(p: Values, now: int) -> Plan:
    pk = pk_of(p["scope"], p["key"])
    locked_until = now + p["lease_ms"]
    change: dict[str, Term] = {
        "state": str(target(StateEvent.RESUME)),
        "attempt": p["attempt"],
        "attempts": Plus("attempts", 1),
        "locked_until": locked_until,
        "due": locked_until,
        "last_run_at": now,
    }
    request = update(
        pk,
        change,
        Is("attempt", p["seen"]),
        may_leave(StateEvent.RESUME),
        Is("mode", str(Mode.PHASED)),
        TimeCome("locked_until", now),
    )
    return (yield from moved_row(request, now))


def reuse(p: Values, now: int) -> Plan:
    """Read first, to take along what the provider has made for the former life: it is not this one's. What is
    over notes nothing more, so the attempt that was seen stands for it."""
    pk = pk_of(p["scope"], p["key"])
    former = found((yield from one(get(pk)))) or {}
    change: dict[str, Term] = {
        **_life(p, now, pk),
        **NO_ANSWER,
        "life": Plus("life", 1),
        "recovery_point": None,
        "error_code": None,
        "provider_id": None,
        "by_provider": None,
        "steps": None,
        "made": None,
        "past": _past(former),
        "sent_attempt": None,
        "source": None,
        "freed_by": None,
        "disputed": None,
        "reconcile_after": None,
        "completed_at": None,
        "forget_after": None,
        "actor": None,
        "reason": None,
    }
    return (yield from moved_row(update(pk, change, Is("attempt", p["seen"]), *over(now)), now))


def _past(item: Item) -> str | None:
    """The provider's ids that this life and those before it have noted; of very many, the latest."""
    ids = [*json.loads(value_of(item, "past") or "[]"), *(made for made, *_ in made_by(item))]
    if value_of(item, "provider_id") is not None:
        ids.append(value_of(item, "provider_id"))
    while len(json.dumps(ids)) > LARGEST_PAST:
        ids = ids[1 + len(ids) // 10 :]
    return json.dumps(ids) if ids else None


def past_ids(p: Values, now: int) -> Plan:
    item = yield from item_of(p["operation_id"])
    return [] if item is None else [[value_of(item, "past") or "[]"]]


def over(now: int) -> tuple[Condition, Condition]:
    """The record's retention is over, and what follows is not "gone"."""
    ended = Either(
        may_leave(StateEvent.CLAIM), Both(may_leave(StateEvent.EXPIRE), TimeCome("expires_at", now))
    )
    return Among("after_expiry", ["new", "ask"]), ended


def moved_row(request: Request, now: int) -> Plan:
    reply = yield from one(request)
    return [] if refused(reply) else [[now, *row_of(changed(reply))]]


# ------------------------------------------------------------------ leases


def end_lease(p: Values, now: int) -> Plan:
    """The recorded mode decides, which this request may not know: it tries what its own mode would lead to,
    and the refusal shows the record."""
    pk = pk_of(p["scope"], p["key"])
    tried: State | None = None
    mode: str | None = p["mode"] if p["mode"] in _LEASE_END else str(Mode.LEASED)
    while _LEASE_END.get(str(mode)) is not tried:
        for request in lease_ended(pk, mode, now, Is("attempt", p["seen"])):
            reply = yield from one(request)
            if not refused(reply):
                return [[now, *row_of(changed(reply))]]
        if tried is not None:
            return []
        item = found(reply) or found((yield from one(get(pk)))) or {}
        tried, mode = _LEASE_END[str(mode)], value_of(item, "mode")
    return []


def lease_ended(pk: str, mode: str | None, now: int, *conditions: Condition) -> list[Request]:
    """Moves a record of that mode whose lease ran out, by one of these; there is none for modes whose records
    stay as they are. What a provider says has happened is never free, whatever its mode."""
    if mode not in _LEASE_END:
        return []
    state = _LEASE_END[mode]
    alike = [other for other, then in _LEASE_END.items() if then is state]
    moved = _lease_ended(pk, state, now, *conditions, Among("mode", alike), *free(state))
    if state is State.UNKNOWN:
        return [moved]
    held = (Among("mode", alike), Present("disputed"))
    return [moved, _lease_ended(pk, target(StateEvent.DISPUTE), now, *conditions, *held)]


def free(state: State) -> tuple[Condition, ...]:
    """Whatever a provider says has happened does not become free to run again."""
    return (Absent("disputed"),) if state is State.FAILED_RETRYABLE else ()


def _lease_ended(pk: str, state: State, now: int, *conditions: Condition) -> Request:
    change: dict[str, Term] = {
        "state": str(state),
        "locked_until": None,
        "error_code": "lease_ended",
        "queue": place(state, pk),
    }
    if state is State.UNKNOWN:
        change |= {"reconcile_after": now, "due": now, "expires_at": Plus("ttl_ms", now)}
    else:
        change |= {"reconcile_after": None, **failed(now)}
    return update(pk, change, *conditions, may_leave(StateEvent.LEASE_END), TimeCome("locked_until", now))


_LEASE_END: Final = {str(mode): state for mode, state in LEASE_END.items() if state is not State.IN_PROGRESS}


def renew(p: Values, now: int) -> Plan:
    """One request for each lease, side by side."""
    leases = list(zip(p["scopes"], p["key_list"], p["attempts"], p["durations"], strict=True))
    replies = yield [
        update(
            pk_of(scope, key),
            {"locked_until": now + duration, "due": now + duration},
            Is("attempt", attempt),
            may_leave(StateEvent.LEASE_END),
        )
        for scope, key, attempt, duration in leases
    ]
    return [[lease[2]] for lease, reply in zip(leases, replies, strict=True) if not refused(reply)]


# ------------------------------------------------------------------ outcomes


def _held(p: Values, event: StateEvent) -> tuple[Condition, Condition]:
    """The caller is the current attempt, and the event is possible."""
    return Is("attempt", p["attempt"]), may_leave(event)


def failed(now: int) -> dict[str, Term]:
    """Nothing happened: retention is counted from now."""
    expiry = Plus("ttl_ms", now)
    return {"expires_at": expiry, "due": expiry, "forget_after": Plus("kept_s", now // 1000)}


def complete(p: Values, now: int) -> Plan:
    """Counted from creation, the end must be computed, which DynamoDB cannot do: a look comes first."""
    pk = pk_of(p["scope"], p["key"])
    yield from pointed(p, now)
    allowed: tuple[Condition, ...] = _held(p, StateEvent.COMPLETE)
    if not p["happened"]:
        # What is set aside is compared as it is kept: in the order in which it came.
        known = p["heeded"] if p["heeded"] not in (None, "[]") else None
        allowed = (*allowed, Absent("disputed") if known is None else Is("disputed", known))
    from_completion = Is("ttl_from", "completion")
    change = _completed(p, now, pk, Plus("ttl_ms", now), Plus("kept_s", now // 1000))
    item = yield from answered(pk, change, p, (*allowed, from_completion))
    if item is None:
        there = found((yield from one(get(pk))))
        if there is None or value_of(there, "ttl_from") != "creation":
            return []
        expiry = expiry_of(now, value_of(there, "created_at"), value_of(there, "ttl_ms"), "creation")
        change = _completed(p, now, pk, expiry, forget_after(expiry, value_of(there, "after_expiry")))
        same = Is("created_at", value_of(there, "created_at"))
        item = yield from answered(pk, change, p, (*allowed, same))
    return [] if item is None else [[now, value_of(item, "expires_at")]]


def _completed(p: Values, now: int, pk: str, expiry: Term, forget: Term) -> dict[str, Term]:
    state = target(StateEvent.COMPLETE)
    return {
        "state": str(state),
        "completed_at": now,
        "locked_until": None,
        "expires_at": expiry,
        "queue": place(state, pk),
        "due": expiry,
        "forget_after": forget,
        "error_code": None,
        "reconcile_after": None,
        **provider(p),
        **noted(p),
    }


def noted(p: Values) -> dict[str, Term]:
    """What a leased handler may have sent, with the outcome of its attempt."""
    if p["step_list"] is None:
        return {}
    steps: dict[str, Term] = {
        "steps": p["step_list"],
        "sent_attempt": p["attempt"],
        "source": p["source"],
    }
    made = _made(p)
    if made:
        steps["made"] = Also([json.dumps([one, p["attempt"], *more]) for one, *more in made])
    return steps


def note_former(p: Values, now: int) -> Plan:
    """What an attempt has made that is not the current one any more, as its holder tells late."""
    yield from pointed(p, now)
    made = Also([json.dumps([one, p["attempt"], *more]) for one, *more in _made(p)])
    request = update(pk_of(p["scope"], p["key"]), {"made": made}, Is("id", p["operation_id"]))
    return [] if refused((yield from one(request))) else [[now]]


def _made(p: Values) -> list[tuple[str, str, str | None, str | None]]:
    return [tuple(one) for one in json.loads(p["made_list"] or "[]")]


def pointed(p: Values, now: int) -> Asking:
    """Before what was made is noted: each id leads to the record. A record has room for one in the index; and
    that one goes when it is tried again. Should the outcome not be written after all, these lead nowhere."""
    pk = pk_of(p["scope"], p["key"])
    digests = {provider_digest(one) for one, *_ in _made(p)}
    if digests:
        yield [put(_pointer(pk, digest, now)) for digest in sorted(digests)]


def _pointer(pk: str, digest: str, now: int) -> Item:
    forget = now // 1000 + POINTER_KEPT
    return encode_item({"pk": pointer_pk(pk, digest), "by_provider": digest, "forget_after": forget})


def provider(p: Values) -> dict[str, Term]:
    if p["provider_id"] is None:
        return {}
    return {"provider_id": p["provider_id"], "by_provider": provider_digest(p["provider_id"])}


def answered(pk: str, change: Mapping[str, Term], p: Values, conditions: tuple[Condition, ...]) -> Asking:
    """Writes the answer along with the change, or the fact alone where the answer does not fit.

    Gives the item as it is then; None if it was refused.
    """
    fact: dict[str, Term] = {**change, **NO_ANSWER, "answer_version": p["answer_version"]}
    if len(p["answer_headers"] or b"") + len(p["answer_body"] or b"") <= LARGEST_ANSWER:
        answer = {name: p[name] for name in ("answer_status", "answer_headers", "answer_body")}
        reply = yield from one(update(pk, {**fact, **answer}, *conditions, may_be_large=True))
        said = invalid(reply)
        if said is None:
            return None if refused(reply) else changed(reply)
        if "exceeded the maximum allowed size" not in said:
            raise StoreError(f"DynamoDB did not take the answer: {said}")
    reply = yield from one(update(pk, fact, *conditions))
    return None if refused(reply) else changed(reply)


def fail(p: Values, now: int) -> Plan:
    pk, state = pk_of(p["scope"], p["key"]), target(StateEvent.FAIL)
    yield from pointed(p, now)
    change: dict[str, Term] = {
        "state": str(state),
        "locked_until": None,
        "error_code": p["error_code"],
        "reconcile_after": None,
        "queue": place(state, pk),
        **failed(now),
        **noted(p),
    }
    return (yield from _ended(update(pk, change, *_held(p, StateEvent.FAIL), *free(state)), now))


def hold(p: Values, now: int) -> Plan:
    """The holder would free the key, but a provider says that it happened: somebody must find out first."""
    pk, state = pk_of(p["scope"], p["key"]), target(StateEvent.DISPUTE)
    yield from pointed(p, now)
    change = {**_unknown(p, now, pk, state), **noted(p)}
    return (yield from _noted_by_holder(p, now, change, *_held(p, StateEvent.DISPUTE), Present("disputed")))


def lose(p: Values, now: int) -> Plan:
    pk, state = pk_of(p["scope"], p["key"]), target(StateEvent.LOSE)
    yield from pointed(p, now)
    change = {**_unknown(p, now, pk, state), **provider(p), **noted(p)}
    return (yield from _noted_by_holder(p, now, change, *_held(p, StateEvent.LOSE)))


def _noted_by_holder(p: Values, now: int, change: Mapping[str, Term], *conditions: Condition) -> Plan:
    """What its holder notes of an outcome that others may be asking about by now is news to them."""
    pk, running = pk_of(p["scope"], p["key"]), [str(State.IN_PROGRESS)]
    rows = yield from _ended(update(pk, change, *conditions, Among("state", running)), now)
    if rows:
        return rows
    others = [str(state) for state in State if state is not State.IN_PROGRESS]
    news = {**change, "attempt": nobodys(p["attempt"])}
    return (yield from _ended(update(pk, news, *conditions, Among("state", others)), now))


def _unknown(p: Values, now: int, pk: str, state: State) -> dict[str, Term]:
    return {
        "state": str(state),
        "locked_until": None,
        "error_code": p["error_code"],
        "reconcile_after": now,
        "queue": place(state, pk),
        "due": now,
        "forget_after": None,
    }


def release(p: Values, now: int) -> Plan:
    # What has had a former life keeps what that has made: see fail.
    conditions = (*_held(p, StateEvent.RELEASE), Absent("disputed"), Is("life", 1))
    return (yield from _ended(delete(pk_of(p["scope"], p["key"]), *conditions), now))


def expire(p: Values, now: int) -> Plan:
    pk, state = pk_of(p["scope"], p["key"]), target(StateEvent.EXPIRE)
    change: dict[str, Term] = {"state": str(state), **NO_ANSWER, "queue": place(state, pk)}
    request = update(pk, change, may_leave(StateEvent.EXPIRE), TimeCome("expires_at", now))
    return (yield from _ended(request, now))


def _ended(request: Request, now: int) -> Plan:
    reply = yield from one(request)
    return [] if refused(reply) else [[now, value_of(changed(reply), "expires_at")]]

"""The status resource: what an operation's unguessable id shows to its own tenant."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

from ..core.claim import call_part, scope_of, scope_part
from ..core.decide import has_expired
from ..core.policy import Policy
from ..core.problem import Refusal, refuse
from ..core.record import Answer, Record
from ..core.states import State

_UNSETTLED = frozenset({State.PENDING, State.IN_PROGRESS, State.UNKNOWN})


def is_of(record: Record, tenant: str, bound_to: str | None) -> bool:
    """Whether an operation is this caller's, and of this session where keys are bound to one."""
    parts = [] if bound_to is None else [scope_part(bound_to)]
    own = [scope_of(part(tenant), *parts) for part in (scope_part, call_part)]
    # Every part of a scope carries its length, so that what begins so is nobody else's.
    return record.tenant == scope_part(tenant) and record.scope.startswith(tuple(own))


def status_answer(found: tuple[int, Record] | None, policy: Policy, *, kept: bool = False) -> Answer:
    """404 where nothing of the caller's was found; 410 once expired, unless it is ``kept`` because something
    of it is left to do."""
    if found is None:
        return refuse(Refusal(404, "There is no such operation."), policy)
    now, record = found
    if has_expired(record, now) and not kept:
        return gone_answer(policy)
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"cache-control", b"no-store"),
    ]
    if record.state in _UNSETTLED:
        pause = policy.unknown_retry_after if record.state is State.UNKNOWN else policy.retry_after
        headers.append((b"retry-after", str(pause).encode()))
    body: dict[str, Any] = {
        "id": record.id,
        "state": str(record.state),
        "created_at": _time(record.created_at),
        "last_run_at": _time(record.last_run_at),
        "completed_at": _time(record.completed_at),
        "expires_at": _time(record.expires_at),
        "answer": _answer(record),
    }
    return Answer(200, tuple(headers), json.dumps(body).encode())


def gone_answer(policy: Policy) -> Answer:
    """For an operation past its retention: reaped, or followed by another life of its key."""
    return refuse(Refusal(410, "The operation's retention is over.", "expired"), policy)


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _answer(record: Record) -> dict[str, Any] | None:
    if record.answer is None:
        return None
    try:
        body, encoding = record.answer.body.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(record.answer.body).decode("ascii"), "base64"
    headers = [[n.decode("latin-1"), v.decode("latin-1")] for n, v in record.answer.headers]
    return {"status": record.answer.status, "headers": headers, "body": body, "encoding": encoding}

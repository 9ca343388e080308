"""Verdicts and refusals as HTTP answers: RFC 9457 problem details, or Stripe's error envelope.

The machine-readable codes are a closed list, ``CODES``. The key itself never appears in an answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, assert_never

from .decide import (
    Accepted,
    Ask,
    Gone,
    Mismatch,
    ModeChanged,
    Outstanding,
    Replay,
    Uncertain,
    Unreadable,
    Verdict,
    Withheld,
)
from .policy import Policy
from .record import Answer
from .states import State

CODES: Final = {
    "missing": "Idempotency-Key is missing",
    "malformed": "Idempotency-Key is malformed",
    "personal": "Idempotency-Key looks like personal data",
    "reused": "Idempotency-Key is already used",
    "in_progress": "A request is outstanding for this Idempotency-Key",
    "outcome_unknown": "The outcome of the first request is not known yet",
    "result_unavailable": "The operation was done, but its answer cannot be repeated",
    "expired": "Idempotency-Key has expired",
    "store_unavailable": "The idempotency store cannot be reached",
    "limited": "Too many new keys",
    "stale": "The request is too old",
    "too_large": "The request body is too large",
}
"""The closed list of codes, each with its title."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is answered without a look at any record, or with an error about one."""

    status: int
    detail: str
    code: str | None = None
    retry_after: int | None = None
    operation_id: str | None = None
    expires_at: int | None = None
    differs: tuple[str, ...] = ()
    """In which parts a request differs from the first one with its key."""


_STRIPE_TYPES: Final = {
    "reused": "idempotency_error",
    "malformed": "idempotency_error",
    "personal": "idempotency_error",
    "store_unavailable": "api_error",
    "result_unavailable": "api_error",
    "limited": "rate_limit_error",
}
_STRIPE_CODES: Final = {"in_progress": "idempotency_key_in_use"}


def verdict_answer(verdict: Verdict, policy: Policy) -> Answer:
    """The answer to a request whose key was seen before."""
    match verdict:
        case Replay(record):
            assert record.answer is not None
            first = record.answer
            mark = (policy.replayed_header.encode("latin-1"), b"true")
            marks = (mark, expiry_header(policy, record.expires_at))
            # A handler may have passed on somebody else's marks; there must be one of each, and ours.
            ours = {name.lower() for name, _ in marks}
            kept = tuple(pair for pair in first.headers if pair[0].lower() not in ours)
            return Answer(first.status, (*kept, *marks), first.body)
        case Outstanding(operation_id, expires_at):
            return _outstanding(policy, operation_id, expires_at)
        case Accepted(record):
            return accepted_answer(policy, record.id, record.expires_at, record.state)
        case Mismatch(record, differs):
            same = "parameters" if policy.scope == "tenant+endpoint" else "endpoint and the same parameters"
            detail = (
                f"Keys can only be used with the same {same} they were first used with. This request "
                f"is different{_in(differs)}, so nothing was done; if it is a new operation, send it with "
                "a new key."
            )
            # Neither the operation's id nor its state: a different request learns nothing about the first.
            return refuse(
                Refusal(
                    policy.mismatch_status,
                    detail,
                    "reused",
                    expires_at=record.expires_at,
                    differs=differs,
                ),
                policy,
            )
        case Uncertain(record):
            dead = record.state is State.DEAD_LETTER
            return uncertain_answer(policy, record.id, record.expires_at, dead=dead)
        case Ask():
            detail = (
                "This key was used before and its retention is over. What became of that operation could not "
                "be found out, so nothing was run. Retry with the same key."
            )
            return refuse(Refusal(409, detail, "outcome_unknown", policy.unknown_retry_after), policy)
        case Gone(record):
            detail = (
                "This key was used and its retention is over. Nothing was done; look at the "
                "resource itself, and use a new key for a new operation."
            )
            return refuse(Refusal(policy.gone_status, detail, "expired"), policy)
        case Withheld(record):
            return withheld_answer(policy, record.id, record.expires_at)
        case Unreadable():
            return refuse(
                Refusal(
                    500,
                    "The record of this key cannot be read, so nothing was done. An operator "
                    "must look at it.",
                    "result_unavailable",
                ),
                policy,
            )
        case ModeChanged(record):
            detail = (
                "The operation began under another version of this service and cannot go on here, so nothing "
                "was done. Retry with the same key; an operator must look at it."
            )
            return refuse(Refusal(500, detail, None, policy.unknown_retry_after, record.id), policy)
        case _:
            assert_never(verdict)


def _in(differs: tuple[str, ...]) -> str:
    return f" in its {' and '.join(differs)}" if differs else ""


def _outstanding(policy: Policy, operation_id: str | None, expires_at: int) -> Answer:
    if policy.on_in_progress == "accept":
        return accepted_answer(policy, operation_id, expires_at)
    detail = "The operation of this key has not finished. Retry with the same key."
    return refuse(Refusal(409, detail, "in_progress", policy.retry_after, operation_id, expires_at), policy)


def uncertain_answer(
    policy: Policy, operation_id: str | None, expires_at: int | None, *, dead: bool = False
) -> Answer:
    """The answer while the outcome is unknown: it was not run again and will not be until it is known.

    ``dead``: nothing tries to find it out any more.
    """
    detail = "It is not known whether the operation was carried out, so it was not run again. " + (
        "It could not be found out by itself and waits for an operator; ask the service's operators, or look "
        "at the status later."
        if dead
        else "The outcome is being found out; retry with the same key, or look at the status."
    )
    return refuse(
        Refusal(409, detail, "outcome_unknown", policy.unknown_retry_after, operation_id, expires_at),
        policy,
    )


def withheld_answer(policy: Policy, operation_id: str, expires_at: int) -> Answer:
    """The answer where it was done, and what it answered cannot be repeated."""
    detail = (
        "The operation was done once and will not be done again under this key. Its answer was streamed or "
        "too large to keep; look at the resource itself."
    )
    return refuse(
        Refusal(409, detail, "result_unavailable", operation_id=operation_id, expires_at=expires_at), policy
    )


def accepted_answer(
    policy: Policy, operation_id: str | None, expires_at: int, state: State = State.IN_PROGRESS
) -> Answer:
    """202: it is being worked on; the status resource will have the answer.

    Atomic work has no id before it commits, so there is nothing to point to: only when to come back.
    """
    headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
    headers.append((b"retry-after", str(policy.retry_after).encode()))
    if operation_id is not None and policy.status_path is not None:
        headers.append((b"location", status_url(policy, operation_id).encode("latin-1", "replace")))
    headers.append(expiry_header(policy, expires_at))
    content = {"state": str(state)} if operation_id is None else {"id": operation_id, "state": str(state)}
    return Answer(202, tuple(headers), json.dumps(content, separators=(",", ":")).encode())


def refuse(refusal: Refusal, policy: Policy) -> Answer:
    """An error answer in the profile's shape. It is never stored."""
    headers: list[tuple[bytes, bytes]] = [
        (b"content-language", b"en"),
        (b"cache-control", b"no-store"),
        (b"link", f'<{policy.documentation}>; rel="describedby"'.encode("latin-1", "replace")),
    ]
    if refusal.status == 401:
        headers.append((b"www-authenticate", policy.challenge.encode("latin-1", "replace")))
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(refusal.retry_after).encode()))
    if refusal.operation_id is not None and policy.status_path is not None:
        url = status_url(policy, refusal.operation_id)
        headers.append((b"link", f'<{url}>; rel="status"'.encode("latin-1", "replace")))
    if refusal.expires_at is not None:
        headers.append(expiry_header(policy, refusal.expires_at))
    if policy.errors == "stripe":
        content, media = _stripe_body(refusal, policy), b"application/json"
    else:
        content, media = _problem_body(refusal, policy), b"application/problem+json"
    body = json.dumps(content, separators=(",", ":")).encode()
    return Answer(refusal.status, ((b"content-type", media), *headers), body)


def _problem_body(refusal: Refusal, policy: Policy) -> dict[str, object]:
    if refusal.code is None:
        kind, title = "about:blank", HTTPStatus(refusal.status).phrase
    else:
        kind, title = f"urn:samekey:problem:{refusal.code}", _title(refusal.code, policy)
    body: dict[str, object] = {
        "type": kind,
        "title": title,
        "status": refusal.status,
        "detail": refusal.detail,
    }
    if refusal.code is not None:
        body["code"] = refusal.code
    if refusal.operation_id is not None:
        body["operation"] = refusal.operation_id
    if refusal.differs:
        body["differs"] = list(refusal.differs)
    return body


def _stripe_body(refusal: Refusal, policy: Policy) -> dict[str, object]:
    fallback = "api_error" if refusal.status >= 500 else "invalid_request_error"
    error: dict[str, object] = {
        "type": _STRIPE_TYPES.get(refusal.code or "", fallback),
        "message": refusal.detail,
        "doc_url": policy.documentation,
    }
    code = _STRIPE_CODES.get(refusal.code or "", refusal.code)
    if code is not None:
        error["code"] = code
    return {"error": error}


def _title(code: str, policy: Policy) -> str:
    return CODES[code].replace("Idempotency-Key", policy.header)


def status_url(policy: Policy, operation_id: str) -> str:
    """The status resource of an operation, relative to the application's root."""
    return f"{(policy.status_path or '').rstrip('/')}/{operation_id}"


def expiry_header(policy: Policy, expires_at: int) -> tuple[bytes, bytes]:
    """When the key expires, as an HTTP date, under the configured name."""
    return policy.expires_header.encode("latin-1"), _date(expires_at // 1000)


@lru_cache(maxsize=100)
def _date(seconds: int) -> bytes:
    """Requests of one second share it."""
    return formatdate(seconds, usegmt=True).encode("ascii")

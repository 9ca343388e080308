"""What an answer means for an operation whose request carried a key. Pure."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

from .dialect import Dialect
from .wire import Answer, Request, origin_of, target_of

LONGEST_PAUSE: Final = 24 * 3600.0
"""Seconds. A ``Retry-After`` beyond a day is a mistake, and is read as a day."""


class Meaning(StrEnum):
    """The closed list of what an answer can say."""

    FINAL = "final"
    """This is what became of it: an answer that only the operation itself can have got."""
    BARE = "bare"
    """The end of this attempt. Of an earlier one it may say nothing: a gateway gives such answers too."""
    CONFLICT = "conflict"
    """The operation's own conflict, or an attempt that is still running: its words are not known."""
    BROKEN = "broken"
    """It failed half-way, perhaps after the work was done, and the server will say nothing else."""
    IN_PROGRESS = "in_progress"
    """An earlier attempt is still running: wait, then send it again."""
    UNKNOWN = "unknown"
    """The server does not know what became of it, and is finding out: wait, then tell."""
    ACCEPTED = "accepted"
    """It will be done: ask where ``Location`` points, or send it again."""
    ELSEWHERE = "elsewhere"
    """Nothing was done here; the same request belongs to another URL."""
    LATER = "later"
    """This attempt was not carried out; the next one may be."""
    UNCLEAR = "unclear"
    """This attempt may have been carried out or not."""
    REFUSED = "refused"
    """This attempt was not carried out, and that says nothing about the earlier ones."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An answer, read."""

    meaning: Meaning
    replayed: bool = False
    retry_after: float | None = None
    location: str | None = None
    """A whole URL, of any origin."""
    lifetime: float | None = None
    """Seconds for which the server will know the key, by its own clock."""


_LEADS_ON: Final = frozenset({202, 301, 307, 308})
"""Of these, ``Location`` is where to go on. Of any other it is the caller's to read."""
_LATER: Final = frozenset({425, 429})
_SAYS_NOTHING: Final = frozenset({401, 403, 404, 405, 407, 413, 415, 421, 431})
"""Made before anybody looks at the key: by a gateway, by whoever checks credentials, by a router."""
_OWN_REFUSALS: Final = frozenset({400, 402, 422})
"""Said of what the request asks for, which is the same at every attempt."""
DEFINITE_5XX: Final = frozenset({501, 505})
_IN_USE: Final = frozenset({"in_progress", "idempotency_key_in_use"})
_ADYEN_IN_PROGRESS: Final = "704"
"""Adyen: "request already processed or in progress", as 409 or 422; or any answer marked as transient."""
_TITLE_IN_USE: Final = "A request is outstanding for this Idempotency-Key"


def read(answer: Answer, request: Request, dialect: Dialect, wall: float) -> Reading:
    """What it means. ``wall``: our clock, for dates where the answer does not tell the server's own."""
    replayed = (answer.header(dialect.replayed_header) or "").strip().lower() == "true"
    location = answer.header("location") if answer.status in _LEADS_ON else None
    target = None if location is None else target_of(request.url, location)
    return Reading(
        _meaning(answer, request, replayed, target, dialect),
        replayed,
        _pause(answer, wall),
        target,
        _lifetime(answer, dialect, wall),
    )


def _meaning(
    answer: Answer, request: Request, replayed: bool, target: str | None, dialect: Dialect
) -> Meaning:
    status = answer.status
    failed = status >= 500 and status not in DEFINITE_5XX
    if status == 202 and (answer.header("location") or (answer.header("retry-after") and not replayed)):
        return Meaning.ACCEPTED
    if replayed:
        return Meaning.BROKEN if failed else Meaning.FINAL
    if status in (307, 308) or (status == 301 and request.method != "POST"):
        return Meaning.BARE if target is None else Meaning.ELSEWHERE
    if (answer.header("transient-error") or "").lower() == "true" or _content(answer).get(
        "errorCode"
    ) == _ADYEN_IN_PROGRESS:
        return Meaning.IN_PROGRESS
    if status in (409, 423):
        return _conflict(answer)
    if status in _LATER:
        return Meaning.LATER
    if status in _SAYS_NOTHING:
        return Meaning.REFUSED
    if failed or status == 408:  # whoever has lost patience does not say with what
        return Meaning.UNCLEAR
    return Meaning.FINAL if _is_its_own(answer, dialect) else Meaning.BARE


def _is_its_own(answer: Answer, dialect: Dialect) -> bool:
    """Whether nobody can have given it but whoever carries out the operation."""
    if answer.status < 300 or answer.status == 303:
        return True
    is_page = "html" in (answer.header("content-type") or "").lower()
    return answer.status in _OWN_REFUSALS and not is_page and not is_about_the_key(answer, dialect)


_ABOUT_KEYS: Final = frozenset({400, 409, 422})


def is_about_the_key(answer: Answer, dialect: Dialect) -> bool:
    """Whether it complains of the key, and not of the operation: mostly that the key was used before, with
    another request. What became of that one it does not say. Each provider has words of its own for it, but
    all of them name the key."""
    if answer.status not in _ABOUT_KEYS:
        return False
    body = answer.body.decode("utf-8", "replace").lower()
    name = (dialect.member or dialect.header).lower()
    return "idempoten" in body or name in body or code_of(answer) == "reused"


def _conflict(answer: Answer) -> Meaning:
    code = code_of(answer)
    if code == "outcome_unknown":
        return Meaning.UNKNOWN
    if code in _IN_USE or _content(answer).get("title") == _TITLE_IN_USE:
        return Meaning.IN_PROGRESS
    if code == "result_unavailable":
        return Meaning.FINAL
    # The application's own, unless it asks us to come back.
    return Meaning.IN_PROGRESS if answer.header("retry-after") and code is None else Meaning.CONFLICT


def _content(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def code_of(answer: Answer) -> str | None:
    """The machine-readable code of a problem document, or of Stripe's envelope."""
    content = _content(answer)
    error = content.get("error")
    code = content.get("code") or (error.get("code") if isinstance(error, dict) else None)
    return code if isinstance(code, str) else None


def _pause(answer: Answer, wall: float) -> float | None:
    """``Retry-After`` in seconds, of either form; None if there is none that can be read."""
    said = (answer.header("retry-after") or "").strip()
    if said.isascii() and said.isdigit():
        return min(float(said[:12]), LONGEST_PAUSE)
    at = _date(said)
    if at is None:
        return None
    return min(max(at - _their_now(answer, wall), 0.0), LONGEST_PAUSE)


def _lifetime(answer: Answer, dialect: Dialect, wall: float) -> float | None:
    at = _date((answer.header(dialect.expires_header) or "").strip())
    return None if at is None else at - _their_now(answer, wall)


def _their_now(answer: Answer, wall: float) -> float:
    """The server's own clock, which its dates are by; ours may be wrong."""
    at = _date((answer.header("date") or "").strip())
    return wall if at is None else at


def _date(text: str) -> float | None:
    if not text:
        return None
    try:
        at = parsedate_to_datetime(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


@dataclass(frozen=True, slots=True)
class Status:
    """What the resource behind a 202 says: a final answer, or to wait, or to send the request again."""

    final: Answer | None = None
    wait: bool = False
    location: str | None = None
    retry_after: float | None = None
    unknown: bool = False


_WAITS: Final = frozenset({"pending", "in_progress", "unknown", "dead_letter"})
_STATES: Final = _WAITS | {"completed", "failed_retryable", "expired"}


def read_status(answer: Answer, asked: Request, wall: float) -> Status:
    """Reads samekey's status resource. Of any other, the first answer that is not 202 is the final one."""
    pause = _pause(answer, wall)
    if answer.status == 202:
        return Status(wait=True, retry_after=pause)
    location = answer.header("location")
    if answer.status == 303 and location is not None:
        leads = target_of(asked.url, location)
        same = leads is not None and origin_of(leads) == origin_of(asked.url)
        return Status(location=leads if same else None)
    if answer.status != 200:
        return Status()
    content = _content(answer)
    state = content.get("state")
    if not isinstance(state, str) or state not in _STATES or "answer" not in content:
        return Status(final=answer)
    if state in _WAITS:
        return Status(wait=True, retry_after=pause, unknown=state in ("unknown", "dead_letter"))
    kept = content["answer"]
    return Status(final=_kept(kept) if state == "completed" and isinstance(kept, dict) else None)


def _kept(kept: dict[str, Any]) -> Answer | None:
    """The answer inside samekey's status resource."""
    try:
        text = str(kept["body"])
        body = base64.b64decode(text) if kept["encoding"] == "base64" else text.encode()
        headers = tuple((str(name), str(value)) for name, value in kept["headers"])
        return Answer(int(kept["status"]), headers, body)
    except (KeyError, TypeError, ValueError):
        return None

"""What somebody found out about an effect: the provider, by lookup or webhook, or an operator.

What a request began, leased work or a job, ends in an HTTP answer: ``Executed(Response(201, …))``. A call of
``once()`` ends in what its function would have returned, a plain value: ``Executed({"id": …})``. So does an
effect of phased work, and the run goes on with that. What does not fit is refused.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from .core.claim import is_call
from .core.effects import Says
from .core.phases import decode_value, encode_value, said_by
from .core.provider import checked_provider_id
from .core.record import Answer, Record, decode_headers, encode_headers
from .core.replayable import replayable
from .core.states import Mode
from .errors import ConfigurationError, NotExecuted, NotSerialisable, SamekeyError
from .response import Response, answer_of


@dataclass(frozen=True, slots=True)
class Executed:
    """It happened; this is the answer that every retry gets, or what the call would have returned."""

    response: Any
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class Declined:
    """The provider has it and said no; this failure is the answer that every retry gets, or what the phase's
    call would have returned for a refusal. Of a call of ``once()``: later ones raise ``CallDeclined`` with
    it."""

    response: Any
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unusable:
    """Stands where an answer was that cannot be used. What it was the answer to is said all the same."""

    why: str


class StillUnknown:
    """Nobody can tell yet: ask again later."""


Evidence: TypeAlias = Executed | Declined | NotExecuted | type[NotExecuted]
Finding: TypeAlias = Evidence | StillUnknown | type[StillUnknown]
"""What a lookup returns. ``NotExecuted`` and ``StillUnknown`` may be returned as classes."""


def is_not_executed(finding: object) -> bool:
    return finding is NotExecuted or isinstance(finding, NotExecuted)


def is_still_unknown(finding: object) -> bool:
    return finding is StillUnknown or isinstance(finding, StillUnknown)


class AnswerKind(StrEnum):
    """What evidence about an operation gives, by what the operation is."""

    ANSWER = "answer"
    """An HTTP answer: work that a request began."""
    CALL = "call"
    """What the function would have returned: a call of ``once()``."""
    PHASE = "phase"
    """What the effect's call would have returned: phased work, whose function gives the answer."""


def kind_of(record: Record) -> AnswerKind:
    if record.mode is Mode.PHASED:
        return AnswerKind.PHASE
    return AnswerKind.CALL if is_call(record.scope) else AnswerKind.ANSWER


def check_finding(finding: object) -> None:
    """A lookup that returns anything else has a bug, and its word counts for nothing."""
    known = isinstance(finding, Executed | Declined)
    if not (known or is_not_executed(finding) or is_still_unknown(finding)):
        raise ConfigurationError(
            f"A lookup returned {type(finding).__name__}; it must return Executed(…), Declined(…), "
            "NotExecuted or StillUnknown."
        )
    _check_provider_id(finding)


def check_evidence(evidence: object) -> None:
    """What a webhook or an operator says must be certain; anything else must not pass for a "no"."""
    if not (isinstance(evidence, Executed | Declined) or is_not_executed(evidence)):
        named = evidence.__name__ if isinstance(evidence, type) else type(evidence).__name__
        raise ConfigurationError(
            f"{named} settles nothing; evidence is Executed(…), Declined(…) or NotExecuted. While nobody can "
            "tell, say nothing."
        )
    _check_provider_id(evidence)


def _check_provider_id(evidence: object) -> None:
    if isinstance(evidence, Executed | Declined) and evidence.provider_id is not None:
        checked_provider_id(evidence.provider_id)


def check_about(evidence: object, record: Record) -> None:
    """Whether it can be the end of this operation, or of an effect of it: else it is refused at the door, and
    not found out by the client that is told the wrong thing."""
    check_evidence(evidence)
    if not isinstance(evidence, Executed | Declined):
        return
    match kind_of(record):
        case AnswerKind.ANSWER:
            check_answer(evidence)
        case AnswerKind.CALL:
            encode_value(_plain(evidence, _CALL), "The evidence")
        case AnswerKind.PHASE:
            encode_value(value_in(evidence), "The evidence")


def fault_of(evidence: Evidence, record: Record) -> SamekeyError | None:
    """What is wrong with its answer, for this operation; None: it can be used. A value may raise anything
    when it is read."""
    try:
        check_about(evidence, record)
        encode_evidence(evidence)
    except SamekeyError as error:
        return error
    except Exception as error:
        return ConfigurationError(f"The evidence's answer cannot be read: {said_by(error)}.")
    return None


def unusable(fault: SamekeyError, evidence: Executed) -> Executed:
    """The same fact without its answer: what is wrong is what was said of it, and not that it happened."""
    try:
        _check_provider_id(evidence)
    except ConfigurationError:
        return Executed(Unusable(str(fault)))
    return Executed(Unusable(str(fault)), evidence.provider_id)


def why_unusable(evidence: Evidence) -> str | None:
    """Why its answer cannot be used; None: it can."""
    given = evidence.response if isinstance(evidence, Executed | Declined) else None
    return given.why if isinstance(given, Unusable) else None


def check_answer(evidence: Executed | Declined) -> None:
    """A refusal must not be told as done, nor what was done as an error."""
    if not isinstance(evidence.response, Response | Answer):
        raise ConfigurationError(
            f"Evidence about an operation that a request began is the HTTP answer that every retry gets, and "
            f"not {type(evidence.response).__name__}: {type(evidence).__name__}(Response(…))."
        )
    status = answer_of(evidence.response).status
    if isinstance(evidence, Declined):
        if status < 400:
            raise ConfigurationError(
                f"Declined(Response({status})) would tell a refusal as done: a refusal has a status of 400 "
                "or more."
            )
    elif status >= 400:
        raise ConfigurationError(
            f"Executed(Response({status})) would tell what was done as an error. Was it Declined(…)?"
        )
    elif status < 200 or status in (307, 308):
        raise ConfigurationError(f"{status} is no final answer: it says that nothing was done here.")


_CALL: Final = (
    "Evidence about a call of once() is what its function would have returned, a plain value, and not an "
    "HTTP answer."
)
_PHASE: Final = (
    "Evidence about an effect of phased work is what its call would have returned, a plain value, and not an "
    "HTTP answer: the phases after it still have to run, and the function gives the answer."
)
_JSON: Final = ((b"content-type", b"application/json"),)
CALL_RETURNED: Final = 200
CALL_DECLINED: Final = 422
"""The statuses under which a call's value is stored: what it returned, or what it was refused with."""


def answer_for(evidence: Executed | Declined, record: Record) -> Answer:
    """The answer that is stored: without cookies and all else that belonged to one moment."""
    if kind_of(record) is not AnswerKind.CALL:
        return replayable(answer_of(evidence.response))
    status = CALL_RETURNED if isinstance(evidence, Executed) else CALL_DECLINED
    return Answer(status, _JSON, encode_value(_plain(evidence, _CALL), "The evidence"))


def value_in(evidence: Executed | Declined) -> Any:
    """What a phase's call would have returned. An HTTP answer is refused: it would end the operation, and the
    phases that come after would never run."""
    return _plain(evidence, _PHASE)


def _plain(evidence: Executed | Declined, otherwise: str) -> Any:
    if isinstance(evidence.response, Response | Answer):
        raise ConfigurationError(otherwise)
    return evidence.response


def says(finding: Evidence) -> Says:
    if isinstance(finding, Executed):
        return Says.EXECUTED
    return Says.DECLINED if isinstance(finding, Declined) else Says.NOT_EXECUTED


def encode_evidence(finding: Evidence) -> bytes:
    """As it is kept until it can be applied."""
    check_evidence(finding)
    if not isinstance(finding, Executed | Declined):
        return json.dumps({"kind": str(Says.NOT_EXECUTED)}).encode()
    kept: dict[str, Any] = {"kind": str(says(finding)), "provider_id": finding.provider_id}
    if isinstance(finding.response, Unusable):
        kept["unusable"] = finding.response.why
    elif isinstance(finding.response, Response | Answer):
        answer = replayable(answer_of(finding.response))
        kept["status"] = answer.status
        kept["headers"] = encode_headers(answer.headers).decode("ascii")
        kept["body"] = base64.b64encode(answer.body).decode("ascii")
    else:
        kept["value"] = encode_value(finding.response, "The evidence").decode("ascii")
    return json.dumps(kept).encode()


def evidence_kind(stored: bytes) -> str:
    """What stored evidence says, in a word; and that its answer cannot be used, where that is so."""
    try:
        kept = json.loads(stored)
        return str(kept["kind"]) + (", but its answer cannot be used" if "unusable" in kept else "")
    except (ValueError, KeyError, TypeError):
        return "something unreadable"


def unusable_answer(stored: bytes) -> str | None:
    """Why the answer of stored evidence cannot be used; None: it can."""
    try:
        why = json.loads(stored).get("unusable")
    except (ValueError, AttributeError):
        return "it cannot be read"
    return None if why is None else str(why)


def unread(said: Says, provider_id: str | None) -> Evidence:
    """Evidence of which only this is known."""
    if said is Says.NOT_EXECUTED:
        return NotExecuted
    kind = Executed if said is Says.EXECUTED else Declined
    return kind(Unusable("it cannot be read here"), provider_id)


def decode_evidence(stored: bytes) -> Evidence:
    try:
        kept = json.loads(stored)
        said = Says(kept["kind"])
        if said is Says.NOT_EXECUTED:
            return NotExecuted
        response: Any
        if "unusable" in kept:
            response = Unusable(str(kept["unusable"]))
        elif "value" in kept:
            response = decode_value(kept["value"].encode("ascii"))
        else:
            headers = decode_headers(kept["headers"].encode("ascii"))
            response = Answer(int(kept["status"]), headers, base64.b64decode(kept["body"]))
        return (Executed if said is Says.EXECUTED else Declined)(response, kept["provider_id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotSerialisable(f"Stored evidence cannot be read: {error}") from None

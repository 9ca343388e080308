"""What somebody found out about an effect: the provider, by lookup or webhook, or an operator.

An effect of leased work, or a job, ends in an HTTP answer: ``Executed(Response(201, …))``. An effect of
phased work ends in what its call would have returned, a plain value, and the run goes on with that:
``Executed({"id": …})``.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from .core.effects import Says
from .core.phases import decode_value, encode_value
from .core.record import Answer, decode_headers, encode_headers
from .core.replayable import replayable
from .core.states import Mode
from .errors import ConfigurationError, NotExecuted, NotSerialisable
from .response import Response, answer_of


@dataclass(frozen=True, slots=True)
class Executed:
    """It happened; this is the answer that every retry gets, or what the phase's call would have returned."""

    response: Any
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class Declined:
    """The provider has it and said no; this failure is the answer that every retry gets, or what the phase's
    call would have returned for a refusal."""

    response: Any
    provider_id: str | None = None


class StillUnknown:
    """Nobody can tell yet: ask again later."""


Evidence: TypeAlias = Executed | Declined | NotExecuted | type[NotExecuted]
Finding: TypeAlias = Evidence | StillUnknown | type[StillUnknown]
"""What a lookup returns. ``NotExecuted`` and ``StillUnknown`` may be returned as classes."""


def is_not_executed(finding: object) -> bool:
    return finding is NotExecuted or isinstance(finding, NotExecuted)


def is_still_unknown(finding: object) -> bool:
    return finding is StillUnknown or isinstance(finding, StillUnknown)


def check_finding(finding: object) -> None:
    """A lookup that returns anything else has a bug, and its word counts for nothing."""
    known = isinstance(finding, Executed | Declined)
    if not (known or is_not_executed(finding) or is_still_unknown(finding)):
        raise ConfigurationError(
            f"A lookup returned {type(finding).__name__}; it must return Executed(…), Declined(…), "
            "NotExecuted or StillUnknown."
        )


def check_evidence(evidence: object) -> None:
    """What a webhook or an operator says must be certain; anything else must not pass for a "no"."""
    if not (isinstance(evidence, Executed | Declined) or is_not_executed(evidence)):
        named = evidence.__name__ if isinstance(evidence, type) else type(evidence).__name__
        raise ConfigurationError(
            f"{named} settles nothing; evidence is Executed(…), Declined(…) or NotExecuted. While nobody can "
            "tell, say nothing."
        )


def answer_in(evidence: Executed | Declined) -> Answer:
    """The answer that is stored: without cookies and all else that belonged to one moment."""
    return replayable(answer_of(evidence.response))


def value_in(evidence: Executed | Declined) -> Any:
    """What a phase's call would have returned. An HTTP answer is refused: it would end the operation, and the
    phases that come after would never run."""
    if isinstance(evidence.response, Response | Answer):
        raise ConfigurationError(
            "Evidence about an effect of phased work is what its call would have returned, a plain value, "
            "and not "
            "an HTTP answer: the phases after it still have to run, and the function gives the answer."
        )
    return evidence.response


def says(finding: Evidence) -> Says:
    if isinstance(finding, Executed):
        return Says.EXECUTED
    return Says.DECLINED if isinstance(finding, Declined) else Says.NOT_EXECUTED


def encode_evidence(finding: Evidence, mode: Mode) -> bytes:
    """As it is kept until it can be applied to an operation of this mode."""
    check_evidence(finding)
    if not isinstance(finding, Executed | Declined):
        return json.dumps({"kind": str(Says.NOT_EXECUTED)}).encode()
    kept: dict[str, Any] = {"kind": str(says(finding)), "provider_id": finding.provider_id}
    if mode is Mode.PHASED:
        kept["value"] = encode_value(value_in(finding), "The evidence").decode("ascii")
    else:
        answer = answer_in(finding)
        kept["status"] = answer.status
        kept["headers"] = encode_headers(answer.headers).decode("ascii")
        kept["body"] = base64.b64encode(answer.body).decode("ascii")
    return json.dumps(kept).encode()


def evidence_kind(stored: bytes) -> str:
    """What stored evidence says, in a word."""
    try:
        return str(json.loads(stored)["kind"])
    except (ValueError, KeyError, TypeError):
        return "something unreadable"


def decode_evidence(stored: bytes) -> Evidence:
    try:
        kept = json.loads(stored)
        said = Says(kept["kind"])
        if said is Says.NOT_EXECUTED:
            return NotExecuted
        response: Any
        if "value" in kept:
            response = decode_value(kept["value"].encode("ascii"))
        else:
            headers = decode_headers(kept["headers"].encode("ascii"))
            response = Answer(int(kept["status"]), headers, base64.b64decode(kept["body"]))
        return (Executed if said is Says.EXECUTED else Declined)(response, kept["provider_id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotSerialisable(f"Stored evidence cannot be read: {error}") from None

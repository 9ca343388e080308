"""What somebody found out about an unknown outcome: the provider, by lookup or webhook, or an operator."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from .core.record import Answer, decode_headers, encode_headers
from .core.replayable import replayable
from .errors import ConfigurationError, NotExecuted, NotSerialisable
from .response import answer_of


@dataclass(frozen=True, slots=True)
class Executed:
    """It happened; this is the answer that every retry gets."""

    response: Any
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class Declined:
    """The provider has it and said no; this failure is the answer that every retry gets."""

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


def encode_evidence(finding: Evidence) -> bytes:
    """As it is kept until it can be applied."""
    check_evidence(finding)
    if not isinstance(finding, Executed | Declined):
        return json.dumps({"kind": "not_executed"}).encode()
    answer = answer_in(finding)
    kept = {
        "kind": "executed" if isinstance(finding, Executed) else "declined",
        "status": answer.status,
        "headers": encode_headers(answer.headers).decode("ascii"),
        "body": base64.b64encode(answer.body).decode("ascii"),
        "provider_id": finding.provider_id,
    }
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
        if kept["kind"] == "not_executed":
            return NotExecuted
        headers = decode_headers(kept["headers"].encode("ascii"))
        answer = Answer(int(kept["status"]), headers, base64.b64decode(kept["body"]))
        if kept["kind"] == "executed":
            return Executed(answer, kept["provider_id"])
        if kept["kind"] == "declined":
            return Declined(answer, kept["provider_id"])
        raise ValueError(f"kind {kept['kind']!r}")  # noqa: TRY301
    except (ValueError, KeyError, TypeError) as error:
        raise NotSerialisable(f"Stored evidence cannot be read: {error}") from None

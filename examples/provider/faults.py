"""The ways in which the provider fails on demand, and which of them befalls a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

RequestFault = Literal[
    "decline",  # 402, no money moves; the key keeps that answer
    "delay",  # the answer comes late
    "charge_then_time_out",  # the money moves, and then never a word
    "charge_then_drop",  # the money moves, and then the connection is cut
    "error_before",  # 500, no money moves
    "error_after",  # 500, and yet the money moves
    "failure_told",  # 500, no money moves, and a webhook says so later, perhaps after the next attempt
    "limit",  # 429 with Retry-After, no money moves
    "malformed",  # the money moves, and the answer breaks off in the middle of its JSON
]
WebhookFault = Literal[
    "webhook_lost",  # it is never sent
    "webhook_doubled",  # it is sent twice, with one event id
    "webhook_again",  # it is sent, and later once more
    "webhook_late",  # it is sent later
    "webhook_reordered",  # it is sent after the next one
    "webhook_strays",  # before it come others that say the opposite, each about something that is not there
]
Fault = RequestFault | WebhookFault

REQUEST_FAULTS: Final = frozenset(get_args(RequestFault))
WEBHOOK_FAULTS: Final = frozenset(get_args(WebhookFault))
FAULTS: Final = REQUEST_FAULTS | WEBHOOK_FAULTS

FOR_EVER: Final = 3600.0
"""Seconds that a provider which never answers keeps a connection open."""


@dataclass(slots=True)
class Rule:
    """A fault that waits for its requests."""

    fault: Fault
    times: int | None
    """How many it befalls; None: all."""
    seconds: float
    reference: str | None
    """Only requests of this reference."""
    kind: str | None
    """Only requests of this kind."""

    def applies(self, reference: str, kind: str) -> bool:
        fits = self.reference in (None, reference) and self.kind in (None, kind)
        return fits and (self.times is None or self.times > 0)


@dataclass(frozen=True, slots=True)
class Befallen:
    """What befalls one request, or one webhook."""

    fault: Fault | None = None
    seconds: float = 0.0


NOTHING: Final = Befallen()


class Faults:
    """All rules. The oldest one that applies counts; a request and its webhook have one each."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(
        self, fault: str, times: int | None, seconds: float, reference: str | None, kind: str | None
    ) -> None:
        """ValueError if there is no such fault."""
        if fault not in FAULTS:
            raise ValueError(f"no such fault: {fault}")
        self._rules.append(Rule(cast("Fault", fault), times, seconds, reference, kind))

    def clear(self) -> None:
        self._rules.clear()

    def for_request(self, reference: str, kind: str) -> Befallen:
        return self._take(reference, kind, REQUEST_FAULTS)

    def for_webhook(self, reference: str, kind: str) -> Befallen:
        return self._take(reference, kind, WEBHOOK_FAULTS)

    def _take(self, reference: str, kind: str, family: frozenset[str]) -> Befallen:
        for rule in self._rules:
            if rule.fault in family and rule.applies(reference, kind):
                if rule.times is not None:
                    rule.times -= 1
                return Befallen(rule.fault, rule.seconds)
        return NOTHING

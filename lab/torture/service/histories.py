"""What the clients meant, sent and saw. The oracle's only source beside the provider's ledger and the views.

An ``Intent`` is one operation that a client wants to happen once, under one key. It has one body; a key that
is also used with another body has a *rival*, and of the two at most one may ever have an effect. An
``Exchange`` is one request and what came back, if anything did.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

Kind: TypeAlias = Literal["payment", "refund", "order", "transfer", "purchase"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Reason: TypeAlias = Literal["first", "retry", "race", "rival", "thrown", "abandoned", "late", "expired"]
"""Why a request was sent. ``thrown``: its answer is dropped, as if it had been lost on the way.
``abandoned``: the client hung up after sending. ``late``: a retry long after the answer; ``expired``: so long
after that the key's life is over. ``rival``: the key's other body."""

LEDGER_KINDS: Mapping[Kind, str] = {
    "payment": "charge",
    "refund": "refund",
    "transfer": "transfer",
    "purchase": "capture",
}
"""What a provider calls the effect. Orders have none there: their effect is a row."""
FIRST_STEPS: Mapping[Kind, str] = {"purchase": "authorisation"}
"""What it calls the step before, where there is one: a refusal may come after it."""

UNSETTLED_CODES = frozenset({"in_progress", "outcome_unknown", "store_unavailable", "limited"})
"""Refusals that say "come back": the operation may be running, or its outcome is not known yet."""
RETRYABLE = frozenset({202, 408, 425, 429})


@dataclass(frozen=True, slots=True)
class Body:
    """One thing that a key can be used for."""

    reference: str
    amount: int
    """In cents; of an order, the quantity."""
    content: bytes

    @staticmethod
    def of(reference: str, amount: int, /, **fields: Any) -> Body:
        return Body(reference, amount, json.dumps({"reference": reference, **fields}).encode())


@dataclass(frozen=True, slots=True)
class Intent:
    """One operation that shall happen once."""

    number: int
    kind: Kind
    tenant: str
    key: str
    path: str
    body: Body
    rival: Body | None = None
    """Another body that is sent with the same key."""
    payment: str | None = None
    """Of a refund: the payment that it gives back."""
    twin: int | None = None
    """The intent of another tenant that has the same key: independent of this one."""
    former: int | None = None
    """The intent that the key stood for in its former life, which is over: independent of this one too."""
    closed: bool = False
    """Its former intent is in the service's books, so this one is refused for ever: the key is not free."""

    @property
    def bodies(self) -> tuple[Body, ...]:
        return (self.body,) if self.rival is None else (self.body, self.rival)

    def settled_by(self, exchange: Exchange) -> bool:
        """Whether this answer is its last word. That its key stands for something else is none for a key
        whose former life left nothing behind: the former record may not be over yet."""
        free = self.former is not None and not self.closed
        return exchange.definitive and not (free and exchange.reused)

    def __str__(self) -> str:
        return f"{self.kind} {self.body.reference} of {self.tenant}, key {self.key}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, and what the client saw of it."""

    intent: int
    reason: Reason
    began: float
    """Seconds since the start of the run."""
    ended: float
    node: int
    rival: bool = False
    """Sent with the rival's body."""
    status: int | None = None
    """None: no answer, or no whole one."""
    body: bytes = b""
    replayed: bool = False
    error: str | None = None

    @property
    def code(self) -> str | None:
        """The machine-readable code of a refusal."""
        value = self.json()
        return value.get("code") if isinstance(value, dict) and isinstance(value.get("code"), str) else None

    def json(self) -> Any:
        """The body as JSON; None if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def definitive(self) -> bool:
        """Whether this answer is the operation's last word: a success, or a refusal that will not change."""
        if self.status is None or self.status in RETRYABLE or not 200 <= self.status < 500:
            return False
        return self.status < 400 or self.code not in UNSETTLED_CODES

    @property
    def succeeded(self) -> bool:
        return self.definitive and self.status is not None and self.status < 300

    @property
    def reused(self) -> bool:
        """Refused because the key stands for another body."""
        return self.status == 422 and self.code == "reused"

    def __str__(self) -> str:
        mark = " rival" if self.rival else ""
        came = (
            f"{self.status}{' (replay)' if self.replayed else ''}"
            if self.status
            else f"no answer ({self.error})"
        )
        shown = self.code or self.body[:300].decode("utf-8", "replace")
        when, what = f"{self.began:8.3f}–{self.ended:8.3f} s", f"{self.reason}{mark} → node {self.node}"
        return f"{when}  {what}: {came} {shown}".rstrip()


@dataclass(slots=True)
class Histories:
    """All intents and exchanges of a run, in the order in which they were made."""

    intents: list[Intent] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)

    def add(self, intent: Intent) -> Intent:
        self.intents.append(intent)
        return intent

    def by_intent(self) -> Iterator[tuple[Intent, list[Exchange]]]:
        """Each intent with what was sent for it."""
        found: dict[int, list[Exchange]] = {intent.number: [] for intent in self.intents}
        for exchange in self.exchanges:
            found[exchange.intent].append(exchange)
        for intent in self.intents:
            yield intent, sorted(found[intent.number], key=lambda one: one.began)


def told(intent: Intent, exchanges: list[Exchange]) -> str:
    """The whole story of one key, for a finding."""
    lines = [str(intent)]
    if intent.rival is not None:
        lines.append(f"  rival body: {intent.rival.content.decode()}")
    lines.append(f"  body: {intent.body.content.decode()}  → POST {intent.path}")
    lines += [f"  {exchange}" for exchange in exchanges]
    return "\n".join(lines)

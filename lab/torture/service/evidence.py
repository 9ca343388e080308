"""What the oracle judges by, and what it gives: plain data, gathered from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.provider import Entry

from .histories import Histories

Row = Mapping[str, Any]
"""A resource as the service shows it."""


@dataclass(frozen=True, slots=True)
class View:
    """What one tenant can GET at the end."""

    payments: Sequence[Row] = ()
    refunds: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """By the payment's id."""
    orders: Sequence[Row] = ()
    transfers: Sequence[Row] = ()
    purchases: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """A look at something that belongs to somebody else. Only 404 is right."""

    tenant: str
    path: str
    status: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """A time in which something was done to the service that may leave an outcome unknown."""

    kind: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the service's own comparison of ledgers said at the end."""

    agree: bool
    text: str
    references: frozenset[str] = frozenset()
    """What the differences are about, where they say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that there is to judge by."""

    histories: Histories
    ledger: Sequence[Entry]
    views: Mapping[str, View]
    """By tenant."""
    probes: Sequence[Probe] = ()
    troubles: Sequence[Trouble] = ()
    stock: tuple[Mapping[str, int], Mapping[str, int]] | None = None
    """What there was of everything, before and after."""
    comparison: Comparison | None = None
    settle_within: float = 0.0
    lease: float = 0.0
    kept_for: float | None = None
    """Seconds for which answers are kept; None: for longer than the run."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a promise was broken."""

    rule: str
    sentence: str
    story: str = ""
    """The whole history of the key."""


def counted(findings: Sequence[Finding]) -> dict[str, int]:
    """How many of each kind."""
    return dict(Counter(finding.rule for finding in findings).most_common())

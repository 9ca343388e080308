"""What the doctor looks at, and what it says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..core.program import Dialect
from ..stores.protocols import Overview

Level = Literal["problem", "note"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong, and what to do about it. A note alone does not make a store unhealthy."""

    code: str
    level: Level
    says: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """All that the doctor looks at. Where the tables do not fit, only ``schema_problem`` is set."""

    dialect: Dialect
    schema_problem: str | None = None
    overview: Overview | None = None
    rights_problem: str | None = None
    """What the role may not do; then nothing else could be looked at."""
    missing: Sequence[str] = ()
    """Indexes and triggers that should be there and are not."""
    facts: Mapping[str, str] = field(default_factory=dict)
    weaknesses: Sequence[tuple[str, str, str]] = ()
    """Of a key store: what can make it forget, as code, sentence and advice."""
    durations: Sequence[int] = ()
    """How long recent operations ran, in milliseconds."""
    skew_ms: int = 0
    """The store's clock less this machine's."""
    lease_ms: int | None = None
    """As configured, where the doctor was shown the application."""
    unknown_endpoints: Mapping[str, int] = field(default_factory=dict)
    evidence: Mapping[str, int] = field(default_factory=dict)
    """Events of providers that nobody but a person can place, by why."""
    lookups: frozenset[str | None] | None = None
    """Endpoints that have a lookup (None: every other), where the doctor was shown the application."""

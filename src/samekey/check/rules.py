"""Every rule that a check can find broken: its id, what it says and where that stands, and how to mend it.

The rules themselves are in ``rules.toml``. Three severities. ``error``: a second effect, a wrong answer or
somebody else's answer is possible. ``warning``: a client cannot rely on the answer. ``note``: advice, or a
point where the draft leaves freedom; notes are no findings unless the check is strict.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that can be wrong."""

    id: str
    severity: Severity
    says: str
    source: str
    fix: str


def _load() -> dict[str, Rule]:
    text = resources.files(__package__).joinpath("rules.toml").read_text("utf-8")
    return {
        name: Rule(name, **{**row, "severity": Severity(row["severity"])})
        for name, row in tomllib.loads(text).items()
    }


RULES = _load()
"""By id."""

"""What a check has found: findings, what was seen to be right, and what could not be proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from .masking import Secrets, shown_url
from .rules import RULES, Rule, Severity
from .wire import RawExchange


class Verdict(StrEnum):
    """What became of one rule."""

    PASSED = "passed"
    FINDING = "finding"
    NOTE = "note"
    NOT_PROVEN = "not proven"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that the endpoint breaks, and the exchanges that show it."""

    rule: Rule
    detail: str
    """What was seen, in a sentence."""
    exchanges: tuple[RawExchange, ...] = field(default=(), repr=False)
    """As they were, with everything secret; reports show them masked."""

    @property
    def id(self) -> str:
        return self.rule.id


@dataclass(slots=True)
class Report:
    """The result of checking one endpoint."""

    url: str
    method: str
    profile: str
    strict: bool = False
    secrets: Secrets = field(default_factory=Secrets)
    """What is never shown."""
    silent: frozenset[str] = frozenset()
    """Rules that the profile says nothing about."""
    name: str = ""
    """Of the endpoint, in a plan."""
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    not_proven: dict[str, str] = field(default_factory=dict)
    """Rule and why."""
    facts: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    seconds: float = 0.0
    unchecked: str = ""
    """Why the endpoint could not be checked at all."""

    @property
    def ok(self) -> bool:
        """It was checked, and nothing wrong was found."""
        return not self.findings and not self.unchecked

    def mask(self) -> None:
        """Takes what is secret out of every sentence; exchanges are masked where they are shown."""
        hidden = self.secrets.out_of
        self.url, self.name = shown_url(self.url, self.secrets), hidden(self.name)
        self.findings = [replace(finding, detail=hidden(finding.detail)) for finding in self.findings]
        self.notes = [replace(note, detail=hidden(note.detail)) for note in self.notes]
        self.not_proven = {rule: hidden(why) for rule, why in self.not_proven.items()}
        self.facts = {name: hidden(value) for name, value in self.facts.items()}

    def found(self, *prefixes: str) -> bool:
        """Whether there is a finding whose id begins with one of these."""
        return any(finding.id.startswith(prefixes) for finding in self.findings)

    def find(self, rule_id: str, detail: str, exchanges: Sequence[RawExchange] = ()) -> None:
        """Notes that a rule is broken; the first time counts."""
        rule = RULES[rule_id]
        if rule_id in self.silent or self._is_known(rule_id):
            return
        is_note = rule.severity is Severity.NOTE and not self.strict
        (self.notes if is_note else self.findings).append(Finding(rule, detail, tuple(exchanges)))
        self.not_proven.pop(rule_id, None)
        if rule_id in self.passed:
            self.passed.remove(rule_id)

    def hold(self, *rule_ids: str) -> None:
        """Notes that rules were seen to hold."""
        for rule_id in rule_ids:
            assert rule_id in RULES, rule_id
            if rule_id not in (*self.passed, *self.silent) and not self._is_known(rule_id):
                self.passed.append(rule_id)
                self.not_proven.pop(rule_id, None)

    def cannot_tell(self, why: str, *rule_ids: str) -> None:
        """Notes why rules could be neither broken nor held."""
        for rule_id in rule_ids:
            assert rule_id in RULES, rule_id
            if rule_id not in (*self.passed, *self.silent) and not self._is_known(rule_id):
                self.not_proven.setdefault(rule_id, why)

    def take_back(self, why: str, *rule_ids: str) -> None:
        """Notes that what rules were held by has turned out to tell nothing."""
        for rule_id in rule_ids:
            if rule_id in self.passed:
                self.passed.remove(rule_id)
                self.not_proven[rule_id] = why

    def _is_known(self, rule_id: str) -> bool:
        return any(known.id == rule_id for known in (*self.findings, *self.notes))

    def verdicts(self) -> Mapping[str, Verdict]:
        """What became of every rule that was looked at."""
        found: dict[str, Verdict] = {}
        for rule_id in RULES:
            if any(finding.id == rule_id for finding in self.findings):
                found[rule_id] = Verdict.FINDING
            elif any(note.id == rule_id for note in self.notes):
                found[rule_id] = Verdict.NOTE
            elif rule_id in self.passed:
                found[rule_id] = Verdict.PASSED
            elif rule_id in self.not_proven:
                found[rule_id] = Verdict.NOT_PROVEN
        return found

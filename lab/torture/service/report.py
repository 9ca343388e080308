"""What came of a run: the figures, every finding with its key's history, and how to run it again."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .evidence import Finding, counted
from .faults import Befell
from .histories import Exchange, Histories
from .picture import kind_of, timeline
from .plan import Plan

STORIES = 20
"""Findings whose whole history is printed; the rest is counted, and the JSON has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdict."""

    plan: Plan
    store: str
    histories: Histories
    befell: Sequence[Befell]
    findings: Sequence[Finding]
    entries: Counter[str]
    """Of the provider's ledger, by kind."""
    recognised: int
    """Requests that the provider had seen before, and knew by their key."""
    loaded: float
    """Seconds of load with faults."""
    settled: float
    """Seconds from the last fault's end until the last key had its answer."""
    seconds: float

    @property
    def held(self) -> bool:
        return not self.findings

    @property
    def command(self) -> str:
        """What runs the same plan again."""
        plan = self.plan
        words = ["python", "-m", "lab.torture", "service"]
        if plan.url is not None:
            words += ["--url", plan.url]
        words += ["--seconds", f"{plan.seconds:g}", "--seed", str(plan.seed), "--clients", str(plan.clients)]
        words += ["--nodes", str(plan.nodes), "--workers", str(plan.workers)]
        words += ["--fault-every", f"{plan.fault_every:g}", "--app", plan.app]
        if plan.ttl is not None:
            words += ["--ttl", f"{plan.ttl:g}"]
        return shlex.join(words)

    def figures(self) -> dict[str, Any]:
        """Everything that can be counted."""
        exchanges = self.histories.exchanges
        took = [seconds for _, seconds in recoveries(self.histories)]
        load = sum(1 for one in exchanges if one.began <= self.loaded)
        return {
            "held": self.held,
            "store": self.store,
            "seed": self.plan.seed,
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "loaded": round(self.loaded, 1),
            "settled_after": round(self.settled, 1),
            "operations": dict(Counter(intent.kind for intent in self.histories.intents)),
            "second_lives": sum(intent.former is not None for intent in self.histories.intents),
            "requests": len(exchanges),
            "requests_per_second": round(load / self.loaded, 1) if self.loaded else 0.0,
            "sent": dict(Counter(exchange.reason for exchange in exchanges)),
            "answers": dict(Counter(map(kind_of, exchanges))),
            "replays": sum(exchange.replayed for exchange in exchanges),
            "outcome_unknown": sum(exchange.code == "outcome_unknown" for exchange in exchanges),
            "faults": dict(Counter(one.kind for one in self.befell)),
            "ledger": dict(self.entries),
            "recognised": self.recognised,
            "recoveries": len(took),
            "longest_recovery": round(max(took, default=0.0), 1),
            "findings": counted(self.findings),
        }

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        befell = [{**asdict(one), "ended": min(one.ended, self.loaded)} for one in self.befell]
        return {
            **self.figures(),
            "found": [asdict(finding) for finding in self.findings],
            "timeline": befell,
        }

    def text(self) -> str:
        """For people."""
        figures = self.figures()
        lives = figures["second_lives"]
        again = f"; {lives:,} under a key of a former life" if lives else ""
        counts = {
            name: ", ".join(f"{count:,} {kind}" for kind, count in figures[name].items()) or "none"
            for name in ("operations", "sent", "answers", "faults", "ledger")
        }
        lines = [
            ("store", self.store),
            ("seed", str(self.plan.seed)),
            ("time", f"{self.loaded:.0f} s of load and faults, all settled {self.settled:.1f} s after"),
            ("operations", counts["operations"] + again),
            ("requests", f"{figures['requests']:,}, {figures['requests_per_second']:g} a second"),
            ("sent", counts["sent"]),
            ("answers", counts["answers"]),
            ("replays", f"{figures['replays']:,}; outcome unknown {figures['outcome_unknown']:,} times"),
            ("faults", f"{len(self.befell)}: {counts['faults']}"),
            ("ledger", f"{counts['ledger']}; {self.recognised:,} repeated calls known by their key"),
            ("recoveries", f"{figures['recoveries']:,} keys, the longest {figures['longest_recovery']:g} s"),
        ]
        text = [f"{name:<11} {value}" for name, value in lines]
        for finding in _of_every_kind(self.findings)[:STORIES]:
            text += ["", f"{finding.rule}: {finding.sentence}", finding.story]
        if len(self.findings) > STORIES:
            text += ["", f"… and {len(self.findings) - STORIES} more findings; --json has them all."]
        if self.held:
            text.append("held: one effect and one answer for every key")
        else:
            what = ", ".join(f"{count} {rule}" for rule, count in figures["findings"].items())
            text += ["", f"BROKEN: {what}", f"seed {self.plan.seed}; run it again with:", f"  {self.command}"]
        return "\n".join(text)

    def picture(self) -> str:
        """The timeline, an SVG."""
        verdict = "held" if self.held else f"{len(self.findings)} findings"
        requests = f"{len(self.histories.exchanges):,} requests, {len(self.befell)} faults"
        title = f"python -m lab.torture service on {self.store}, seed {self.plan.seed}: {requests}, {verdict}"
        return timeline(
            title,
            self.seconds,
            self.loaded,
            self.histories.exchanges,
            self.befell,
            recoveries(self.histories),
        )

    def write(self, directory: Path) -> None:
        """Text, JSON and picture."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "report.txt").write_text(self.text() + "\n", encoding="utf-8")
        (directory / "report.json").write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")
        (directory / "timeline.svg").write_text(self.picture(), encoding="utf-8")


def recoveries(histories: Histories) -> list[tuple[float, float]]:
    """For each key that met trouble: when it was settled, and how long after the first sign of it."""
    found = []
    for _, exchanges in histories.by_intent():
        trouble = next((x for x in exchanges if _troubled(x)), None)
        if trouble is None:
            continue
        settled = min((x.ended for x in exchanges if x.definitive), default=None)
        if settled is not None and settled > trouble.ended:
            found.append((settled, settled - trouble.ended))
    return found


def _troubled(exchange: Exchange) -> bool:
    return exchange.reason != "abandoned" and (
        kind_of(exchange) == "error" or exchange.code == "outcome_unknown"
    )


def _of_every_kind(findings: Sequence[Finding]) -> list[Finding]:
    """One of each rule first: a hundred findings of one rule must not hide what another has found."""
    first = {finding.rule: finding for finding in reversed(findings)}
    ahead = sorted(first.values(), key=list(findings).index)
    return [*ahead, *(finding for finding in findings if first[finding.rule] is not finding)]

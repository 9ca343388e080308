"""Each key with everything that is known of it: what the oracle's rules look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from examples.provider import Entry

from .evidence import Evidence, Finding, Row, View
from .histories import FIRST_STEPS, LEDGER_KINDS, Body, Exchange, Intent, told


@dataclass(frozen=True, slots=True)
class Case:
    """One key, with everything that is known of it."""

    intent: Intent
    exchanges: list[Exchange]
    effects: Mapping[str, list[Entry]]
    """Entries of the ledger, by the reference of the intent's bodies."""
    rows: Mapping[str, list[Row]]
    """Rows of the service's own view, by reference."""
    first_steps: int = 0
    """Entries of the ledger for the step before the effect, where there is one."""

    def answers(self, *, rival: bool = False) -> list[Exchange]:
        """The last words about one of its bodies, but for refusals of a used key: those are about the key."""
        return [x for x in self.exchanges if x.rival is rival and x.definitive and not x.reused]

    @property
    def settled(self) -> bool:
        return any(map(self.intent.settled_by, self.exchanges))

    def happened(self, body: Body) -> int:
        """How many effects this body had."""
        if self.intent.kind == "order":
            return len(self.rows[body.reference])
        return len(self.effects[body.reference])

    def finding(self, rule: str, sentence: str) -> Finding:
        return Finding(rule, f"{self.intent}: {sentence}", told(self.intent, self.exchanges))


def cases_of(evidence: Evidence) -> Iterator[Case]:
    entries: dict[tuple[str, str], list[Entry]] = {}
    for entry in evidence.ledger:
        entries.setdefault((entry.kind, entry.reference), []).append(entry)
    rows = {tenant: by_reference(view) for tenant, view in evidence.views.items()}
    for intent, exchanges in evidence.histories.by_intent():
        ledger_kind, first_step = LEDGER_KINDS.get(intent.kind, ""), FIRST_STEPS.get(intent.kind, "")
        shown = rows.get(intent.tenant, {})
        references = [body.reference for body in intent.bodies]
        yield Case(
            intent,
            exchanges,
            {name: entries.get((ledger_kind, name), []) for name in references},
            {name: shown.get((intent.kind, name), []) for name in references},
            sum(len(entries.get((first_step, name), [])) for name in references),
        )


def by_reference(view: View) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    groups: list[tuple[str, Sequence[Row]]] = [
        ("payment", view.payments),
        ("order", view.orders),
        ("transfer", view.transfers),
        ("purchase", view.purchases),
        *(("refund", refunds) for refunds in view.refunds.values()),
    ]
    for kind, rows in groups:
        for row in rows:
            found.setdefault((kind, str(row.get("reference"))), []).append(row)
    return found

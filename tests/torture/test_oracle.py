"""The oracle of ``python -m lab.torture service``: a good run has no findings, and every rule can fail.

All of it is made up: histories, a ledger and views, each with one thing wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from examples.provider import Entry
from lab.torture.service.evidence import (
    Comparison,
    Evidence,
    Finding,
    Probe,
    Trouble,
    View,
    counted,
)
from lab.torture.service.histories import Body, Exchange, Histories, Intent, Kind
from lab.torture.service.oracle import judge
from lab.torture.service.report import recoveries


@dataclass
class Run:
    """A run that went well; tests spoil it."""

    intents: list[Intent] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    ledger: list[Entry] = field(default_factory=list)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    stock: tuple[dict[str, int], dict[str, int]] = ({"pen": 100}, {"pen": 93})
    comparison: Comparison | None = field(default_factory=lambda: Comparison(True, ""))
    kept_for: float | None = None

    def findings(self) -> list[Finding]:
        evidence = Evidence(
            histories=Histories(self.intents, self.exchanges),
            ledger=self.ledger,
            views={tenant: View(**view) for tenant, view in self.views.items()},
            probes=self.probes,
            troubles=self.troubles,
            stock=self.stock,
            comparison=self.comparison,
            settle_within=5,
            kept_for=self.kept_for,
        )
        return judge(evidence)

    def rules(self) -> set[str]:
        return set(counted(self.findings()))

    def view(self, tenant: str) -> dict[str, Any]:
        return self.views.setdefault(
            tenant, {"payments": [], "refunds": {}, "orders": [], "transfers": [], "purchases": []}
        )

    def answered(
        self,
        number: int,
        status: int | None,
        body: object = None,
        *,
        at: float = 1.0,
        replayed: bool = False,
        rival: bool = False,
    ) -> Exchange:
        """One request of an intent, answered a tenth of a second after it was sent."""
        content = b"" if body is None else json.dumps(body).encode()
        exchange = Exchange(number, "first", at, at + 0.1, 0, rival, status, content, replayed)
        self.exchanges.append(exchange)
        return exchange

    def did(self, number: int, kind: Kind, tenant: str = "ada", *, rival: bool = False) -> dict[str, Any]:
        """An operation that went well: its answer, its replay, its entry and its row."""
        reference = f"{kind}-{number}"
        payment = "p-of-refund" if kind == "refund" else None
        other = Body.of(f"{reference}-rival", 8, amount=8) if rival else None
        body = Body.of(reference, 7, amount=7)
        self.intents.append(Intent(number, kind, tenant, f"k{number}", f"/{kind}s", body, other, payment))
        row: dict[str, Any] = {"id": f"id-{number}", "reference": reference}
        if kind == "order":
            row |= {"item": "pen", "quantity": 7}
            self.view(tenant)["orders"].append(row)
        else:
            name = {"payment": "charge", "purchase": "capture"}.get(kind, kind)
            if kind == "purchase":
                self.ledger.append(Entry(f"a{number}", f"da{number}", reference, 7, "authorisation"))
            entry = Entry(f"e{number}", f"d{number}", reference, 7, name)  # type: ignore[arg-type]
            self.ledger.append(entry)
            row |= {"amount": 7, "status": "succeeded", "provider_id": entry.id}
            if kind == "refund":
                self.view(tenant)["refunds"].setdefault("p-of-refund", []).append(row)
            else:
                self.view(tenant)[f"{kind}s"].append(row)
        self.answered(number, 409, {"code": "in_progress"}, at=0.5)
        self.answered(number, 201, row)
        self.answered(number, 201, row, at=2.0, replayed=True)
        if rival:
            self.answered(number, 422, {"code": "reused"}, at=3.0, rival=True)
        return row


def good() -> Run:
    run = Run()
    run.did(1, "payment", rival=True)
    run.did(2, "order", "bob")
    run.did(3, "transfer")
    run.did(4, "refund")
    run.view("ada")["payments"].append(
        {"id": "p-of-refund", "reference": "payment-5", "amount": 9, "status": "declined", "refunded": 7}
    )
    body = Body.of("payment-5", 9, amount=9)
    run.intents.append(Intent(5, "payment", "ada", "k5", "/payments", body))
    run.answered(5, 402, {"status": "declined", "reference": "payment-5"})
    run.did(6, "purchase")
    run.probes.append(Probe("bob", "/payments/id-1", 404))
    return run


def reused(run: Run, *, closed: bool, kind: Kind = "transfer") -> None:
    """Another operation under the key of the first payment, whose life is over; it is refused."""
    body = Body.of(f"{kind}-7", 7, amount=7)
    run.intents.append(Intent(7, kind, "ada", "k1", f"/{kind}s", body, former=1, closed=closed))
    run.answered(7, 422, {"code": "reused"}, at=30)


def test_a_key_that_moved_money_is_refused_for_anything_else() -> None:
    run = good()
    reused(run, closed=True)
    assert run.findings() == []


def test_a_retry_after_the_end_of_its_key_may_have_to_wait() -> None:
    run = good()
    for status, code in ((409, "outcome_unknown"), (409, "in_progress")):
        exchange = run.answered(6, status, {"code": code}, at=40)
        run.exchanges[-1] = replace(exchange, reason="expired")
    assert run.findings() == []


def test_a_good_run_has_no_findings() -> None:
    assert good().findings() == []


Spoil = Callable[[Run], object]


def _charged_twice(run: Run) -> None:
    run.ledger.append(replace(run.ledger[0], id="e1b"))


def _rival_charged(run: Run) -> None:
    run.ledger.append(replace(run.ledger[0], id="e1b", reference="payment-1-rival", amount=8))


def _two_rows(run: Run) -> None:
    run.view("bob")["orders"] *= 2


def _entry_lost(run: Run) -> None:
    del run.ledger[0]


def _row_lost(run: Run) -> None:
    run.view("ada")["transfers"].clear()


def _order_lost(run: Run) -> None:
    run.view("bob")["orders"].clear()


def _wrong_amount(run: Run) -> None:
    run.ledger[0] = replace(run.ledger[0], amount=70)


def _other_entry(run: Run) -> None:
    run.ledger[0] = replace(run.ledger[0], id="e99")


def _declined_and_charged(run: Run) -> None:
    run.ledger.append(Entry("e5", "d5", "payment-5", 9, "charge"))


def _other_bytes(run: Run) -> None:
    run.answered(3, 201, {"id": "other", "reference": "transfer-3", "amount": 7, "provider_id": "e3"}, at=9)


def _other_status(run: Run) -> None:
    run.answered(5, 409, {"reference": "payment-5"}, at=9)


def _replay_unmarked(run: Run) -> None:
    run.exchanges.append(replace(run.exchanges[2], began=9.0, ended=9.1, replayed=False))


def _told_to_wait(run: Run) -> None:
    run.answered(2, 409, {"code": "in_progress"}, at=9)


def _rival_replayed(run: Run) -> None:
    run.exchanges.append(replace(run.exchanges[1], rival=True, began=9.0, ended=9.1, replayed=True))


def _refused_as_reuse(run: Run) -> None:
    run.answered(3, 422, {"code": "reused"}, at=9)


def _both_refused(run: Run) -> None:
    run.exchanges = [x for x in run.exchanges if x.intent != 1]
    run.ledger.pop(0)
    run.view("ada")["payments"].pop(0)
    run.answered(1, 422, {"code": "reused"})
    run.answered(1, 422, {"code": "reused"}, rival=True)


def _unauthorised(run: Run) -> None:
    run.answered(3, 401, {"code": "x"}, at=0.1)


def _foreign_answer(run: Run) -> None:
    run.exchanges = [replace(x, body=x.body.replace(b"transfer-3", b"transfer-x")) for x in run.exchanges]


def _never_answered(run: Run) -> None:
    run.intents.append(Intent(9, "order", "bob", "k9", "/orders", Body.of("order-9", 1)))
    run.answered(9, None)


def _unknown(run: Run) -> None:
    run.answered(3, 409, {"code": "outcome_unknown"}, at=0.7)


def _broken(run: Run) -> None:
    run.answered(3, 500, at=0.7)


def _nobody_meant(run: Run) -> None:
    run.ledger.append(Entry("e77", "d77", "payment-77", 7, "charge"))


def _pried(run: Run) -> None:
    run.probes.append(Probe("bob", "/payments/id-1", 200))


def _foreign_row(run: Run) -> None:
    run.view("bob")["payments"].append(run.view("ada")["payments"][0])


def _shown_not_done(run: Run) -> None:
    run.view("ada")["payments"][1]["status"] = "succeeded"


def _refunded_too_much(run: Run) -> None:
    run.view("ada")["payments"][1]["amount"] = 5


def _stock_lost(run: Run) -> None:
    run.stock = ({"pen": 100}, {"pen": 92})


def _still_pending(run: Run) -> None:
    run.view("ada")["payments"][1]["status"] = "pending"


def _reserved_for_ever(run: Run) -> None:
    run.view("ada")["payments"][1]["refunded"] = 8


def _ledgers_differ(run: Run) -> None:
    run.comparison = Comparison(False, "missing: payment-1", frozenset({"payment-1"}))


def _authorised_twice(run: Run) -> None:
    run.ledger.append(Entry("a6b", "da6", "purchase-6", 7, "authorisation"))


def _refused_for_ever(run: Run) -> None:
    reused(run, closed=False)


def _closed_key_ran(run: Run) -> None:
    reused(run, closed=True)
    run.ledger.append(Entry("e7", "d1", "transfer-7", 7, "transfer"))


def _another_answer_after_the_end(run: Run) -> None:
    exchange = run.answered(6, 201, {"id": "id-6", "reference": "purchase-6", "amount": 8}, at=40)
    run.exchanges[-1] = replace(exchange, reason="expired", replayed=True)


def _not_compared(run: Run) -> None:
    run.comparison = Comparison(False, "the comparison crashed")


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (_charged_twice, "effect_twice"),
        (_broken, "error_without_cause"),
        (_authorised_twice, "effect_twice"),
        (_refused_for_ever, "unsettled"),
        (_closed_key_ran, "closed_key_ran"),
        (_another_answer_after_the_end, "answers_differ"),
        (_rival_charged, "effect_twice"),
        (_two_rows, "effect_twice"),
        (_two_rows, "row_twice"),
        (_entry_lost, "success_without_effect"),
        (_entry_lost, "money"),
        (_row_lost, "row_lost"),
        (_order_lost, "success_without_effect"),
        (_wrong_amount, "wrong_effect"),
        (_wrong_amount, "money"),
        (_other_entry, "wrong_effect"),
        (_declined_and_charged, "refusal_with_effect"),
        (_declined_and_charged, "money"),
        (_other_bytes, "answers_differ"),
        (_other_status, "answers_differ"),
        (_replay_unmarked, "replay_unmarked"),
        (_told_to_wait, "answer_forgotten"),
        (_rival_replayed, "rival_executed"),
        (_rival_replayed, "foreign_answer"),
        (_refused_as_reuse, "refused_without_cause"),
        (_both_refused, "refused_without_cause"),
        (_unauthorised, "refused_without_cause"),
        (_foreign_answer, "foreign_answer"),
        (_never_answered, "unsettled"),
        (_unknown, "unknown_without_cause"),
        (_nobody_meant, "nobody_meant"),
        (_pried, "tenant_leak"),
        (_foreign_row, "tenant_leak"),
        (_shown_not_done, "money"),
        (_refunded_too_much, "money"),
        (_still_pending, "wrong_effect"),
        (_reserved_for_ever, "money"),
        (_stock_lost, "stock"),
        (_ledgers_differ, "unexplained"),
        (_not_compared, "unexplained"),
    ],
)
def test_every_rule_can_fail(spoil: Spoil, rule: str) -> None:
    run = good()
    spoil(run)
    assert rule in run.rules()


@pytest.mark.parametrize(("kept_for", "told"), [(3.0, False), (60.0, True), (None, True)])
def test_a_retry_that_comes_after_its_answer_is_forgotten_is_a_new_request(
    kept_for: float | None, told: bool
) -> None:
    run = good()
    run.kept_for = kept_for
    _replay_unmarked(run)
    assert ("replay_unmarked" in run.rules()) == told


def test_a_finding_tells_the_whole_story() -> None:
    run = good()
    _charged_twice(run)
    found = next(finding for finding in run.findings() if finding.rule == "effect_twice")
    assert "payment payment-1 of ada, key k1" in found.sentence and "payment-1 × 2" in found.sentence
    assert "in_progress" in found.story and "201 (replay)" in found.story and "rival" in found.story


def test_an_unknown_outcome_may_have_a_cause() -> None:
    run = good()
    _unknown(run)
    run.troubles.append(Trouble("pause_node", 0.6, 0.9))
    assert run.findings() == []
    run.troubles = [
        Trouble("pause_node", 5.0, 6.0),
        Trouble("delay", 0.0, 9.0),
        Trouble("webhook_lost", 0.0, 9.0),
    ]
    assert run.rules() == {"unknown_without_cause"}


def test_leased_work_may_be_told_to_wait_after_its_answer() -> None:
    """The one exception to "durable before sent": its answer was sent while the store was away."""
    run = good()
    run.exchanges = [x for x in run.exchanges if x.intent != 3 or not x.replayed]
    run.answered(3, 409, {"code": "in_progress"}, at=9)
    assert run.findings() == []


def test_the_rival_may_win() -> None:
    run = good()
    run.exchanges = [replace(x, rival=not x.rival) if x.intent == 1 else x for x in run.exchanges]
    run.exchanges = [replace(x, body=x.body.replace(b"payment-1", b"payment-1-rival")) for x in run.exchanges]
    run.exchanges = [
        replace(x, body=x.body.replace(b'"amount": 7', b'"amount": 8')) if x.intent == 1 else x
        for x in run.exchanges
    ]
    run.ledger[0] = replace(run.ledger[0], reference="payment-1-rival", amount=8)
    run.view("ada")["payments"][0].update(reference="payment-1-rival", amount=8)
    assert run.findings() == []


def test_differences_of_open_keys_are_explained() -> None:
    run = good()
    _never_answered(run)
    run.comparison = Comparison(False, "extra: order-9", frozenset({"order-9"}))
    assert run.rules() == {"unsettled"}


@pytest.mark.parametrize(
    ("status", "body", "definitive"),
    [
        (201, {}, True),
        (200, {}, True),
        (202, {}, False),
        (402, {"status": "declined"}, True),
        (409, {"code": "in_progress"}, False),
        (409, {"code": "outcome_unknown"}, False),
        (409, {"detail": "too much"}, True),
        (422, {"code": "reused"}, True),
        (429, {"code": "limited"}, False),
        (500, None, False),
        (503, {"code": "store_unavailable"}, False),
        (None, None, False),
    ],
)
def test_what_is_a_last_word(status: int | None, body: object, definitive: bool) -> None:
    run = Run()
    assert run.answered(1, status, body).definitive is definitive


def test_recoveries_are_counted_from_the_first_trouble() -> None:
    run = good()
    assert recoveries(Histories(run.intents, run.exchanges)) == []
    run.answered(3, 503, at=0.2)
    run.answered(3, None, at=0.4)
    (found,) = recoveries(Histories(run.intents, run.exchanges))
    assert found == pytest.approx((1.1, 0.8))

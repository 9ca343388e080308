"""The oracle: histories, the provider's ledger and what the service shows → findings. Pure.

It stands outside. It knows nothing of samekey's tables and does not ask the library what it believes: only
what clients sent and saw, what the provider wrote down, and what anybody may GET. Each rule is a function of
its own and gives findings; each can fail (``tests/torture/test_oracle.py`` shows it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from .cases import Case, by_reference, cases_of
from .evidence import Evidence, Finding, Row, View
from .histories import FIRST_STEPS, KINDS, LEDGER_KINDS, Exchange, Intent, Kind
from .mishaps import MISHAPS

CAUSES: Final = frozenset(
    {
        *("kill_node", "kill_worker", "pause_node", "pause_worker", "kill_provider"),
        *("restart_fast", "restart_immediate", "machine_stalled"),
        *("cut_database", "refuse_database", "stall_database", "reply_lost", "commit_unacknowledged"),
        *("commit_lost", "statement_lost", "commit_late"),
        *("cut_provider", "refuse_provider", "stall_provider"),
        *("charge_then_time_out", "charge_then_drop", "error_before", "error_after", "limit", "malformed"),
        "failure_told",
        "rotate_keys",  # every process is killed twice
        *MISHAPS,
    }
)
"""After which an outcome may rightly be unknown for a while. A slow answer is none of them; a worker that was
stopped is, because it may hold SQLite's one write lock, and nobody can renew a lease meanwhile."""


def judge(evidence: Evidence) -> list[Finding]:
    """Every broken promise, the gravest first."""
    cases = list(cases_of(evidence))
    found = [finding for rule in _RULES_OF_A_KEY for case in cases for finding in rule(case, evidence)]
    for rule_of_all in _RULES_OF_ALL:
        found += rule_of_all(cases, evidence)
    return found


# ------------------------------------------------------------------ rules about one key


def _effect_twice(case: Case, _: Evidence) -> Iterator[Finding]:
    """At most one effect for each key, whatever was sent with it."""
    happened = {body.reference: case.happened(body) for body in case.intent.bodies}
    if sum(happened.values()) > 1:
        what = ", ".join(f"{name} × {times}" for name, times in happened.items() if times)
        yield case.finding("effect_twice", f"more than one effect under one key ({what})")
    if case.first_steps > 1:
        yield case.finding("effect_twice", f"its first step was taken {case.first_steps} times")
    for body in case.intent.bodies:
        if len(case.rows[body.reference]) > 1:
            yield case.finding(
                "row_twice", f"{body.reference} is listed {len(case.rows[body.reference])} times"
            )


def _success_without_effect(case: Case, _: Evidence) -> Iterator[Finding]:
    """Every success that a client saw has exactly one durable effect, with the right amount."""
    for rival, body in enumerate(case.intent.bodies):
        seen = [x for x in case.answers(rival=bool(rival)) if x.succeeded]
        if not seen:
            continue
        if case.happened(body) == 0:
            yield case.finding("success_without_effect", f"{seen[0].status} was seen, and nothing was done")
            continue
        told_amount = _amount(case.intent, seen[0].json())
        amounts = {entry.amount for entry in case.effects[body.reference]}
        amounts |= {row[_AMOUNT[case.intent.kind]] for row in case.rows[body.reference]}
        if amounts | {told_amount} != {body.amount}:
            yield case.finding(
                "wrong_effect", f"asked for {body.amount}, answered {told_amount}, done and shown {amounts}"
            )
        ids = {entry.id for entry in case.effects[body.reference]}
        if ids and seen[0].json().get("provider_id") not in ids:
            yield case.finding("wrong_effect", f"the answer names another effect than {', '.join(ids)}")
        if not case.rows[body.reference]:
            yield case.finding(
                "row_lost", f"{body.reference} was answered {seen[0].status} and is not listed"
            )


_AMOUNT: Final[Mapping[Kind, str]] = {**dict.fromkeys(KINDS, "amount"), "order": "quantity"}


def _amount(intent: Intent, answer: Any) -> object:
    return answer.get(_AMOUNT[intent.kind]) if isinstance(answer, dict) else None


def _shown_otherwise(case: Case, _: Evidence) -> Iterator[Finding]:
    """What is listed at the end has come to what its client was told."""
    for rival, body in enumerate(case.intent.bodies):
        answers = case.answers(rival=bool(rival))
        answer = answers[0].json() if answers else None
        said = answer.get("status") if isinstance(answer, dict) else None
        shown = {str(row["status"]) for row in case.rows[body.reference] if "status" in row}
        if isinstance(said, str) and shown - {said}:
            yield case.finding(
                "wrong_effect", f"it was answered as {said} and is shown as {', '.join(shown)}"
            )


def _refusal_with_effect(case: Case, _: Evidence) -> Iterator[Finding]:
    """A definite refusal has no effect; and there is no effect that nobody answers for."""
    for rival, body in enumerate(case.intent.bodies):
        answers = case.answers(rival=bool(rival))
        refused = [x for x in answers if not x.succeeded]
        if refused and case.happened(body):
            yield case.finding("refusal_with_effect", f"{refused[0].status} was answered, and it was done")


def _answers_differ(case: Case, evidence: Evidence) -> Iterator[Finding]:
    """All last words for a key are the same bytes; whatever comes after the first is marked as a replay, for
    as long as answers are kept: where no node could be reached for longer, a retry is a new request."""
    for rival in (False, True):
        answers = case.answers(rival=rival)
        if len({(x.status, x.body) for x in answers}) > 1:
            yield case.finding("answers_differ", "one key got different answers")
            continue
        heard = min((x.ended for x in answers), default=None)
        if heard is None:
            continue
        kept = heard + (float("inf") if evidence.kept_for is None else evidence.kept_for)
        if any(heard < x.began <= kept and not x.replayed for x in answers):
            yield case.finding("replay_unmarked", "a retry after the answer was not marked as a replay")


def _answer_forgotten(case: Case, _: Evidence) -> Iterator[Finding]:
    """Who has had an answer is not told to wait again. Leased work may: its answer is sent even if the store
    is away, because it is true (the one stated exception to "durable before sent")."""
    if case.intent.kind == "transfer":
        return
    heard = min((x.ended for x in case.answers()), default=None)
    if heard is None:
        return
    for exchange in case.exchanges:
        waiting = exchange.status == 202 or exchange.code in ("in_progress", "outcome_unknown")
        if exchange.reason == "expired":
            continue  # whoever can tell is being asked
        if exchange.began > heard and waiting and not exchange.rival:
            yield case.finding("answer_forgotten", "an answered key was told to wait again")
            return


def _rival_executed(case: Case, _: Evidence) -> Iterator[Finding]:
    """Of two bodies under one key at most one is executed; the other is refused as a reuse."""
    if case.intent.rival is None:
        return
    ours, theirs = case.answers(), case.answers(rival=True)
    if ours and theirs:
        yield case.finding(
            "rival_executed",
            f"both bodies of one key were answered: {ours[0].status}, and {theirs[0].status} to the other",
        )


def _refused_without_cause(case: Case, _: Evidence) -> Iterator[Finding]:
    """Nobody else's request, and none of our own with the same body, makes a key a reused one."""
    reused = [x for x in case.exchanges if x.reused]
    if reused and case.intent.former is not None:
        pass  # it is closed, or its former life was not over yet; whoever is refused for ever is unsettled
    elif reused and case.intent.rival is None:
        whose = "another tenant's key" if case.intent.twin is not None else "no other body"
        yield case.finding("refused_without_cause", f"422 as if the key were taken, with {whose}")
    elif reused and all(x.reused for x in case.exchanges if x.definitive):
        yield case.finding("refused_without_cause", "both bodies of the key were refused as a reuse")
    for exchange in case.exchanges:
        if exchange.status in (400, 401, 403, 405, 410, 413, 415):
            yield case.finding("refused_without_cause", f"{exchange.status} to an honest request")
            return


def _closed_key_ran(case: Case, _: Evidence) -> Iterator[Finding]:
    """A key whose operation is in the service's books is not used for another one, however old."""
    if not case.intent.closed:
        return
    if any(x.succeeded for x in case.exchanges) or any(map(case.happened, case.intent.bodies)):
        yield case.finding(
            "closed_key_ran", f"its key stood for intent {case.intent.former}, which moved money"
        )


def _foreign_answer(case: Case, _: Evidence) -> Iterator[Finding]:
    """A success speaks of the request that was sent, not of somebody else's."""
    for exchange in case.exchanges:
        body = case.intent.rival if exchange.rival else case.intent.body
        answer = exchange.json()
        if not exchange.succeeded or body is None:
            continue
        named = answer.get("reference") if isinstance(answer, dict) else None
        if named != body.reference:
            yield case.finding("foreign_answer", f"the answer is about {named!r}, not {body.reference!r}")
            return


def _unsettled(case: Case, evidence: Evidence) -> Iterator[Finding]:
    """Once the faults have stopped, every key is settled."""
    if not case.settled:
        yield case.finding(
            "unsettled", f"no last word within {evidence.settle_within:g} s after the last fault"
        )


def _unknown_without_cause(case: Case, evidence: Evidence) -> Iterator[Finding]:
    """A healthy process keeps its lease, however slow the provider: nothing becomes unknown by itself."""
    if case.intent.former is not None:
        return  # whoever can tell about its key's former life is asked first, and may be away
    for exchange in case.exchanges:
        if exchange.code != "outcome_unknown" or exchange.reason == "expired":
            continue
        if not _caused(case, exchange, evidence):
            yield case.finding("unknown_without_cause", "its outcome was lost though nothing had happened")
        return


def _error_without_cause(case: Case, evidence: Evidence) -> Iterator[Finding]:
    """Nothing breaks by itself, in whichever life of its key: who is busy says so with a 503."""
    broken = next((x for x in case.exchanges if x.status == 500), None)
    if broken is not None and not _caused(case, broken, evidence):
        yield case.finding("error_without_cause", "500 was answered though nothing had happened")


def _caused(case: Case, exchange: Exchange, evidence: Evidence) -> bool:
    first = case.exchanges[0].began
    return any(
        trouble.kind in CAUSES and trouble.began <= exchange.ended and trouble.ended + evidence.lease >= first
        for trouble in evidence.troubles
    )


_RULES_OF_A_KEY: tuple[Callable[[Case, Evidence], Iterator[Finding]], ...] = (
    _effect_twice,
    _success_without_effect,
    _shown_otherwise,
    _refusal_with_effect,
    _closed_key_ran,
    _foreign_answer,
    _answers_differ,
    _answer_forgotten,
    _rival_executed,
    _refused_without_cause,
    _unknown_without_cause,
    _error_without_cause,
    _unsettled,
)


# ------------------------------------------------------------------ rules about all of it


def _nobody_meant(cases: Sequence[Case], evidence: Evidence) -> Iterator[Finding]:
    """The ledger holds nothing that no client asked for."""
    meant = {
        (kinds[case.intent.kind], body.reference)
        for case in cases
        for kinds in (LEDGER_KINDS, FIRST_STEPS)
        if case.intent.kind in kinds
        for body in case.intent.bodies
    }
    for entry in evidence.ledger:
        if (entry.kind, entry.reference) not in meant:
            yield Finding("nobody_meant", f"the ledger has {entry}, which nobody asked for")


def _tenants_apart(cases: Sequence[Case], evidence: Evidence) -> Iterator[Finding]:
    """No tenant sees another's."""
    for probe in evidence.probes:
        if probe.status != 404:
            yield Finding("tenant_leak", f"{probe.tenant} got {probe.status} for another's {probe.path}")
    meant: dict[str, set[tuple[str, str]]] = {}
    for case in cases:
        own = meant.setdefault(case.intent.tenant, set())
        own |= {(case.intent.kind, body.reference) for body in case.intent.bodies}
    for tenant, view in evidence.views.items():
        for kind, reference in by_reference(view).keys() - meant.get(tenant, set()):
            yield Finding(
                "tenant_leak", f"{tenant} is shown the {kind} {reference}, which it never asked for"
            )


def _money_adds_up(cases: Sequence[Case], evidence: Evidence) -> Iterator[Finding]:
    """What the service shows is what the ledger says, to the cent."""
    open_references = _open_references(cases)
    for tenant, view in evidence.views.items():
        references = {
            (case.intent.kind, body.reference)
            for case in cases
            if case.intent.tenant == tenant
            for body in case.intent.bodies
        }
        refunds = [row for rows in view.refunds.values() for row in rows]
        of_money: list[tuple[Kind, Sequence[Row]]] = [
            ("payment", view.payments),
            ("refund", refunds),
            ("transfer", view.transfers),
            ("purchase", view.purchases),
        ]
        for kind, rows in of_money:
            entries = {
                entry.reference: entry
                for entry in evidence.ledger
                if entry.kind == LEDGER_KINDS[kind] and (kind, entry.reference) in references
            }
            shown = {str(row["reference"]): row for row in rows if row.get("status") == "succeeded"}
            for reference in (entries.keys() ^ shown.keys()) - open_references:
                where = "in the ledger only" if reference in entries else "shown as done, not in the ledger"
                yield Finding("money", f"the {kind} {reference} of {tenant} is {where}")
            ledger_sum = sum(entry.amount for name, entry in entries.items() if name not in open_references)
            shown_sum = sum(row["amount"] for name, row in shown.items() if name not in open_references)
            if ledger_sum != shown_sum:
                yield Finding("money", f"{kind}s of {tenant}: shown {shown_sum}, in the ledger {ledger_sum}")
        for payment in view.payments:
            given_back = sum(
                row["amount"]
                for row in view.refunds.get(str(payment["id"]), ())
                if row.get("status") == "succeeded"
            )
            if given_back > payment["amount"]:
                yield Finding("money", f"{given_back} of {payment['amount']} of {payment['id']} given back")
            reserved = payment.get("refunded", given_back)
            if reserved != given_back and not _refunds_open(view, payment, open_references):
                yield Finding("money", f"{reserved} of {payment['id']} is taken, and {given_back} given back")


def _refunds_open(view: View, payment: Row, open_references: set[str]) -> bool:
    refunds = view.refunds.get(str(payment["id"]), ())
    return any(str(row.get("reference")) in open_references for row in refunds)


def _stock_adds_up(_: Sequence[Case], evidence: Evidence) -> Iterator[Finding]:
    """What was ordered is what is gone."""
    if evidence.stock is None:
        return
    before, after = evidence.stock
    sold: Counter[str] = Counter()
    for view in evidence.views.values():
        for order in view.orders:
            sold[str(order["item"])] += int(order["quantity"])
    for item, quantity in before.items():
        if quantity - sold[item] != after.get(item):
            yield Finding(
                "stock", f"of {quantity} {item}, {sold[item]} were sold and {after.get(item)} are left"
            )


def _open_references(cases: Sequence[Case]) -> set[str]:
    """Of keys that are not settled: those are findings already, and their money is still on its way."""
    return {body.reference for case in cases if not case.settled for body in case.intent.bodies}


def _reconciled(cases: Sequence[Case], evidence: Evidence) -> Iterator[Finding]:
    """The service's own comparison of ledgers is clean, or each difference belongs to an open key."""
    comparison = evidence.comparison
    if comparison is None or comparison.agree:
        return
    unexplained = comparison.references - _open_references(cases)
    if unexplained or not comparison.references:
        yield Finding(
            "unexplained", f"the ledgers differ: {', '.join(sorted(unexplained)[:5])}", comparison.text
        )


_RULES_OF_ALL: tuple[Callable[[Sequence[Case], Evidence], Iterator[Finding]], ...] = (
    _nobody_meant,
    _tenants_apart,
    _money_adds_up,
    _stock_adds_up,
    _reconciled,
)

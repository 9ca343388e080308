"""Requests that the endpoint refuses, and their correction under the same key."""

from __future__ import annotations

from ..bench import BUSY, Bench
from ..endpoint import ABSENT
from ..judging import alike, is_marked
from ..variants import invalid
from ..wire import RawExchange

RULES = ("errors.stuck", "errors.changed", "errors.validation", "errors.validation-kept")


def refused_requests(bench: Bench) -> None:
    """An invalid body twice, then the valid one, with one key."""
    document = bench.document()
    if document is ABSENT:
        bench.report.cannot_tell("the request has no body", *RULES)
        return
    for body in invalid(document):
        request = bench.request(bench.spelled(bench.new_key()), body=body)
        first = bench.send(request)
        if first.refused and first.status not in BUSY:
            bench.refusals.setdefault("invalid", first)
            _refused(bench, first)
            return
        if first.status >= 500:
            _failed(bench, first)
    bench.report.cannot_tell("no request was found that the endpoint refuses", *RULES)


def _refused(bench: Bench, first: RawExchange) -> None:
    report = bench.report
    again = bench.answered(first.request)
    if again.status in BUSY:
        _stuck(bench, first, again)
        return
    if again.succeeded or again.failed:
        said = again.status or again.silence
        report.find(
            "errors.changed",
            f"A request was refused with {first.status}; its retry got {said}.",
            [first, again],
        )
        return
    report.hold("errors.changed")
    _corrected(bench, first)


def _corrected(bench: Bench, first: RawExchange) -> None:
    report = bench.report
    request = bench.request(_key_of(first), body=bench.body(bench.document()))
    exchange = bench.answered(request)
    if exchange.failed or (exchange.status in BUSY and bench.incidents):
        report.cannot_tell("requests fail here by the way, with 5xx", *RULES)
        return
    if exchange.status in BUSY:
        _stuck(bench, first, exchange)
        return
    report.hold("errors.stuck")
    if exchange.succeeded:
        report.hold("errors.validation", "errors.validation-kept")
        return
    misuse = bench.refusals.get("misuse")
    if alike(first, exchange):
        if report.found("misuse.body"):
            report.cannot_tell("bodies are not compared", *RULES)
        elif misuse is not None and alike(first, misuse):
            report.cannot_tell("the server refuses everything in the same words", *RULES)
        else:
            report.find(
                "errors.validation",
                "The corrected request got the refusal of the one before.",
                [first, exchange],
            )
    elif bench.profile.validation_kept:
        report.hold("errors.validation", "errors.validation-kept")
    else:
        report.hold("errors.validation")
        report.find(
            "errors.validation-kept",
            f"A request that was refused with {first.status} cannot be corrected: {exchange.status}.",
            [first, exchange],
        )


def _failed(bench: Bench, first: RawExchange) -> None:
    """The body was too much for the server; what matters here is what became of the key."""
    again = bench.send(first.request)
    if bench.profile.errors_5xx == "rerun" and again.status >= 500 and is_marked(again.answer):
        bench.report.find("errors.remembered-5xx", f"A {again.status} is marked as a replay.", [first, again])
    request = bench.request(_key_of(first), body=bench.body(bench.document()))
    exchange = bench.send(request)
    if exchange.status >= 500 and bench.profile.errors_5xx == "rerun" and alike(first, exchange):
        last = bench.answered(request)
        if last.status >= 500 and alike(first, last) and bench.fresh():
            bench.report.find(
                "errors.remembered-5xx", "The corrected request got the 5xx of the one before.", [first, last]
            )


def _stuck(bench: Bench, first: RawExchange, exchange: RawExchange) -> None:
    bench.report.find(
        "errors.stuck",
        f"After a refusal with {first.status}, the key gets {exchange.status} for {bench.patience:.0f} s.",
        [first, exchange],
    )


def _key_of(exchange: RawExchange) -> str | bytes:
    return next(value for name, value in exchange.request.headers if name == "Idempotency-Key")

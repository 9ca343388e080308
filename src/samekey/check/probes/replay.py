"""The same request again: one effect, and the first answer."""

from __future__ import annotations

import time

from ..bench import BUSY, Bench, Stop
from ..judging import Sight, document_of, is_marked
from ..trials import Trial
from ..variants import reordered
from ..wire import RawExchange

LATE = 1.0
"""Seconds after a retry's answer in which a second effect of it is looked for."""
SAME = ("replay.status", "replay.body", "replay.respelled", "replay.headers")


def replay(bench: Bench) -> None:
    """Retries the first operation twice. Whoever fails here has nothing else to be asked about."""
    first = bench.operations[0]
    exchange, what = bench.looked_at(first.exchange, lambda: bench.answered(first.request))
    _must_be_a_replay(bench, first, exchange, what)
    if first.exchange.status == 202 and exchange.status == 202:
        exchange = _finished(bench, first)
        if exchange.status == 202:
            bench.report.cannot_tell(
                "the operation was accepted (202) and did not finish during the check", *SAME
            )
            return
    base = exchange if first.exchange.status == 202 else first.exchange
    third, what = bench.looked_at(base, lambda: bench.answered(first.request))
    _must_be_a_replay(bench, first, third, what)
    for retry in (exchange, third):
        _compare(bench, base, retry)
    bench.report.hold(*SAME)
    if bench.profile.marker:
        if is_marked(third.answer):
            bench.report.hold("replay.unmarked")
        else:
            bench.report.find("replay.unmarked", "A replay says nothing of being one.", [third])


def later(bench: Bench) -> None:
    """A second effect may come later than a first one does: by a queue, a mail, a job."""
    late(bench, LATE)


def late(bench: Bench, seconds: float) -> None:
    """Looks for a second effect for so long after a retry."""
    if bench.counter is None or bench.endpoint.retention is not None:
        return  # a key that is to be forgotten soon must not be waited with
    first = bench.operations[0]
    for known in (False, True):
        before = bench.counter.read()
        exchange = bench.answered(first.request)
        time.sleep(seconds)
        if bench.counter.read() == before:
            break
        if bench.counter.moves(seconds):
            bench.distrust()
            return
        if known:
            said = f"A retry had a second effect, within {seconds:g} s of its answer."
            bench.report.find("replay.ran-again", said, [first.exchange, exchange])
            raise Stop("a retry has effects")
    if known:
        bench.distrust()


def _must_be_a_replay(bench: Bench, first: Trial, exchange: RawExchange, what: Sight) -> None:
    shown = [first.exchange, exchange]
    if exchange.status in BUSY and what is not Sight.RAN:
        bench.report.find(
            "replay.conflict",
            f"The first request was answered {first.exchange.status}; its retries got {exchange.status} for "
            f"{bench.patience:.0f} s.",
            shown,
        )
    elif what is Sight.RAN:
        bench.report.find(
            "replay.ran-again", "The same request with the same key was carried out a second time.", shown
        )
    elif what is Sight.FAILED:
        said = exchange.status or exchange.silence
        bench.report.find("replay.failed", f"The retry of a request that had succeeded got {said}.", shown)
    elif what is Sight.REFUSED:
        bench.report.find(
            "replay.refused", f"The retry of the same bytes was refused with {exchange.status}.", shown
        )
    else:
        bench.report.hold("replay.conflict", "replay.failed", "replay.refused")
        if what is Sight.REPLAYED and "replay.ran-again" not in bench.report.not_proven:
            bench.report.hold("replay.ran-again")  # not where the count has once said something else
        else:
            bench.report.cannot_tell(bench.untold, "replay.ran-again")
        return
    raise Stop("a plain retry does not get the first answer")


def _finished(bench: Bench, first: Trial) -> RawExchange:
    """An accepted operation, once its answer is final, or the last 202."""
    end = time.monotonic() + bench.patience
    while True:
        exchange = bench.send(first.request)
        if exchange.status != 202 or time.monotonic() > end:
            return exchange
        time.sleep(0.1)


def _compare(bench: Bench, first: RawExchange, retry: RawExchange) -> None:
    one, two = first.answer, retry.answer
    assert one is not None and two is not None
    shown = [first, retry]
    if one.status != two.status:
        bench.report.find(
            "replay.status", f"The first answer was {one.status}, the retry's {two.status}.", shown
        )
    if one.body != two.body:
        document = document_of(one)
        if document is not None and document == document_of(two):
            bench.report.find("replay.respelled", "The retry got the same JSON in other bytes.", shown)
        else:
            bench.report.find("replay.body", "The retry got another body than the first request.", shown)
    for name in ("Content-Type", "Location"):
        if _media(one.header(name)) != _media(two.header(name)) and one.header(name) is not None:
            bench.report.find(
                "replay.headers", f"{name} was {one.header(name)}; the retry got {two.header(name)}.", shown
            )
    bench.retries.append((first, retry))


def _media(value: str | None) -> str | None:
    """Without its parameters: how a charset is written does not matter."""
    return value.partition(";")[0].strip().lower() if value is not None else None


def cookies(bench: Bench) -> None:
    """When all answers have been seen: a cookie is the operation's own if nothing but operations set it."""
    for first, retry in bench.retries:
        assert first.answer is not None and retry.answer is not None
        kept = set(first.answer.every("set-cookie")) & set(retry.answer.every("set-cookie"))
        own = sorted(kept - bench.passing_cookies)
        if own:
            name = own[0].partition("=")[0]
            bench.report.find(
                "replay.cookies", f"The retry got the first answer's cookie {name} again.", [first, retry]
            )
    if bench.retries:
        bench.report.hold("replay.cookies")


def reorder(bench: Bench) -> None:
    """The same JSON, written differently, under a used key."""
    if bench.report.found("misuse.ran"):
        bench.report.cannot_tell("another body runs too", "replay.reordered")
        return
    operation = bench.operations[0]
    body = reordered(operation.document) if isinstance(operation.document, dict | list) else None
    if body is None or body == operation.request.body:
        bench.report.cannot_tell("the body has no members to reorder", "replay.reordered")
        return
    exchange, what = bench.again(operation, body=body)
    sentence = "The same JSON with its members in another order was carried out a second time."
    bench.must_not_run("replay.reordered", sentence, operation, exchange, what)

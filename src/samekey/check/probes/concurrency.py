"""Many at the same moment: one effect, one answer, and afterwards a key that works."""

from __future__ import annotations

import threading
import time

from ..bench import Bench
from ..target import ABSENT, over
from ..variants import Leaf, changed, encoded
from ..wire import Exchange, Request

FINE = frozenset({200, 201, 202, 204, 409, 423, 425, 429, 503})
"""What a request may get that meets another one with its key."""


def identical(bench: Bench) -> None:
    """A burst of one request, several times: a race is not lost each time."""
    failures: list[list[Exchange]] = []
    told = False
    for _ in range(_rounds(bench, 3)):
        key, body = bench.new_key(), bench.body(bench.document())
        request = bench.request(bench.spelled(key), body=body)
        answers, effects = bench.counted(lambda request=request: _burst(bench, [request] * bench.limits.burst, request))  # type: ignore[misc]
        last = answers[-1]
        if _by_the_way(bench, answers):
            continue
        told = told or effects is not None or bool(bench.identity)
        if (effects or 0) > 1 or _different(bench, answers):
            many = f"{effects} effects" if effects is not None else "more than one result"
            bench.report.find(
                "concurrency.ran-twice", f"{bench.limits.burst} identical requests at once had {many}.", _two(bench, answers)
            )
            return
        failed = [exchange for exchange in answers[:-1] if exchange.failed and exchange.status != 503]
        if failed:
            failures.append(failed)
        if not last.succeeded:
            bench.report.find(
                "concurrency.stuck",
                f"After {bench.limits.burst} identical requests at once, a retry gets {last.status or last.silence}.",
                [*answers[:2], last],
            )
            return
        _status(bench, answers)
    if len(failures) > 1:
        worst = failures[0][0]
        bench.report.find(
            "concurrency.failed", f"Of identical requests at once, some got {worst.status or worst.silence}.", [worst]
        )
    bench.report.hold("concurrency.stuck", "concurrency.failed", "concurrency.status")
    if told:
        bench.report.hold("concurrency.ran-twice")
    else:
        bench.report.cannot_tell("every answer is the same; give a count URL", "concurrency.ran-twice")


def mixed(bench: Bench) -> None:
    """One key, two bodies, at the same moment."""
    leaf = bench.compared
    if bench.report.found("concurrency", "misuse") or not isinstance(leaf, Leaf):
        bench.report.cannot_tell("other findings come first, or no change of the body is noticed", "concurrency.mixed")
        return
    if not bench.can_tell:
        bench.report.cannot_tell("every answer is the same; give a count URL", "concurrency.mixed")
        return
    for _ in range(_rounds(bench, 2)):
        key, document = bench.spelled(bench.new_key()), bench.document()
        one = bench.request(key, body=encoded(document))
        two = bench.request(key, body=encoded(changed(document, leaf)))
        requests = [one, two] * (bench.limits.burst // 2)
        answers, effects = bench.counted(lambda requests=requests: bench.burst(requests))  # type: ignore[misc]
        if _by_the_way(bench, answers):
            continue
        if (effects or 0) > 1 or _different(bench, answers):
            bench.report.find(
                "concurrency.mixed", "Two different requests with one key, at once, were both carried out.", _two(bench, answers)
            )
            return
    bench.report.hold("concurrency.mixed")


def slow(bench: Bench) -> None:
    """With a request of the plan that takes its time: what others get meanwhile."""
    variation = bench.target.slow
    if variation is None:
        return
    document = variation.body if variation.body is not ABSENT else bench.document()
    headers = over(bench.target.headers, variation.headers)
    key = bench.spelled(bench.new_key())
    request = bench.request(key, body=bench.body(document), headers=headers)
    first: list[Exchange] = []
    before = bench.counter.settled() if bench.counter is not None else 0
    bench.spend(1)
    thread = threading.Thread(target=lambda: first.extend(_alone(bench, request)), daemon=True)
    thread.start()
    time.sleep(0.1)
    meanwhile = bench.send(request)
    other = bench.send(
        bench.request(key, body=encoded(changed(document, bench.compared)), headers=headers)
        if isinstance(bench.compared, Leaf)
        else request
    )
    thread.join(bench.limits.timeout)
    answers = [*first, meanwhile, other]
    effects = bench.counter.operations(before, bench.counter.settled()) if bench.counter is not None else None
    if (effects or 0) > 1 or _different(bench, answers):
        bench.report.find("concurrency.ran-twice", "A retry during a slow request was carried out as well.", answers)
    _status(bench, [meanwhile])


def _alone(bench: Bench, request: Request) -> list[Exchange]:
    from ..wire import together

    return together([request], bench.limits.timeout)


def _by_the_way(bench: Bench, answers: list[Exchange]) -> bool:
    """Whether a 5xx may be one of those that this server has for single requests too: then it tells nothing."""
    return bool(bench.incidents) and any(exchange.status >= 500 for exchange in answers)


def _rounds(bench: Bench, most: int) -> int:
    return most if bench.duration < 0.5 else 1


def _burst(bench: Bench, requests: list[Request], last: Request) -> list[Exchange]:
    """The burst, and at last a single retry once the key is free."""
    answers = bench.burst(requests)
    return [*answers, bench.answered(last)]


def _different(bench: Bench, answers: list[Exchange]) -> bool:
    """Whether successful answers speak of more than one operation."""
    good = [exchange.answer for exchange in answers if exchange.succeeded and exchange.answer is not None]
    return any(bench.identity.same(good[0], other) is False for other in good[1:])


def _two(bench: Bench, answers: list[Exchange]) -> list[Exchange]:
    """Two exchanges that show it best."""
    good = [exchange for exchange in answers if exchange.succeeded]
    for other in good[1:]:
        if good[0].answer and other.answer and bench.identity.same(good[0].answer, other.answer) is False:
            return [good[0], other]
    return good[:2]


def _status(bench: Bench, answers: list[Exchange]) -> None:
    for exchange in answers:
        if exchange.answer is None or exchange.failed:
            continue
        if exchange.status == 409:
            bench.refusals.setdefault("in progress", exchange)
        elif exchange.status not in FINE and exchange.status != bench.operations[0].exchange.status:
            bench.report.find(
                "concurrency.status", f"A request that met a running one got {exchange.status}.", [exchange]
            )

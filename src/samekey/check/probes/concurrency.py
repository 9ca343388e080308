"""Many at the same moment: one effect, one answer, and afterwards a key that works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..bench import Bench
from ..endpoint import ABSENT, over
from ..judging import alike
from ..variants import Leaf, changed, encoded
from ..wire import RawExchange, RawRequest, Unreachable, beside_half, together

FINE = frozenset({200, 201, 202, 204, 409, 423, 425, 429, 503})
"""What a request may get that meets another one with its key."""
RULES = (
    "concurrency.ran-twice",
    "concurrency.stuck",
    "concurrency.answer",
    "concurrency.failed",
    "concurrency.status",
)


LONG = 0.05
"""Seconds of work from which on there is time for retries meanwhile."""
AGAIN = 20
"""Retries while one request is at work, at most."""
CONFLICTS, LIMITS = frozenset({409, 423}), frozenset({429, 503})
ONE_AT_A_TIME = "the server handles one request at a time here, so nothing was at the same moment"


def identical(bench: Bench) -> None:
    """A burst of one request, several times: a race is not lost each time."""
    failures: list[RawExchange] = []
    rounds = 0
    bench.serial = _is_serial(bench)

    def same() -> list[RawExchange]:
        request = bench.request(bench.spelled(bench.new_key()), body=bench.body(bench.document()))
        return [*bench.burst([request] * bench.budget.burst), bench.answered(request)]

    for _ in range(_rounds(bench, 3)):
        answers, effects = _burst(bench, same)
        if (effects or 0) > 1 or _different(bench, answers):
            many = f"{effects} effects" if effects is not None else "more than one result"
            said = f"{bench.budget.burst} identical requests at once had {many}."
            bench.report.find("concurrency.ran-twice", said, _two(bench, answers))
            return
        if _by_the_way(bench, answers):
            continue
        rounds += 1
        last = answers[-1]
        if not last.succeeded:
            said = f"After identical requests at once, a retry gets {last.status or last.silence}."
            bench.report.find("concurrency.stuck", said, [*answers[:2], last])
            return
        if (wrong := _unlike(bench, answers, last)) is not None:
            said = "Of identical requests at once, one got a success that is not the answer of the others."
            bench.report.find("concurrency.answer", said, [wrong, last])
            return
        failures += [exchange for exchange in answers if exchange.failed and exchange.status != 503][:1]
        _status(bench, answers)
    if rounds and len(failures) == rounds:
        said = f"Of identical requests at once, some got {failures[0].status or failures[0].silence}."
        bench.report.find("concurrency.failed", said, failures[:1])
    if not rounds:
        bench.report.cannot_tell("requests fail here by the way, or are limited", *RULES)
        return
    if bench.serial:
        bench.report.cannot_tell(ONE_AT_A_TIME, *RULES)
        return
    if not bench.can_tell:
        bench.report.cannot_tell(bench.untold, "concurrency.ran-twice")
    bench.report.hold(*(rule for rule in RULES if rule not in bench.report.not_proven))


def mixed(bench: Bench) -> None:
    """One key, two bodies, at the same moment."""
    leaf = bench.compared
    if bench.report.found("concurrency", "misuse") or not isinstance(leaf, Leaf):
        bench.report.cannot_tell("an earlier finding comes first", "concurrency.mixed")
        return
    rounds = 0

    def two_kinds() -> list[RawExchange]:
        key, document = bench.spelled(bench.new_key()), bench.document()
        one = bench.request(key, body=encoded(document))
        two = bench.request(key, body=encoded(changed(document, leaf)))
        return bench.burst([one, two] * (bench.budget.burst // 2))

    for _ in range(_rounds(bench, 2)):
        answers, effects = _burst(bench, two_kinds)
        if (effects or 0) > 1 or _different(bench, answers):
            said = "Two different requests with one key, at once, were both carried out."
            bench.report.find("concurrency.mixed", said, _two(bench, answers))
            return
        if _answers_another(bench, answers[::2], answers[1::2]):
            return
        rounds += not _by_the_way(bench, answers)
    if not rounds:
        bench.report.cannot_tell("requests fail here by the way, or are limited", "concurrency.mixed")
    elif bench.serial or not bench.can_tell:
        bench.report.cannot_tell(ONE_AT_A_TIME if bench.serial else bench.untold, "concurrency.mixed")
    else:
        bench.report.hold("concurrency.mixed")


def _answers_another(bench: Bench, ones: list[RawExchange], others: list[RawExchange]) -> bool:
    """Whether requests of two bodies with one key got a success each: one of them has the other's answer."""
    own = [exchange for exchange in ones if exchange.succeeded and exchange.status != 202]
    wrong = [exchange for exchange in others if exchange.succeeded and exchange.status != 202]
    if own and wrong:
        said = "A key with another body, while the first request ran, got the answer of the first."
        bench.report.find("misuse.body", said, [own[0], wrong[0]])
    return bool(own and wrong)


def _is_serial(bench: Bench) -> bool:
    """Whether a request is not served while another one is on its way: then a burst shows nothing."""
    half, whole = (
        bench.request(bench.spelled(bench.new_key()), body=bench.body(bench.document())) for _ in range(2)
    )
    bench.spend(2)
    try:
        return beside_half(half, whole, min(bench.patience, bench.budget.timeout)).answer is None
    except Unreachable:
        return True


def slow(bench: Bench) -> None:
    """With a request of the plan that takes its time: what others get meanwhile."""
    variation = bench.endpoint.slow
    if variation is None:
        return
    document = variation.body if variation.body is not ABSENT else bench.document()
    headers = over(bench.endpoint.headers, variation.headers)
    key = bench.spelled(bench.new_key())
    request = bench.request(key, body=bench.body(document), headers=headers)
    others = [request]
    if isinstance(bench.compared, Leaf):
        others.append(bench.request(key, body=encoded(changed(document, bench.compared)), headers=headers))

    answers, effects = bench.counted(lambda: _meanwhile(bench, request, others, 0.2))
    if _different(bench, answers) or (bench.stands(effects, 1) or 0) > 1:
        said = "A request that came during a slow one with its key was carried out as well."
        bench.report.find("concurrency.ran-twice", said, answers)
    elif len(others) > 1:
        _answers_another(bench, answers[-1:], answers[1:2])
    _status(bench, answers[:1])


def during(bench: Bench) -> None:
    """Retries all the time that a request takes: a lock may be shorter than the work."""
    if bench.duration < LONG or bench.serial or bench.report.found("concurrency"):
        return

    def act() -> list[RawExchange]:
        request = bench.request(bench.spelled(bench.new_key()), body=bench.body(bench.document()))
        return [*_meanwhile(bench, request, [request], bench.duration / 5), bench.answered(request)]

    answers, effects = _burst(bench, act)
    if (effects or 0) > 1 or _different(bench, answers):
        said = "A retry that came while the first request was still at work was carried out as well."
        bench.report.find("concurrency.ran-twice", said, _two(bench, answers) or answers[:2])


def _meanwhile(
    bench: Bench, request: RawRequest, others: list[RawRequest], pause: float
) -> list[RawExchange]:
    """What others get while a request is at work, then what it gets again and again, and at last itself."""
    bench.spend(1)
    first: list[RawExchange] = []
    thread = threading.Thread(
        target=lambda: first.extend(together([request], bench.budget.timeout)), daemon=True
    )
    thread.start()
    time.sleep(pause)
    answers = [bench.send(other) for other in others]
    for _ in range(AGAIN):
        thread.join(pause)
        if not thread.is_alive():
            break
        answers.append(bench.send(request))
    thread.join(bench.budget.timeout + 1)
    return [*answers, *first]


def strangers(bench: Bench) -> None:
    """Different keys at the same moment: each has its own answer, then and later."""
    if bench.serial or bench.report.found("concurrency", "misuse"):
        bench.report.cannot_tell(
            ONE_AT_A_TIME if bench.serial else "an earlier finding comes first", "concurrency.strangers"
        )
        return
    requests = [
        bench.request(bench.spelled(bench.new_key()), body=bench.body(bench.document()))
        for _ in range(bench.budget.burst)
    ]
    answers = bench.burst(requests)
    if bench.incidents or any(one.failed or one.status in LIMITS for one in answers):
        bench.report.cannot_tell("requests fail here by the way, or are limited", "concurrency.strangers")
        return
    later = [bench.answered(request) for request in requests]
    for first, retry in zip(answers, later, strict=True):
        wrong = _wrong(bench, first, retry)
        if wrong is not None:
            bench.report.find("concurrency.strangers", wrong, [first, retry])
            return
    shared = [one for number, one in enumerate(later) if any(_are_one(bench, one, b) for b in later[:number])]
    if shared:
        said = "Two requests with different keys at once got the answer of one."
        bench.report.find("concurrency.strangers", said, shared[:1])
    elif bench.identity:
        bench.report.hold("concurrency.strangers")
    else:
        bench.report.cannot_tell(bench.untold, "concurrency.strangers")


def _wrong(bench: Bench, first: RawExchange, retry: RawExchange) -> str | None:
    """What is wrong with a new key's answer among strangers."""
    if not retry.succeeded:
        return f"After requests with different keys at once, one gets {retry.status or retry.silence}."
    if first.status in CONFLICTS:
        return f"A new key got {first.status}, because of requests with other keys."
    if first.succeeded and 202 not in (first.status, retry.status) and _are_two(bench, first, retry):
        return "A request among others with different keys got another answer than its retry."
    return None


def _are_one(bench: Bench, one: RawExchange, two: RawExchange) -> bool:
    return (
        one.answer is not None
        and two.answer is not None
        and bool(bench.identity.same(one.answer, two.answer))
    )


def _by_the_way(bench: Bench, answers: list[RawExchange]) -> bool:
    """Whether a 5xx may be one of those that single requests get here too: then it tells nothing.

    Nor does a burst that a limiter has cut.
    """
    if any(exchange.status == 429 for exchange in answers):
        return True
    return bool(bench.incidents) and any(exchange.status >= 500 for exchange in answers)


def _rounds(bench: Bench, most: int) -> int:
    return most if bench.duration < 0.5 else 1


def _burst(bench: Bench, act: Callable[[], list[RawExchange]]) -> tuple[list[RawExchange], int | None]:
    """A burst of its own key, and its effects, as far as the count can be believed."""
    answers, effects = bench.counted(act)
    if _by_the_way(bench, answers):
        return answers, None  # a failure may have had its effect, which is told elsewhere
    if not _different(bench, answers):
        effects = bench.stands(effects, 1, lambda: bench.counted(act)[1], contradicted=bool(bench.identity))
    return answers, effects


def _different(bench: Bench, answers: list[RawExchange]) -> bool:
    """Whether successful answers speak of more than one operation."""
    return len(_two(bench, answers)) == 2 and _are_two(bench, *_two(bench, answers))


def _unlike(bench: Bench, answers: list[RawExchange], last: RawExchange) -> RawExchange | None:
    """A success with another body than the settled answer has, where replays are known to be the same."""
    if bench.report.found("replay") or 202 in (last.status, bench.operations[0].exchange.status):
        return None
    for exchange in answers:
        if exchange.succeeded and exchange.status != 202 and not alike(exchange, last):
            return exchange
    return None


def _are_two(bench: Bench, one: RawExchange, two: RawExchange) -> bool:
    assert one.answer is not None and two.answer is not None
    return bench.identity.same(one.answer, two.answer) is False


def _two(bench: Bench, answers: list[RawExchange]) -> list[RawExchange]:
    """Two successful exchanges that show it best: of two operations, if there are such."""
    good = [exchange for exchange in answers if exchange.succeeded]
    for other in good[1:]:
        if _are_two(bench, good[0], other):
            return [good[0], other]
    return good[:2]


def _status(bench: Bench, answers: list[RawExchange]) -> None:
    usual = bench.operations[0].exchange.status
    for exchange in answers:
        if exchange.failed or exchange.status in FINE or exchange.status == usual:
            if exchange.status == 409:
                bench.refusals.setdefault("in progress", exchange)
            continue
        said = f"A request that met a running one got {exchange.status}."
        bench.report.find("concurrency.status", said, [exchange])

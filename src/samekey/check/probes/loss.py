"""A client that leaves: half-way through its request, and before it has its answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..bench import Bench
from ..wire import RawExchange, RawRequest, Unreachable, leave, leave_half_way


def half_a_request(bench: Bench) -> None:
    """Nothing can have been carried out, and the whole request is a first one."""
    if bench.report.found("errors"):
        bench.report.cannot_tell("an earlier finding comes first", "loss.half-request")
        return
    body = bench.body(bench.document())
    if body is None or len(body) < 2:
        bench.report.cannot_tell("the request has no body to be cut", "loss.half-request")
        return

    def leaving(request: RawRequest) -> None:
        leave_half_way(request, bench.budget.timeout)
        time.sleep(0.1)

    exchange, effects = _after(bench, leaving)
    if not exchange.succeeded:
        bench.report.find(
            "loss.half-request",
            f"After a client left half-way through its body, the whole request gets {_said(exchange)}.",
            [exchange],
        )
    elif (effects or 0) > 1:
        bench.report.find(
            "loss.half-request", f"Half a request and its retry had {effects} effects.", [exchange]
        )
    else:
        bench.report.hold("loss.half-request")


def lost_answers(bench: Bench) -> None:
    """All of the request was sent; the client is gone before the answer."""
    if bench.report.found("errors"):
        bench.report.cannot_tell("an earlier finding comes first", "loss.ran-again", "loss.stuck")
        return
    pauses = (0.0, 0.0, bench.duration / 2) if bench.duration < 0.5 else (0.0, min(bench.duration / 2, 1.0))
    for pause in pauses:

        def leaving(request: RawRequest, pause: float = pause) -> None:
            leave(request, bench.budget.timeout, pause)
            # Until the server is done with it, so that only what it keeps decides, and no race.
            time.sleep(max(0.2, 1.5 * bench.duration + 0.1))

        exchange, effects = _after(bench, leaving)
        if (effects or 0) > 1:
            bench.report.find(
                "loss.ran-again",
                f"A request whose answer was lost, and its retry, had {effects} effects.",
                [exchange],
            )
            return
        if not exchange.succeeded:
            bench.report.find(
                "loss.stuck",
                f"A request whose answer was lost gets {_said(exchange)} for {bench.patience:.0f} s.",
                [exchange],
            )
            return
    bench.report.hold("loss.stuck")
    if bench.counter is not None:
        bench.report.hold("loss.ran-again")
    else:
        why = bench.untold if bench.doubt else "an answer that was lost tells nothing; give a count URL"
        bench.report.cannot_tell(why, "loss.ran-again")


def _after(bench: Bench, leaving: Callable[[RawRequest], None]) -> tuple[RawExchange, int | None]:
    """The retry of a request whose client left, and the effects of both.

    A server that fails now and then may have failed unseen: there, only what shows three times counts.
    """

    def act() -> RawExchange:
        request = bench.request(bench.spelled(bench.new_key()), body=bench.body(bench.document()))
        bench.spend(1)
        try:
            leaving(request)
        except Unreachable:
            pass
        bench.answered(request)
        return bench.answered(request)

    for _ in range(3 if bench.incidents else 1):
        exchange, effects = bench.counted(act)
        if exchange.succeeded and (effects or 0) <= 1:
            break
    # No answer can contradict it: the lost one is not known. So one more loss must show the same.
    return exchange, bench.stands(effects, 1, lambda: bench.counted(act)[1], contradicted=True)


def _said(exchange: RawExchange) -> str:
    return str(exchange.status or exchange.silence)

"""How long a key is kept: what the server says of it, and, if the plan names a time, whether it holds."""

from __future__ import annotations

import time

from ..bench import Bench
from ..judging import Sight

_WORDS = ("expir", "retention", "ttl", "lifetime")


def advertised(bench: Bench) -> None:
    """A fact for the report; the draft wants it published, not sent."""
    answers = [operation.exchange.answer for operation in bench.operations]
    answers += [exchange.answer for exchange in bench.refusals.values()]
    for answer in answers:
        for name, value in answer.headers if answer is not None else ():
            if "idempoten" in name.lower() and any(word in name.lower() for word in _WORDS):
                bench.report.facts["keys expire"] = f"{name}: {value}"
                return


def expiry(bench: Bench) -> None:
    """On request only: waits until the time is nearly over, and until it is."""
    kept = bench.endpoint.retention
    if kept is None:
        return
    operation = bench.fresh()
    time.sleep(0.8 * kept)
    exchange, what = bench.again(operation)
    if what in (Sight.REPLAYED, Sight.UNCLEAR):
        bench.report.hold("lifetime.early")
    else:
        bench.report.find(
            "lifetime.early",
            f"Before {kept:g} s were over, a retry no longer got the first answer: {exchange.status}.",
            [operation.exchange, exchange],
        )
    time.sleep(0.4 * kept)
    exchange, what = bench.again(operation)
    bench.report.facts["after expiry"] = f"a retry {what} ({exchange.status})"

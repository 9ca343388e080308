"""How long a key is kept: what the server says of it, and, if the plan names a time, whether it holds."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from ..bench import WATCH, Bench
from ..counting import PATIENCE
from ..judging import Sight
from ..rules import Severity
from ..trials import Trial
from .replay import late

_FIRST = "an earlier finding comes first"
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
    if what is Sight.REPLAYED:
        bench.report.hold("lifetime.early")
    elif what is Sight.UNCLEAR:
        bench.report.cannot_tell(bench.untold, "lifetime.early")
    else:
        bench.report.find(
            "lifetime.early",
            f"Before {kept:g} s were over, a retry no longer got the first answer: {exchange.status}.",
            [operation.exchange, exchange],
        )
    time.sleep(0.4 * kept)
    exchange, what = bench.again(operation)
    bench.report.facts["after expiry"] = f"a retry {what} ({exchange.status})"


def still_known(bench: Bench) -> None:
    """At the very end, the first operation once more: a key that lives for seconds is of no use."""
    if _is_found_wrong(bench):
        bench.report.cannot_tell(_FIRST, "lifetime.forgotten")
        return
    first = bench.operations[0]
    if _is_over(bench, first):
        bench.report.cannot_tell("the published time was over before the check was", "lifetime.forgotten")
        return
    exchange, what = bench.looked_at(first.exchange, lambda: bench.answered(first.request))
    age = f"{time.monotonic() - first.at:.1f} s"
    if what is Sight.RAN:
        bench.report.find(
            "lifetime.forgotten",
            f"The first request of the check was sent again after {age}, and was carried out a second time.",
            [first.exchange, exchange],
        )
    elif what is Sight.REPLAYED:
        bench.report.hold("lifetime.forgotten")
        bench.report.facts["keys are kept"] = f"for {age} at least"
    else:
        said = bench.untold if what is Sight.UNCLEAR else f"it was answered {exchange.status}"
        bench.report.cannot_tell(said, "lifetime.forgotten")


def count_to_the_end(bench: Bench) -> None:
    """The count must be still when all is done, also after one more retry, and rise once more: else what it
    has held is not proven. What earlier retries have put off comes to light here too."""
    if bench.counter is None:
        return
    if _is_found_wrong(bench):
        # An effect that was found elsewhere may be a retry's that came late.
        bench.report.take_back(_FIRST, "replay.ran-again")
        return
    if bench.counter.moves(WATCH):
        bench.distrust()
    elif not _is_over(bench, bench.operations[0]):
        late(bench, PATIENCE)
    if bench.counter is not None:
        bench.fresh()


def _is_found_wrong(bench: Bench) -> bool:
    return any(finding.rule.severity is Severity.ERROR for finding in bench.report.findings)


def _is_over(bench: Bench, operation: Trial) -> bool:
    """Whether the key may be forgotten by now, by what the plan or the server itself says."""
    kept = bench.endpoint.retention
    if kept is not None and time.monotonic() - operation.at > 0.8 * kept:
        return True
    said = operation.exchange.answer.header("idempotency-key-expires") if operation.exchange.answer else None
    try:
        end = parsedate_to_datetime(said or "")
    except (ValueError, TypeError, OverflowError):
        return False
    return (end if end.tzinfo else end.replace(tzinfo=UTC)) <= datetime.now(UTC)

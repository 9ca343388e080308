"""A 5xx and its retries: those that happened during the check, and one that the plan knows how to cause."""

from __future__ import annotations

from ..bench import BUSY, Bench
from ..endpoint import ABSENT, over
from ..judging import alike, is_of_unknown_outcome
from ..trials import Incident
from ..wire import RawExchange

RULES = ("errors.remembered-5xx", "errors.forgotten-5xx", "errors.ran-twice")


def incidents(bench: Bench) -> None:
    """What became of valid requests that got a 5xx by the way."""
    for incident in bench.incidents:
        if not bench.report.found("errors.remembered-5xx", "errors.ran-twice", "errors.stuck"):
            _judge(bench, incident, once=True)


def failing(bench: Bench) -> None:
    """The failing request of the plan."""
    variation = bench.endpoint.failing
    if variation is None:
        if not bench.incidents:
            bench.report.cannot_tell("no request failed; a plan can name one that does", *RULES)
        return
    document = variation.body if variation.body is not ABSENT else bench.document()
    headers = over(bench.endpoint.headers, variation.headers)
    request = bench.request(bench.spelled(bench.new_key()), body=bench.body(document), headers=headers)
    retries = max(variation.times or 0, 1) + 1
    exchanges, effects = bench.counted(lambda: [bench.send(request) for _ in range(1 + retries)])
    if not exchanges[0].failed:
        bench.report.cannot_tell(
            f"the failing request of the plan was answered {exchanges[0].status}", *RULES
        )
        return
    _judge(bench, Incident(request, exchanges, effects), once=variation.times is not None)


def _judge(bench: Bench, incident: Incident, *, once: bool) -> None:
    """``once``: the cause is known to pass, so that a 5xx that stays is a remembered one.

    Only a success shows that a key can succeed later: one that is busy is waited for, as a client does.
    """
    report = bench.report
    first, last = incident.exchanges[0], incident.exchanges[-1]
    if not last.failed and last.status in BUSY:
        last = bench.answered(incident.request)
    effects = bench.stands(incident.effects, 1)
    if effects is not None:
        if effects > 1:
            said = f"A request that got {first.status or first.silence} had {effects} effects"
            report.find("errors.ran-twice", f"{said}, with its retries.", [first, last])
            return
        report.hold("errors.ran-twice")
    if bench.profile.errors_5xx == "replay":
        if last.succeeded and first.status == 500:
            report.find(
                "errors.forgotten-5xx", f"A 500 was not kept: its retry got {last.status}.", [first, last]
            )
        elif first.status == 500 and alike(first, last):
            report.hold("errors.forgotten-5xx")
        elif last.status in BUSY and not last.failed:
            _stuck(bench, first, last)
    elif last.failed and once:
        _remembered(bench, incident)
    elif last.succeeded:
        report.hold("errors.remembered-5xx")
    elif last.status in BUSY and not last.failed:
        _stuck(bench, first, last)
    else:
        why = f"what had failed was answered {last.status or last.silence} afterwards"
        report.cannot_tell(why, "errors.remembered-5xx")


def _stuck(bench: Bench, first: RawExchange, last: RawExchange) -> None:
    """A key in conflict for ever; not a fault if the server says that it does not know what was done."""
    said = f"After {first.status or first.silence}, the key gets {last.status} for {bench.patience:.0f} s"
    if is_of_unknown_outcome(last.answer):
        why = f"{said}: the server says that the outcome is unknown"
        bench.report.cannot_tell(why, "errors.remembered-5xx", "errors.forgotten-5xx")
        return
    bench.report.find("errors.stuck", f"{said}.", [first, last])
    bench.report.cannot_tell("the key stays in conflict", "errors.remembered-5xx", "errors.forgotten-5xx")


def _remembered(bench: Bench, incident: Incident) -> None:
    """The key fails still: so do others, or it is the key."""
    first = incident.exchanges[0]
    once_more = bench.answered(incident.request)
    if once_more.status < 500 or not alike(first, once_more):
        return
    plain = bench.fresh()
    bench.report.find(
        "errors.remembered-5xx",
        f"A key that once got {first.status} gets it for ever; new keys succeed.",
        [first, once_more, plain.exchange],
    )

"""Keys that are missing, empty, malformed, repeated or beyond ASCII: served or refused, never a failure."""

from __future__ import annotations

from ..bench import Bench
from ..judging import Sight, seen
from ..wire import RawExchange

MALFORMED = ('"unterminated-{}', '"{}" trailing', '"{}";=')
"""Neither a String of RFC 9651 nor a plain word."""


def no_key(bench: Bench) -> None:
    """Without the header."""
    request = bench.request(body=bench.body(bench.document()))
    exchange, effects = bench.counted(lambda: bench.steady(request))
    if exchange.failed:
        _failed(bench, "header.missing", "A request without the header", exchange)
    elif exchange.refused and bench.stands(effects, 0):
        bench.report.find(
            "header.missing",
            f"It was refused with {exchange.status}, and carried out all the same.",
            [exchange],
        )
    else:
        bench.report.hold("header.missing")
        bench.report.facts["without a key"] = "refused" if exchange.refused else "served"
        if exchange.refused:
            bench.refusals["missing"] = exchange


def empty_key(bench: Bench) -> None:
    """An empty value must not become a key that all clients share."""
    request = bench.request("", body=bench.body(bench.document()))
    first = bench.steady(request)
    if first.failed:
        _failed(bench, "header.empty", "An empty header", first)
        return
    if not first.succeeded:
        bench.report.hold("header.empty")
        return
    second, effects = bench.counted(lambda: bench.steady(request))
    what = seen(bench.identity, first, second, effects)
    if what is Sight.REPLAYED and bench.is_a_replay(first, second):
        bench.report.find(
            "header.empty",
            "An empty header is taken as a key: the second request got the first's answer.",
            [first, second],
        )
    elif what in (Sight.UNCLEAR, Sight.REPLAYED):
        bench.report.cannot_tell(bench.untold, "header.empty")
    else:
        bench.report.hold("header.empty")


def malformed_key(bench: Bench) -> None:
    """What is no String and no word."""
    taken: RawExchange | None = None
    for pattern in MALFORMED if bench.duration < 0.5 else MALFORMED[:1]:
        request = bench.request(pattern.format(bench.new_key()), body=bench.body(bench.document()))
        exchange = bench.steady(request)
        if exchange.failed:
            _failed(bench, "header.malformed", "A malformed key", exchange)
            return
        taken = exchange if exchange.succeeded else taken
        if exchange.refused:
            bench.refusals.setdefault("malformed", exchange)
    bench.report.hold("header.malformed")
    if taken is None:
        bench.report.hold("header.malformed-taken")
    elif bench.profile.quoted:
        bench.report.find("header.malformed-taken", "A malformed key is accepted.", [taken])


def two_keys(bench: Bench) -> None:
    """Two lines with two keys."""
    keys = bench.spelled(bench.new_key()), bench.spelled(bench.new_key())
    exchange = bench.steady(bench.request(*keys, body=bench.body(bench.document())))
    if exchange.failed:
        _failed(bench, "header.repeated", "A request with two keys", exchange)
        return
    bench.report.hold("header.repeated")
    if exchange.succeeded:
        bench.report.find("header.repeated-taken", "A request with two keys is accepted.", [exchange])
    else:
        bench.report.hold("header.repeated-taken")


def beyond_ascii(bench: Bench) -> None:
    """Bytes that HTTP allows in a header and a key must not have."""
    key = f'"clé-{bench.new_key()}"'.encode()
    exchange = bench.steady(bench.request(key, body=bench.body(bench.document())))
    if exchange.answer is None:
        bench.report.cannot_tell(f"the request was not answered: {exchange.silence}", "header.non-ascii")
    elif exchange.failed:
        _failed(bench, "header.non-ascii", "A key that is not ASCII", exchange)
    else:
        bench.report.hold("header.non-ascii")


def _failed(bench: Bench, rule: str, what: str, exchange: RawExchange) -> None:
    bench.report.find(rule, f"{what} got {exchange.status or exchange.silence}.", [exchange])

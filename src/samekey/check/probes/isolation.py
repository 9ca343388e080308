"""Whose key it is: another tenant, nobody, and somebody whose credentials are no longer good."""

from __future__ import annotations

from ..bench import Bench, CannotGoOn
from ..counting import Counter
from ..endpoint import Headers
from ..judging import Sight, seen
from ..trials import Trial
from ..wire import RawExchange


def without_credentials(bench: Bench) -> None:
    """A replay is for whoever may make the request."""
    names = bench.endpoint.credentials
    own = [(name, value) for name, value in bench.endpoint.headers if name.lower() in names]
    if not own:
        bench.report.cannot_tell("the request has no credentials", "isolation.credentials")
        return
    nobody = tuple(pair for pair in bench.endpoint.headers if pair not in own)
    revoked = (*nobody, *((name, _spoilt(value)) for name, value in own))
    operation = bench.operations[0]
    told = False
    for headers, who in ((nobody, "without credentials"), (revoked, "with credentials that are not valid")):
        control = bench.send(
            bench.request(bench.spelled(bench.new_key()), body=operation.request.body, headers=headers)
        )
        if not control.refused:
            continue  # the endpoint lets anybody in, so nothing is told by that
        told = True
        exchange, _ = bench.again(operation, headers=headers)
        if exchange.succeeded:
            bench.report.find(
                "isolation.credentials",
                f"A request {who} is refused with {control.status}; with a used key it gets the answer.",
                [control, exchange],
            )
            return
    if told:
        bench.report.hold("isolation.credentials")
    else:
        bench.report.cannot_tell("the endpoint does not ask for credentials", "isolation.credentials")


def _spoilt(value: str) -> str:
    """The same form, and worth nothing."""
    scheme, space, secret = value.partition(" ")
    return f"{scheme} samekey-check-revoked" if space and secret else "samekey-check-revoked"


def another_tenant(bench: Bench) -> None:
    """The same key and request, of somebody else: an operation of their own."""
    if not bench.endpoint.other_headers:
        bench.report.cannot_tell("no second tenant was given", "isolation.tenant")
        return
    if bench.report.found("isolation.credentials"):
        bench.report.cannot_tell("credentials are not checked before the key", "isolation.tenant")
        return
    theirs = bench.endpoint.other_tenant
    ours = bench.operations[0]
    try:
        control = bench.fresh(headers=theirs)
    except CannotGoOn as reason:
        bench.report.cannot_tell(f"the second tenant is not let in: {reason}", "isolation.tenant")
        return
    exchange, what = _theirs(bench, ours, theirs)
    if what in (Sight.REFUSED, Sight.FAILED) and bench.incidents:
        # Requests fail here by the way: what a key gets after a failure tells nothing of whose it is.
        ours = bench.fresh()
        exchange, what = _theirs(bench, ours, theirs)
    if what is Sight.RAN:
        _, back = bench.again(ours)
        if back is Sight.REPLAYED:
            bench.report.hold("isolation.tenant")
            return
        what = back if back is Sight.UNCLEAR else what
    if what is Sight.REPLAYED and not _counts(bench, ours, exchange, theirs):
        what = Sight.UNCLEAR
    if what is Sight.UNCLEAR:
        bench.report.cannot_tell(bench.untold, "isolation.tenant")
        return
    said = "gets the first one's answer" if what is Sight.REPLAYED else f"is answered {exchange.status}"
    bench.report.find(
        "isolation.tenant",
        f"A second tenant that uses the same key {said}; with a key of its own it succeeds.",
        [ours.exchange, exchange, control.exchange],
    )


def _theirs(bench: Bench, ours: Trial, theirs: Headers) -> tuple[RawExchange, Sight]:
    """What the other tenant gets for our key, counted as that tenant counts."""
    request = bench.request(bench.spelled(ours.key), body=ours.request.body, headers=theirs)
    exchange, effects = bench.counted(lambda: bench.steady(request), _counter(bench, theirs))
    return exchange, seen(bench.identity, ours.exchange, exchange, effects)


def _counter(bench: Bench, theirs: Headers) -> Counter | None:
    url = bench.endpoint.count_url
    if bench.counter is None or url is None:
        return None
    counter = Counter(lambda: bench.send(bench.request(method="GET", url=url, headers=theirs)))
    counter.unit, counter.lag = bench.counter.unit, bench.counter.lag
    return counter


def _counts(bench: Bench, ours: Trial, exchange: RawExchange, theirs: Headers) -> bool:
    """Whether a replay is one: the answers say so, or a new operation of theirs raises their count."""
    assert ours.exchange.answer is not None and exchange.answer is not None
    if bench.identity.same(ours.exchange.answer, exchange.answer):
        return True
    return bool(bench.counted(lambda: bench.fresh(headers=theirs), _counter(bench, theirs))[1])

"""A used key at another path, with another method or another query: its old answer does not belong there."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from ..bench import Bench
from ..endpoint import ABSENT, Place
from ..judging import Sight
from ..variants import encoded, made_unique
from ..wire import RawRequest


def another_place(bench: Bench) -> None:
    """Refused, or another operation: all is well but the old answer.

    A refusal tells something only where a new key is served: what is not there refuses every key.
    """
    if bench.report.found("misuse.body"):
        bench.report.cannot_tell(
            "not even bodies are compared", "misuse.path", "misuse.query", "misuse.method"
        )
        return
    url, body = bench.operations[1].request.url, bench.operations[1].request.body
    methods = [method for method in ("PATCH", "PUT", "POST") if method != bench.endpoint.method][:2]

    def at(method: str, url: str, body: bytes | None = body) -> RawRequest:
        return bench.request(bench.spelled(bench.operations[1].key), body=body, method=method, url=url)

    own = bench.endpoint.method
    paths = [at(own, _below(url))]
    for place in bench.endpoint.elsewhere:
        paths += [at(place.method, place.url), at(place.method, place.url, _body(bench, place))]
    _look(bench, "misuse.path", "at another path", paths)
    _look(bench, "misuse.query", "with another query", [at(own, query) for query in _asked_else(url)])
    _look(bench, "misuse.method", "with another method", [at(method, url) for method in methods])


def _body(bench: Bench, place: Place) -> bytes | None:
    return None if place.body is ABSENT else encoded(made_unique(place.body, bench.new_key()))


def _below(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/samekey-check"))


def _asked_else(url: str) -> list[str]:
    """With other queries: one more parameter, another value."""
    parts = urlsplit(url)
    query = parts._replace(query=f"{parts.query}&samekey-check=1" if parts.query else "samekey-check=1")
    found = [urlunsplit(query)]
    if "=" in parts.query:
        found.append(urlunsplit(parts._replace(query=f"{parts.query}1")))
    return found


def _look(bench: Bench, rule: str, where: str, requests: list[RawRequest]) -> None:
    first = bench.operations[1].exchange
    proven, nothing = False, ""
    for request in requests:
        exchange, what = bench.looked_at(first, lambda request=request: bench.steady(request))  # type: ignore[misc]
        # With nobody counting, an answer is the old one only if it says so itself, byte for byte.
        if exchange.succeeded and exchange.answer is not None and first.answer is not None:
            same = bench.identity.same(first.answer, exchange.answer)
            alike = exchange.answer.body == first.answer.body
            if what is Sight.REPLAYED and (same or (same is None and alike)):
                bench.report.find(rule, f"A used key {where} got the old answer.", [first, exchange])
                return
            proven = proven or what is Sight.RAN or same is False or not alike
        elif exchange.refused:
            served = _is_served(bench, request)
            proven = proven or served
            nothing = nothing or f"a new key is refused there as well: {exchange.status}"
    if proven:
        bench.report.hold(rule)
    else:
        bench.report.cannot_tell(nothing or bench.untold, rule)


def _is_served(bench: Bench, request: RawRequest) -> bool:
    """Whether there is something at that place: the same request with a new key succeeds."""
    fresh = bench.request(
        bench.spelled(bench.new_key()), body=request.body, method=request.method, url=request.url
    )
    return bench.steady(fresh).succeeded

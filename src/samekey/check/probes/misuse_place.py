"""A used key at another path, with another method or another query: its old answer does not belong there."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from ..bench import Bench
from ..judging import Sight
from ..wire import RawExchange


def another_place(bench: Bench) -> None:
    """Refused, unknown there, or another operation: all is well but the old answer."""
    if bench.report.found("misuse.body"):
        bench.report.cannot_tell(
            "not even bodies are compared", "misuse.path", "misuse.query", "misuse.method"
        )
        return
    operation = bench.operations[1]
    path, *queries = _elsewhere(operation.request.url)
    others = [method for method in ("PATCH", "PUT", "POST") if method != bench.endpoint.method][:2]
    _look(bench, "misuse.path", "at another path", [bench.again(operation, url=path)])
    others_asked = [bench.again(operation, url=query) for query in queries]
    _look(bench, "misuse.query", "with another query", others_asked)
    _look(
        bench,
        "misuse.method",
        "with another method",
        [bench.again(operation, method=method) for method in others],
    )


def _elsewhere(url: str) -> list[str]:
    """Another path below this one, and this one with other queries: one more parameter, another value."""
    parts = urlsplit(url)
    path = parts._replace(path=f"{parts.path.rstrip('/')}/samekey-check")
    query = parts._replace(query=f"{parts.query}&samekey-check=1" if parts.query else "samekey-check=1")
    found = [urlunsplit(path), urlunsplit(query)]
    if "=" in parts.query:
        found.append(urlunsplit(parts._replace(query=f"{parts.query}1")))
    return found


def _look(bench: Bench, rule: str, where: str, seen: list[tuple[RawExchange, Sight]]) -> None:
    first = bench.operations[1].exchange
    for exchange, what in seen:
        # With nobody counting, an answer is the old one only if it says so itself, byte for byte.
        if what is Sight.REPLAYED and exchange.answer is not None and first.answer is not None:
            same = bench.identity.same(first.answer, exchange.answer)
            if same or (same is None and exchange.answer.body == first.answer.body):
                bench.report.find(rule, f"A used key {where} got the old answer.", [first, exchange])
                return
    if all(what is Sight.UNCLEAR for _, what in seen):
        bench.report.cannot_tell(bench.untold, rule)
    else:
        bench.report.hold(rule)

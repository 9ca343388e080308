"""Two plain operations with two keys: does it work at all, and how is one operation told from another?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urljoin, urlsplit

from ...errors import ConfigurationError
from ..bench import Bench, CannotGoOn, Stop
from ..counting import Counter
from ..endpoint import ABSENT, check_url
from ..judging import identity_of, is_marked
from ..masking import shown_url
from ..trials import Incident, Trial
from ..variants import leaves
from ..wire import RawExchange, RawRequest, Unreachable

REDIRECTS = frozenset({307, 308})
QUIET = 0.3
"""Seconds before the first operation in which the count must be still."""

_ADVICE = {
    401: "Give credentials with --header 'Authorization: …'.",
    403: "Give credentials that may do this with --header.",
    404: "Is the path right?",
    405: "Is the method right? Another one is given with --method.",
    415: "Another media type is given with --header 'Content-Type: …'.",
    429: "It limits its requests; give --rate a smaller number.",
}


class NotAccepted(ConfigurationError):
    """The endpoint does not accept the request that it is to be checked with."""


def baseline(bench: Bench) -> None:
    """Must succeed: everything else is measured by it."""
    bench.quoted = bench.profile.quoted
    counter = _counter(bench)
    before = counter.read() if counter is not None else 0
    try:
        operation = _first(bench)
    except CannotGoOn as reason:
        raise NotAccepted(f"Nothing could be checked: {reason}.") from None
    after = counter.read() if counter is not None else 0
    second = _second(bench, counter)
    if counter is not None and counter.usable:
        bench.counter = counter
        for incident in bench.incidents[:1]:
            incident.effects = counter.operations(before, after)
    assert operation.exchange.answer is not None and second.exchange.answer is not None
    bench.operations = [operation, second]
    bench.identity = identity_of(
        operation.exchange.answer, second.exchange.answer, bench.endpoint.same, _sent(operation)
    )
    bench.tell()
    if is_marked(operation.exchange.answer):
        bench.report.find(
            "replay.marker", "The answer to a new key is marked as a replay.", [operation.exchange]
        )
    else:
        bench.report.hold("replay.marker")


def _second(bench: Bench, counter: Counter | None) -> Trial:
    """Another operation, and by it what one adds to the count.

    That is learnt from one that did not fail on its way: a retry may have added to it.
    """
    try:
        for _ in range(3):
            known = len(bench.incidents)
            before = counter.settled() if counter is not None else 0
            operation = bench.fresh()
            if counter is None:
                return operation
            counter.calibrate(before)
            if len(bench.incidents) == known:
                return operation
    except CannotGoOn as reason:
        raise NotAccepted(
            f"The same body with a second key was not accepted: {reason}. If the endpoint takes a body only "
            "once, write {unique} into one of its strings: it is replaced by something new in each request."
        ) from None
    assert counter is not None
    counter.unit = min(counter.unit, 1)
    return operation


def _sent(operation: Trial) -> list[Any]:
    """What an answer may repeat of its request: the key in both spellings, and texts of the body."""
    said = leaves(operation.document) if operation.document is not ABSENT else ()
    return [
        operation.key,
        f'"{operation.key}"',
        *(leaf.value for leaf in said if isinstance(leaf.value, str)),
    ]


def _counter(bench: Bench) -> Counter | None:
    url = bench.endpoint.count_url
    if url is None:
        return None
    counter = Counter(lambda: bench.send(bench.request(method="GET", url=url)))
    if counter.moves(QUIET):
        bench.doubt = "changes by itself (others use it too)"
        return None
    return counter


def _first(bench: Bench) -> Trial:
    document = bench.document()
    sent = bench.body(document)
    for _ in range(3):
        key = bench.new_key()
        request = bench.request(bench.spelled(key), body=sent)
        exchange = _persistently(bench, request)
        if exchange.status == 400 and bench.quoted:
            bare = bench.request(key, body=sent)
            taken = _persistently(bench, bare)
            if taken.succeeded:
                bench.report.find(
                    "header.syntax", "A key in quotation marks is refused; a bare one is taken.", [exchange]
                )
                bench.quoted = False
                request, exchange = bare, taken
        if exchange.status in REDIRECTS:
            request, exchange = _followed(bench, exchange, key, sent)
        if not exchange.failed:
            break
    if not exchange.succeeded:
        _give_up(bench, exchange)
    if bench.quoted:
        bench.report.hold("header.syntax")
    bench.duration = exchange.seconds
    return Trial(key, document, request, exchange)


def _persistently(bench: Bench, request: RawRequest) -> RawExchange:
    exchange = bench.send(request)
    if exchange.answer is None:
        raise Unreachable(f"{request.url} was asked, but {exchange.silence}.")
    if not exchange.failed:
        return exchange
    bench.incidents.append(Incident(request, [exchange, bench.answered(request)]))
    return bench.incidents[-1].exchanges[-1]


def _followed(
    bench: Bench, exchange: RawExchange, key: str, body: bytes | None
) -> tuple[RawRequest, RawExchange]:
    """With the same key to where the server says, as every client goes."""
    place = _place(exchange)
    if place is None:
        return exchange.request, exchange
    bench.endpoint = replace(bench.endpoint, url=place)
    bench.report.facts["redirect"] = f"the URL leads to {place}, which was checked"
    request = bench.request(bench.spelled(key), body=body)
    there = bench.answered(request)
    if there.succeeded:
        return request, there
    direct = bench.request(bench.spelled(bench.new_key()), body=body)
    plain = bench.send(direct)
    if plain.succeeded:
        bench.report.find(
            "errors.redirect",
            f"The key that was redirected is answered {there.status} at the place that it was sent to; "
            "a new key succeeds there.",
            [exchange, there, plain],
        )
        return direct, plain
    return request, there


def _place(exchange: RawExchange) -> str | None:
    """Where a redirect leads, on the same server."""
    location = exchange.answer.header("location") if exchange.answer is not None else None
    if not location:
        return None
    try:
        place = urljoin(exchange.request.url, location)
        check_url(place)
    except (ConfigurationError, ValueError):
        return None
    same = urlsplit(place).netloc == urlsplit(exchange.request.url).netloc
    return place if same else None


def _give_up(bench: Bench, exchange: RawExchange) -> None:
    if exchange.failed:
        said = exchange.status or exchange.silence
        bench.report.find("endpoint.fails", f"A plain request with a new key is answered {said}.", [exchange])
        raise Stop(f"a plain request with a new key is answered {said}")
    place = exchange.answer.header("location") if exchange.answer is not None else None
    advice = (
        f"It leads to {place}: check that." if place else _ADVICE.get(exchange.status, "Is the body right?")
    )
    said = exchange.answer.body.decode("utf-8", "replace").strip() if exchange.answer is not None else ""
    said = bench.report.secrets.out_of(said)[:300]
    url = shown_url(exchange.request.url, bench.report.secrets)
    raise NotAccepted(
        f"{bench.endpoint.method} {url} was answered {exchange.status}, so nothing could be "
        f"checked. {advice}" + (f" It said: {said}" if said else "")
    )

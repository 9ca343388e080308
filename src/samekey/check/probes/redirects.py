"""A redirect is no result: the key works at the place where it leads."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit, urlunsplit

from ..bench import Bench
from .baseline import REDIRECTS


def redirects(bench: Bench) -> None:
    """With a slash at the end where there is none, and the other way round: many servers redirect that."""
    parts = urlsplit(bench.endpoint.url)
    path = parts.path[:-1] if parts.path.endswith("/") else f"{parts.path}/"
    if len(parts.path) < 2:
        bench.report.cannot_tell("the endpoint is the root", "errors.redirect")
        return
    key, body = bench.spelled(bench.new_key()), bench.body(bench.document())
    first = bench.send(bench.request(key, body=body, url=urlunsplit(parts._replace(path=path))))
    place = first.answer.header("location") if first.answer is not None else None
    if first.status not in REDIRECTS or not place:
        bench.report.cannot_tell("no redirect was found", "errors.redirect")
        return
    try:
        there = urljoin(first.request.url, place)
        elsewhere = urlsplit(there).netloc != parts.netloc
    except ValueError:
        elsewhere = True
    if elsewhere:
        bench.report.cannot_tell("the redirect leads to another server", "errors.redirect")
        return
    followed = bench.answered(bench.request(key, body=body, url=there))
    if followed.succeeded:
        bench.report.hold("errors.redirect")
        return
    if followed.failed or bench.incidents:
        bench.report.cannot_tell("requests fail here by the way, with 5xx", "errors.redirect")
        return
    bench.fresh(url=there)  # a new key must be served there, or the redirect is not what is wrong
    bench.report.find(
        "errors.redirect",
        f"A key that got {first.status} gets {followed.status or followed.silence} where that leads.",
        [first, followed],
    )

"""A check from its first request to its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby

from ..errors import ConfigurationError
from .bench import Bench, Budget, CannotGoOn, Died, Stop
from .endpoint import Endpoint
from .masking import shown_url
from .probes import (
    concurrency,
    documentation,
    failures,
    header,
    isolation,
    keys,
    lifetime,
    loss,
    misuse_body,
    misuse_place,
    redirects,
    refusals,
    replay,
)
from .probes.baseline import baseline
from .profiles import profile_of
from .report import Report
from .rules import RULES
from .wire import Unreachable, is_loopback

Progress = Callable[[str, int, int], None]
"""Is told what is being looked at, how much is done, and of how much."""

Probe = Callable[[Bench], None]

SLOW = 0.5
"""Seconds for one answer, from which on probes that can be are side by side."""

PROBES: tuple[tuple[str, Probe], ...] = (
    ("two plain operations", baseline),
    ("a retry", replay.replay),
    ("what a retry does later", replay.later),
    ("another body", misuse_body.another_body),
    ("the same JSON, reordered", replay.reorder),
    ("a long body", misuse_body.only_the_beginning),
    ("big numbers", misuse_body.big_numbers),
    ("a member twice", misuse_body.members_twice),
    ("another place", misuse_place.another_place),
    ("no credentials", isolation.without_credentials),
    ("another tenant", isolation.another_tenant),
    ("no key", header.no_key),
    ("an empty key", header.empty_key),
    ("malformed keys", header.malformed_key),
    ("two keys", header.two_keys),
    ("a key beyond ASCII", header.beyond_ascii),
    ("a key that is too long", keys.too_long),
    ("keys that differ at their end", keys.cut_short),
    ("keys that differ in case", keys.case),
    ("both spellings", keys.spellings),
    ("many at once", concurrency.identical),
    ("many at once, of two kinds", concurrency.mixed),
    ("strangers at once", concurrency.strangers),
    ("retries meanwhile", concurrency.during),
    ("a slow request", concurrency.slow),
    ("failures so far", failures.incidents),
    ("half a request", loss.half_a_request),
    ("lost answers", loss.lost_answers),
    ("refused requests", refusals.refused_requests),
    ("failing requests", failures.failing),
    ("failures since then", failures.incidents),
    ("redirects", redirects.redirects),
    ("what is advertised", lifetime.advertised),
    ("expiry", lifetime.expiry),
    ("how refusals are worded", documentation.refusals),
    ("OpenAPI", documentation.openapi),
    ("the first operation again", lifetime.still_known),
    ("the count in the end", lifetime.count_to_the_end),
)

SIDE_BY_SIDE = frozenset(
    {
        header.no_key,
        header.empty_key,
        header.malformed_key,
        header.two_keys,
        header.beyond_ascii,
        keys.too_long,
        keys.cut_short,
        keys.case,
        keys.spellings,
    }
)


def check(
    endpoint: Endpoint,
    profile: str = "ietf",
    *,
    strict: bool = False,
    mine: bool = False,
    budget: Budget | None = None,
    progress: Progress | None = None,
) -> Report:
    """Probes one endpoint and reports what it found.

    :class:`~samekey.errors.ConfigurationError` if it cannot be checked as asked,
    :class:`~samekey.check.wire.Unreachable` if there is no server.
    """
    rules = profile_of(profile)
    report = _report(endpoint, profile, strict)
    if not mine and not all(
        is_loopback(url)
        for url in (endpoint.url, endpoint.count_url, *(place.url for place in endpoint.elsewhere))
        if url is not None
    ):
        raise ConfigurationError(
            f"{shown_url(endpoint.url, report.secrets)} is not on this machine. A check carries out "
            "operations and races them: say --mine if the endpoint is yours and may be checked."
        )
    began = time.monotonic()
    bench = Bench(endpoint, rules, report, budget or Budget())
    try:
        _walk(bench, progress or (lambda *_: None))
    except (ConfigurationError, Unreachable) as error:
        raise type(error)(report.secrets.out_of(str(error))) from None
    report.seconds = time.monotonic() - began
    report.mask()
    return report


def not_checked(endpoint: Endpoint, why: str, profile: str, *, strict: bool = False) -> Report:
    """The report of an endpoint that could not be checked."""
    report = _report(endpoint, profile, strict)
    report.unchecked = report.secrets.out_of(why)
    report.mask()
    return report


def _report(endpoint: Endpoint, profile: str, strict: bool) -> Report:
    return Report(
        endpoint.url,
        endpoint.method,
        profile,
        strict,
        endpoint.secrets,
        profile_of(profile).silent,
        endpoint.name,
    )


def _steps() -> Iterator[tuple[str, list[Probe]]]:
    """One probe after the other, but for those that can be side by side."""
    for beside, group in groupby(PROBES, key=lambda row: row[1] in SIDE_BY_SIDE):
        if beside:
            yield "keys of every kind", [probe for _, probe in group]
        else:
            yield from ((name, [probe]) for name, probe in group)


def _look(bench: Bench, name: str, probes: Sequence[Probe]) -> str | None:
    """The reason why something could not be told, if there was one.

    Where each run takes its time, and answers tell operations apart, several probes go at once, and nobody
    counts then.
    """

    def one(probe: Probe, bench: Bench = bench) -> str | None:
        try:
            probe(bench)
        except CannotGoOn as reason:
            bench.report.facts.setdefault("not tried to the end", f"{name}: {reason}")
            return str(reason)
        except ConfigurationError as reason:
            if not bench.operations:
                raise
            bench.distrust("could not be read any more")  # nothing but the count is wrong use that late
            return str(reason)
        return None

    if len(probes) > 1 and bench.duration > SLOW and bench.identity:
        alone = replace(bench, counter=None)
        with ThreadPoolExecutor(len(probes)) as threads:
            reasons = list(threads.map(lambda probe: one(probe, alone), probes))
    else:
        reasons = [one(probe) for probe in probes]
    return next((reason for reason in reasons if reason is not None), None)


def _walk(bench: Bench, progress: Progress) -> None:
    why = "it was not looked at"
    done = 0
    for name, probes in _steps():
        progress(name, done, len(PROBES))
        done += len(probes)
        try:
            why = _look(bench, name, probes) or why
        except Stop as reason:
            why = str(reason)
            break
        except Died as death:
            bench.report.find(
                "endpoint.died",
                f"While {name} was looked at: {death}",
                [death.last] if death.last is not None else [],
            )
            why = "the server could not be reached any more"
            break
    progress("", len(PROBES), len(PROBES))
    replay.cookies(bench)
    bench.report.cannot_tell(why, *(rule for rule in RULES if not rule.startswith(("endpoint", "lifetime"))))

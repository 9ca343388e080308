"""A used key with another body: it is refused, whatever and wherever the difference is."""

from __future__ import annotations

from typing import Any

from ..bench import Bench, CannotGoOn
from ..endpoint import ABSENT
from ..judging import Sight
from ..trials import Trial
from ..variants import (
    ALL,
    BEYOND,
    Leaf,
    changed,
    encoded,
    leaves,
    look_alikes,
    others,
    padded_with_blanks,
    padded_with_member,
    repeated,
    replaced,
)
from ..wire import RawExchange

BODY = ("misuse.body", "misuse.ran", "misuse.failed", "misuse.forgets", "misuse.status", "misuse.partly")


def another_body(bench: Bench) -> None:
    """Changes one value after the other, until a change is noticed."""
    operation = bench.fresh()
    if operation.document is ABSENT:
        bench.report.cannot_tell("the request has no body", *BODY)
        return
    ignored: list[RawExchange] = []
    unknown: RawExchange | None = None
    for other in others(operation.document):
        exchange, what = bench.again(operation, body=encoded(other.document))
        if what is Sight.RAN:
            bench.report.find(
                "misuse.ran", "A used key with another body was carried out.", [operation.exchange, exchange]
            )
            return
        if what is Sight.FAILED:
            bench.report.find(
                "misuse.failed",
                f"A used key with another body got {exchange.status or exchange.silence}.",
                [exchange],
            )
            return
        if what is Sight.REFUSED:
            if not _is_about_the_key(bench, other.document, exchange):
                unknown = exchange
                continue
            bench.compared = other.leaf
            bench.refusals["misuse"] = exchange
            _noticed(bench, operation, exchange)
            _compared(bench)
            return
        ignored.append(exchange)
    if ignored:
        # A success, whatever it was: the old answer, or another run that nobody can tell from it.
        bench.report.find(
            "misuse.body",
            "A used key with another body got the answer of the first request.",
            [operation.exchange, ignored[0]],
        )
    else:
        assert unknown is not None
        bench.report.cannot_tell(
            f"every other body that was tried is refused ({unknown.status}) with a new key as well", *BODY
        )


def _compared(bench: Bench) -> None:
    """Whether all of the body is compared, and strictly. Of what is refused, nobody can tell why."""
    operation = bench.fresh()
    unseen: list[tuple[str, RawExchange]] = []
    for other in (*others(operation.document, ALL), *look_alikes(operation.document)):
        if other.leaf is None:
            continue  # a member that nobody knows may be left out of account
        exchange, what = bench.again(operation, body=encoded(other.document))
        if what is Sight.REPLAYED:
            unseen.append((other.name, exchange))
        elif what is Sight.RAN:
            break  # it was forgotten, which is told elsewhere
    if unseen:
        names = ", ".join(name for name, _ in unseen)
        bench.report.find("misuse.partly", f"Not noticed: {names}.", [operation.exchange, unseen[0][1]])
    elif (members := len(list(leaves(operation.document)))) > ALL:
        bench.report.cannot_tell(f"of {members} members only {ALL} were changed", "misuse.partly")
    else:
        bench.report.hold("misuse.partly")


def _is_about_the_key(bench: Bench, document: Any, refusal: RawExchange) -> bool:
    """Whether it was refused for its key: with a new key it is accepted, or refused in other words."""
    try:
        bench.fresh(document=document)
    except CannotGoOn:
        plain = bench.send(bench.request(bench.spelled(bench.new_key()), body=encoded(document)))
        assert refusal.answer is not None
        return plain.answer is not None and (plain.status, plain.answer.body) != (
            refusal.status,
            refusal.answer.body,
        )
    return True


def _noticed(bench: Bench, operation: Trial, refusal: RawExchange) -> None:
    report = bench.report
    report.hold("misuse.body", "misuse.ran", "misuse.failed")
    if refusal.status in bench.profile.misuse:
        report.hold("misuse.status")
    else:
        wanted = ", ".join(str(status) for status in sorted(bench.profile.misuse))
        report.find(
            "misuse.status", f"It was refused with {refusal.status}; {wanted} is expected.", [refusal]
        )
    exchange, what = bench.again(operation)
    if what is Sight.REPLAYED:
        report.hold("misuse.forgets")
    elif what is Sight.UNCLEAR:
        report.cannot_tell(bench.untold, "misuse.forgets")
    else:
        report.find(
            "misuse.forgets",
            f"After a misuse was refused, a retry no longer gets the first answer: {exchange.status}.",
            [operation.exchange, refusal, exchange],
        )


def only_the_beginning(bench: Bench) -> None:
    """A difference far behind the beginning of the body."""
    leaf = bench.compared
    if not isinstance(leaf, Leaf):
        bench.report.cannot_tell("no change of the body was seen to be noticed", "misuse.prefix")
        return
    document = bench.document()
    tried = False
    for padded in (padded_with_blanks, padded_with_member):
        body, other = padded(document), padded(changed(document, leaf))
        if body is None or other is None:
            continue
        try:
            operation = bench.fresh(document=document, body=body)
        except CannotGoOn:
            continue  # it takes no such body, which is its right
        exchange, what = bench.again(operation, body=other)
        tried = tried or what is not Sight.UNCLEAR
        if what in (Sight.REPLAYED, Sight.RAN):
            bench.report.find(
                "misuse.prefix",
                f"A change of {leaf.name} is noticed in a short body, and not behind {len(body)} bytes.",
                [operation.exchange, exchange],
            )
            return
    if tried:
        bench.report.hold("misuse.prefix")
    else:
        bench.report.cannot_tell("longer bodies are not accepted", "misuse.prefix")


def big_numbers(bench: Bench) -> None:
    """Two integers that are one as doubles."""
    document = bench.document()
    whole = [leaf for leaf in leaves(document) if type(leaf.value) is int] if document is not ABSENT else []
    whole.sort(key=lambda leaf: leaf != bench.compared)
    if bench.compared is None or not whole:
        bench.report.cannot_tell("the body has no integer whose change is noticed", "misuse.numbers")
        return
    for leaf in whole[:2]:
        small = replaced(document, leaf.path, BEYOND)
        try:
            operation = bench.fresh(document=small)
        except CannotGoOn:
            continue
        exchange, what = bench.again(operation, body=encoded(replaced(document, leaf.path, BEYOND + 1)))
        if what is Sight.REPLAYED:
            _, ordinary = bench.again(operation, body=encoded(replaced(document, leaf.path, BEYOND + 4096)))
            if ordinary is Sight.REPLAYED:
                continue  # this member is not compared at all
            bench.report.find(
                "misuse.numbers",
                f"{BEYOND + 1} in {leaf.name} was taken for {BEYOND}.",
                [operation.exchange, exchange],
            )
            return
        if what is not Sight.UNCLEAR:
            bench.report.hold("misuse.numbers")
            return
    bench.report.cannot_tell("the endpoint does not take numbers beyond 2^53", "misuse.numbers")


def members_twice(bench: Bench) -> None:
    """A member twice: whichever a reader takes, one of the two bodies is another request than the first."""
    leaf = bench.compared
    if not isinstance(leaf, Leaf):
        bench.report.cannot_tell("no change of the body was seen to be noticed", "misuse.duplicates")
        return
    seen: list[tuple[RawExchange, Sight]] = []
    for turned in (False, True):
        operation = bench.fresh()
        own = _at(operation.document, leaf)
        pair = own, _at(changed(operation.document, Leaf(leaf.path, own)), leaf)
        body = repeated(operation.document, leaf, *(reversed(pair) if turned else pair))
        if body is None:
            bench.report.cannot_tell("the body has no outermost member to repeat", "misuse.duplicates")
            return
        seen.append(bench.again(operation, body=body))
    replays = [exchange for exchange, what in seen if what is Sight.REPLAYED]
    ran = [exchange for exchange, what in seen if what is Sight.RAN]
    failed = [exchange for exchange, what in seen if what is Sight.FAILED]
    if ran:
        bench.report.find("misuse.duplicates", "A used key with a member twice was carried out.", ran)
    elif failed:
        bench.report.find(
            "misuse.duplicates",
            f"A body with a member twice got {failed[0].status or failed[0].silence}.",
            failed,
        )
    elif len(replays) == len(seen):
        bench.report.find(
            "misuse.duplicates",
            f"Both orders of {leaf.name} twice got the answer of the first request.",
            replays,
        )
    elif all(what is Sight.UNCLEAR for _, what in seen):
        bench.report.cannot_tell(bench.untold, "misuse.duplicates")
    else:
        bench.report.hold("misuse.duplicates")


def _at(document: Any, leaf: Leaf) -> Any:
    return next((found.value for found in leaves(document) if found.path == leaf.path), None)

"""Two keys that are nearly the same are two keys; one key in two spellings is one."""

from __future__ import annotations

from ..bench import Bench, CannotGoOn
from ..judging import Sight, seen
from ..trials import Trial
from ..wire import RawExchange

LENGTHS = (300, 255, 128, 64, 36)
"""Of keys, the longest first: what is refused is no fault, what is taken must be compared as a whole."""
TOO_LONG = 5000


def too_long(bench: Bench) -> None:
    """Longer than anybody needs, and shorter than what servers take for headers."""
    request = bench.request(bench.spelled(_word(bench, TOO_LONG)), body=bench.body(bench.document()))
    exchange = bench.steady(request)
    if exchange.answer is None:
        bench.report.cannot_tell(f"a long key was not answered: {exchange.silence}", "header.too-long")
    elif exchange.failed:
        bench.report.find(
            "header.too-long", f"A key of {TOO_LONG} characters got {exchange.status}.", [exchange]
        )
    else:
        bench.report.hold("header.too-long")


def cut_short(bench: Bench) -> None:
    """Two keys that differ in one character only, the last or the first, as long as they are taken."""
    for length in LENGTHS:
        word = _word(bench, length - 1)
        pair = _pair(bench, f"{word}a", f"{word}b")
        if pair is None:
            continue
        keys = f"Two keys of {length} characters that differ in the"
        _judge(bench, "header.collision", *pair, f"{keys} last one")
        other = _pair(bench, f"a{word}", f"b{word}") if "header.collision" in bench.report.passed else None
        if other is not None and other[2] is Sight.REPLAYED:
            _judge(bench, "header.collision", *other, f"{keys} first one")
        return
    bench.report.cannot_tell("keys of such a form are refused", "header.collision")


def case(bench: Bench) -> None:
    """Not a UUID: its case does not matter to whoever reads it as one."""
    word = f"Key-Of-Samekey-Check-{bench.new_key()[:13]}-xyz"
    pair = _pair(bench, word, word.swapcase())
    if pair is None:
        bench.report.cannot_tell("keys of such a form are refused", "header.case")
    else:
        _judge(bench, "header.case", *pair, "Two keys that differ in case")


def spellings(bench: Bench) -> None:
    """As a String and bare."""
    if not bench.profile.quoted:
        return  # there a key is opaque, quotation marks included
    operation = bench.fresh()
    exchange, what = bench.again(operation, value=operation.key if bench.quoted else f'"{operation.key}"')
    sentence = "The same key, once in quotation marks and once without, had two effects."
    bench.must_not_run("header.spellings", sentence, operation, exchange, what)


def _word(bench: Bench, length: int) -> str:
    """So many characters that no other check sends."""
    return (bench.new_key() * (length // 36 + 1))[:length]


def _pair(bench: Bench, one: str, two: str) -> tuple[Trial, RawExchange, Sight] | None:
    """The same body under two keys, and what the second led to; None if such a key is refused."""
    try:
        operation = bench.fresh(key=one)
    except CannotGoOn:
        return None
    request = bench.request(bench.spelled(two), body=operation.request.body)
    exchange, effects = bench.counted(lambda: bench.answered(request))
    return operation, exchange, seen(bench.identity, operation.exchange, exchange, effects)


def _judge(bench: Bench, rule: str, operation: Trial, exchange: RawExchange, what: Sight, keys: str) -> None:
    if what is Sight.RAN:
        bench.report.hold(rule)
    elif what is Sight.REPLAYED and bench.is_a_replay(operation.exchange, exchange):
        bench.report.find(rule, f"{keys} are taken for one.", [operation.exchange, exchange])
    else:
        bench.report.cannot_tell("the second key led to no answer that tells", rule)

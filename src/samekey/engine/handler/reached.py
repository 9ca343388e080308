"""How a decorated function is reached: as the handler, which claims; as a part of what has claimed; or bare.

There is one claim for each request. Whoever claimed first may have acted before it calls another guarded
function, so that claim stays, and the function runs as a part of it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ...core.arrival import proof_in
from ...core.outcome import Ending, Outcome
from ...core.states import Mode
from ...errors import ConfigurationError
from ..exchange import Exchange, Unguarded, exchange_of_call
from ..operation import MOMENTS, Running, _current
from .marks import GUARD
from .rules import Rules

logger = logging.getLogger("samekey")


@dataclass(frozen=True, slots=True)
class Part:
    """A guarded function inside the run of another one, which holds the key."""

    exchange: Exchange
    running: Running
    rules: Rules
    """The function's own."""

    @contextmanager
    def runs(self) -> Iterator[Callable[[Any], Any]]:
        """Around the call; what it gives is told here. What the function says of itself is no proof about the
        whole; and where by its own rules its key would not be free, that of the whole is not either."""
        exchange = self.exchange

        def gave(value: Any) -> Any:
            status = exchange.word_of(value, None)
            self._note(Ending(200 if status is None else status))
            return value

        try:
            with self.running.boundary.calls_a_part():
                yield gave
        except BaseException as error:
            proof = proof_in(error)
            if proof is not None:
                operation = self.running.operation
                proof.is_word_of(f"a part of {operation.id}", operation.began, next(MOMENTS))
            refusal = exchange.refusal_of(error)
            self._note(Ending(refusal, error, refusal=refusal))
            self.running.part_failed = True
            raise

    def _note(self, ending: Ending) -> None:
        frees = self.rules.judge(ending) in (Outcome.FAIL, Outcome.RELEASE)
        if not frees and self.rules.mode in _HELD:
            self.running.boundary.unsure = True


_HELD = (Mode.LEASED, Mode.REPEATABLE)
"""Modes that hold the key by a lease, and nothing else: no transaction, no phases."""


def reach(guarded: Any, arguments: tuple[Any, ...]) -> Exchange | Part | None:
    """The exchange that a guarded function is to claim for, or whose part it is; None where it may run as it
    is: the middleware lets this request to it pass (a GET, say)."""
    exchange, mark = exchange_of_call(arguments, decorated=True), getattr(guarded, GUARD)
    if isinstance(exchange, Unguarded):
        if exchange.lets(mark, arguments):
            return None
        raise ConfigurationError(
            f"{guarded.__qualname__} is guarded, but was called in a request that is not (by its method), so "
            "nothing was run: each such request would run it once more. Call it in a guarded request (a "
            "POST), guard this method in the policy (methods={…}), or give this call a key of its own: "
            "idempotency.once(…)."
        )
    if exchange is None:
        raise ConfigurationError(
            f"{guarded.__qualname__} is guarded, but no IdempotencyMiddleware is around the application, or "
            "it leaves this route alone, so nothing was run. Add it: app.add_middleware("
            "IdempotencyMiddleware, idempotency=…, tenant=…)."
        )
    if exchange.engine is not mark.engine:
        raise ConfigurationError(
            f"{guarded.__qualname__} is guarded by another Idempotency than the middleware's, so nothing was "
            "run: its answer would be lost. Make one Idempotency, and use it for both."
        )
    running = exchange.running
    if running is None or not running.boundary.runs:
        if exchange.anonymous:
            _refuse_without_key(guarded, exchange, mark.rules)
        return exchange
    if exchange.at_edge:
        if mark.rules.mode not in _HELD:
            raise ConfigurationError(
                f"{guarded.__qualname__} is {mark.rules.mode}, but was reached in the middle of a request "
                "that is guarded as a whole and may have acted before, so it was not run. Set the "
                'middleware\'s undecorated="pass", so that only decorated functions are guarded.'
            )
    elif not is_part_of_the_handler(exchange) or not _may_be_part(running.rules, mark.rules):
        return exchange  # which says that two guards have met
    if not _are_alike(running.rules, mark.rules):
        _tell_once(guarded.__qualname__, exchange.endpoint)
    return Part(exchange, running, mark.rules)


def _refuse_without_key(guarded: Any, exchange: Exchange, rules: Rules) -> None:
    """What would be refused in the middle of a handler that holds a key is refused without one as well: else
    it is found out by the first client that sends one."""
    caller = _current.get()
    runs = caller is not None and caller._boundary.runs and any(one is caller for one in exchange.anonymous)
    if caller is not None and runs and caller._claim.mode in _HELD and rules.mode not in _HELD:
        raise ConfigurationError(
            f"{guarded.__qualname__} is {rules.mode}, but was called by a handler that is "
            f"{caller._claim.mode}, so it was not run: with a key the handler would hold it, and this "
            "function could not. Declare the handler so, or take the decorator off the function."
        )


def is_part_of_the_handler(exchange: Exchange) -> bool:
    """Whether the guarded handler of this request, which still runs, has made this call."""
    running = exchange.running
    if running is None or not running.boundary.runs:
        return False
    return _current.get() is running.operation


def _may_be_part(outer: Rules, inner: Rules) -> bool:
    """Whether the claim of a handler does for a function that it calls: whatever ends the handler's run must
    be good enough for the function, too."""
    if _are_alike(outer, inner):
        return inner.mode is not Mode.PHASED
    return outer.mode is Mode.LEASED and inner.mode in _HELD


def _are_alike(outer: Rules, inner: Rules) -> bool:
    return _without_its_key(outer) == _without_its_key(inner)


def _without_its_key(rules: Rules) -> Rules:
    """Whether a key is required is said of requests, and not of what runs."""
    policy = rules.policy
    if policy.required_from is not None:
        policy = replace(policy, required_from=None)
    return replace(rules, required=True, policy=policy)


@functools.lru_cache(maxsize=1000)
def _tell_once(name: str, endpoint: str) -> None:
    logger.warning(
        "%s is decorated with options of its own, but %s had claimed before it was reached, and its options "
        "hold for the whole request. Decorate the handler of the route with them.",
        name,
        endpoint,
    )

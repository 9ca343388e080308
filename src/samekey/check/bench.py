"""Where probes work: they send requests here, count effects, and write down what they see.

It keeps to the manners of a guest: so many requests a second, so many in all, and a pause where a server asks
for one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .counting import COUNTED, Counter
from .endpoint import ABSENT, Endpoint, Headers
from .judging import Identity, Sight, seen
from .limiting import PAUSES, asked_pause, is_limited
from .profiles import Profile
from .report import Report
from .trials import Incident, Trial
from .variants import encoded, made_unique
from .wire import RawExchange, RawRequest, Unreachable, send, together

T = TypeVar("T")

BUSY = frozenset({409, 423, 425, 429, 503})
"""Answers after which a client tries again with the same key."""
WATCH = 0.5
"""Seconds for which a count must be still, after it has said something that no answer says."""
REPEATS = 3
"""How often an act is repeated that the count alone accuses."""


class CannotGoOn(Exception):
    """A probe cannot tell anything, and why."""


class Stop(Exception):
    """Nothing further can be told about this endpoint, and why."""


class Died(Exception):
    """The server could be reached before, and cannot any more."""

    def __init__(self, why: str, last: RawExchange | None) -> None:
        super().__init__(why)
        self.last = last


@dataclass(frozen=True, slots=True)
class Budget:
    """What a check may cost."""

    timeout: float = 30.0
    """Seconds for one answer."""
    rate: float = 100.0
    """Requests in a second."""
    requests: int = 1000
    """Requests in all."""
    burst: int = 8
    """Requests at the same moment."""
    deadline: float = 900.0
    """Seconds for one endpoint. What was not looked at by then is not proven."""


@dataclass(slots=True)
class Bench:
    """One endpoint under check."""

    endpoint: Endpoint
    profile: Profile
    report: Report
    budget: Budget = field(default_factory=Budget)
    quoted: bool = True
    counter: Counter | None = None
    """One that has been seen to rise; None if nobody counts."""
    doubt: str = ""
    """Why the count is not used any more."""
    identity: Identity = field(default_factory=Identity)
    duration: float = 0.0
    """Seconds of the slowest ordinary answer so far."""
    incidents: list[Incident] = field(default_factory=list)
    refusals: dict[str, RawExchange] = field(default_factory=dict)
    """By what was refused: how the server says no."""
    operations: list[Trial] = field(default_factory=list)
    """Two that were carried out at the beginning."""
    retries: list[tuple[RawExchange, RawExchange]] = field(default_factory=list)
    """Replays of the first of them, each after what it was to be."""
    compared: Any = None
    """A leaf of the body whose change is noticed."""
    serial: bool = False
    """It serves one request at a time: nothing is ever at the same moment."""
    passing_cookies: set[str] = field(default_factory=set)
    """Set by answers that are no operation's: a balancer's own comes with any."""
    slower: float = 1.0
    """By how much the rate is lower than it might be, since the server limits it."""
    _began: float = field(default_factory=time.monotonic)
    _due: float = 0.0
    _last: RawExchange | None = None

    # ------------------------------------------------------------------ requests

    @staticmethod
    def new_key() -> str:
        return str(uuid.uuid4())

    def spelled(self, key: str) -> str:
        return f'"{key}"' if self.quoted else key

    def request(
        self,
        *keys: str | bytes,
        body: bytes | None = None,
        headers: Headers | None = None,
        method: str | None = None,
        url: str | None = None,
    ) -> RawRequest:
        """The ordinary request, with these header values as its keys and what else is different."""
        given: list[tuple[str, str | bytes]] = list(self.endpoint.headers if headers is None else headers)
        if body is not None and not any(name.lower() == "content-type" for name, _ in given):
            given.append(("Content-Type", "application/json"))
        given += [("Idempotency-Key", key) for key in keys]
        return RawRequest(method or self.endpoint.method, url or self.endpoint.url, tuple(given), body)

    def send(self, request: RawRequest) -> RawExchange:
        """One request, when it is due. A server that limits its requests is waited for, and asked less often.

        :class:`CannotGoOn` if it goes on refusing: that tells nothing of the request.
        """
        for pause in (*PAUSES, None):
            exchange = self._send(request)
            if not is_limited(exchange):
                return exchange
            if pause is None or (exchange.status == 503 and pause > PAUSES[0]):
                break
            self.report.facts["limited"] = f"the server answered {exchange.status}, and was asked more slowly"
            self.slower = min(2 * self.slower, 64.0)
            asked = asked_pause(exchange)
            time.sleep(pause if asked is None else asked)
        if exchange.status == 503:
            return exchange
        raise CannotGoOn("the server limits its requests (429); give --rate a smaller number")

    def _send(self, request: RawRequest) -> RawExchange:
        self.spend(1)
        for pause in (0.1, 0.5, None):
            try:
                self._last = send(request, self.budget.timeout)
            except Unreachable as error:
                if self._last is None or pause is None:
                    raise (Died(str(error), self._last) if self._last is not None else error) from None
                time.sleep(pause)
            else:
                self._note_cookies(self._last)
                return self._last
        raise AssertionError

    def _note_cookies(self, exchange: RawExchange) -> None:
        if exchange.answer is not None and not (exchange.succeeded and exchange.request.key):
            self.passing_cookies.update(exchange.answer.every("set-cookie"))

    def steady(self, request: RawRequest) -> RawExchange:
        """A failure is only one if it comes three times in a row."""
        for _ in range(3):
            exchange = self.send(request)
            if not exchange.failed or exchange.seconds >= self.budget.timeout:
                break  # who says nothing for so long is not waited for three times
        return exchange

    def spend(self, requests: int) -> None:
        """Waits until so many more are due; :class:`CannotGoOn` if they are too many."""
        if self.report.requests + requests > self.budget.requests:
            raise CannotGoOn(f"the check has used up its {self.budget.requests} requests")
        if time.monotonic() - self._began > self.budget.deadline:
            raise CannotGoOn(f"the check has used up its {self.budget.deadline:g} s")
        self.report.requests += requests
        now = time.monotonic()
        if self._due > now:
            time.sleep(self._due - now)
        self._due = max(now, self._due) + self.slower * requests / self.budget.rate

    def burst(self, requests: list[RawRequest]) -> list[RawExchange]:
        """All of them at the same moment."""
        self.spend(len(requests))
        answers = together(requests, self.budget.timeout)
        for exchange in answers:
            self._note_cookies(exchange)
        return answers

    # ------------------------------------------------------------------ operations

    def document(self) -> Any:
        """The body of a new operation."""
        return ABSENT if self.endpoint.body is ABSENT else made_unique(self.endpoint.body, self.new_key())

    def body(self, document: Any) -> bytes | None:
        return None if document is ABSENT else encoded(document)

    def fresh(
        self,
        *,
        key: str | None = None,
        value: str | None = None,
        document: Any = None,
        body: bytes | None = None,
        headers: Headers | None = None,
        url: str | None = None,
    ) -> Trial:
        """A new operation that succeeds; :class:`CannotGoOn` if the endpoint does not let it.

        A 5xx is retried with the same key, as any client would, and kept as an incident.
        """
        wanted = self.document() if document is None else document
        sent = self.body(wanted) if body is None else body
        for _ in range(4):
            name = key or self.new_key()
            request = self.request(value or self.spelled(name), body=sent, headers=headers, url=url)
            before = self.counter.read() if self.counter is not None else None
            exchange = self.send(request)
            failed = exchange.failed
            if failed:
                exchange = self._retried(request, exchange, before)
            if exchange.succeeded:
                if before is not None and not failed and headers is None:
                    self._must_rise(before)
                self.duration = max(self.duration, exchange.seconds)
                return Trial(name, wanted, request, exchange)
            if not exchange.failed and exchange.status not in BUSY:
                raise CannotGoOn(f"a new request was answered {exchange.status}")
        raise CannotGoOn(f"new requests were answered {exchange.status or exchange.silence}")

    def _retried(self, request: RawRequest, first: RawExchange, before: int | None) -> RawExchange:
        incident = Incident(request, [first])
        self.incidents.append(incident)
        for _ in range(3):
            time.sleep(0.05)
            incident.exchanges.append(self.send(request))
            if not incident.exchanges[-1].failed:
                break
        if self.counter is not None and before is not None:
            incident.effects = self.counter.operations(before, self.counter.settled())
        return incident.exchanges[-1]

    def _must_rise(self, before: int) -> None:
        """A count proves by each new operation that it still counts: a list with pages ends somewhere."""
        if self.counter is not None and not self.counter.has_risen(before):
            self.distrust("does not rise with each new operation (a list with pages?)")

    def is_a_replay(self, first: RawExchange, second: RawExchange) -> bool:
        """Whether a request that must run was a replay, by its answer or by a count that still counts."""
        assert first.answer is not None and second.answer is not None
        same = self.identity.same(first.answer, second.answer)
        return bool(same) or (self.counter is not None and self.still_counts())

    def still_counts(self) -> bool:
        """Whether a count that did not rise may be believed: a new operation must raise it."""
        self.fresh()
        return not self.doubt

    @property
    def can_tell(self) -> bool:
        """Whether a replay can be told from a run."""
        return self.counter is not None or bool(self.identity)

    def counted(self, act: Callable[[], T], counter: Counter | None = None) -> tuple[T, int | None]:
        """Does it, and says how many operations' effects that had; None if nobody counts."""
        counting = counter or self.counter
        if counting is None:
            return act(), None
        before = counting.settled()
        result = act()
        after = counting.settled()
        if after < before:
            self.distrust()
            return result, None
        return result, counting.operations(before, after)

    def looked_at(self, first: RawExchange, act: Callable[[], RawExchange]) -> tuple[RawExchange, Sight]:
        """Sends a second request of an operation, and says what it led to; it must lead to nothing new."""
        exchange, effects = self.counted(act)
        by_answer = seen(self.identity, first, exchange, None)
        if effects and by_answer is not Sight.RAN:
            contradicted = by_answer is not Sight.UNCLEAR
            if not self.stands(effects, 0, lambda: self.counted(act)[1], contradicted=contradicted):
                return exchange, Sight.UNCLEAR if by_answer is Sight.REPLAYED else by_answer
        if effects == 0 and by_answer is Sight.RAN and not self.still_counts():
            effects = None
        return exchange, seen(self.identity, first, exchange, effects)

    def stands(
        self,
        effects: int | None,
        most: int,
        repeat: Callable[[], int | None] | None = None,
        *,
        contradicted: bool = False,
    ) -> int | None:
        """The effects, if the count can be believed where it alone tells of more than it should.

        It must be still while nothing is sent. Where answers contradict it, it must say the same of a
        repetition: one rise may be somebody else's.
        """
        if effects is None or effects <= most:
            return effects
        if self.counter is None:
            return None
        if self.counter.moves(max(WATCH, 2 * self.duration)):
            self.distrust()
            return None
        if repeat is None or not contradicted:
            return effects
        for _ in range(REPEATS):
            if (repeat() or 0) > most:
                return effects
        self.distrust()
        return None

    def distrust(self, why: str = "changes by itself (others use it too)") -> None:
        """From here on nobody counts, and what the count has held is not proven any more."""
        self.counter, self.doubt = None, why
        self.report.take_back(self.untold, *COUNTED)
        self.tell()

    def tell(self) -> None:
        """A fact for the report: how effects are told."""
        facts = self.report.facts
        if self.counter is not None:
            facts["effects"] = f"counted by {self.endpoint.count_url}"
        elif self.identity:
            names = [*sorted(self.identity.members), *(["Location"] if self.identity.location else [])]
            facts["effects"] = f"told apart by the answers: {', '.join(names) or 'the whole body'}"
            facts["held"] = "as far as answers tell; a count URL shows effects that no answer names"
        else:
            facts["effects"] = f"cannot be told: {self.untold}"
        if self.doubt:
            facts["count URL"] = f"{self.doubt}, so it was not used"
        elif self.endpoint.count_url is not None and self.counter is None:
            facts["count URL"] = "does not rise with a new operation, so it was not used"

    @property
    def untold(self) -> str:
        """Why a replay cannot be told from a run."""
        if self.doubt:
            return f"the count URL {self.doubt}, so it tells nothing"
        return "every answer is the same; give a count URL"

    def again(
        self,
        operation: Trial,
        *,
        value: str | None = None,
        body: bytes | None = None,
        headers: Headers | None = None,
        method: str | None = None,
        url: str | None = None,
    ) -> tuple[RawExchange, Sight]:
        """A second request with the key of an operation, and what it led to. A failure is tried again."""
        request = self.request(
            value or self.spelled(operation.key),
            body=operation.request.body if body is None else body,
            headers=headers,
            method=method,
            url=url or operation.request.url,
        )
        return self.looked_at(operation.exchange, lambda: self.steady(request))

    def must_not_run(
        self, rule: str, sentence: str, operation: Trial, exchange: RawExchange, what: Sight
    ) -> None:
        """Judges what a request under a used key led to."""
        if what is Sight.RAN:
            self.report.find(rule, sentence, [operation.exchange, exchange])
        elif what is Sight.UNCLEAR:
            self.report.cannot_tell(self.untold, rule)
        else:
            self.report.hold(rule)

    @property
    def patience(self) -> float:
        """Seconds in which a key that is busy must have its answer."""
        return max(3.0, 3 * self.duration + 1)

    def answered(self, request: RawRequest) -> RawExchange:
        """Retries as a client does while the key is busy or the server fails, up to the bench's patience."""
        end = time.monotonic() + self.patience
        pause = 0.05
        while True:
            exchange = self.send(request)
            if not (exchange.failed or exchange.status in BUSY) or time.monotonic() > end:
                return exchange
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

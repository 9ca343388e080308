"""The scenario table: requests in, answers out, and how often the handler may run.

Plain data; ``test_scenarios.py`` drives every row through every framework and both edges. A name begins
with the requirement that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samekey import KeyRules, NotExecuted, Outcome, OutcomeUnknown
from samekey.core.header import UUID
from tests.edges.callers import Got, Pairs, Request
from tests.edges.world import JSON, Act, Raise, Reply

ALL = ("leased", "atomic", "edge")
DECORATED = ("leased", "atomic")
LEASED = ("leased",)
EXPIRES = ("idempotency-key-expires",)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. ``path`` None is the route under test."""

    keys: tuple[bytes, ...] = (b"key-1",)
    header: str = "Idempotency-Key"
    method: str = "POST"
    path: str | None = None
    body: bytes = b'{"amount": 100}'
    query: bytes = b""
    media: bytes = b"application/json"
    tenant: str | None = "alice"
    headers: Pairs = ()

    def request(self, route: str, world: str) -> Request:
        headers = [(self.header.encode(), key) for key in self.keys]
        if self.media:
            headers.append((b"Content-Type", self.media))
        if self.tenant is not None:
            headers.append((b"X-Tenant", f"{world}-{self.tenant}".encode()))
        path = self.path or route
        return Request(self.method, path, (*headers, *self.headers), self.body, self.query)


@dataclass(frozen=True, slots=True)
class Expect:
    """An answer. What is None is not looked at."""

    status: int
    code: str | None = None
    run: int | None = None
    """Whose answer it is."""
    replayed: bool = False
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    equals: Mapping[str, str] = field(default_factory=dict)

    def check(self, got: Got) -> None:
        assert got.status == self.status, got
        assert got.replayed is self.replayed, got
        if self.code is not None:
            assert got.code == self.code, got
        if self.run is not None:
            assert got.json() == {"run": self.run}, got
        for name in self.has:
            assert got.header(name) is not None, (name, got)
        for name in self.lacks:
            assert got.header(name) is None, (name, got)
        for name, value in self.equals.items():
            assert got.header(name) == value, (name, got)


Step = tuple[Ask, Expect]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A row of the table."""

    name: str
    steps: tuple[Step, ...]
    runs: int
    script: tuple[Act, ...] = ()
    profile: str = "ietf"
    policy: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the decorators, so only for decorated routes."""
    modes: tuple[str, ...] = ("leased", "edge")
    routes: Mapping[str, str] = field(default_factory=dict)
    on_postgres: bool = False
    bare: bool = True
    """Whether it makes sense without a framework, and so without a router."""


OK = Expect(201, run=1, has=("idempotency-key-expires",))
AGAIN = Expect(201, run=1, replayed=True, has=("idempotency-key-expires",))
REUSED = Expect(422, "reused")
UNGUARDED = Expect(201, run=1, lacks=("idempotency-key-expires",))


def ok(run: int) -> Expect:
    return Expect(201, run=run)


def refused(code: str, status: int = 400) -> Expect:
    return Expect(status, code, has=("link", "content-language"), lacks=("idempotency-key-expires",))


def _malformed(name: str, *keys: bytes, code: str = "malformed", **rules: Any) -> Scenario:
    policy = {"key": KeyRules(**rules)} if rules else {}
    ask = Ask(keys=keys)
    return Scenario(f"K3 {name}", ((ask, refused(code)), (ask, refused(code))), runs=0, policy=policy)


KEYS: tuple[Scenario, ...] = (
    Scenario("K1 the key comes in its header", ((Ask(), OK), (Ask(), AGAIN)), 1, modes=ALL, on_postgres=True),
    Scenario(
        "K1 the header has another name",
        ((Ask(header="X-Request-Id"), OK), (Ask(header="x-request-id"), AGAIN)),
        runs=1,
        policy={"header": "X-Request-Id"},
    ),
    Scenario(
        "K1 then the usual name means nothing",
        ((Ask(), refused("missing")),),
        runs=0,
        policy={"header": "X-Request-Id"},
        modes=("leased",),
    ),
    Scenario(
        "K2 bare and quoted are one key",
        ((Ask(), OK), (Ask(keys=(b'"key-1"',)), AGAIN), (Ask(keys=(b'  "key-1";v=2',)), AGAIN)),
        runs=1,
        modes=ALL,
    ),
    Scenario(
        "K2 strict takes the quoted String only",
        ((Ask(), refused("malformed")), (Ask(keys=(b'"key-1"',)), OK), (Ask(keys=(b'"key-1";a',)), AGAIN)),
        runs=1,
        policy={"key": KeyRules(strict=True)},
    ),
    _malformed("empty", b""),
    _malformed("blank", b" \t "),
    _malformed("quoted and empty", b'""'),
    _malformed("too long", b"k" * 256),
    _malformed("a bare comma", b"a,b"),
    _malformed("no closing quote", b'"a'),
    _malformed("a space", b"a b"),
    _malformed("beyond ASCII", "schlüssel".encode()),
    _malformed("Latin-1", b"\xff\xfe"),
    _malformed("a control character", b"a\x01b"),
    _malformed("two lines", b"a", b"b"),
    _malformed("the same line twice", b"a", b"a"),
    _malformed("two quoted lines", b'"a"', b'"b"'),
    _malformed("too short for the setting", b"short", min_length=16),
    _malformed("not of the pattern", b"not-a-uuid", pattern=UUID),
    _malformed("not of a pattern of one's own", b"order-x", pattern=re.compile(r"order-\d+")),
    _malformed("K4 an e-mail address", b"ann@example.com", code="personal"),
    Scenario(
        "K3 the longest key there is",
        ((Ask(keys=(b"k" * 255,)), OK), (Ask(keys=(b"k" * 255,)), AGAIN)),
        runs=1,
        modes=ALL,
    ),
    Scenario(
        "K4 an e-mail address may be allowed",
        ((Ask(keys=(b"ann@example.com",)), OK),),
        runs=1,
        policy={"key": KeyRules(personal=())},
    ),
    Scenario("K6 nobody", ((Ask(tenant="nobody"), Expect(401)),) * 2, runs=0, modes=ALL),
    Scenario("K6 no credentials at all", ((Ask(tenant=None), Expect(401)),), runs=0),
    Scenario("K6 the resolver raises", ((Ask(tenant="broken"), Expect(500)),) * 2, runs=0, modes=ALL),
    Scenario(
        "K6 T2 another tenant's key is another key",
        (
            (Ask(), OK),
            (Ask(tenant="bob"), ok(2)),
            (Ask(tenant="bob", body=b"{}"), REUSED),
            (Ask(), AGAIN),
        ),
        runs=2,
        modes=ALL,
        on_postgres=True,
    ),
    Scenario("K7 another endpoint", ((Ask(), OK), (Ask(path="/other"), REUSED)), 1, modes=ALL),
    Scenario(
        "K7 the endpoint in the scope",
        ((Ask(), OK), (Ask(path="/other"), ok(2)), (Ask(path="/other"), Expect(201, run=2, replayed=True))),
        runs=2,
        policy={"scope": "tenant+endpoint"},
        modes=ALL,
    ),
    Scenario(
        "K8 only POST and PATCH are guarded",
        tuple(
            (Ask(method=method, path="/edge", tenant=None, body=b""), ok(run + 1))
            for run, method in enumerate(("GET", "PUT", "DELETE", "PUT", "GET"))
        ),
        runs=5,
        modes=("edge",),
    ),
    Scenario(
        "K8 PATCH",
        ((Ask(method="PATCH"), OK), (Ask(method="PATCH"), AGAIN), (Ask(), Expect(422, "reused"))),
        runs=1,
        modes=ALL,
    ),
    Scenario(
        "K8 methods can be chosen",
        (
            (Ask(method="PUT"), OK),
            (Ask(method="PUT"), AGAIN),
            (Ask(path="/edge"), ok(2)),
            (Ask(path="/edge"), ok(3)),
        ),
        runs=3,
        policy={"methods": {"put"}},
        modes=("edge",),
    ),
    Scenario(
        "K8 exempt",
        (
            (Ask(path="/exempt"), ok(1)),
            (Ask(path="/exempt"), ok(2)),
            (Ask(path="/exempt", keys=(b"a,b",)), ok(3)),
        ),
        runs=3,
        modes=("leased",),
    ),
    Scenario(
        "K8 exempt by path",
        ((Ask(path="/exempt-by-path", tenant=None), ok(1)), (Ask(path="/exempt-by-path"), ok(2))),
        runs=2,
        routes={"/exempt-by-path": "exempt"},
        modes=("edge",),
    ),
    Scenario(
        "K8 required by path",
        ((Ask(path="/required", keys=()), refused("missing")), (Ask(path="/required"), OK)),
        runs=1,
        routes={"/required": "required"},
        modes=("edge",),
    ),
    Scenario("K9 a decorated handler needs a key", ((Ask(keys=()), refused("missing")),), 0, modes=DECORATED),
    Scenario(
        "K9 an undecorated route does not",
        ((Ask(keys=()), UNGUARDED), (Ask(keys=()), ok(2))),
        runs=2,
        modes=("edge",),
    ),
    Scenario(
        "K9 unless it is told to",
        ((Ask(keys=()), refused("missing")), (Ask(), OK)),
        runs=1,
        policy={"required_at_edge": True},
        modes=("edge",),
    ),
    Scenario(
        "K9 optional",
        (
            (
                Ask(path="/optional", keys=(), tenant=None),
                Expect(201, run=1, lacks=("idempotency-key-expires",)),
            ),
            (Ask(path="/optional"), ok(2)),
            (Ask(path="/optional"), Expect(201, run=2, replayed=True)),
            (Ask(path="/optional", keys=(b"",)), refused("malformed")),
        ),
        runs=2,
        modes=("leased",),
    ),
)

DECISIONS: tuple[Scenario, ...] = (
    Scenario(
        "D1 D3 one run for each key",
        ((Ask(), OK), (Ask(keys=(b"key-2",)), ok(2)), (Ask(), AGAIN), (Ask(), AGAIN)),
        runs=2,
        modes=ALL,
        on_postgres=True,
    ),
    Scenario(
        "D2 another body, query or media type",
        (
            (Ask(query=b"a=1"), OK),
            (Ask(query=b"a=1", body=b'{"amount": 200}'), Expect(422, "reused")),
            (Ask(query=b"a=2"), Expect(422, "reused")),
            (Ask(query=b"a=1", media=b"text/plain"), Expect(422, "reused")),
            (Ask(query=b"a=1", body=b""), Expect(422, "reused")),
            (Ask(query=b"a=1", body=b' {"amount":1e2} '), AGAIN),
        ),
        runs=1,
        modes=ALL,
        on_postgres=True,
    ),
    Scenario(
        "D2 another status",
        ((Ask(), OK), (Ask(body=b"{}"), Expect(409, "reused"))),
        runs=1,
        policy={"mismatch_status": 409},
    ),
    Scenario(
        "D2 a dedup window",
        ((Ask(), OK), (Ask(body=b"{}"), AGAIN)),
        runs=1,
        policy={"on_mismatch": "replay"},
        modes=ALL,
    ),
    Scenario(
        "D2 key and content are the identity",
        (
            (Ask(), OK),
            (Ask(body=b"{}"), ok(2)),
            (Ask(), AGAIN),
            (Ask(body=b"{}"), Expect(201, run=2, replayed=True)),
        ),
        runs=2,
        policy={"on_mismatch": "execute"},
        modes=ALL,
    ),
    Scenario(
        "D10 stripe: keys are optional, another request is 400",
        (
            (Ask(keys=()), Expect(201, run=1)),
            (Ask(), ok(2)),
            (Ask(body=b"{}"), Expect(400, "reused", equals={"content-type": "application/json"})),
            (Ask(), Expect(201, run=2, replayed=True)),
        ),
        runs=2,
        profile="stripe",
        modes=("edge",),
    ),
    Scenario(
        "D10 stripe remembers a 500",
        ((Ask(), Expect(500, run=1)), (Ask(), Expect(500, run=1, replayed=True))),
        runs=1,
        profile="stripe",
        script=(Reply(500),),
        modes=ALL,
    ),
    Scenario(
        "D10 stripe remembers that the handler raised",
        ((Ask(), Expect(500)), (Ask(), Expect(500, replayed=True))),
        runs=1,
        profile="stripe",
        script=(Raise(RuntimeError),),
        modes=ALL,
    ),
    Scenario(
        "D10 stripe_v2 runs a failed one again",
        ((Ask(), Expect(402, run=1)), (Ask(), ok(2)), (Ask(), Expect(201, run=2, replayed=True))),
        runs=2,
        profile="stripe_v2",
        script=(Reply(402),),
        modes=ALL,
        bare=False,
    ),
    Scenario(
        "D10 stripe_v2 guards DELETE",
        ((Ask(method="DELETE"), OK), (Ask(method="DELETE"), AGAIN)),
        runs=1,
        profile="stripe_v2",
    ),
    Scenario(
        "D12 the expiry header has another name",
        ((Ask(), Expect(201, has=("x-expires",), lacks=("idempotency-key-expires",))),) * 1
        + ((Ask(), Expect(201, replayed=True, has=("x-expires",), lacks=("idempotency-key-expires",))),),
        runs=1,
        policy={"expires_header": "X-Expires"},
        modes=ALL,
    ),
)


def _remembered(status: int, *, profile: str = "ietf", **more: Any) -> Scenario:
    again = Expect(status, run=1, replayed=True, has=("idempotency-key-expires",))
    first = Expect(status, run=1, has=("idempotency-key-expires",))
    return Scenario(
        f"X7 {profile} {status} is remembered",
        ((Ask(), first), (Ask(), again)),
        1,
        (Reply(status),),
        profile,
        modes=ALL,
        **more,
    )


def _forgotten(status: int, *, profile: str = "ietf", **more: Any) -> Scenario:
    return Scenario(
        f"X7 {profile} {status} is not remembered",
        ((Ask(), Expect(status, run=1)), (Ask(), ok(2)), (Ask(), Expect(201, run=2, replayed=True))),
        2,
        (Reply(status),),
        profile,
        modes=ALL,
        **more,
    )


OUTCOMES: tuple[Scenario, ...] = (
    *(_remembered(status) for status in (200, 202, 302, 400, 409, 418, 422)),
    # Without a router nobody can tell whether a handler said it.
    _remembered(404, bare=False),
    *(_forgotten(status) for status in (307, 308, 401, 403, 408, 413, 415, 425, 429)),
    # Without a framework nobody can tell an error page from a handler's own word.
    *(_forgotten(status, bare=False) for status in (500, 503)),
    *(_remembered(status, profile="stripe") for status in (403, 413, 503)),
    *(_forgotten(status, profile="stripe") for status in (401, 429)),
    *(_forgotten(status, profile="stripe_v2") for status in (400, 404)),
    _forgotten(500, profile="stripe_v2", bare=False),
)


def _unknown(name: str, act: Act, first: Expect, **more: Any) -> Scenario:
    again = Expect(409, "outcome_unknown", has=("retry-after", "idempotency-key-expires"))
    return Scenario(f"D6 X2 {name}", ((Ask(), first), (Ask(), again), (Ask(), again)), 1, (act,), **more)


def _retryable(name: str, act: Act, first: Expect, **more: Any) -> Scenario:
    again = Expect(201, run=2, replayed=True)
    return Scenario(f"D5 X2 {name}", ((Ask(), first), (Ask(), ok(2)), (Ask(), again)), 2, (act,), **more)


def _by_hand(status: int | None, error: BaseException | None) -> Outcome | None:
    if isinstance(error, KeyError):
        return Outcome.FAIL
    if status == 503:
        return Outcome.REMEMBER
    return Outcome.RELEASE if status == 409 else None


LOST = Expect(409, "outcome_unknown", has=("retry-after", "idempotency-key-expires"))
OPTIMISTIC = {"on_error": "retry"}

CLASSES: tuple[Scenario, ...] = (
    _unknown("returned 502", Reply(502), Expect(502, run=1, has=EXPIRES), on_postgres=True, bare=False),
    _unknown("returned 504", Reply(504), Expect(504, run=1, has=EXPIRES), bare=False),
    _unknown("raised OutcomeUnknown", Raise(OutcomeUnknown), LOST),
    _unknown("raised an error", Raise(ValueError), LOST, on_postgres=True),
    _unknown("timed out", Raise(TimeoutError), LOST),
    _unknown("was cut off", Raise(ConnectionResetError), LOST),
    _unknown("could not connect", Raise(ConnectionRefusedError), LOST),
    _unknown("timed out, optimistically", Raise(TimeoutError), LOST, options=OPTIMISTIC, modes=LEASED),
    _retryable(
        "the user's classifier: an error",
        Raise(KeyError),
        Expect(500),
        options={"classify": _by_hand},
        modes=LEASED,
    ),
    _retryable(
        "returned 500", Reply(500), Expect(500, run=1, has=EXPIRES), modes=ALL, on_postgres=True, bare=False
    ),
    _retryable(
        "atomic work raised an error", Raise(ValueError), Expect(500), modes=("atomic",), on_postgres=True
    ),
    _retryable(
        "raised an error, read optimistically",
        Raise(ValueError),
        Expect(500),
        options=OPTIMISTIC,
        modes=LEASED,
    ),
    _retryable(
        "could not connect, read optimistically",
        Raise(ConnectionRefusedError),
        Expect(500),
        options=OPTIMISTIC,
        modes=LEASED,
    ),
    _retryable(
        "raised NotExecuted",
        Raise(NotExecuted),
        Expect(503, has=("retry-after",)),
        modes=ALL,
    ),
    _retryable("atomic work timed out", Raise(TimeoutError), Expect(500), modes=("atomic",)),
    _retryable("atomic work returned 502", Reply(502), Expect(502, run=1), modes=("atomic",)),
    _retryable(
        "the user's classifier: a status to forget",
        Reply(409),
        Expect(409, run=1),
        options={"classify": _by_hand},
        modes=DECORATED,
    ),
    Scenario(
        "X2 the user's classifier: a status to remember",
        ((Ask(), Expect(503, run=1)), (Ask(), Expect(503, run=1, replayed=True))),
        runs=1,
        script=(Reply(503),),
        options={"classify": _by_hand},
        modes=DECORATED,
    ),
    Scenario(
        "S5 repeatable work may run again",
        ((Ask(), Expect(500)), (Ask(), ok(2))),
        runs=2,
        script=(Raise(ValueError),),
        options={"repeatable": True},
        modes=("leased",),
    ),
)

LARGE = b'{"large": "%s"}' % (b"x" * 100)
MARKED = ((b"set-cookie", b"session=1"), (b"x-ratelimit-left", b"3"), (b"x-order", b"7"))

KEPT: tuple[Scenario, ...] = (
    Scenario(
        "X8 an answer that is too large is sent once, and nothing runs again",
        (
            (Ask(), Expect(201, has=EXPIRES)),
            (Ask(), Expect(409, "result_unavailable", has=EXPIRES)),
            (Ask(body=b"{}"), REUSED),
        ),
        runs=1,
        script=(Reply(body=LARGE),),
        policy={"max_answer": 50},
    ),
    Scenario(
        "X8 cookies and limits are not replayed",
        (
            (Ask(), Expect(201, run=1, has=("set-cookie", "x-order"))),
            (
                Ask(),
                Expect(201, run=1, replayed=True, has=("x-order",), lacks=("set-cookie", "x-ratelimit-left")),
            ),
        ),
        runs=1,
        script=(Reply(headers=(*JSON, *MARKED)),),
        modes=ALL,
    ),
)

SCENARIOS: tuple[Scenario, ...] = (*KEYS, *KEPT, *DECISIONS, *OUTCOMES, *CLASSES)

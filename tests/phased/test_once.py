"""``once``: the same guard for plain functions, queue consumers and incoming webhooks."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from lab.processes import race, spawn, wait_until
from samekey import (
    ConfigurationError,
    Idempotency,
    KeyReused,
    NotExecuted,
    OutcomeUnknown,
    ResultUnavailable,
    SamekeyError,
    StillRunning,
    StoreUnavailable,
    current_operation,
    stripe,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import NotSerialisable
from tests.chosen import without
from tests.edges.callers import LoopThread
from tests.phased.once_scenarios import holds_on, one_of_many
from tests.phased.world import column, count, execute, state_of


class Calls:
    """A function, sync or async, that notes each of its runs."""

    def __init__(self, style: str, result: Any = None) -> None:
        self.count = 0
        self._result = result
        self.run: Any = self._run_async if style == "async" else self._run

    def _run(self) -> Any:
        self.count += 1
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    async def _run_async(self) -> Any:
        return self._run()

    def coroutine(self) -> Any:
        """A sync function that gives a coroutine, as a lambda does."""
        return self._run_async()


class Guard:
    """``once`` as a sync program calls it, and as an async one does."""

    def __init__(self, idempotency: Idempotency, style: str, loop: LoopThread) -> None:
        self.idempotency = idempotency
        self.style = style
        self._loop = loop

    def once(self, run: Any, key: str = "k1", payload: Any = None, **options: Any) -> Any:
        options = {"tenant": "acme", "name": "test", **options}
        if self.style == "sync":
            return self.idempotency.once(key=key, payload=payload, run=run, **options)

        async def call() -> Any:
            return await self.idempotency.once(key=key, payload=payload, run=run, **options)

        return self._loop.run(call())

    def calls(self, result: Any = None) -> Calls:
        return Calls(self.style, result)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


@pytest.fixture
def idempotency(url: str, loop: LoopThread) -> Iterator[Idempotency]:
    made = Idempotency(url)
    yield made
    loop.run(made.aclose())


@pytest.fixture
def guard(idempotency: Idempotency, style: str, loop: LoopThread) -> Guard:
    return Guard(idempotency, style, loop)


# ------------------------------------------------------------------ the first call and the others


@pytest.mark.parametrize("result", [None, 7, "text", [1, {"a": None}], {"nested": [True, 1.5]}, "Zoë\x00"])
def test_it_runs_once_and_every_call_gets_the_first_result(guard: Guard, result: Any) -> None:
    work = guard.calls(result)
    assert [guard.once(work.run) for _ in range(3)] == [result] * 3
    assert work.count == 1


def test_keys_tenants_and_modes_are_told_apart(guard: Guard) -> None:
    work = guard.calls(1)
    guard.once(work.run, "k1")
    guard.once(work.run, "k2")
    guard.once(work.run, "k1", tenant="other")
    assert work.count == 3


@pytest.mark.parametrize("difference", [{"payload": {"a": 2}}, {"name": "another"}])
def test_another_payload_or_function_under_one_key_is_refused(
    guard: Guard, difference: dict[str, Any]
) -> None:
    work = guard.calls(1)
    guard.once(work.run, payload={"a": 1})
    with pytest.raises(KeyReused):
        guard.once(work.run, **{"payload": {"a": 1}, **difference})
    assert work.count == 1
    assert guard.once(work.run, payload={"a": 1}) == 1


def test_the_order_of_members_makes_no_difference(guard: Guard) -> None:
    work = guard.calls(1)
    guard.once(work.run, payload={"a": 1, "b": 2})
    assert guard.once(work.run, payload={"b": 2, "a": 1}) == 1


def test_a_failed_call_may_run_again(guard: Guard) -> None:
    failing = guard.calls(NotExecuted("not today"))
    with pytest.raises(NotExecuted):
        guard.once(failing.run)
    assert guard.once(guard.calls("done").run) == "done"


@pytest.mark.parametrize("error", [OutcomeUnknown("?"), TimeoutError(), ConnectionResetError()])
def test_a_call_of_which_nobody_knows_does_not_run_again(guard: Guard, error: Exception) -> None:
    with pytest.raises(type(error)):
        guard.once(guard.calls(error).run)
    again = guard.calls()
    with pytest.raises(OutcomeUnknown):
        guard.once(again.run)
    assert again.count == 0


def test_on_error_unknown_is_for_effects_that_cannot_be_told(guard: Guard) -> None:
    with pytest.raises(RuntimeError):
        guard.once(guard.calls(RuntimeError()).run, on_error="unknown")
    with pytest.raises(OutcomeUnknown):
        guard.once(guard.calls().run, on_error="unknown")


def test_a_call_whose_process_died_is_unknown_unless_it_may_be_repeated(guard: Guard) -> None:
    for key, mode in (("k1", "leased"), ("k2", "repeatable")):
        guard.once(guard.calls().run, key, mode=mode)
        execute(
            guard.idempotency.engine.url,
            f"update samekey.keys set state = 'in_progress', locked_until = 1 where key = '{key}'",
        )
    with pytest.raises(OutcomeUnknown):
        guard.once(guard.calls().run, "k1")
    assert guard.once(guard.calls("again").run, "k2", mode="repeatable") == "again"


def test_an_expired_key_is_a_new_one(guard: Guard) -> None:
    guard.once(guard.calls("old").run)
    execute(guard.idempotency.engine.url, "update samekey.keys set expires_at = 1")
    assert guard.once(guard.calls("new").run) == "new"


def test_a_failure_that_the_policy_remembers_is_not_taken_for_a_result(url: str) -> None:
    idempotency = Idempotency(url, policy=stripe())
    failing = Calls("sync", RuntimeError("no"))
    with pytest.raises(RuntimeError):
        idempotency.once(tenant="acme", key="k1", run=failing.run)
    with pytest.raises(ResultUnavailable):
        idempotency.once(tenant="acme", key="k1", run=failing.run)
    assert failing.count == 1
    idempotency.close()


# ------------------------------------------------------------------ what cannot be kept

UNKEPT: list[Any] = [object(), (1, 2), {1: "a"}, float("inf"), {"bytes": b""}, 10**5000]


@pytest.mark.parametrize("mode", ["leased", "repeatable"])
def test_a_result_that_cannot_be_kept_is_not_run_for_again(guard: Guard, mode: str) -> None:
    """It has happened. A tombstone stands in the place of its result."""
    for number, result in enumerate(UNKEPT):
        work = guard.calls(result)
        with pytest.raises(NotSerialisable, match="will not be run again"):
            guard.once(work.run, f"k{number}", mode=mode)
        for _ in range(2):
            with pytest.raises(ResultUnavailable):
                guard.once(work.run, f"k{number}", mode=mode)
        assert work.count == 1
        assert state_of(guard.idempotency.engine.url, f"k{number}") == "completed"


def test_a_result_that_is_too_large_is_given_once(guard: Guard) -> None:
    work = guard.calls("x" * 100)
    assert guard.once(work.run, max_answer=10) == "x" * 100
    with pytest.raises(ResultUnavailable):
        guard.once(work.run, max_answer=10)
    assert work.count == 1


def test_a_payload_that_cannot_be_compared_is_refused_before_anything_runs(guard: Guard) -> None:
    for payload in UNKEPT:
        work = guard.calls()
        with pytest.raises(NotSerialisable, match="The payload"):
            guard.once(work.run, payload=payload)
        assert work.count == 0
    assert execute(guard.idempotency.engine.url, "select count(*) from samekey.keys")[0][0] == 0


# ------------------------------------------------------------------ odd keys

ODD = ["a" * 255, "a" * 256, "b" * 10_000, "Zoë", "日本", "nul\x00", "line\nbreak", " ", "\ud800", "#", "a,b"]


def test_any_string_can_be_a_key(guard: Guard) -> None:
    """A broker's ids may be anything; each is a key of its own."""
    work = guard.calls("done")
    for _ in range(2):
        for key in ODD:
            assert guard.once(work.run, key) == "done"
    assert work.count == len(ODD)


def test_a_key_that_looks_like_the_digest_of_another_is_not_that_one(guard: Guard) -> None:
    odd = "Zoë"
    forged = "#" + hashlib.sha256(odd.encode()).hexdigest()
    work = guard.calls()
    guard.once(work.run, odd)
    guard.once(work.run, forged)
    assert work.count == 2


@pytest.mark.parametrize("wrong", [{"key": ""}, {"tenant": ""}, {"mode": "phased"}, {"header": "X"}])
def test_what_cannot_work_is_refused(guard: Guard, wrong: dict[str, Any]) -> None:
    work = guard.calls()
    with pytest.raises(ConfigurationError):
        guard.once(work.run, **wrong)
    assert work.count == 0


# ------------------------------------------------------------------ atomic


def test_atomic_work_commits_with_its_result(guard: Guard) -> None:
    def book() -> str:
        current_operation().connection.execute("insert into rides values ('k1')")
        return "booked"

    async def book_async() -> str:
        await current_operation().connection.execute("insert into rides values ('k1')")
        return "booked"

    work = book if guard.style == "sync" else book_async
    assert [guard.once(work, mode="atomic") for _ in range(2)] == ["booked", "booked"]
    assert count(guard.idempotency.engine.url, "rides", "k1") == 1


@pytest.mark.parametrize("outcome", [RuntimeError("no"), object()])
def test_atomic_work_that_fails_or_cannot_be_kept_never_happened(guard: Guard, outcome: Any) -> None:
    def book() -> Any:
        current_operation().connection.execute("insert into rides values ('k1')")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def book_async() -> Any:
        await current_operation().connection.execute("insert into rides values ('k1')")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    for _ in range(2):
        with pytest.raises((RuntimeError, NotSerialisable)):
            guard.once(book if guard.style == "sync" else book_async, mode="atomic")
    assert count(guard.idempotency.engine.url, "rides", "k1") == 0
    assert state_of(guard.idempotency.engine.url, "k1") is None


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_atomic_work_may_use_a_connection_of_the_users(url: str) -> None:
    import psycopg

    idempotency = Idempotency(url)
    with psycopg.connect(url, autocommit=True) as mine:

        def book() -> str:
            assert current_operation().connection.info.backend_pid == mine.info.backend_pid  # a face of it
            mine.execute("insert into rides values ('k1')")
            return "booked"

        for _ in range(2):
            assert (
                idempotency.once(
                    tenant="acme", key="k1", run=book, mode="atomic", connection=lambda _context: mine
                )
                == "booked"
            )
    assert count(url, "rides", "k1") == 1
    idempotency.close()


@pytest.mark.parametrize("mode", ["atomic", "leased"])
@pytest.mark.parametrize("wrong", [7, "nul\x00", "x" * 256])
def test_a_providers_id_that_no_store_would_take_is_refused_where_it_is_set(
    guard: Guard, mode: str, wrong: Any
) -> None:
    """Not at the very end, when the outcome could not be recorded any more."""
    errors: list[Exception] = []

    def work() -> str:
        try:
            current_operation().provider_id = wrong
        except ConfigurationError as error:
            errors.append(error)
        current_operation().provider_id = "ch_1"
        return "done"

    async def work_async() -> str:
        return work()

    def call() -> Any:
        with warnings.catch_warnings(action="ignore"):  # atomic work that writes nothing
            return guard.once(work if guard.style == "sync" else work_async, mode=mode)

    assert [call(), call()] == ["done", "done"]
    assert len(errors) == 1 and str(errors[0]).startswith("provider_id must")
    assert column(guard.idempotency.engine.url, "k1", "provider_id") == "ch_1"


def test_the_downstream_key_is_the_same_for_every_attempt(guard: Guard) -> None:
    seen = []

    def work() -> None:
        seen.append(current_operation().downstream_key("charge"))
        raise NotExecuted("later")

    async def work_async() -> None:
        work()

    for _ in range(2):
        with pytest.raises(NotExecuted):
            guard.once(work if guard.style == "sync" else work_async)
    assert len(seen) == 2 and seen[0] == seen[1]


# ------------------------------------------------------------------ sync and async, mixed


def test_once_async_takes_a_lambda_that_gives_a_coroutine(idempotency: Idempotency, loop: LoopThread) -> None:
    work = Calls("async", 7)

    async def call() -> Any:
        return await idempotency.once_async(tenant="acme", key="k1", run=work.coroutine)

    assert [loop.run(call()) for _ in range(2)] == [7, 7]
    assert work.count == 1


def test_a_coroutine_that_nobody_awaits_is_not_taken_for_a_result(idempotency: Idempotency) -> None:
    """Calling an async function, or a generator, only makes it: nothing has run."""
    ran: list[int] = []

    def rows() -> Iterator[int]:
        ran.append(1)
        yield 1

    for _ in range(2):
        with pytest.raises(NotExecuted, match="once_async"):
            idempotency.once(tenant="acme", key="k1", run=rows)
    assert not ran
    assert state_of(idempotency.engine.url, "k1") == "failed_retryable"


def test_what_a_function_gives_is_no_proof_that_it_did_nothing(
    idempotency: Idempotency, loop: LoopThread
) -> None:
    """It acts, and gives a coroutine that somebody forgot to await, or a generator of rows."""
    charges: list[str] = []

    async def send_mail() -> None:
        charges.append("mail")

    def book() -> Any:
        charges.append("book")
        return send_mail()

    def list_rows() -> Any:
        charges.append("rows")
        return (row for row in (1, 2))

    async def call(function: Any, key: str) -> Any:
        return await idempotency.once_async(tenant="acme", key=key, run=function)

    @idempotency.once_per(tenant=lambda: "acme", key=lambda: "k4")
    def decorated() -> Any:
        return list_rows()

    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            idempotency.once(tenant="acme", key="k1", run=book)
        with pytest.raises(OutcomeUnknown):
            idempotency.once(tenant="acme", key="k2", run=list_rows)
        with pytest.raises(OutcomeUnknown):
            loop.run(call(list_rows, "k3"))
        with pytest.raises(OutcomeUnknown):
            decorated()
    assert charges == ["book", "rows", "rows", "rows"]


def test_a_sync_adapter_of_an_async_function_is_sync(idempotency: Idempotency) -> None:
    """As queues have them: the wrapper waits for the coroutine itself."""
    made: list[int] = []

    def run_it(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return asyncio.run(function(*args))

        return wrapper

    @idempotency.once_per(tenant=lambda _: "acme", key=lambda n: f"n{n}")
    @run_it
    async def pay(number: int) -> int:
        made.append(number)
        return number

    assert [pay(7), pay(7)] == [7, 7] and made == [7]


def test_an_object_whose_call_is_async(idempotency: Idempotency, loop: LoopThread) -> None:
    class Booking:
        made = 0

        async def __call__(self, number: int) -> int:
            self.made += 1
            return number

    booking = Booking()
    once = idempotency.once_per(tenant=lambda _: "acme", key=lambda n: f"n{n}", name="booking")(booking)
    assert [loop.run(once(7)) for _ in range(2)] == [7, 7]
    assert booking.made == 1


def test_a_cancelled_call_is_recorded(idempotency: Idempotency, loop: LoopThread) -> None:
    async def scenario() -> None:
        started = asyncio.Event()

        async def work() -> None:
            started.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(idempotency.once_async(tenant="acme", key="k1", run=work))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.run(scenario())
    wait_until(lambda: state_of(idempotency.engine.url, "k1") == "unknown")


# ------------------------------------------------------------------ the decorator


def test_the_decorator(idempotency: Idempotency) -> None:
    runs = []

    @idempotency.once_per(tenant=lambda event: event["account"], key=lambda event: event["id"])
    def book(event: dict[str, Any]) -> str:
        """Books."""
        runs.append(event)
        return f"booked {event['id']}"

    event = {"id": "e1", "account": "acme", "cents": 5}
    assert [book(event), book(event)] == ["booked e1"] * 2
    assert len(runs) == 1
    with pytest.raises(KeyReused):
        book({**event, "cents": 6})
    assert book.__name__ == "book" and book.__doc__ == "Books."


def test_the_decorator_on_async_functions_and_with_a_payload(
    idempotency: Idempotency, loop: LoopThread
) -> None:
    runs = []

    @idempotency.once_per(
        tenant=lambda account, _event: account,
        key=lambda _account, event: event["id"],
        payload=lambda _account, event: event["cents"],
        name="book",
    )
    async def book(account: str, event: dict[str, Any]) -> str:
        runs.append(event)
        return account

    async def call(trace: str) -> str:
        return await book("acme", {"id": "e1", "cents": 5, "trace": trace})

    assert [loop.run(call("a")), loop.run(call("b"))] == ["acme", "acme"]
    assert len(runs) == 1


SPELLINGS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("e1",), {}),
    ((), {"event": "e1"}),
    (("e1", 5), {}),
    (("e1",), {"cents": 5}),
    ((), {"cents": 5, "event": "e1"}),
    (("e1",), {"note": None}),
]


def test_one_call_however_it_is_spelled_has_one_payload(guard: Guard, loop: LoopThread) -> None:
    runs: list[int] = []

    def book(event: str, cents: int = 5, *others: int, note: str | None = None, **more: int) -> int:
        runs.append(cents)
        return len(runs)

    async def book_async(
        event: str, cents: int = 5, *others: int, note: str | None = None, **more: int
    ) -> int:
        return book(event, cents, *others, note=note, **more)

    keep: dict[str, Any] = {"tenant": lambda *_, **__: "acme", "key": lambda *_, **__: "k1"}
    guarded: Any = guard.idempotency.once_per(**keep)(book if guard.style == "sync" else book_async)

    def call(*args: Any, **kwargs: Any) -> Any:
        if guard.style == "sync":
            return guarded(*args, **kwargs)
        return loop.run(guarded(*args, **kwargs))

    assert [call(*args, **kwargs) for args, kwargs in SPELLINGS] == [1] * len(SPELLINGS)
    others: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("e1", 6), {}),
        (("e1", 5, 1), {}),
        (("e1",), {"note": "x"}),
        (("e1",), {"extra": 1}),
    ]
    for args, kwargs in others:
        with pytest.raises(KeyReused):
            call(*args, **kwargs)
    with pytest.raises(TypeError):
        call()
    assert len(runs) == 1


def test_a_default_that_cannot_be_compared_is_refused_when_it_is_declared(idempotency: Idempotency) -> None:
    keep: dict[str, Any] = {"tenant": lambda *_, **__: "acme", "key": lambda *_, **__: "k1"}

    def send(mail: str, client: Any = print) -> str:
        return mail

    with pytest.raises(ConfigurationError, match=r"default of 'client'.*payload="):
        idempotency.once_per(**keep)(send)
    guarded = idempotency.once_per(**keep, payload=lambda mail, **_: mail)(send)
    assert [guarded("a"), guarded("a")] == ["a", "a"]


# ------------------------------------------------------------------ keys that no client can reach


def test_a_client_cannot_squat_the_keys_of_the_services_own_calls(guard: Guard, loop: LoopThread) -> None:
    """The same tenant, the same key: one came in by HTTP, the other is a call of the service's own."""
    from tests.edges.callers import Request, call_asgi
    from tests.phased.world import _tenant

    served: list[str] = []

    @guard.idempotency.leased
    async def pay(request: Any) -> Any:
        served.append("pay")
        return PlainTextResponse("paid")

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=guard.idempotency, tenant=_tenant)
    for key, tenant in (("evt_1", "acme"), ("evt_1", "@=acme"), ("evt_1", "@acme")):
        request = Request(
            path="/pay",
            headers=((b"idempotency-key", key.encode()), (b"x-tenant", tenant.encode())),
            body=b"{}",
        )
        assert loop.run(call_asgi(app, request)).status == 200
    work = guard.calls("done")
    assert [guard.once(work.run, "evt_1") for _ in range(2)] == ["done", "done"]
    assert (work.count, len(served)) == (1, 3)
    own = guard.calls("own")
    assert guard.once(own.run, "evt_2") == "own"
    request = Request(path="/pay", headers=((b"idempotency-key", b"evt_2"),), body=b"{}")
    first, again = (loop.run(call_asgi(app, request)) for _ in range(2))
    assert (first.status, again.header("idempotent-replayed"), len(served)) == (200, "true", 4)


# ------------------------------------------------------------------ several processes


@without(url="mysql")
def test_many_processes_at_once_run_it_once(url: str) -> None:
    rounds = race(one_of_many, 2, url, "k1", rounds=2)
    assert count(url, "rides", "k1") == 1
    results = {result for one in rounds for result in one} - {"still running"}
    assert len(results) == 1, "everybody who got a result got the same one"
    assert set(rounds[1]) == results


@without(url="mysql")
def test_while_another_process_runs_it_nobody_else_does_and_then_it_is_unknown(url: str) -> None:
    idempotency, work = Idempotency(url), Calls("sync")
    with spawn(holds_on, url) as process:
        wait_until(lambda: state_of(url, "k1") == "in_progress")
        with pytest.raises(StillRunning):
            idempotency.once(tenant="acme", key="k1", run=work.run)
        process.kill9()

    def told() -> bool:
        try:
            idempotency.once(tenant="acme", key="k1", run=work.run)
        except StillRunning:
            return False
        except OutcomeUnknown:
            return True
        raise AssertionError("it ran")

    wait_until(told)
    assert work.count == 0
    idempotency.close()


def test_waiting_for_the_first_is_a_setting(idempotency: Idempotency) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        go_on.wait(10)
        return "slow"

    first = threading.Thread(target=lambda: idempotency.once(tenant="acme", key="k1", run=slow))
    first.start()
    begun.wait(10)
    threading.Timer(0.1, go_on.set).start()
    waited = idempotency.once(tenant="acme", key="k1", run=Calls("sync").run, on_in_progress="wait")
    first.join()
    assert waited == "slow"


def test_without_its_store_nothing_runs() -> None:
    idempotency, work = Idempotency("postgresql://127.0.0.1:1/none", timeout=1), Calls("sync")
    with pytest.raises(StoreUnavailable):
        idempotency.once(tenant="acme", key="k1", run=work.run)
    assert work.count == 0
    idempotency.close()


# ------------------------------------------------------------------ a webhook and a queue


def test_an_incoming_webhook(idempotency: Idempotency) -> None:
    """Providers send an event again until they hear 200; two deliveries may even race."""
    from flask import Flask, request

    app = Flask(__name__)

    @app.post("/webhooks")
    def webhook() -> tuple[str, int]:
        event = request.get_json()
        try:
            idempotency.once(
                tenant="provider",
                key=event["id"],
                payload={"type": event["type"], "charge": event["charge"]},
                run=lambda: book(event),
                name="webhook",
                mode="atomic",
            )
        except StillRunning:
            return "come again", 409
        except SamekeyError:
            return "no", 500
        return "thanks", 200

    def book(event: dict[str, Any]) -> None:
        label = f"'{event['charge']}'"
        current_operation().connection.execute(f"insert into rides values ({label})")

    client = app.test_client()
    event = {"id": "evt_1", "type": "paid", "charge": "ch_1", "attempt": 1}
    assert client.post("/webhooks", json=event).status_code == 200
    assert client.post("/webhooks", json={**event, "attempt": 2}).status_code == 200
    assert count(idempotency.engine.url, "rides", "ch_1") == 1
    assert client.post("/webhooks", json={**event, "charge": "ch_2"}).status_code == 500


def test_a_queue_consumer(idempotency: Idempotency, loop: LoopThread) -> None:
    """A broker delivers at least once: a message that was not acknowledged comes back."""
    queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: list[str] = []

    async def consume(message: dict[str, Any]) -> bool:
        """True: acknowledge. False: the broker delivers it again."""

        async def send_mail() -> None:
            sent.append(message["to"])

        try:
            await idempotency.once(
                tenant="mailer", key=message["id"], payload=message, run=send_mail, name="send_mail"
            )
        except (StillRunning, StoreUnavailable):
            return False
        except OutcomeUnknown:
            return True  # nobody knows, and trying again might send it twice: an operator looks
        return True

    async def scenario() -> None:
        for message in [{"id": "m1", "to": "ann"}, {"id": "m1", "to": "ann"}, {"id": "m2", "to": "bob"}]:
            queue.put_nowait(message)
        while not queue.empty():
            message = queue.get_nowait()
            if not await consume(message):
                queue.put_nowait(message)

    loop.run(scenario())
    assert sent == ["ann", "bob"]

"""The torture of the outbox: real workers, killed without mercy, judged by the provider's own ledger.

Orders are placed through the whole deferred path; worker processes have them charged at a provider that is a
process of its own; every second one of the workers is killed with SIGKILL and started again. In the end every
order must have been charged exactly once, be marked as paid exactly once, and a retry of its request must get
the final answer. What the library believes of itself does not count: only the ledger does.

It leaves nothing behind and touches nothing that was there: on PostgreSQL it works in a schema of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from examples.provider import Charge, Provider
from lab import environment
from lab.processes import GuardedProcess, ProcessFailed
from lab.torture.outbox.shop import Shop, receipt
from samekey import Idempotency, SamekeyError
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Program, Row, Statement
from samekey.core.states import State
from samekey.drivers.run import run, run_async
from samekey.stores.sql.migrations import migrate

__all__ = ["CouldNotRun", "Plan", "Progress", "Verdict", "judge", "torture_outbox"]

TENANT = "torture"
CLIENTS = 8
"""Requests at a time: more than enough to keep the workers busy, less than the pool of connections."""
RETRIED = 500
"""Orders whose request is sent once more at the end; a sample, because each costs a round trip."""
PATIENCE = 100
"""How often a client retries an order that was answered 503 or 409."""
FALLS = 5
"""A worker that ends by itself so many times in a row cannot run here."""
LOOK_EVERY = 0.25
EXAMPLES = 5


class CouldNotRun(Exception):
    """There is no verdict: the torture could not be carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do to whom."""

    url: str | None = None
    """The store; None for a SQLite file that goes with the run."""
    jobs: int = 10_000
    workers: int = 4
    kill_every: float = 1.0
    """Seconds between kills; 0 for none."""
    seconds: float = 600.0
    """After that it is over, whatever is left."""
    seed: int = 0
    """Chooses the victims."""
    concurrency: int = 10
    lease: float = 2.0
    """Seconds until a killed worker's jobs come back."""
    latency: float = 0.02
    """Seconds between the provider's charge and its answer: the time in which a kill hurts most."""
    deduplicate: bool = True
    """Whether the provider recognises its idempotency keys. Without, double charges must be found."""
    downstream_keys: bool = True
    """Whether jobs send one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it has come."""

    seconds: float
    accepted: int
    done: int
    jobs: int
    kills: int


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The figures, and every way in which they are wrong."""

    store: str
    jobs: int
    workers: int
    seed: int
    seconds: float = 0.0
    kills: int = 0
    accepted: int = 0
    """Orders that the client was promised."""
    charges: int = 0
    """Lines in the provider's ledger."""
    recognised: int = 0
    """Charges that the provider was asked for again, and knew by their key."""
    attempts: int = 0
    most_attempts: int = 0
    """Of one job."""
    lost: int = 0
    """Orders that were accepted and never charged."""
    twice: int = 0
    """Orders that were charged more than once."""
    strange: int = 0
    """Charges that nobody ordered."""
    unpaid: int = 0
    """Orders that are not marked as paid exactly once."""
    incomplete: int = 0
    """Operations that are not completed with their own charge."""
    live: int = 0
    """Jobs that are still to do."""
    dead: int = 0
    """Dead letters."""
    wrong_answers: int = 0
    """Retries that did not get the final answer."""
    examples: list[str] = field(default_factory=list)
    """The first few sentences about what is wrong."""

    @property
    def violations(self) -> dict[str, int]:
        """What must be zero, and is not."""
        names = ("lost", "twice", "strange", "unpaid", "incomplete", "live", "dead", "wrong_answers")
        found = {name: int(getattr(self, name)) for name in names}
        found["unaccepted"] = self.jobs - self.accepted
        return {name: count for name, count in found.items() if count}

    @property
    def held(self) -> bool:
        return not self.violations

    def blame(self, name: str, sentence: str) -> None:
        """One more of a kind that must not be."""
        setattr(self, name, getattr(self, name) + 1)
        if len(self.examples) < EXAMPLES:
            self.examples.append(sentence)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        rate = round(self.jobs / self.seconds, 1) if self.seconds else 0.0
        return {"held": self.held, **asdict(self), "jobs_per_second": rate, "violations": self.violations}


# ------------------------------------------------------------------ the oracle


@dataclass(frozen=True, slots=True)
class Books:
    """What the shop's own database says, order by order."""

    paid: dict[int, int]
    """How often each order is marked as paid."""
    operations: dict[int, tuple[str, str | None, bytes | None]]
    """State, provider's id and answer of each order's operation."""


def judge(verdict: Verdict, accepted: Iterable[int], ledger: Iterable[Charge], books: Books) -> None:
    """Compares the provider's ledger with what was promised and with what the shop believes. Pure."""
    by_order: dict[int, list[Charge]] = {}
    for charge in ledger:
        by_order.setdefault(int(charge.reference), []).append(charge)
    promised = set(accepted)
    blame = verdict.blame
    for order in sorted(by_order.keys() - promised):
        blame("strange", f"order {order} was charged and never accepted")
    for order in sorted(promised):
        charges = by_order.get(order, [])
        if not charges:
            blame("lost", f"order {order} was accepted and never charged")
        elif len(charges) > 1:
            blame("twice", f"order {order} was charged {len(charges)} times")
        if books.paid.get(order) != 1:
            blame("unpaid", f"order {order} is marked as paid {books.paid.get(order, 'not even 0')} times")
        state, provider_id, answer = books.operations.get(order, ("missing", None, None))
        ids = {charge.id: receipt(charge).answer().body for charge in charges}
        if state != State.COMPLETED or provider_id not in ids or answer != ids[provider_id]:
            blame("incomplete", f"the operation of order {order} is {state}, with the charge {provider_id}")
    verdict.charges = sum(map(len, by_order.values()))


# ------------------------------------------------------------------ the driver


async def torture_outbox(plan: Plan, report: Callable[[Progress], None] = lambda _: None) -> Verdict:
    """Carries the plan out and judges. ``CouldNotRun`` if there is nothing to judge."""
    with tempfile.TemporaryDirectory(prefix="samekey-torture-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        url, schema = _store(plan, directory), f"samekey_torture_{secrets.token_hex(4)}"
        try:
            with Provider.start(
                directory / "provider", deduplicate=plan.deduplicate, latency=plan.latency
            ) as provider:
                shop = Shop(url, schema, provider.url, plan.downstream_keys)
                async with _opened(shop) as idempotency:
                    run_ = _Run(plan, shop, idempotency, provider, directory, report)
                    return await run_.carry_out()
        except (SamekeyError, ProcessFailed) as error:
            raise CouldNotRun(str(error)) from error


def _store(plan: Plan, directory: Path) -> str:
    if plan.url is None:
        return f"sqlite:///{directory / 'shop.db'}"
    path = Path(plan.url.removeprefix("sqlite:///"))
    if plan.url.startswith("sqlite:") and path.exists():
        raise CouldNotRun(f"{path} is there already. Name a file that is not: it is for this run alone.")
    return plan.url


@contextlib.asynccontextmanager
async def _opened(shop: Shop) -> AsyncIterator[Idempotency]:
    """The engine with its tables. The schema goes with the run."""
    idempotency = shop.open()
    postgres = idempotency.engine.drivers.dialect == "postgres"
    try:
        run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
        _execute(
            idempotency,
            f"create table {shop.orders} (number bigint primary key, paid bigint not null)",
        )
        yield idempotency
    finally:
        if postgres:
            with contextlib.suppress(Exception):  # the verdict counts, not the tidying up
                _execute(idempotency, f'drop schema if exists "{shop.schema}" cascade')
        await idempotency.aclose()


def _execute(idempotency: Idempotency, sql: str) -> None:
    session = idempotency.engine.drivers.sync.open()
    try:
        session.connection.execute(sql)
    except BaseException:
        session.rollback()
        raise
    session.commit()


class _Run:
    """One run: clients, workers and the killer, all at once."""

    def __init__(
        self,
        plan: Plan,
        shop: Shop,
        idempotency: Idempotency,
        provider: Provider,
        directory: Path,
        report: Callable[[Progress], None],
    ) -> None:
        self._plan = plan
        self._idempotency = idempotency
        self._app = shop.app(idempotency, TENANT)
        self._shop = shop
        self._provider = provider
        self._workers = _Workers(plan, shop, directory)
        self._report = report
        self._accepted: set[int] = set()
        self._began = time.monotonic()

    async def carry_out(self) -> Verdict:
        plan = self._plan
        try:
            async with asyncio.timeout(plan.seconds):
                await asyncio.to_thread(self._workers.start)
                await self._until_done()
        except TimeoutError:
            pass  # what is left then is what the verdict is about
        finally:
            await asyncio.to_thread(self._workers.stop)
        seconds = time.monotonic() - self._began
        verdict = Verdict(
            store=self._idempotency.engine.drivers.dialect,
            jobs=plan.jobs,
            workers=plan.workers,
            seed=plan.seed,
        )
        verdict.seconds, verdict.kills = round(seconds, 1), self._workers.kills
        await self._judge(verdict)
        return verdict

    async def _until_done(self) -> None:
        orders = iter(range(1, self._plan.jobs + 1))
        clients = [asyncio.create_task(self._be_a_client(orders)) for _ in range(CLIENTS)]
        killer = asyncio.create_task(self._workers.be_killed())
        try:
            while True:
                done = await self._look()
                if done >= self._plan.jobs:
                    return
                for task in (*clients, killer):
                    if task.done():
                        task.result()  # raises what it raised
                await asyncio.sleep(LOOK_EVERY)
        finally:
            for task in (*clients, killer):
                task.cancel()
            await asyncio.gather(*clients, killer, return_exceptions=True)

    async def _look(self) -> int:
        counts = await run_async(self._idempotency.engine.drivers.aio, self._idempotency.engine.outbox.counts)
        done = counts.get("done", 0) + counts.get("dead", 0)
        self._report(
            Progress(
                time.monotonic() - self._began,
                len(self._accepted),
                done,
                self._plan.jobs,
                self._workers.kills,
            )
        )
        return done

    async def _be_a_client(self, orders: Iterator[int]) -> None:
        for number in orders:
            for _ in range(PATIENCE):
                status, _, _ = await _post(self._app, number)
                if status in (201, 202):
                    self._accepted.add(number)
                    break
                if status not in (409, 503):
                    raise CouldNotRun(f"Order {number} was answered {status}.")
                await asyncio.sleep(0.1)  # as Retry-After would have it: with the same key

    async def _judge(self, verdict: Verdict) -> None:
        figures = await asyncio.to_thread(self._provider.figures)
        verdict.accepted, verdict.recognised = len(self._accepted), figures["replays"]
        rows = await self._ask(
            "select state, count(*), sum(attempts), max(attempts) from {jobs} group by state"
        )
        by_state = {str(row[0]): _int(row[1]) for row in rows}
        verdict.live, verdict.dead = by_state.get("live", 0), by_state.get("dead", 0)
        verdict.attempts = sum(_int(row[2]) for row in rows)
        verdict.most_attempts = max((_int(row[3]) for row in rows), default=0)
        judge(verdict, self._accepted, self._provider.charges(), await self._books())
        if not verdict.incomplete:
            await self._retry_some(verdict)

    async def _books(self) -> Books:
        paid = await self._ask(f"select number, paid from {self._shop.orders}")  # noqa: S608 - our own name
        operations = await self._ask("select key, state, provider_id, answer_body from {keys}")
        return Books(
            {_int(number): _int(times) for number, times in paid},
            {
                int(str(key).removeprefix("order-")): (
                    str(state),
                    None if provider_id is None else str(provider_id),
                    None if body is None else bytes(body),  # type: ignore[arg-type]
                )
                for key, state, provider_id, body in operations
            },
        )

    async def _retry_some(self, verdict: Verdict) -> None:
        """The clients' own view: the same request again gets the final answer, marked as a replay."""
        charges = {int(charge.reference): charge for charge in self._provider.charges()}
        sample = random.Random(self._plan.seed).sample(sorted(charges), min(RETRIED, len(charges)))
        for number in sample:
            status, headers, body = await _post(self._app, number)
            expected = receipt(charges[number]).answer().body
            if (status, headers.get(b"idempotent-replayed"), body) != (201, b"true", expected):
                verdict.blame("wrong_answers", f"a retry of order {number} was answered {status}: {body!r}")

    async def _ask(self, sql: str) -> list[Row]:
        """A question of our own to the shop's tables; casts, because drivers differ about sums."""
        query = self._idempotency.engine.queries.build("torture", sql)

        def program() -> Program[list[Row]]:
            rows = yield Statement(query, {})
            return list(rows)

        return await run_async(self._idempotency.engine.drivers.aio, program)


def _int(value: object) -> int:
    return int(str(value))


async def _post(app: IdempotencyMiddleware, number: int) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request of a client, as a server would hand it over."""
    body = json.dumps({"number": number}).encode()
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/orders",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"idempotency-key", b"order-%d" % number)],
    }
    await app(scope, receive, send)
    start, *rest = messages
    headers = {name.lower(): value for name, value in start["headers"]}
    return start["status"], headers, b"".join(message.get("body", b"") for message in rest)


class _Workers:
    """The worker processes, and who kills them."""

    def __init__(self, plan: Plan, shop: Shop, directory: Path) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._environment = environment(**shop.as_environment())
        self._directory = directory
        self._processes: dict[int, GuardedProcess] = {}
        self._falls: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._stopped = False
        self.kills = 0

    def start(self) -> None:
        for index in range(self._plan.workers):
            self._start_one(index)

    def stop(self) -> None:
        """Ends all of them; none is started after it, though a thread may be about to."""
        with self._lock:
            self._stopped = True
            for process in self._processes.values():
                process.end(grace=10)

    def _start_one(self, index: int) -> None:
        with self._lock:
            if not self._stopped:
                self._processes[index] = self._launch(index)

    def _kill_one(self, index: int) -> None:
        with self._lock:
            if self._stopped or not self._processes[index].running:
                return
            self._processes[index].kill9()
            self.kills += 1
            self._falls.pop(index, None)
            self._processes[index] = self._launch(index)

    def _launch(self, index: int) -> GuardedProcess:
        plan = self._plan
        return GuardedProcess(
            [
                *(sys.executable, "-m", "samekey.cli", "worker", "lab.torture.outbox.shop:idempotency"),
                *("--concurrency", str(plan.concurrency), "--lease", str(plan.lease), "--grace", "5"),
                "--no-completer",
            ],
            log=self._directory / f"worker-{index}.log",
            env=self._environment,
            cwd=self._directory,
        )

    async def be_killed(self) -> None:
        """Kills one at a time, and starts again whatever is not running."""
        pause = self._plan.kill_every or 1.0
        due = time.monotonic()
        while True:
            due = max(due + pause, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            if self._plan.kill_every:
                victim = self._random.randrange(len(self._processes))
                await asyncio.to_thread(self._kill_one, victim)
            for index, process in list(self._processes.items()):
                if not process.running:
                    self._falls[index] += 1
                    if self._falls[index] >= FALLS:
                        raise CouldNotRun(f"A worker ends by itself:\n{process.output()[-2000:]}")
                    await asyncio.to_thread(self._start_one, index)

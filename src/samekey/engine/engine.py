"""The engine: a store, its drivers and a policy joined. Edges, workers and ``Idempotency`` call it.

Everything that waits exists twice, as a thin sync and a thin async shell around one flow.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from ..core.claim import Claim, identity_mark, scope_of, scope_part
from ..core.decide import (
    Accepted,
    Mismatch,
    ModeChanged,
    Outstanding,
    Unreadable,
    Verdict,
    has_expired,
)
from ..core.fingerprint import Intent, is_small
from ..core.ledger import Ledgers
from ..core.outcome import OnError, Outcome
from ..core.policy import Policy, ietf
from ..core.problem import Refusal, refuse, verdict_answer
from ..core.program import Program
from ..core.record import Answer, Record
from ..core.states import Mode, State
from ..drivers.caller import Caller, for_the_handler
from ..drivers.errand import Errand, moves
from ..drivers.fork import anew_after_fork
from ..drivers.run import run, run_in, run_in_async
from ..drivers.threads import Lane, in_a_thread
from ..drivers.url import Drivers
from ..drivers.wrappers.encrypted import Cipher, Sealing
from ..errors import (
    AmbiguousProviderId,
    CorruptRecord,
    DefinitionChanged,
    LimitExceeded,
    NotSerialisable,
    SamekeyError,
    SchemaMismatch,
    StoreError,
)
from ..stores.sql.jobs import Jobs
from ..stores.sql.keys import SqlKeys
from ..stores.sql.limits import Admission
from ..stores.sql.migrations import is_due
from ..stores.sql.queries import Queries
from .about import about
from .admission import Admitted, admitted
from .breaker import Breaker
from .errands import Errands, to_its_end
from .events import Events
from .evidence.asking import Asking
from .evidence.desk import Lookup
from .evidence.direct import DirectResolver
from .evidence.reconcile import NotingResolver
from .evidence.resolver import Resolver
from .exchange import Answered, Exchange, Unguarded, current_exchange, sign
from .flow import Course, Flow, Pause, Ponder, ask, drive, drive_async
from .gate import checked_secret, claim_of, event_of
from .handler import body
from .handler.marks import Mark
from .handler.rules import Rules
from .jobs import JobRegistry, enqueue_program
from .keeper import Keeper
from .keyuse import KeyUse
from .lookups import LookupLimit
from .migrating import migrate_patiently
from .modes.anonymous import Anonymous, anonymous_operation
from .modes.atomic import ClaimedAtomic, LockedAtomic
from .modes.deferred import ClaimedDeferred, LockedDeferred
from .modes.leased import Leased
from .modes.mode import Finished, Handled, Way, unavailable
from .modes.proven import ProvenAtomic, ProvenDeferred
from .operation import Running, _current
from .phased.input import Captured
from .phased.phased import Definition, PhasedRun, PhasedWay
from .phased.phases import AsyncPhasedOperation, PhasedOperation
from .status import gone_answer, is_of, status_answer
from .store import Tables, open_store
from .stranded import Stranded
from .within import Binding

logger = logging.getLogger("samekey")

T = TypeVar("T")

_TOO_LATE = "The request was answered before its handler was reached, so the handler was not run."
_NOT_FALLEN = "What a handler wrote that raised could not be rolled back at once, but will be: %s"
_READERS = 2
"""Threads that read large requests. It is work for the processor: more of them would stand in line."""
_DRAIN_BEAT = 0.05
"""Seconds between looks at what a shutdown waits for."""
WAITS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds between looks while a duplicate waits for the first; it holds no connection meanwhile."""

_TRANSACTIONAL: dict[str, tuple[Callable[[SqlKeys, Keeper], Way], Callable[[SqlKeys, Keeper], Way]]] = {
    "postgres": (LockedAtomic, LockedDeferred),
    "sqlite": (ClaimedAtomic, ClaimedDeferred),
    "mysql": (ProvenAtomic, ProvenDeferred),
}
"""Atomic and deferred work, by what a database offers to keep duplicates away (see ``atomic.py``)."""


class Engine:
    """Runs guarded operations. Users make an ``Idempotency``, which is one with decorators."""

    def __init__(
        self,
        url: str | Drivers,
        *,
        binding: Binding | None = None,
        policy: Policy | None = None,
        schema: str = "samekey",
        pool_size: int = 10,
        timeout: float = 5.0,
        prepared_statements: bool = True,
        digest_secret: bytes = b"samekey",
        identity_secret: bytes | None = None,
        encryption: Cipher | Sealing | None = None,
        cache: str | None = None,
        cache_in_progress: bool = False,
    ) -> None:
        self.url = url.url if isinstance(url, Drivers) else url
        self._migrates = not isinstance(url, Drivers)
        self.binding = binding
        self.timeout = timeout
        self.policy = policy or ietf()
        self.store = open_store(
            url,
            schema=schema,
            pool_size=pool_size,
            timeout=timeout,
            prepared_statements=prepared_statements,
            encryption=encryption,
            cache=cache,
            cache_in_progress=cache_in_progress,
            ready=binding,
        )
        self.drivers = self.store.drivers
        self.keys = self.store.keys
        self.keys.lease_ended = self.tell_lease_end
        self.breaker = Breaker()
        self.events = Events()
        self.keeper = Keeper(self.drivers.sync, self.keys.renew, self.keys.held)
        self.digest_secret = digest_secret
        self._identity_secret = checked_secret(identity_secret)
        self._errands = Errands()
        self._stranded = Stranded(self.drivers.sync, self.breaker)
        self._finishing = Lane("samekey-finish", 2 * pool_size, timeout)
        self._pondering = Lane("samekey-read", _READERS, timeout)
        self._lookup_limit = LookupLimit(self.policy.lookups_per_minute)
        self._ready = False
        self.resolver: Resolver = DirectResolver(self.store.finding)
        if self.store.transactional is not None:
            tables = self.store.transactional
            self.resolver = NotingResolver(tables.operator, tables.effects)
        leased = Leased(self.keys, self.keeper, self.resolver)
        self._ways: dict[Mode, Way] = {Mode.LEASED: leased, Mode.REPEATABLE: leased}
        self.declared: dict[tuple[int, int], Any] = {}
        """By identity, the bare functions that were declared: no route may call one past its guard."""
        self.marks: list[Mark] = []
        """Of every guarded function that was declared."""
        self.largest_body = self.policy.max_body
        """Bytes of the largest body that any of them takes."""
        self._anonymous = Anonymous()
        self.key_use = KeyUse(self.events)
        self._abandoned: set[Running] = set()
        anew_after_fork(self)
        self.jobs = JobRegistry()
        self.lookups: dict[str | None, Lookup] = {}
        self._asking = Asking(self.keys, self.resolver.finding, self.events, self.lookup_for)
        self.ledgers: list[Ledgers] = []
        self.store.must_carry(Mode.LEASED, self.policy)
        if self.store.transactional is not None:
            self._join_tables(self.store.transactional)

    def start_anew(self) -> None:
        """In a forked child: what runs in the parent is not its own to wait for."""
        self._abandoned = set()

    def _join_tables(self, tables: Tables) -> None:
        """The ways that need a transaction, and what only tables can keep."""
        keys, keeper = tables.keys, self.keeper
        atomic, deferred = _TRANSACTIONAL[self.drivers.dialect]
        self._ways |= {
            Mode.PHASED: self._ways[Mode.LEASED],  # its claim; the phases are their own way on
            Mode.ATOMIC: atomic(keys, keeper),
            Mode.DEFERRED: deferred(keys, keeper),
        }
        assert isinstance(self.resolver, NotingResolver)
        self.resolver.takers = self.jobs.takers
        self._phases = PhasedWay(keys, keeper, self.resolver, self.drivers.users)
        self._phases.given_up = lambda: self.events.emit("dead_letter", mode=str(Mode.PHASED))
        self._outbox = Jobs(keys)
        if self.drivers.dialect == "sqlite" and self._migrates:
            # A worker starts also while a handler of another process has the write lock.
            if run(self.drivers.sync, lambda: is_due(tables.queries)):
                self.migrate()
            self.drivers.sync.close()  # whoever is made before a fork leaves nothing open for it

    @property
    def queries(self) -> Queries:
        """The SQL of the store's tables, for ``migrate``. Only a transactional store has tables."""
        return self.store.tables.queries

    @property
    def phases(self) -> PhasedWay:
        """Phased work. Only a transactional store has it."""
        self.store.must_carry(Mode.PHASED)
        return self._phases

    @property
    def outbox(self) -> Jobs:
        """The jobs of deferred work. Only a transactional store has them."""
        self.store.must_carry(Mode.DEFERRED)
        return self._outbox

    def edge_rules(self, *, required: bool | None = None, on_error: OnError = "unknown") -> Rules:
        """How an undecorated route is guarded: leased, with the policy's defaults."""
        chosen = self.policy.required_at_edge if required is None else required
        return Rules(policy=self.policy, mode=Mode.LEASED, required=chosen, on_error=on_error)

    # Running operations: the two shells, then the flows

    def begin(self, exchange: Exchange, rules: Rules) -> Running | Answer:
        """Claims for sync code. An answer: the key decides it, and nothing may run."""
        exchange.start_claim()
        try:
            if exchange.callers is not None and exchange.key_lines:
                exchange.callers.meet()
            known = admitted(exchange, rules, self.key_use)
            if isinstance(known, Admitted):
                known = body.read(exchange, rules.policy) or known
            if isinstance(known, Answer):
                begun: Running | Answer = known
            else:
                exchange.must_be_free(rules.mode)
                connection = self.connection_for(rules, exchange)
                begun = self.drive(self._begin(exchange, rules, known, connection))
        except BaseException:
            exchange.end_claim(None)
            raise
        waits = not isinstance(begun, Running) or begun.to_finish  # without a key there may be nothing
        wanted = exchange.end_claim(begun if waits else None)
        if isinstance(begun, Running):
            begun.lend(self.binding, sync=True, visitors=exchange.visitors)
            exchange.anonymous += [begun.operation] if begun.anonymous else []
            if begun.to_finish and not wanted:
                self.unwanted(begun)
            if rules.mode is Mode.DEFERRED:
                begun.operation._enqueue = functools.partial(self._enqueue, begun)
        return begun

    async def begin_async(self, exchange: Exchange, rules: Rules) -> Running | Answer:
        """Claims for async code."""
        exchange.start_claim()
        try:
            if exchange.callers is not None and exchange.key_lines:
                await exchange.callers.meet_async()
            known = admitted(exchange, rules, self.key_use)
            if isinstance(known, Admitted):
                known = await body.read_async(exchange, rules.policy) or known
            if isinstance(known, Answer):
                begun: Running | Answer = known
            else:
                if exchange.visitors:
                    exchange.must_be_free(rules.mode)
                connection = self.connection_for(rules, exchange)
                if connection is not None and inspect.isawaitable(connection):
                    connection = await connection
                begun = await self._hold(self._begin(exchange, rules, known, connection), connection)
        except BaseException:
            exchange.end_claim(None)
            raise
        waits = not isinstance(begun, Running) or begun.to_finish
        wanted = exchange.end_claim(begun if waits else None)
        if isinstance(begun, Running):
            begun.lend(self.binding, sync=False, visitors=exchange.visitors)
            exchange.anonymous += [begun.operation] if begun.anonymous else []
            if begun.to_finish and not wanted:
                await self.unwanted_async(begun)
            if rules.mode is Mode.DEFERRED:
                begun.operation._enqueue = functools.partial(self._enqueue_async, begun)
        return begun

    def connection_for(self, rules: Rules, exchange: Exchange) -> Any:
        """What the handler's transaction runs on, by its own word; None for a connection of ours."""
        return self.drivers.users if rules.connection is None else rules.connection(exchange.context)

    def unwanted(self, begun: Running) -> NoReturn:
        """Gives back what was claimed for a request that has been answered meanwhile; the handler must not
        run."""
        self.drive(self._way(begun).give_back(begun))
        self.found(begun)
        raise sign(_TOO_LATE)

    async def unwanted_async(self, begun: Running) -> NoReturn:
        """``unwanted`` for async code."""
        await self.drive_async(self._way(begun).give_back(begun))
        self.found(begun)
        raise Answered(_TOO_LATE)

    async def claim_key_async(
        self, exchange: Exchange, rules: Rules, tenant: str, key: str, connection: Any
    ) -> Running | Verdict:
        """``claim_key`` for async code. If the caller is cancelled before it has the key, nobody has it."""
        return await self._hold(self.claim_key(exchange, rules, tenant, key, connection), connection)

    async def _hold(self, flow: Flow[T], connection: Any) -> T:
        """Carries out a flow that may end with a key in its hands."""

        async def give_back(begun: T) -> None:
            if isinstance(begun, Running):
                await self._carry(self._course(self._way(begun).give_back(begun)))

        def let_go(begun: T) -> None:
            if isinstance(begun, Running):
                self._way(begun).let_go(begun)

        # What runs on the caller's own connection must have ended before the caller goes on with it.
        return await self._begin_course(flow, give_back, let_go, leaves_at_once=connection is None)

    def _enqueue(self, running: Running, name: str, payload: Any, delay: float | timedelta) -> None:
        # One after the other, also from threads: a job's key depends on its place.
        with running.enqueuing_in_threads:
            program = enqueue_program(self.outbox, self.jobs, running, name, payload, delay)
            with for_the_handler():
                run_in(running.session, program)

    async def _enqueue_async(
        self, running: Running, name: str, payload: Any, delay: float | timedelta
    ) -> None:
        async with running.enqueuing:
            # One after the other, also under asyncio.gather: a job's key depends on its place.
            program = enqueue_program(self.outbox, self.jobs, running, name, payload, delay)
            with for_the_handler():
                await run_in_async(running.session, program)

    def finish(self, running: Running, handled: Handled) -> Finished:
        """Judges how the handler ended, and makes that durable. Once; for sync code."""
        try:
            outcome = running.judge(handled)
        except BaseException:
            # A signal's, say. Nobody keeps it alive: its lease runs out, and then its mode decides.
            if running.lease is not None:
                self.keeper.forget(running.lease)
            raise
        try:
            return self.drive(self._way(running).finish(running, handled))
        finally:
            self._abandoned.discard(running)
            self._tell_end(running, outcome)

    def fall(self, running: Running, error: BaseException) -> None:
        """The handler has raised. Its transaction ends here: whoever makes an answer of the error (an
        exception handler, a dependency, a middleware) may want the rows that it has locked."""
        try:
            if running.has_transaction and isinstance(error, Exception):
                running.operation.end()
                self.drive(self._way(running).fall(running))
        except Exception as trouble:
            logger.warning(_NOT_FALLEN, trouble)
        finally:
            running.drop()

    async def fall_async(self, running: Running, error: BaseException) -> None:
        """``fall`` for async code. Whoever is cancelled meanwhile hears of it afterwards."""
        try:
            if running.has_transaction and isinstance(error, Exception):
                running.operation.end()
                await self.drive_async(self._way(running).fall(running))
        except Exception as trouble:
            logger.warning(_NOT_FALLEN, trouble)
        finally:
            running.drop()

    def back_out(self, begun: Running) -> None:
        """Gives back what was claimed for a function that was not called. Sync code."""
        self.drive(self._way(begun).give_back(begun))

    async def finish_async(self, running: Running, handled: Handled) -> Finished:
        """``finish`` for async code; also for a sync handler under an async edge.

        The work is the engine's own: whoever waits for it may be cancelled, and may come back for its result,
        but cannot stop it or begin it anew.
        """
        if running.finishing is not None:
            ending = running.finishing.result()
        else:
            if running.sync:
                # In threads of our own: those of the event loop are the application's, and may all hang.
                work = self._finishing.finish(lambda: self.finish(running, handled))
            else:
                work = self._carry(self._course(self._finish(running, handled)))
            running.finishing = Errand(work, moves=not running.sync and moves(self.drivers.aio))
            ending = self._errands.carry(running.finishing)
        if running.rules.connection is None:
            return await ending
        # What runs on the caller's own connection must have ended before the caller goes on with it.
        return await to_its_end(running.finishing, ending)

    async def own(self, work: Coroutine[Any, Any, Finished]) -> Finished:
        """Awaits work of the engine's own: whoever is cancelled meanwhile does not stop it."""
        return await asyncio.shield(self._errands.start(work))

    def _finish(self, running: Running, handled: Handled) -> Flow[Finished]:
        outcome = running.judge(handled)
        try:
            return (yield from self._way(running).finish(running, handled))
        finally:
            self._abandoned.discard(running)
            self._tell_end(running, outcome)

    def abandon(self, running: Running) -> bool:
        """The edge waits no longer for a handler. True: it still runs, and is judged when it ends."""
        self._abandoned.add(running)
        if running.boundary.abandon():
            return True
        self._abandoned.discard(running)
        return False

    def found(self, running: Running) -> None:
        """A handler that may have been abandoned has ended."""
        self._abandoned.discard(running)

    async def drain(self, seconds: float) -> None:
        """Waits for what nobody else waits for: abandoned handlers, and outcomes that are being recorded."""
        give_up = time.monotonic() + seconds
        if self._abandoned:
            names = ", ".join(sorted({one.claim.endpoint for one in list(self._abandoned)}))
            logger.info("Shutdown waits up to %.0f s for handlers that were given up: %s", seconds, names)
        while self._may_end() and time.monotonic() < give_up:  # noqa: ASYNC110 (threads wake no loop)
            await asyncio.sleep(_DRAIN_BEAT)
        await self._errands.settle(max(0.0, give_up - time.monotonic()))
        if self._abandoned:
            logger.error("Shutting down although %d handlers have not ended", len(self._abandoned))

    def _may_end(self) -> bool:
        """Whether an abandoned handler's longest run is not over yet."""
        now = time.monotonic()
        return any(
            now < one.started + one.rules.policy.max_run.total_seconds() for one in list(self._abandoned)
        )

    def _way(self, running: Running) -> Way | Anonymous:
        return self._anonymous if running.anonymous else self._ways[running.claim.mode]

    def _tell_end(self, running: Running, outcome: Outcome) -> None:
        mode = running.claim.mode
        if running.anonymous:
            return
        self.events.emit(
            "operation.finished",
            tenant=running.tenant,
            value=time.monotonic() - running.started,
            mode=str(mode),
            outcome=str(outcome),
        )
        if outcome is Outcome.UNKNOWN and mode is not Mode.ATOMIC:
            self.events.emit("reconcile.scheduled", tenant=running.tenant, mode=str(mode))

    def tell_lease_end(self, record: Record) -> None:
        """A lease ran out, and somebody has moved its record: the sweeper, or the request that met it."""
        logger.warning(
            "The lease of operation %s ran out (%s, attempt %d); it is now %s",
            record.id,
            record.mode,
            record.attempts,
            record.state,
            extra=about(operation=record.id, attempt=record.attempts),
        )
        self.events.emit("zombie_key", mode=str(record.mode), became=str(record.state))
        if record.state is State.UNKNOWN:
            self.events.emit("reconcile.scheduled", mode=str(record.mode))

    def drive(self, flow: Flow[T]) -> T:
        return drive(flow, self.drivers.sync, self.breaker)

    async def drive_async(self, flow: Flow[T]) -> T:
        """Carries a flow out to its end, whatever becomes of the caller meanwhile."""
        work = self._carry(self._course(flow))
        return await self._errands.finish(work, moves=moves(self.drivers.aio))

    async def open_async(self, flow: Flow[T]) -> T:
        """Carries out a flow that ends with an open transaction."""

        async def roll_back(session: Any) -> None:
            await session.rollback()

        def give_up(session: Any) -> None:
            session.give_up()

        return await self._begin_course(flow, roll_back, give_up)

    async def _begin_course(
        self,
        flow: Flow[T],
        unwanted: Callable[[T], Coroutine[Any, Any, None]],
        let_go: Callable[[T], None],
        *,
        leaves_at_once: bool = True,
    ) -> T:
        """Carries out a flow that takes something for its caller."""
        course = Course(flow)
        course.caller, course.let_go = Caller(), let_go
        self._stranded.add(course)
        return await self._errands.begin(
            drive_async(course, self.drivers.aio, self.breaker),
            unwanted,
            let_go,
            leaves_at_once=leaves_at_once,
            who=course.caller,
            settled=functools.partial(self._stranded.forget, course),
            moves=moves(self.drivers.aio),
        )

    def _course(self, flow: Flow[T]) -> Course[T]:
        """From here on it is done, whatever becomes of the event loop."""
        course = Course(flow)
        self._stranded.add(course)
        return course

    async def _carry(self, course: Course[T]) -> T:
        try:
            return await drive_async(course, self.drivers.aio, self.breaker)
        finally:
            self._stranded.forget(course)

    def _begin(
        self, exchange: Exchange, rules: Rules, known: Admitted | None, connection: Any
    ) -> Flow[Running | Answer]:
        policy = rules.policy
        if known is None:
            return (yield from self._begin_anonymous(exchange, rules, connection))
        tenant, key = known.tenant, known.key
        try:
            begun = yield from self.claim_key(exchange, rules, tenant, key, connection)
        except (StoreError, SchemaMismatch) as error:
            logger.error("The store could not be used, so nothing was run: %s", error)
            self.events.emit("store.error", tenant=tenant, kind=type(error).__name__)
            return unavailable(policy, error)
        except LimitExceeded as error:
            return refuse(Refusal(429, str(error), "limited", error.retry_after), policy)
        except CorruptRecord as error:
            logger.error("The record of key %s is unreadable: %s", self.digest(tenant, key), error)
            self.events.emit("store.error", tenant=tenant, kind="CorruptRecord")
            begun = Unreadable(str(error))
        return begun if isinstance(begun, Running) else verdict_answer(begun, policy)

    def _begin_anonymous(self, exchange: Exchange, rules: Rules, connection: Any) -> Flow[Running | Answer]:
        """No key was sent and none is required: the handler runs as ever, and nothing is remembered."""
        try:
            return (yield from self._anonymous.begin(exchange, rules, connection))
        except StoreError as error:
            logger.error("The store could not be used, so nothing was run: %s", error)
            return unavailable(rules.policy, error)

    @contextmanager
    def unclaimed(self, seen: Unguarded | None, endpoint: str) -> Iterator[None]:
        """Around an application whose request is not guarded. None: it might be, but the key is optional and
        was not sent, or the route is exempt."""
        exchange = current_exchange.set(seen)
        operation = anonymous_operation(Mode.LEASED, endpoint)
        token = _current.set(operation) if seen is None else None
        try:
            yield
        finally:
            operation.end()
            if token is not None:
                _current.reset(token)
            current_exchange.reset(exchange)

    def claim_key(
        self, exchange: Exchange, rules: Rules, tenant: str, key: str, connection: Any
    ) -> Flow[Running | Verdict]:
        """Takes a key that has been read and found good, or says what stands in the way."""
        intent = yield from self._intent(exchange, rules.policy)
        claim = claim_of(
            exchange,
            intent,
            rules,
            tenant,
            key,
            self.keys.operation_id,
            self._has_lookup,
            self._identity_secret,
        )
        self.store.must_carry(rules.mode, rules.policy)
        way = self._ways[rules.mode]
        if not self._ready:
            yield from self._get_ready()
        admission = self._admission(claim, rules.policy)
        take = functools.partial(way.begin, rules=rules, connection=connection, admission=admission)
        begin = functools.partial(self._asking.begin, claim, rules.policy, take)
        begun = yield from begin()
        if isinstance(begun, Outstanding) and rules.policy.on_in_progress == "wait":
            begun = yield from self._wait(begin, rules.policy, begun)
        try:
            return (yield from self._told(begun, exchange, rules, tenant, key))
        except BaseException:  # a signal's, or the user's own hook: nothing has run under the key
            if isinstance(begun, Running):
                way.let_go(begun)
            raise

    def _told(
        self, begun: Running | Verdict, exchange: Exchange, rules: Rules, tenant: str, key: str
    ) -> Flow[Running | Verdict]:
        """Says in logs and events what became of a claim."""
        if isinstance(begun, Running):
            begun.tenant = tenant
        elif isinstance(begun, Accepted):
            begun = Accepted((yield from self._as_it_runs(begun.record)))
        elif isinstance(begun, Unreadable):
            logger.error("The record of key %s is unreadable: %s", self.digest(tenant, key), begun.detail)
        elif isinstance(begun, ModeChanged):
            logger.error("Key %s: %s", self.digest(tenant, key), begun.detail)
        elif isinstance(begun, Mismatch):
            parts = ", ".join(begun.differs) or "something"
            digest = self.digest(tenant, key)
            logger.warning(
                "Key %s was used with another request: %s differs",
                digest,
                parts,
                extra=about(key=digest, endpoint=exchange.endpoint),
            )
        self.events.emit(event_of(begun), tenant=tenant, mode=str(rules.mode), endpoint=exchange.endpoint)
        return begun

    def _intent(self, exchange: Exchange, policy: Policy) -> Flow[Intent]:
        """What the request asks for. A large one is read in a thread: an event loop has others to serve."""
        if is_small(exchange.parts):
            return Intent(exchange.parts, policy.fingerprint)
        found: Intent = yield Ponder(
            functools.partial(Intent, exchange.parts, policy.fingerprint), self._pondering
        )
        return found

    def _wait(
        self, again: Callable[[], Flow[Running | Verdict]], policy: Policy, first: Verdict
    ) -> Flow[Running | Verdict]:
        """Looks again from time to time; gives the first request's answer, or that it still runs."""
        begun: Running | Verdict = first
        waited, turn = 0.0, 0
        longest = policy.wait.total_seconds()
        while isinstance(begun, Outstanding) and waited < longest:
            pause = min(WAITS[min(turn, len(WAITS) - 1)], longest - waited)
            yield Pause(pause)
            waited, turn = waited + pause, turn + 1
            begun = yield from again()
        return begun

    def _admission(self, claim: Claim, policy: Policy) -> Admission | None:
        """Limits on new keys, where there are any; a retry of a known key is never limited."""
        per_minute, active = policy.new_keys_per_minute, policy.active_keys
        if per_minute is None and active is None:
            return None
        return Admission(self.store.tables.keys, claim.scope, claim.key, per_minute, active)

    def _get_ready(self) -> Flow[None]:
        """Checks the schema once; a mismatch refuses the request with a sentence, not with a guess."""
        yield from ask(self._fits)
        self._ready = True

    def _fits(self) -> Program[None]:
        yield from self.store.check()
        secret = self._identity_secret
        yield from self.store.agree(None if secret is None else identity_mark(secret))

    def digest(self, tenant: str, key: str) -> str:
        """A short keyed digest that stands for a key in logs; the key itself is never written there."""
        text = scope_of(scope_part(tenant), key).encode()
        return hmac.new(self.digest_secret, text, hashlib.sha256).hexdigest()[:12]

    # Phased operations, for a request and for the completer

    def run_phased(self, running: Running, definition: Definition, captured: Captured) -> Finished:
        """One attempt at a phased operation whose key this request holds. Sync functions."""
        lease = running.lease
        assert lease is not None
        try:
            attempt = self.drive(self.phases.begin(running, definition, captured, running.attempts))
            return self.attempt(attempt)
        except (StoreError, DefinitionChanged, NotSerialisable) as error:
            return self.drive(self.phases.not_begun(lease, definition, error))
        finally:
            self.keeper.forget(lease)

    async def run_phased_async(
        self, running: Running, definition: Definition, captured: Captured
    ) -> Finished:
        """``run_phased`` for async functions."""
        lease = running.lease
        assert lease is not None
        try:
            attempt = await self._begin_phases(running, definition, captured)
            return await self.attempt_async(attempt)
        except (StoreError, DefinitionChanged, NotSerialisable) as error:
            return await self.drive_async(self.phases.not_begun(lease, definition, error))
        finally:
            self.keeper.forget(lease)

    async def _begin_phases(self, running: Running, definition: Definition, captured: Captured) -> PhasedRun:
        try:
            return await self.drive_async(self.phases.begin(running, definition, captured, running.attempts))
        except asyncio.CancelledError:
            # The function was never entered: nobody must wait for a lease under which nothing runs.
            await self.drive_async(self.phases.give_back(running))
            raise

    def attempt(self, attempt: PhasedRun) -> Finished:
        """Calls a sync phased function and settles what came of it."""
        started = time.monotonic()
        try:
            given = attempt.captured.given
            operation = PhasedOperation(attempt, self)
            result = attempt.definition.function(operation, given.value, **given.extras)
        except BaseException as error:
            ending = attempt.stop(error)
        else:
            ending = attempt.end(result)
        finished = self.drive(ending)
        self._tell_attempt(attempt, finished, started)
        return finished

    async def attempt_async(self, attempt: PhasedRun) -> Finished:
        """Calls a phased function from async code; a sync one runs in a thread."""
        function = attempt.definition.function
        if not inspect.iscoroutinefunction(function):
            return await in_a_thread(self.attempt, attempt)
        started = time.monotonic()
        try:
            given = attempt.captured.given
            result = await function(AsyncPhasedOperation(attempt, self), given.value, **given.extras)
        except BaseException as error:
            ending = attempt.stop(error)
        else:
            ending = attempt.end(result)
        finished = await self.drive_async(ending)
        self._tell_attempt(attempt, finished, started)
        return finished

    def _tell_attempt(self, attempt: PhasedRun, finished: Finished, started: float) -> None:
        tenant, mode = attempt.captured.tenant, str(Mode.PHASED)
        done = finished.answer is not None and finished.answer.status < 500 and finished.error is None
        unsure = attempt.waits_in in (State.UNKNOWN, State.DEAD_LETTER)
        outcome = Outcome.UNKNOWN if unsure else Outcome.REMEMBER if done else Outcome.FAIL
        spent = time.monotonic() - started
        self.events.emit("operation.finished", tenant=tenant, value=spent, mode=mode, outcome=str(outcome))
        if attempt.waits_in is State.UNKNOWN:
            self.events.emit("reconcile.scheduled", tenant=tenant, mode=mode)

    # Looking things up

    def status(self, operation_id: str, tenant: str, bound_to: str | None = None) -> Answer:
        """The status resource: state, times, and the answer when there is one. 404 to other tenants, and to
        other sessions where keys are bound to one."""
        return self.drive(self._status(operation_id, tenant, bound_to))

    async def status_async(self, operation_id: str, tenant: str, bound_to: str | None = None) -> Answer:
        """``status`` for async code."""
        return await self.drive_async(self._status(operation_id, tenant, bound_to))

    def _status(self, operation_id: str, tenant: str, bound_to: str | None) -> Flow[Answer]:
        if self._lookup_limit.exceeded(tenant):
            return refuse(
                Refusal(429, "Too many look-ups. Come back in a minute.", "limited", 60), self.policy
            )
        try:
            found = yield from ask(lambda: self.keys.read_by_id(operation_id))
            if found is not None and not is_of(found[1], tenant, bound_to):
                found = None  # from here on as if it were not there: the same questions, the same answer
            former = found is None and (
                yield from ask(lambda: self.keys.existed(operation_id, scope_part(tenant)))
            )
            kept = found is not None and (yield from self._is_kept(*found))
        except (StoreError, SchemaMismatch) as error:
            return unavailable(self.policy, error)
        except SamekeyError as error:
            logger.error("The record of operation %s is unreadable: %s", operation_id, error)
            return refuse(Refusal(500, "The record cannot be read.", "result_unavailable"), self.policy)
        if former and bound_to is None:  # nobody remembers whose session it was
            return gone_answer(self.policy)
        if found is not None:
            found = found[0], (yield from self._as_it_runs(found[1]))
        return status_answer(found, self.policy, kept=kept)

    def _is_kept(self, now: int, record: Record) -> Flow[bool]:
        """Whether its retention is over and something of it is left all the same."""
        return has_expired(record, now) and (yield from ask(lambda: self.keys.is_kept(record)))

    def _as_it_runs(self, record: Record) -> Flow[Record]:
        """A pending record as clients are shown it: in progress while a worker runs a job of it."""
        if record.state is not State.PENDING:
            return record
        try:
            running = yield from ask(lambda: self.outbox.is_worked_on(record.id))
        except StoreError:
            return record  # pending is true as well, and says less
        return replace(record, state=State.IN_PROGRESS) if running else record

    def lookup_for(self, endpoint: str) -> Lookup | None:
        """How the outcome of an operation of this endpoint can be found out."""
        return self.lookups.get(endpoint, self.lookups.get(None))

    def _has_lookup(self, endpoint: str) -> bool:
        return self.lookup_for(endpoint) is not None

    def find_by_downstream_key(self, downstream_key: str) -> Record | None:
        """The record whose operation sent this downstream key to a provider."""
        return run(self.drivers.sync, lambda: self.keys.read_by_downstream(downstream_key))

    def find_by_provider_id(
        self, provider_id: str, *, tenant: str, source: str | None = None
    ) -> Record | None:
        """The record of the tenant's operation that noted this id of the provider's; without a source,
        whatever the source. ``AmbiguousProviderId`` if there are two."""
        part = scope_part(tenant)
        found = run(
            self.drivers.sync,
            lambda: self.keys.read_by_provider_id(provider_id, tenant=part, source=source),
        )
        records = {record.id: record for _, record in found}
        if len(records) > 1:
            raise AmbiguousProviderId("Two operations of this tenant have this id of the provider's.")
        return next(iter(records.values()), None)

    # Starting and stopping

    def migrate(self) -> None:
        """Creates the tables, or brings them up to date, as ``samekey migrate`` does.

        Safe to run twice, and in several processes at once. SQLite's are made without it.
        """
        if self.drivers.dialect in ("postgres", "mysql") and self._migrates:
            migrate_patiently(self.url, self.queries)
        else:
            run(self.drivers.sync, self.store.migrate)

    def check(self) -> None:
        """Raises ``SchemaMismatch`` if the tables do not fit this version. Good at start-up."""
        run(self.drivers.sync, self._fits)
        self._ready = True

    def close(self) -> None:
        """Gives back threads and connections. Sync code."""
        self.keeper.stop()
        self.drivers.sync.close()

    async def aclose(self) -> None:
        """Gives back threads and connections. Async code."""
        await self._errands.settle(self.timeout)
        await self.drivers.aio.close()
        await self._finishing.close()
        await self._pondering.close()
        await in_a_thread(self.close)

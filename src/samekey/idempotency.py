"""``Idempotency``: what users make, declare their handlers with, and hand to the middleware."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeVar, Unpack, overload

from .core.backoff import Backoff
from .core.ledger import FIELDS, Comparison, Field, Ledgers
from .core.policy import Policy
from .core.record import Record
from .core.states import Mode
from .drivers.url import Drivers
from .drivers.wrappers.encrypted import Cipher, Sealing
from .engine.engine import Engine
from .engine.evidence.resolving import NamedOperation, resolve
from .engine.evidence.said import Resolution
from .engine.extending import Extension, extend
from .engine.handler.decorate import exempted, guard, phased_endpoint
from .engine.handler.options import LeasedOptions, OnceOptions, PhasedOptions, TransactionOptions
from .engine.handler.rules import rules_from, seconds
from .engine.jobs import JobDefinition
from .engine.once import Once, decorator
from .engine.phased.extras import Extras
from .engine.phased.input import model_of
from .engine.phased.phased import Definition
from .engine.within import Binding
from .errors import ConfigurationError
from .evidence import Evidence
from .stores.protocols import Actor
from .workers.service import Services, WorkerService

Handler = TypeVar("Handler", bound=Callable[..., Any])


class DatabaseEngine(Protocol):
    """An ``Engine`` or ``AsyncEngine`` of SQLAlchemy's, which samekey does not import by itself."""

    @property
    def url(self) -> Any: ...

    @property
    def dialect(self) -> Any: ...


def _bound(engine: object) -> Binding:
    if importlib.util.find_spec("sqlalchemy") is None:
        raise ConfigurationError(
            f"Idempotency takes a URL, such as sqlite:///app.db. This is a {type(engine).__name__}."
        )
    from .sqlalchemy.engines import EngineBinding

    return EngineBinding(engine)


class Idempotency:
    """Idempotency keys on one store.

    ``url``: ``sqlite:///app.db``, ``sqlite:///:memory:``, ``postgresql://…`` or ``mysql://…``, which carry
    every mode; ``redis://…``, ``redis+cluster://…`` or ``dynamodb://…``, which keep keys only and carry
    leased work. SQLite creates its tables by itself; elsewhere run ``samekey migrate URL`` once. Or an
    ``Engine`` or ``AsyncEngine`` of SQLAlchemy's: see ``docs/sqlalchemy.md``.

    ``policy``: ``ietf()`` (the default), ``stripe()`` or ``stripe_v2()``, with any overrides.

    ``prepared_statements``: PostgreSQL's are prepared unless a pooler is found in between; False never
    prepares. ``timeout`` bounds each wait for the store, ``pool_size`` the connections of each of its pools.

    ``digest_secret``: keys the short digests that stand for keys in logs.

    ``identity_secret``: keys everything that is derived from a key and leaves this process: downstream keys,
    operation ids, names of records. It can never be changed; a store refuses another one.

    ``encryption``: encrypts stored requests and answers, see ``samekey.encryption``.

    ``cache``: ``redis://…``, a Redis in front of a SQL store that answers replays; ``cache_in_progress=True``
    lets it answer duplicates of leased work in its first seconds too. See ``docs/stores/cached.md``.
    """

    def __init__(
        self,
        url: str | Drivers | DatabaseEngine,
        *,
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
        binding = None
        if not isinstance(url, str | Drivers):
            binding = _bound(url)
            url = binding.url
        self.engine = Engine(
            url,
            binding=binding,
            policy=policy,
            schema=schema,
            pool_size=pool_size,
            timeout=timeout,
            prepared_statements=prepared_statements,
            digest_secret=digest_secret,
            identity_secret=identity_secret,
            encryption=encryption,
            cache=cache,
            cache_in_progress=cache_in_progress,
        )
        """What middlewares, workers and operators' tools use. Its names may change without notice."""
        self.events = self.engine.events
        """``events.subscribe(observer)``: who wants to hear what happens."""

    # Declaring handlers

    @overload
    def atomic(self, handler: Handler) -> Handler: ...

    @overload
    def atomic(self, **options: Unpack[TransactionOptions]) -> Callable[[Handler], Handler]: ...

    def atomic(self, handler: Handler | None = None, **options: Unpack[TransactionOptions]) -> Any:
        """The handler's writes on ``current_operation().connection`` commit together with its answer.

        Options: ``on_4xx="commit"``, ``strict=True``, ``classify``, ``required``, ``connection`` (a
        function of the ASGI scope or WSGI environ that gives your own connection), and any setting of the
        policy, such as ``ttl``.
        """
        return self._declare(handler, Mode.ATOMIC, options)

    @overload
    def leased(self, handler: Handler) -> Handler: ...

    @overload
    def leased(self, **options: Unpack[LeasedOptions]) -> Callable[[Handler], Handler]: ...

    def leased(self, handler: Handler | None = None, **options: Unpack[LeasedOptions]) -> Any:
        """For handlers with effects outside the database: the claim commits before the handler runs.

        Options: ``lease``, ``max_run`` and ``ttl`` (seconds or a timedelta), ``on_error="retry"`` or
        ``repeatable=True`` for work that is safe to repeat, ``classify``, ``required``, and any setting of
        the policy.
        """
        mode = Mode.REPEATABLE if options.pop("repeatable", False) else Mode.LEASED
        return self._declare(handler, mode, options)

    def exempt(self, handler: Handler) -> Handler:
        """The middleware leaves this handler alone, on the routes that are given what this returns."""
        left_alone: Handler = exempted(handler)
        return left_alone

    @overload
    def deferred(self, handler: Handler) -> Handler: ...

    @overload
    def deferred(self, **options: Unpack[TransactionOptions]) -> Callable[[Handler], Handler]: ...

    def deferred(self, handler: Handler | None = None, **options: Unpack[TransactionOptions]) -> Any:
        """The handler writes and enqueues a job in one transaction and answers 202; a worker does the job.

        Write through ``current_operation().connection`` and enqueue with ``current_operation().enqueue``.
        A refusal (4xx) rolls back and is remembered.
        """
        return self._declare(handler, Mode.DEFERRED, options)

    def phased(
        self,
        name: str,
        *,
        version: int = 1,
        max_attempts: int = 10,
        backoff: Backoff | None = None,
        **options: Unpack[PhasedOptions],
    ) -> Callable[[Handler], Handler]:
        """A function of ``(op, input)`` made of named phases, which goes on where it stopped.

        Change the order or the names of phases only under a new ``version``, and keep the old version
        registered until its operations are done.
        """
        _named("phased", name, '@idempotency.phased("create_ride")')
        if options.get("required") is False:
            raise ConfigurationError("Phased work needs a key: without one nothing could be resumed.")
        rules = rules_from(self.engine.policy, Mode.PHASED, {**options, "required": True})

        def declare(function: Handler) -> Handler:
            self._must_fit(function)
            definition = Definition(
                name,
                version,
                function,
                rules,
                model_of(function),
                Extras.of(function),
                max_attempts,
                backoff or Backoff(),
            )
            self.engine.phases.register(definition)
            endpoint: Handler = phased_endpoint(self.engine, definition)
            return endpoint

        return declare

    def job(
        self,
        name: str,
        *,
        max_attempts: int = 10,
        timeout: float | timedelta = 60,
        backoff: Backoff | None = None,
        source: str | None = None,
    ) -> Callable[[Handler], Handler]:
        """A function of ``(job, payload)`` that does the jobs of this name. What it returns is the answer.

        If it has a parameter ``found``, that is None, or the ``Executed`` or ``Declined`` that a provider's
        event told of this job meanwhile: then the call was made, and the function does the rest of its work.

        ``source`` names the provider that it calls, as ``resolve`` does: only within that is the provider's
        id looked for.
        """
        _named("job", name, '@idempotency.job("send_receipt")')

        def declare(function: Handler) -> Handler:
            self.engine.jobs.register(
                JobDefinition(name, function, max_attempts, seconds(timeout), backoff or Backoff(), source)
            )
            return function

        return declare

    def lookup(self, endpoint: str | None = None) -> Callable[[Handler], Handler]:
        """A function that finds out what became of an operation whose outcome is unknown.

        ``endpoint`` is the method and the route's template, such as ``"POST /transfers"``; without it the
        function serves every endpoint that has none of its own. It takes the record and returns
        ``Executed(response)``, ``Declined(response)``, ``NotExecuted`` or ``StillUnknown``.
        """
        if endpoint is not None:
            _named("lookup", endpoint, '@idempotency.lookup("POST /transfers") or @idempotency.lookup()')

        def declare(function: Handler) -> Handler:
            if endpoint in self.engine.lookups:
                raise ConfigurationError(f"There is already a lookup for {endpoint or 'every endpoint'}.")
            self.engine.lookups[endpoint] = function
            return function

        return declare

    def compare_ledgers(
        self,
        *,
        ours: Callable[[], Any],
        theirs: Callable[[], Any],
        report: Callable[[Comparison], Any] | None = None,
        fields: tuple[Field, ...] = FIELDS,
        name: str = "ledger",
    ) -> None:
        """Has the worker compare our ledger with the provider's once a day; it never changes anything.

        ``ours`` and ``theirs`` give iterables of ``samekey.core.ledger.Entry``; they may be async.
        """
        self.engine.ledgers.append(Ledgers(ours, theirs, report, fields, name))

    def _declare(self, handler: Any, mode: Mode, options: Mapping[str, Any]) -> Any:
        rules = rules_from(self.engine.policy, mode, options)
        self.engine.store.must_carry(mode, rules.policy)

        if self.engine.binding is not None and rules.connection is not None:
            raise ConfigurationError(
                "This Idempotency was given an engine: what its sessions write goes through samekey's own "
                "connection, and not through the one that connection=… gives. Leave that out, or give it the "
                "URL and write through current_operation().connection."
            )

        def declare(function: Any) -> Any:
            if mode in (Mode.ATOMIC, Mode.DEFERRED):
                self._must_fit(function)
            return guard(self.engine, function, rules)

        return declare if handler is None else declare(handler)

    def _must_fit(self, function: Any) -> None:
        if self.engine.binding is not None:
            self.engine.binding.must_fit(function)

    # Plain functions, queue consumers, webhooks

    def once(
        self,
        *,
        tenant: str,
        key: str,
        run: Callable[[], Any],
        payload: Any = None,
        name: str = "",
        mode: Literal["leased", "repeatable", "atomic"] = "leased",
        **options: Unpack[OnceOptions],
    ) -> Any:
        """Runs ``run()`` once for this key and gives its result, now and every later time.

        ``payload`` is what must be the same for it to be the same operation. Results and payloads are plain
        JSON values. Raises ``KeyReused``, ``StillRunning``, ``OutcomeUnknown`` or ``StoreUnavailable`` where
        it does not run. With a coroutine function this gives a coroutine: await it.
        """
        once = Once(
            self.engine, tenant=tenant, key=key, payload=payload, name=name, mode=mode, options=options
        )
        return once.run_async(run) if inspect.iscoroutinefunction(run) else once.run(run)

    async def once_async(
        self,
        *,
        tenant: str,
        key: str,
        run: Callable[[], Any],
        payload: Any = None,
        name: str = "",
        mode: Literal["leased", "repeatable", "atomic"] = "leased",
        **options: Unpack[OnceOptions],
    ) -> Any:
        """``once`` for async code, whatever ``run`` is: a lambda that gives a coroutine, for one."""
        once = Once(
            self.engine, tenant=tenant, key=key, payload=payload, name=name, mode=mode, options=options
        )
        return await once.run_async(run)

    def once_per(
        self,
        *,
        tenant: Callable[..., str],
        key: Callable[..., str],
        payload: Callable[..., Any] | None = None,
        name: str | None = None,
        mode: Literal["leased", "repeatable", "atomic"] = "leased",
        **options: Unpack[OnceOptions],
    ) -> Callable[[Handler], Handler]:
        """Guards a function. ``tenant``, ``key`` and ``payload`` take its arguments."""
        return decorator(
            self.engine, tenant=tenant, key=key, payload=payload, name=name, mode=mode, options=options
        )

    # Webhooks of a provider

    def resolve(
        self,
        evidence: Evidence,
        *,
        source: str,
        event_id: str,
        tenant: str | None,
        occurred_at: datetime,
        verify: Callable[[], bool],
        operation_id: str | None = None,
        step: str | None = None,
        downstream_key: str | None = None,
        provider_id: str | None = None,
    ) -> Resolution:
        """Takes a provider's word about one effect: the leased call, an effect phase, or a job.

        ``source`` names the provider, ``event_id`` is its own id of the event: the same event counts once.
        ``occurred_at`` is when it happened by the provider's clock; a late "no" about a former attempt
        settles nothing. ``verify`` checks the signature; where it is not True nothing is looked up.

        The effect is found by one of its ids: the ``downstream_key`` that was sent, the ``provider_id`` that
        was noted (within ``tenant`` and ``source``), or the ``operation_id``, with the ``step`` where the
        operation has several effects. With a ``tenant``, another tenant's effect is not found.

        A settled operation never moves. What was found out of phased work becomes that phase's result, and
        the run goes on.
        """
        named = NamedOperation(operation_id, step, downstream_key, provider_id)
        flow = resolve(
            self.engine.keys,
            self.engine.resolver,
            self.engine.events,
            evidence,
            named,
            source=source,
            event_id=event_id,
            tenant=tenant,
            occurred_at=occurred_at,
            verify=verify,
        )
        return self.engine.drive(flow)

    async def resolve_async(
        self,
        evidence: Evidence,
        *,
        source: str,
        event_id: str,
        tenant: str | None,
        occurred_at: datetime,
        verify: Callable[[], bool],
        operation_id: str | None = None,
        step: str | None = None,
        downstream_key: str | None = None,
        provider_id: str | None = None,
    ) -> Resolution:
        """``resolve`` for async code."""
        named = NamedOperation(operation_id, step, downstream_key, provider_id)
        flow = resolve(
            self.engine.keys,
            self.engine.resolver,
            self.engine.events,
            evidence,
            named,
            source=source,
            event_id=event_id,
            tenant=tenant,
            occurred_at=occurred_at,
            verify=verify,
        )
        return await self.engine.drive_async(flow)

    # Retention

    def extend(
        self,
        operation_id: str | None = None,
        *,
        reason: str,
        tenant: str | None = None,
        key: str | None = None,
        until: datetime | None = None,
        by: float | timedelta | None = None,
        actor: str = "application",
    ) -> datetime:
        """Keeps the answer of a completed operation for longer: until then, or by so much. Gives the new end.

        It is found by its id, or by ``tenant`` and ``key``. ``reason`` and ``actor`` go into the audit. It
        waits for the store: async code calls it in a thread.
        ``NotExtended`` for what cannot be extended: retention that is over, or work that has no answer.
        """
        flow = extend(
            self.engine.keys,
            self.engine.store.finding,
            operation_id=operation_id,
            tenant=tenant,
            key=key,
            extension=Extension(until, None if by is None else seconds(by)),
            actor=Actor(actor, reason),
        )
        return self.engine.drive(flow)

    # Looking things up

    def find(
        self,
        *,
        tenant: str | None = None,
        provider_id: str | None = None,
        source: str | None = None,
        downstream_key: str | None = None,
    ) -> Record | None:
        """The record of the operation that sent this downstream key, or that noted this id of a provider's.

        A provider's id is looked for within ``tenant``, and within ``source`` if that is given;
        ``AmbiguousProviderId`` if two operations have it.
        """
        if (provider_id is None) == (downstream_key is None):
            raise ConfigurationError("find() needs one of provider_id and downstream_key.")
        if downstream_key is not None:
            return self.engine.find_by_downstream_key(downstream_key)
        if tenant is None or provider_id is None:
            raise ConfigurationError("find(provider_id=…) needs the tenant: ids are told apart by it.")
        return self.engine.find_by_provider_id(provider_id, tenant=tenant, source=source)

    # Starting and stopping

    def migrate(self) -> None:
        """Creates the tables, or brings them up to date, as ``samekey migrate`` does.

        Safe to run twice, and in several processes at once. SQLite's are made without it.
        """
        self.engine.migrate()

    def check(self) -> None:
        """Raises ``SchemaMismatch`` if the tables do not fit this version. Good at start-up."""
        self.engine.check()

    def close(self) -> None:
        """Gives back threads and connections. Sync code."""
        self.engine.close()

    async def aclose(self) -> None:
        """Gives back threads and connections. Async code."""
        await self.engine.aclose()

    # Background work inside an application

    @contextlib.asynccontextmanager
    async def background(self, services: Services | None = None) -> AsyncIterator[WorkerService]:
        """Runs the background services inside the application, for as long as its lifespan lasts.

            @contextlib.asynccontextmanager
            async def lifespan(app):
                async with idempotency.background():
                    yield

        Any number of processes may do so at once. A worker process of its own (``samekey worker``) is better
        where jobs take long: it can be scaled, and restarted, by itself.

        Tables that do not fit are told here, at the start. A store that is away is not: the services come to
        life when it is there and its tables fit, also if they are migrated later.
        ``healthy``, ``state`` and ``troubles`` of what this gives say how they are.
        Leaving it takes no longer than ``Services.grace`` and a moment.
        """
        service = WorkerService(self.engine, services)
        await service.check()
        running = asyncio.create_task(service.run(handle_signals=False), name="samekey background")
        service.started(running)
        try:
            yield service
        finally:
            service.stop()
            await running


def _named(decorator: str, name: object, example: str) -> None:
    """A decorator without its parentheses is given the function in place of a name, and would swallow it."""
    if callable(name):
        called = getattr(name, "__qualname__", repr(name))
        raise ConfigurationError(
            f"@idempotency.{decorator} was put on {called} without its parentheses. Write {example}."
        )
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"@idempotency.{decorator} needs a name, a string, not {name!r}: {example}.")

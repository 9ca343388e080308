"""``Idempotency``: what users make, declare their handlers with, and hand to the middleware."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

from ..core.backoff import Backoff
from ..core.states import Mode
from ..errors import ConfigurationError
from .decorate import GUARD, check_undecorated, guard, phased_endpoint
from .engine import Engine
from .input import model_of
from .jobs import JobDefinition
from .once import Once, decorator
from .phased import Definition
from .rules import rules_from, seconds

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Idempotency(Engine):
    """Idempotency keys on one store.

    ``url``: ``sqlite:///app.db``, ``sqlite:///:memory:`` or ``postgresql://…``. SQLite creates its tables
    by itself; on PostgreSQL run ``samekey migrate URL`` once.

    ``policy``: ``ietf()`` (the default), ``stripe()`` or ``stripe_v2()``, with any overrides.

    ``digest_secret``: keys the short digests that stand for keys in logs.
    """

    # Declaring handlers

    @overload
    def atomic(self, handler: Handler) -> Handler: ...

    @overload
    def atomic(self, **options: Any) -> Callable[[Handler], Handler]: ...

    def atomic(self, handler: Handler | None = None, **options: Any) -> Any:
        """The handler's writes on ``current_operation().connection`` commit together with its answer.

        Options: ``on_4xx="rollback"``, ``strict=True``, ``classify``, ``required``, ``connection`` (a
        function of the ASGI scope or WSGI environ that gives your own connection), and any setting of the
        policy, such as ``ttl``.
        """
        return self._declare(handler, Mode.ATOMIC, options)

    @overload
    def leased(self, handler: Handler) -> Handler: ...

    @overload
    def leased(self, **options: Any) -> Callable[[Handler], Handler]: ...

    def leased(self, handler: Handler | None = None, **options: Any) -> Any:
        """For handlers with effects outside the database: the claim commits before the handler runs.

        Options: ``lease``, ``max_run`` and ``ttl`` (seconds or a timedelta), ``on_error="unknown"``,
        ``repeatable=True`` for work that is safe to repeat, ``classify``, ``required``, and any setting of
        the policy.
        """
        mode = Mode.REPEATABLE if options.pop("repeatable", False) else Mode.LEASED
        return self._declare(handler, mode, options)

    def exempt(self, handler: Handler) -> Handler:
        """The middleware leaves this handler alone."""
        check_undecorated(handler)
        setattr(handler, GUARD, "exempt")
        return handler

    @overload
    def deferred(self, handler: Handler) -> Handler: ...

    @overload
    def deferred(self, **options: Any) -> Callable[[Handler], Handler]: ...

    def deferred(self, handler: Handler | None = None, **options: Any) -> Any:
        """The handler writes and enqueues a job in one transaction and answers 202; a worker does the job.

        Write through ``current_operation().connection`` and enqueue with ``current_operation().enqueue``.
        A refusal (4xx) rolls back and is remembered.
        """
        options.setdefault("on_4xx", "rollback")
        return self._declare(handler, Mode.DEFERRED, options)

    def phased(
        self,
        name: str,
        *,
        version: int = 1,
        max_attempts: int = 10,
        backoff: Backoff | None = None,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """A function of ``(op, input)`` made of named phases, which goes on where it stopped.

        Change the order or the names of phases only under a new ``version``, and keep the old version
        registered until its operations are done.
        """
        if options.get("required") is False:
            raise ConfigurationError("Phased work needs a key: without one nothing could be resumed.")
        rules = rules_from(self.policy, Mode.PHASED, {**options, "required": True})

        def declare(function: Handler) -> Handler:
            definition = Definition(
                name,
                version,
                function,
                rules,
                model_of(function),
                max_attempts,
                backoff or Backoff(),
            )
            self.phases.register(definition)
            endpoint: Handler = phased_endpoint(self, definition)
            return endpoint

        return declare

    def job(
        self,
        name: str,
        *,
        max_attempts: int = 10,
        timeout: float | timedelta = 60,
        backoff: Backoff | None = None,
    ) -> Callable[[Handler], Handler]:
        """A function of ``(job, payload)`` that does the jobs of this name. What it returns is the answer."""

        def declare(function: Handler) -> Handler:
            self.jobs.register(
                JobDefinition(name, function, max_attempts, seconds(timeout), backoff or Backoff())
            )
            return function

        return declare

    def _declare(self, handler: Any, mode: Mode, options: dict[str, Any]) -> Any:
        rules = rules_from(self.policy, mode, options)
        if handler is not None:
            return guard(self, handler, rules)
        return lambda function: guard(self, function, rules)

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
        **options: Any,
    ) -> Any:
        """Runs ``run()`` once for this key and gives its result, now and every later time.

        ``payload`` is what must be the same for it to be the same operation. Results and payloads are plain
        JSON values. Raises ``KeyReused``, ``StillRunning``, ``OutcomeUnknown`` or ``StoreUnavailable`` where
        it does not run. With a coroutine function this gives a coroutine: await it.
        """
        once = Once(self, tenant=tenant, key=key, payload=payload, name=name, mode=mode, options=options)
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
        **options: Any,
    ) -> Any:
        """``once`` for async code, whatever ``run`` is: a lambda that gives a coroutine, for one."""
        once = Once(self, tenant=tenant, key=key, payload=payload, name=name, mode=mode, options=options)
        return await once.run_async(run)

    def once_per(
        self,
        *,
        tenant: Callable[..., str],
        key: Callable[..., str],
        payload: Callable[..., Any] | None = None,
        name: str | None = None,
        mode: Literal["leased", "repeatable", "atomic"] = "leased",
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Guards a function. ``tenant``, ``key`` and ``payload`` take its arguments."""
        return decorator(self, tenant=tenant, key=key, payload=payload, name=name, mode=mode, options=options)

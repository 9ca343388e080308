"""Tracing: a span around each claim and one around each recorded end, in OpenTelemetry.

    instrument_tracing(idempotency)

The spans carry the decision and a digest of the key, never the key; of an error its kind, never its text,
which may quote what it failed on. The engine knows nothing of it: methods of one object are wrapped.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from ..core.decide import (
    Accepted,
    Ask,
    Gone,
    Mismatch,
    ModeChanged,
    Outstanding,
    Replay,
    Uncertain,
    Unreadable,
    Verdict,
    Withheld,
)
from ..engine.engine import Engine
from ..engine.events import Event
from ..engine.exchange import Exchange
from ..engine.flow import Flow
from ..engine.handler.rules import Rules
from ..engine.modes.mode import Finished, Handled
from ..engine.operation import Running
from ..engine.phased.phased import PhasedRun
from ..idempotency import Idempotency
from .metrics import FINISHED, SCOPE

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

logger = logging.getLogger("samekey")

PREFIX: Final = "samekey."
CLAIM: Final = "samekey.claim"
FINISH: Final = "samekey.finish"
PHASES: Final = "samekey.phases"
Facts: TypeAlias = dict[str, str | int | bool]

_traced: weakref.WeakSet[Engine] = weakref.WeakSet()
_finishing: ContextVar[Span | None] = ContextVar("samekey_finishing", default=None)
"""The span of the end that is being recorded, for the outcome that the engine tells about it."""


def instrument_tracing(idempotency: Idempotency, tracer_provider: TracerProvider | None = None) -> None:
    """From now on, traces the operations of this ``Idempotency``. Call it once, before it is used.

    ``tracer_provider``: None for the application's own. Does nothing if OpenTelemetry is not installed, or
    if it was called before. Tracing never raises into a request.
    """
    try:
        from opentelemetry import trace
    except ModuleNotFoundError:
        logger.warning("There is no tracing without opentelemetry-api: pip install 'samekey[metrics]'.")
        return
    engine = idempotency.engine
    if engine in _traced:
        return
    _traced.add(engine)
    tracing = Tracing(engine, trace.get_tracer(SCOPE, tracer_provider=tracer_provider))
    wrappers: dict[str, Callable[[Any], Any]] = {
        "claim_key": tracing.claim_key,
        "finish": tracing.finish,
        "finish_async": tracing.finish_async,
        "attempt": tracing.attempt,
        "attempt_async": tracing.attempt_async,
    }
    for name, wrap in wrappers.items():
        setattr(engine, name, wrap(getattr(engine, name)))
    idempotency.events.subscribe(_note_outcome)


class Tracing:
    """Wraps the methods of one engine."""

    def __init__(self, engine: Engine, tracer: Tracer) -> None:
        self._digest = engine.digest
        self._tracer = tracer

    def claim_key(self, claim_key: Callable[..., Flow[Running | Verdict]]) -> Any:
        """Every claim comes through this one, of a request and of ``once()``."""

        @functools.wraps(claim_key)
        def traced(
            exchange: Exchange, rules: Rules, tenant: str, key: str, *args: Any, **named: Any
        ) -> Flow[Running | Verdict]:
            span = self._span(
                CLAIM, lambda: {"mode": str(rules.mode), "key_digest": self._digest(tenant, key)}
            )
            with span:
                begun = yield from claim_key(exchange, rules, tenant, key, *args, **named)
                span.note(lambda: _claimed(begun))
            return begun

        return traced

    def finish(self, finish: Callable[[Running, Handled], Finished]) -> Any:
        @functools.wraps(finish)
        def traced(running: Running, handled: Handled) -> Finished:
            with self._span(FINISH, lambda: self._facts(running), finishing=True) as span:
                finished = finish(running, handled)
                span.note(lambda: _finished(finished))
            return finished

        return traced

    def finish_async(self, finish: Callable[[Running, Handled], Awaitable[Finished]]) -> Any:
        @functools.wraps(finish)
        async def traced(running: Running, handled: Handled) -> Finished:
            if running.sync:
                return await finish(running, handled)  # it calls the sync one, in a thread
            with self._span(FINISH, lambda: self._facts(running), finishing=True) as span:
                finished = await finish(running, handled)
                span.note(lambda: _finished(finished))
            return finished

        return traced

    def attempt(self, attempt: Callable[[PhasedRun], Finished]) -> Any:
        """Phased work records its end itself; so the whole attempt is one span, the completer's too."""

        @functools.wraps(attempt)
        def traced(run: PhasedRun) -> Finished:
            with self._span(PHASES, lambda: self._phased(run)) as span:
                finished = attempt(run)
                span.note(lambda: _finished(finished))
            return finished

        return traced

    def attempt_async(self, attempt: Callable[[PhasedRun], Awaitable[Finished]]) -> Any:
        @functools.wraps(attempt)
        async def traced(run: PhasedRun) -> Finished:
            if not run.definition.is_async:
                return await attempt(run)  # it calls the sync one, in a thread
            with self._span(PHASES, lambda: self._phased(run)) as span:
                finished = await attempt(run)
                span.note(lambda: _finished(finished))
            return finished

        return traced

    def _span(self, name: str, facts: Callable[[], Facts], *, finishing: bool = False) -> Span:
        return Span(self._tracer, name, facts, finishing=finishing)

    def _facts(self, running: Running) -> Facts:
        return {
            "mode": str(running.claim.mode),
            "key_digest": self._digest(running.tenant, running.claim.key),
            "operation_id": running.operation.id,
            "attempts": running.attempts,
        }

    def _phased(self, run: PhasedRun) -> Facts:
        return {
            "mode": "phased",
            "definition": run.definition.identity,
            "key_digest": self._digest(run.captured.tenant, run.lease.key),
            "operation_id": run.operation_id,
            "attempts": run.attempts,
        }


class Span:
    """A span that cannot fail what it surrounds: whatever tracing raises is logged and forgotten."""

    def __init__(
        self, tracer: Tracer, name: str, facts: Callable[[], Facts], *, finishing: bool = False
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._facts = facts
        self._finishing = finishing
        self._span: Any = None
        self._context: Any = None
        self._outer: Any = None

    def __enter__(self) -> Span:
        try:
            from opentelemetry import context, trace

            self._span = self._tracer.start_span(self._name)
            self._context = context.attach(trace.set_span_in_context(self._span))
        except Exception:
            _complain()
        if self._finishing:
            self._outer = _finishing.set(self)
        self.note(self._facts)
        return self

    def note(self, facts: Callable[[], Facts]) -> None:
        if self._span is None:
            return
        try:
            for name, value in facts().items():
                self._span.set_attribute(PREFIX + name, value)
        except Exception:
            _complain()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> None:
        try:
            if self._outer is not None:
                _finishing.reset(self._outer)
            if self._context is not None:
                from opentelemetry import context

                context.detach(self._context)
            if self._span is not None:
                if kind is not None and not issubclass(kind, GeneratorExit):
                    from opentelemetry.trace import Status, StatusCode

                    self._span.set_attribute("error.type", kind.__name__)
                    self._span.set_status(Status(StatusCode.ERROR, kind.__name__))
                self._span.end()
        except Exception:
            _complain()


def _note_outcome(event: Event) -> None:
    """The engine tells how an operation ended while its span is open: no need to judge it twice."""
    span = _finishing.get()
    if span is not None and event.name == FINISHED:
        span.note(lambda: {"outcome": event.facts.get("outcome", "")})


def _claimed(begun: Running | Verdict) -> Facts:
    if isinstance(begun, Running):
        return {
            "decision": "execute" if begun.attempts == 1 else "execute_again",
            "operation_id": begun.operation.id,
            "attempts": begun.attempts,
            "reused": begun.reused,
        }
    return {"decision": _decision(begun)}


def _decision(verdict: Verdict) -> str:
    match verdict:
        case Replay():
            return "replay"
        case Mismatch():
            return "mismatch"
        case Outstanding():
            return "in_progress"
        case Accepted():
            return "accepted"
        case Uncertain() | Ask():
            return "unknown"
        case Withheld():
            return "withheld"
        case Gone():
            return "gone"
        case Unreadable():
            return "unreadable"
        case ModeChanged():
            return "mode_changed"
        case _:
            assert_never(verdict)


def _finished(finished: Finished) -> Facts:
    return {} if finished.answer is None else {"status": finished.answer.status}


_complained = False


def _complain() -> None:
    """Once: a broken tracer must not fill the log."""
    global _complained  # noqa: PLW0603
    if not _complained:
        _complained = True
        logger.exception("Tracing failed; requests are not affected")

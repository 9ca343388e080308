"""The decorators: they claim when the framework reaches the handler, after authentication and validation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from ..core.problem import Refusal, refuse
from ..core.record import Answer
from ..errors import ConfigurationError
from .exchange import Exchange, Unguarded, current_exchange
from .input import Captured, capture
from .operation import _current
from .phased import Definition
from .rules import Rules
from .way import Finished

if TYPE_CHECKING:
    from .engine import Engine

GUARD = "__samekey_guard__"
"""The attribute that marks a decorated handler, so that the edge leaves its claim to it."""
ENGINE = "__samekey_engine__"
"""Beside it: whose decorator it was."""


def guard(engine: Engine, handler: Any, rules: Rules) -> Any:
    """A handler that claims before it runs. It keeps its signature, and sync stays sync."""
    check_undecorated(handler)
    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            exchange = _exchange_of(handler)
            if exchange is None:
                return await handler(*args, **kwargs)
            begun = await engine.begin_async(exchange, rules)
            if isinstance(begun, Answer):
                return exchange.decided(begun)
            if begun is None:
                return await handler(*args, **kwargs)
            token = _current.set(begun.operation)
            try:
                return await handler(*args, **kwargs)
            except BaseException as error:
                exchange.error = error
                raise
            finally:
                _current.reset(token)

        guarded: Any = guarded_async
    else:

        @functools.wraps(handler)
        def guarded_sync(*args: Any, **kwargs: Any) -> Any:
            exchange = _exchange_of(handler)
            if exchange is None:
                return handler(*args, **kwargs)
            begun = engine.begin(exchange, rules)
            if isinstance(begun, Answer):
                return exchange.decided(begun)
            if begun is None:
                return handler(*args, **kwargs)
            token = _current.set(begun.operation)
            try:
                return handler(*args, **kwargs)
            except BaseException as error:
                exchange.error = error
                raise
            finally:
                _current.reset(token)

        guarded = guarded_sync
    _mark(guarded, engine, handler, rules)
    return guarded


def phased_endpoint(engine: Engine, definition: Definition) -> Any:
    """An endpoint of a phased function: it captures the input, claims, and runs the phases."""
    function = definition.function
    check_undecorated(function)
    if inspect.iscoroutinefunction(function):

        async def endpoint_async(*args: Any, **kwargs: Any) -> Any:
            exchange = _exchange_of(function)
            if exchange is None:
                raise ConfigurationError(_PHASED_METHOD)
            value = capture(exchange, definition.model, args, kwargs)
            if isinstance(value, Refusal):
                return exchange.decided(refuse(value, definition.rules.policy))
            begun = await engine.begin_async(exchange, definition.rules)
            if begun is None or isinstance(begun, Answer):
                assert begun is not None, "phased work always needs a key"
                return exchange.decided(begun)
            finished = await engine.run_phased_async(begun, definition, Captured(begun.tenant, value))
            return _settle(exchange, finished)

        endpoint: Any = endpoint_async
    else:

        def endpoint_sync(*args: Any, **kwargs: Any) -> Any:
            exchange = _exchange_of(function)
            if exchange is None:
                raise ConfigurationError(_PHASED_METHOD)
            value = capture(exchange, definition.model, args, kwargs)
            if isinstance(value, Refusal):
                return exchange.decided(refuse(value, definition.rules.policy))
            begun = engine.begin(exchange, definition.rules)
            if begun is None or isinstance(begun, Answer):
                assert begun is not None, "phased work always needs a key"
                return exchange.decided(begun)
            finished = engine.run_phased(begun, definition, Captured(begun.tenant, value))
            return _settle(exchange, finished)

        endpoint = endpoint_sync
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(endpoint, name, getattr(function, name))
    # What a framework sees: the input if it is a model that the framework can validate, and nothing else.
    shown = list(inspect.signature(function).parameters.values())[1:2] if definition.model else []
    parameters = [
        parameter.replace(annotation=definition.model, kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in shown
    ]
    endpoint.__signature__ = inspect.Signature(parameters)
    _mark(endpoint, engine, function, definition.rules)
    return endpoint


def _mark(guarded: Any, engine: Engine, handler: Any, rules: Rules) -> None:
    """What the edge and the checks at start-up see. A route that calls the bare function is unguarded."""
    setattr(guarded, GUARD, rules)
    setattr(guarded, ENGINE, engine)
    while handler is not None and identity(handler) not in engine.declared:
        engine.declared[identity(handler)] = handler
        handler = getattr(handler, "__wrapped__", None)


def identity(handler: Any) -> tuple[int, int]:
    """Which function it is. A method is made anew whenever it is looked up, and is the same all the same."""
    if isinstance(handler, MethodType):
        return id(handler.__func__), id(handler.__self__)
    return id(handler), 0


def _settle(exchange: Exchange, finished: Finished) -> Any:
    """The record is already as it should be; the edge has nothing left to record."""
    exchange.running = None
    if finished.answer is not None:
        return exchange.decided(finished.answer)
    assert finished.error is not None
    raise finished.error


def check_undecorated(handler: Any) -> None:
    if not callable(handler):
        raise ConfigurationError("Decorate a function: @idempotency.atomic above def or async def.")
    if isinstance(handler, type):
        raise ConfigurationError(
            f"{handler.__qualname__} is a class, and a decorator of samekey guards one function. Decorate "
            "its methods (def post, def patch)."
        )
    if getattr(handler, GUARD, None) is not None:
        raise ConfigurationError(f"{handler!r} is declared twice; keep one decorator of samekey.")


_PHASED_METHOD = (
    "A phased function was reached by a method that is not guarded, so nothing was run: without a key it "
    "could not be resumed. Route it by POST, or add its method to the policy's `methods`."
)


def _exchange_of(handler: Callable[..., Any]) -> Exchange | None:
    """The exchange of this request; None where the middleware lets it pass (a PUT, say)."""
    exchange = current_exchange.get()
    if isinstance(exchange, Unguarded):
        return None
    if exchange is None:
        raise ConfigurationError(
            f"{handler.__qualname__} is guarded, but no IdempotencyMiddleware is around the application, "
            "so nothing was run. Add it: app.add_middleware(IdempotencyMiddleware, idempotency=…, tenant=…)."
        )
    return exchange

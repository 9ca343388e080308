"""The decorators: they claim when the framework reaches the handler, after authentication and validation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from ..core.problem import Refusal, refuse
from ..core.record import Answer
from ..core.states import Mode
from ..errors import ConfigurationError, NotExecuted
from .boundary import Boundary, Place
from .exchange import Exchange, Unguarded, current_exchange
from .input import Captured, capture
from .operation import Running, _current
from .phased import Definition
from .rules import Rules
from .shape import DEFINITION
from .way import Finished

if TYPE_CHECKING:
    from .engine import Engine

GUARD = "__samekey_guard__"
"""The attribute that marks a decorated handler, so that the edge leaves its claim to it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a decorated handler, so that the edge leaves its claim to it."""

    engine: Engine
    rules: Rules


def guard(engine: Engine, handler: Any, rules: Rules) -> Any:
    """A handler that claims before it runs. It keeps its signature, and sync stays sync."""
    check_undecorated(handler)
    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            exchange = _exchange_of(handler, engine)
            if exchange is None:
                return await handler(*args, **kwargs)
            return await _run_async(engine, rules, exchange, handler, args, kwargs)

        guarded: Any = guarded_async
    else:

        @functools.wraps(handler)
        def guarded_sync(*args: Any, **kwargs: Any) -> Any:
            exchange = _exchange_of(handler, engine)
            if exchange is None:
                return handler(*args, **kwargs)
            return _run(engine, rules, exchange, handler, args, kwargs)

        guarded = guarded_sync
    _mark(guarded, engine, handler, rules)
    return guarded


def at_handler(handler: Any) -> Any:
    """A route's own undecorated handler, guarded by the rules that the edge has for such routes.

    It claims when the framework reaches it, as a decorated one does, so authentication and validation come
    first; and its boundary is seen.
    """
    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            found = _undecorated()
            if found is None:
                return await handler(*args, **kwargs)
            return await _run_async(*found, handler, args, kwargs)

        return guarded_async

    @functools.wraps(handler)
    def guarded_sync(*args: Any, **kwargs: Any) -> Any:
        found = _undecorated()
        if found is None:
            return handler(*args, **kwargs)
        return _run(*found, handler, args, kwargs)

    return guarded_sync


def _undecorated() -> tuple[Engine, Rules, Exchange] | None:
    """What the edge says of this request; None where it lets it pass, or a guard has claimed already."""
    exchange = current_exchange.get()
    if not isinstance(exchange, Exchange) or exchange.engine is None or exchange.rules is None:
        return None
    running = exchange.running
    if running is not None and running.boundary.place is Place.RUNNING:
        return None  # a part of the handler that is guarded already
    return exchange.engine, exchange.rules, exchange


def _run(
    engine: Engine, rules: Rules, exchange: Exchange, handler: Any, args: tuple[Any, ...], kwargs: Any
) -> Any:
    """Claims, and calls the handler inside its boundary."""
    begun = engine.begin(exchange, rules)
    if isinstance(begun, Answer):
        return exchange.decided(begun)
    boundary = begun.boundary
    token = _current.set(begun.operation)
    if not boundary.enter(kwargs):
        engine.unwanted(begun)
    try:
        value = handler(*_as_wsgi(boundary, args), **kwargs)
        if inspect.isawaitable(value):
            must_have_run(value)  # a generator may be an answer, a coroutine that nobody awaits may not
    except BaseException as error:
        if boundary.raised(error):
            engine.finish(begun, exchange.handled(None))
        raise
    finally:
        _current.reset(token)
    if boundary.returned(value):
        engine.finish(begun, exchange.handled(None))
    return value


def must_have_run(value: Any) -> Any:
    """What a sync function returned. A coroutine or a generator has not run yet, and nobody would run it."""
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        if inspect.iscoroutine(value) or inspect.isgenerator(value):
            value.close()
        raise NotExecuted(
            f"The function gave {type(value).__name__}, so nothing was run. Guard the function that does the "
            "work itself: an async one declared with async def (in a call: await once_async(…)), and no "
            "generator."
        )
    return value


def _as_wsgi(boundary: Boundary, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A decorated function may be a bare application: then the status that it starts with is its own word."""
    if len(args) < 2 or not isinstance(args[-2], dict) or "wsgi.input" not in args[-2]:
        return args
    start_response = args[-1]

    def start(status: str, *more: Any) -> Any:
        code = status.split(" ", 1)[0]
        boundary.said = int(code) if code.isdigit() else None
        return start_response(status, *more)

    return (*args[:-1], start)


def _as_asgi(
    boundary: Boundary, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same for ASGI, where the application also sends its answer while it still runs."""
    by_name = "scope" in kwargs and "send" in kwargs
    if not by_name and len(args) < 3:
        return args, kwargs
    scope, send = (kwargs["scope"], kwargs["send"]) if by_name else (args[-3], args[-1])
    if not isinstance(scope, MutableMapping) or "type" not in scope:
        return args, kwargs

    async def send_own(message: Any) -> None:
        if message["type"] == "http.response.start":
            boundary.said = message["status"]
        elif message["type"] == "http.response.body":
            boundary.sent_all = not message.get("more_body", False)
        await send(message)

    return (args, {**kwargs, "send": send_own}) if by_name else ((*args[:-1], send_own), kwargs)


async def _run_async(
    engine: Engine, rules: Rules, exchange: Exchange, handler: Any, args: tuple[Any, ...], kwargs: Any
) -> Any:
    """``_run`` for async handlers."""
    if rules.mode in (Mode.ATOMIC, Mode.DEFERRED) and "wsgi.input" in exchange.context:
        raise ConfigurationError(
            f"{getattr(handler, '__qualname__', handler)} is async and {rules.mode}, but a WSGI server calls "
            "it in an event loop of its own, which is gone before the transaction can end. Nothing was run. "
            "Declare it with def."
        )
    begun = await engine.begin_async(exchange, rules)
    if isinstance(begun, Answer):
        return exchange.decided(begun)
    boundary = begun.boundary
    token = _current.set(begun.operation)
    if not boundary.enter(kwargs):
        await engine.unwanted_async(begun)
    args, kwargs = _as_asgi(boundary, args, kwargs)
    try:
        value = await handler(*args, **kwargs)
    except BaseException as error:
        if boundary.raised(error):
            await engine.finish_async(begun, exchange.handled(None))
        raise
    finally:
        _current.reset(token)
    if boundary.returned(value):
        await engine.finish_async(begun, exchange.handled(None))
    return value


def phased_endpoint(engine: Engine, definition: Definition) -> Any:
    """An endpoint of a phased function: it captures the input, claims, and runs the phases."""
    function = definition.function
    check_undecorated(function)
    if inspect.iscoroutinefunction(function):

        async def endpoint_async(*args: Any, **kwargs: Any) -> Any:
            exchange = _exchange_of(function, engine)
            if exchange is None:
                raise ConfigurationError(_PHASED_METHOD)
            value = capture(exchange, definition.model, args, kwargs)
            if isinstance(value, Refusal):
                return exchange.decided(refuse(value, definition.rules.policy))
            shape = definition.noted_shape(endpoint_of(exchange), exchange.context)
            begun = await engine.begin_async(exchange, definition.rules)
            if isinstance(begun, Answer):
                return exchange.decided(begun)

            if not begun.boundary.enter():
                await engine.unwanted_async(begun)

            async def run(begun: Running = begun) -> Finished:
                with _phases(engine, exchange, begun) as ended:
                    captured = Captured(begun.tenant, value, *shape)
                    return ended(await engine.run_phased_async(begun, definition, captured))

            # Whoever waits may be cancelled; the phases go on, and record what becomes of them.
            return _respond(exchange, await engine.own(run()))

        endpoint: Any = endpoint_async
    else:

        def endpoint_sync(*args: Any, **kwargs: Any) -> Any:
            exchange = _exchange_of(function, engine)
            if exchange is None:
                raise ConfigurationError(_PHASED_METHOD)
            value = capture(exchange, definition.model, args, kwargs)
            if isinstance(value, Refusal):
                return exchange.decided(refuse(value, definition.rules.policy))
            shape = definition.noted_shape(endpoint_of(exchange), exchange.context)
            begun = engine.begin(exchange, definition.rules)
            if isinstance(begun, Answer):
                return exchange.decided(begun)
            if not begun.boundary.enter():
                engine.unwanted(begun)
            with _phases(engine, exchange, begun) as ended:
                finished = ended(engine.run_phased(begun, definition, Captured(begun.tenant, value, *shape)))
            return _respond(exchange, finished)

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
    setattr(endpoint, DEFINITION, definition)
    return endpoint


def endpoint_of(exchange: Exchange) -> str:
    """A route, as its method and its template."""
    return f"{exchange.parts.method} {exchange.endpoint}"


def _mark(guarded: Any, engine: Engine, handler: Any, rules: Rules) -> None:
    """What the edge and the checks at start-up see. A route that calls the bare function is unguarded."""
    setattr(guarded, GUARD, Mark(engine, rules))
    while handler is not None and identity(handler) not in engine.declared:
        engine.declared[identity(handler)] = handler
        handler = getattr(handler, "__wrapped__", None)


def identity(handler: Any) -> tuple[int, int]:
    """Which function it is. A method is made anew whenever it is looked up, and is the same all the same."""
    if isinstance(handler, MethodType):
        return id(handler.__func__), id(handler.__self__)
    return id(handler), 0


@contextmanager
def _phases(engine: Engine, exchange: Exchange, running: Running) -> Iterator[Callable[[Finished], Finished]]:
    """The boundary of a phased run. It records its own end, so the edge has nothing left to record."""

    def ended(finished: Finished) -> Finished:
        exchange.answer = finished.answer
        return finished

    try:
        yield ended
    finally:
        running.boundary.returned()
        exchange.running = None
        engine.found(running)


def _respond(exchange: Exchange, finished: Finished) -> Any:
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
    function = inspect.unwrap(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{function.__qualname__} is a generator: it would run after its guard has ended. Decorate a "
            "function that returns its answer; a stream may be a part of that answer."
        )


_PHASED_METHOD = (
    "A phased function was reached by a method that is not guarded, so nothing was run: without a key it "
    "could not be resumed. Route it by POST, or add its method to the policy's `methods`."
)


def _exchange_of(handler: Callable[..., Any], engine: Engine) -> Exchange | None:
    """The exchange of this request; None where the middleware lets it pass (a PUT, say)."""
    exchange = current_exchange.get()
    if isinstance(exchange, Unguarded):
        return None
    if exchange is None:
        raise ConfigurationError(
            f"{handler.__qualname__} is guarded, but no IdempotencyMiddleware is around the application, or "
            "it leaves this route alone, so nothing was run. Add it: app.add_middleware("
            "IdempotencyMiddleware, idempotency=…, tenant=…)."
        )
    if exchange.engine is not engine:
        raise ConfigurationError(
            f"{handler.__qualname__} is guarded by another Idempotency than the middleware's, so nothing was "
            "run: its answer would be lost. Make one Idempotency, and use it for both."
        )
    return exchange

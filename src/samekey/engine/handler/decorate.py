"""The decorators: they claim when the framework reaches the handler, after authentication and validation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...core.problem import Refusal, refuse
from ...core.record import Answer
from ...core.states import Mode
from ...errors import ConfigurationError
from ..exchange import Exchange, exchange_of_call
from ..modes.mode import Finished
from ..operation import Running, enter, leave
from ..phased.input import Captured, capture, declared_input
from ..phased.phased import Definition
from .around import REFUSED
from .bare import answer_instead, answer_instead_async, as_asgi, as_wsgi
from .body import read, read_async
from .forms import in_form_of, must_have_run, value_of
from .marks import GUARD, Exempt, Mark, identity
from .reached import Part, is_part_of_the_handler, reach
from .rules import Rules
from .shape import DEFINITION

if TYPE_CHECKING:
    from ..engine import Engine


def guard(engine: Engine, handler: Any, rules: Rules) -> Any:
    """A handler that claims before it runs. It keeps its signature, and sync stays sync."""
    check_undecorated(handler)

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        exchange = reach(guarded, (*args, *kwargs.values()))
        if isinstance(exchange, Part):
            with exchange.runs() as gave:
                return gave(await value_of(handler(*args, **kwargs)))
        if exchange is None:
            return await value_of(handler(*args, **kwargs))
        return await _run_async(engine, rules, exchange, handler, args, kwargs)

    def run_sync(*args: Any, **kwargs: Any) -> Any:
        exchange = reach(guarded, (*args, *kwargs.values()))
        if isinstance(exchange, Part):
            with exchange.runs() as gave:
                return gave(handler(*args, **kwargs))
        if exchange is None:
            return handler(*args, **kwargs)
        return _run(engine, rules, exchange, handler, args, kwargs)

    guarded: Any = in_form_of(handler, run_async, run_sync)
    _mark(guarded, engine, handler, rules)
    return guarded


def exempted(handler: Any) -> Any:
    """A handler that is left alone. It is a function of its own: the handler may be on other routes, too."""
    check_undecorated(handler)

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        return await value_of(handler(*args, **kwargs))

    def run_sync(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    left_alone = in_form_of(handler, run_async, run_sync)
    setattr(left_alone, GUARD, Exempt(left_alone))
    return left_alone


def at_handler(handler: Any, *, wrapped: bool) -> Any:
    """A route's own undecorated handler, guarded by the rules that the edge has for such routes.

    It claims when the framework reaches it, so authentication and validation come first; and its boundary
    is seen. ``wrapped``: others stand around it.
    """

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        found = undecorated((*args, *kwargs.values()), wrapped=wrapped)
        if found is None:
            return await value_of(handler(*args, **kwargs))
        return await _run_async(*found, handler, args, kwargs, wrapped=wrapped)

    def run_sync(*args: Any, **kwargs: Any) -> Any:
        found = undecorated((*args, *kwargs.values()), wrapped=wrapped)
        if found is None:
            return handler(*args, **kwargs)
        return _run(*found, handler, args, kwargs, wrapped=wrapped)

    return in_form_of(handler, run_async, run_sync)


def undecorated(arguments: tuple[Any, ...], *, wrapped: bool) -> tuple[Engine, Rules, Exchange] | None:
    """What the edge says of this request; None where it lets it pass, or a guard has claimed already."""
    exchange = exchange_of_call(arguments, decorated=False)
    if not isinstance(exchange, Exchange) or exchange.engine is None or exchange.rules is None:
        return None
    if exchange.at_edge or is_part_of_the_handler(exchange):
        return None
    if wrapped and not exchange.around:
        raise ConfigurationError(f"{endpoint_of(exchange)}: {REFUSED}")
    return exchange.engine, exchange.rules, exchange


def _run(
    engine: Engine,
    rules: Rules,
    exchange: Exchange,
    handler: Any,
    args: tuple[Any, ...],
    kwargs: Any,
    *,
    wrapped: bool = False,
) -> Any:
    """Claims, and calls the handler inside its boundary."""
    noted = exchange.framework.noted(kwargs)
    begun = exchange.answer or engine.begin(exchange, rules)
    if isinstance(begun, Answer):
        return answer_instead(exchange, begun, args)
    boundary = begun.boundary
    entered = enter(begun.operation)
    if not boundary.enter(noted, wrapped=wrapped):
        engine.unwanted(begun)
    try:
        value = handler(*as_wsgi(exchange, boundary, args), **kwargs)
        if inspect.isawaitable(value):
            # A generator may be an answer; a coroutine that nobody awaits may not.
            must_have_run(value, handler)
        word = exchange.word_of(value, boundary.noted)
        begun.settle(word)
    except BaseException as error:
        try:
            engine.fall(begun, error)
        finally:
            if boundary.raised(error):
                engine.finish(begun, exchange.handled(None))
        raise
    finally:
        leave(entered)
    try:
        return exchange.framework.watch(value, begun)
    finally:
        if boundary.returned(word):
            engine.finish(begun, exchange.handled(None))


async def _run_async(
    engine: Engine,
    rules: Rules,
    exchange: Exchange,
    handler: Any,
    args: tuple[Any, ...],
    kwargs: Any,
    *,
    wrapped: bool = False,
) -> Any:
    """``_run`` for async handlers."""
    if rules.mode in (Mode.ATOMIC, Mode.DEFERRED) and (
        exchange.ends_sync or "wsgi.input" in exchange.context
    ):
        by = "a WSGI server" if "wsgi.input" in exchange.context else "a sync middleware below samekey's"
        raise ConfigurationError(
            f"{getattr(handler, '__qualname__', handler)} is async and {rules.mode}, but {by} calls it in an "
            "event loop of its own, which is gone before the transaction can end. Nothing was run. Declare "
            "it with def, or put a sync middleware above samekey's."
        )
    noted = exchange.framework.noted(kwargs)
    begun = exchange.answer or await engine.begin_async(exchange, rules)
    is_bare = len(args) > 2 or "send" in kwargs
    if isinstance(begun, Answer):
        if is_bare:
            return await answer_instead_async(exchange, begun, args, kwargs)
        return exchange.decided(begun)
    boundary = begun.boundary
    entered = enter(begun.operation)
    if not boundary.enter(noted, wrapped=wrapped):
        await engine.unwanted_async(begun)
    try:
        if is_bare:
            args, kwargs = as_asgi(exchange, boundary, args, kwargs)
        value = await value_of(handler(*args, **kwargs))
        word = exchange.word_of(value, boundary.noted)
        await begun.settle_async(word)
    except BaseException as error:
        try:
            await engine.fall_async(begun, error)
        finally:
            if boundary.raised(error):
                await engine.finish_async(begun, exchange.handled(None))
        raise
    finally:
        leave(entered)
    try:
        return exchange.framework.watch(value, begun)
    finally:
        if boundary.returned(word):
            await engine.finish_async(begun, exchange.handled(None))


def phased_endpoint(engine: Engine, definition: Definition) -> Any:
    """An endpoint of a phased function: it captures the input, claims, and runs the phases."""
    function = definition.function
    check_undecorated(function)
    if inspect.iscoroutinefunction(function):

        async def endpoint_async(*args: Any, **kwargs: Any) -> Any:
            exchange = reach(endpoint, (*args, *kwargs.values()))
            if not isinstance(exchange, Exchange):
                raise ConfigurationError(_PHASED_METHOD)
            if exchange.answer is None:
                exchange.answer = await read_async(exchange, definition.rules.policy)
            if exchange.answer is not None:
                return exchange.decided(exchange.answer)
            value = capture(exchange, definition.model, args, kwargs, definition.extras)
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
            exchange = reach(endpoint, (*args, *kwargs.values()))
            if not isinstance(exchange, Exchange):
                raise ConfigurationError(_PHASED_METHOD)
            if exchange.answer is None:
                exchange.answer = read(exchange, definition.rules.policy)
            if exchange.answer is not None:
                return exchange.decided(exchange.answer)
            value = capture(exchange, definition.model, args, kwargs, definition.extras)
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
    # What a framework sees: the input if it is a model that the framework can validate, and the extras.
    shown = list(inspect.signature(function).parameters.values())[1:2] if definition.model else []
    parameters = [
        parameter.replace(annotation=declared_input(function), kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in shown
    ]
    parameters += definition.extras.shown()
    endpoint.__signature__ = inspect.Signature(parameters)
    endpoint.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": Any}
    _mark(endpoint, engine, function, definition.rules)
    setattr(endpoint, DEFINITION, definition)
    return endpoint


def endpoint_of(exchange: Exchange) -> str:
    """A route, as its method and its template."""
    return f"{exchange.parts.method} {exchange.endpoint}"


def _mark(guarded: Any, engine: Engine, handler: Any, rules: Rules) -> None:
    """What the edge and the checks at start-up see. A route that calls the bare function is unguarded."""
    mark = Mark(engine, rules, guarded)
    setattr(guarded, GUARD, mark)
    engine.marks.append(mark)
    engine.largest_body = max(engine.largest_body, rules.policy.max_body)
    while handler is not None and identity(handler) not in engine.declared:
        engine.declared[identity(handler)] = handler
        handler = getattr(handler, "__wrapped__", None)


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
        return exchange.respond(finished.answer)
    assert finished.error is not None
    raise finished.error


def check_undecorated(handler: Any) -> None:
    if not callable(handler):
        raise ConfigurationError("Decorate a function: @idempotency.atomic above def or async def.")
    if hasattr(handler, "http_methods") and hasattr(handler, "fn"):
        raise ConfigurationError(
            "This is a route of Litestar already. Write Litestar's decorator (@post) above samekey's, so "
            "that it is given the guarded function."
        )
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

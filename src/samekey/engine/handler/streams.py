"""Handlers that are generators: FastAPI calls them, begins to answer, and only then runs their first line.

Such a handler claims at its first step, below authentication and validation. From its call until it has
given its first piece the edge holds the answer back (``Exchange.stream_due``). With that piece it has
returned: what fails later has broken its answer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, closing, contextmanager, nullcontext
from typing import Any, Final

from ...core.record import Answer
from ..exchange import Exchange
from ..operation import Running, enter, leave
from .boundary import Pieces

Within = Callable[[], AbstractContextManager[None]]
"""Enters the request that it is called for. At each step: whoever drives a generator has its own context."""


def is_stream(handler: Any) -> bool:
    """Whether calling it gives a generator, as FastAPI sees it: through partials, wrappers and objects."""
    return any(
        inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in _behind(handler)
    )


def _behind(handler: Any) -> tuple[Any, Any]:
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = inspect.unwrap(handler)
    return function, getattr(type(function), "__call__", None)  # noqa: B004 - whether it is a generator


def claiming_stream(
    given: Any, exchange: Exchange, within: Within, arguments: dict[str, Any], *, wrapped: bool
) -> Any:
    """A generator in the place of one that has not begun: it claims before that one's first step."""
    exchange.stream_due = True
    make = _steps_async if inspect.isasyncgen(given) else _steps
    return make(given, exchange, within, arguments, wrapped)


def called_at_first_step(handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A generator that calls the handler no earlier than at its first step, with whatever is around it."""

    def steps() -> Iterator[Any]:
        with closing(handler(*args, **kwargs)) as given:
            yield from given

    async def steps_async() -> AsyncIterator[Any]:
        async with aclosing(handler(*args, **kwargs)) as given:
            async for piece in given:
                yield piece

    return steps_async() if any(map(inspect.isasyncgenfunction, _behind(handler))) else steps()


class WatchedPiecesAsync:
    """The pieces of an answer that a handler returned. They are the handler's own lines, and run in its
    operation; the boundary hears whether they came to their end. What they come from is closed with them,
    once: at their end, where they break, or by whoever sends them."""

    def __init__(self, pieces: AsyncIterable[Any], running: Running) -> None:
        self._pieces = aiter(pieces)
        self._running = running
        self._closed = False
        running.boundary.pieces = Pieces.OPEN

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            with _step(self._running, nullcontext):
                piece = await anext(self._pieces, _END)
        except BaseException:
            await self.aclose()
            raise
        if piece is _END:
            self._running.boundary.pieces = Pieces.WHOLE
            await self.aclose()
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        close = getattr(self._pieces, "aclose", None)
        if close is not None and not self._closed:
            self._closed = True
            await close()


class WatchedPieces:
    """``WatchedPiecesAsync`` for sync code. Nobody may ask for them, of a 204, say; but whoever sends the
    answer closes them, begun or not, and with them whatever they come from: a cursor, a file."""

    def __init__(self, pieces: Iterator[Any], running: Running) -> None:
        self._pieces = pieces
        self._running = running
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._begun:
            self._begun, self._running.boundary.pieces = True, Pieces.OPEN
        with _step(self._running, nullcontext):
            piece = next(self._pieces, _END)
        if piece is _END:
            self._running.boundary.pieces = Pieces.WHOLE
            raise StopIteration
        return piece

    def close(self) -> None:
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


@contextmanager
def _step(begun: Running, within: Within) -> Iterator[None]:
    """Around one step of the handler's own."""
    entered = enter(begun.operation)
    try:
        with within():
            yield
    except BaseException:
        begun.boundary.streams = False
        if begun.boundary.pieces is Pieces.OPEN:
            begun.boundary.pieces = Pieces.BROKEN
        raise
    finally:
        leave(entered)


def _steps(
    given: Any, exchange: Exchange, within: Within, arguments: dict[str, Any], wrapped: bool
) -> Iterator[Any]:
    engine, rules = exchange.engine, exchange.rules
    assert engine is not None and rules is not None
    try:
        noted = exchange.framework.noted(arguments)
        begun = exchange.answer or engine.begin(exchange, rules)
        if isinstance(begun, Answer):
            exchange.answer = begun
            return
        if not begun.boundary.enter(noted, wrapped=wrapped):
            engine.unwanted(begun)
        try:
            with _step(begun, within):
                piece = next(given, _END)
        except BaseException as error:
            if begun.boundary.raised(error):
                engine.finish(begun, exchange.handled(None))
            raise
        if begun.boundary.returned(exchange.word_of(None, begun.boundary.noted)):
            engine.finish(begun, exchange.handled(None))
        exchange.stream_due = False
        begun.boundary.streams, begun.boundary.pieces = True, Pieces.OPEN
        while piece is not _END:
            yield piece
            with _step(begun, within):
                piece = next(given, _END)
        begun.boundary.pieces = Pieces.WHOLE
    finally:
        exchange.stream_due = False
        given.close()


async def _steps_async(
    given: Any, exchange: Exchange, within: Within, arguments: dict[str, Any], wrapped: bool
) -> AsyncIterator[Any]:
    """``_steps`` for async generators."""
    engine, rules = exchange.engine, exchange.rules
    assert engine is not None and rules is not None
    try:
        noted = exchange.framework.noted(arguments)
        begun = exchange.answer or await engine.begin_async(exchange, rules)
        if isinstance(begun, Answer):
            exchange.answer = begun
            return
        if not begun.boundary.enter(noted, wrapped=wrapped):
            await engine.unwanted_async(begun)
        try:
            with _step(begun, within):
                piece = await anext(given, _END)
        except BaseException as error:
            if begun.boundary.raised(error):
                await engine.finish_async(begun, exchange.handled(None))
            raise
        if begun.boundary.returned(exchange.word_of(None, begun.boundary.noted)):
            await engine.finish_async(begun, exchange.handled(None))
        exchange.stream_due = False
        begun.boundary.streams, begun.boundary.pieces = True, Pieces.OPEN
        while piece is not _END:
            yield piece
            with _step(begun, within):
                piece = await anext(given, _END)
        begun.boundary.pieces = Pieces.WHOLE
    finally:
        exchange.stream_due = False
        await given.aclose()


GIVES_MORE: Final = frozenset({"__call__", "__next__", "__anext__", "__await__"})
"""Names in a class whose objects are not sent at once: they send by themselves, or have more to give."""
_END: Final[Any] = object()

"""The server is called from where the request came in, not from inside the operation.

A server may begin the next request of a connection while the last piece of an answer is handed to it
(uvicorn does, for clients that pipeline), and goes on reading from a connection when a body is asked for,
whatever comes then. Tasks and callbacks take over the context that they are begun in: another request would
be taken for a part of this one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from functools import partial
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def from_outside(call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """``call``, each step of it in the context of this moment, whoever awaits it."""
    context = copy_context()

    @coroutine
    def calling(*given: Any) -> Generator[Any, Any, T]:
        steps = context.run(lambda: call(*given).__await__())
        step: Callable[[], Any] = partial(context.run, next, steps)
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                step = partial(context.run, steps.send, (yield waits_for))
            except BaseException as error:  # whoever awaits it is cancelled, or closed
                step = partial(context.run, steps.throw, error)

    return calling

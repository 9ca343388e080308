"""Whose key it is, asked as the user has written it: of the scope or of the framework's own request, sync or
async. Never of the body."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable
from functools import wraps
from typing import Any

from ..errors import ConfigurationError
from ..tenants import Tenant


def asked_of(resolver: Tenant) -> Tenant:
    """The resolver as a function of the scope or environ: one whose parameter is annotated with a framework's
    request is given that, made of the scope."""
    kind = _request_kind(resolver)
    if kind is None:
        return resolver
    made = kind

    @wraps(resolver)
    def resolve(context: Any) -> Any:
        return resolver(made(context))

    return resolve


def is_async(resolver: Any) -> bool:
    """Whether it must be awaited, also where it was wrapped."""
    inner = inspect.unwrap(resolver)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


def _request_kind(resolver: Any) -> Callable[[Any], Any] | None:
    try:
        hints = typing.get_type_hints(resolver if inspect.isroutine(resolver) else type(resolver).__call__)
        parameters = [*inspect.signature(resolver).parameters]
    except (TypeError, ValueError, NameError, AttributeError):
        return None
    kind = hints.get(parameters[0]) if parameters else None
    kind = typing.get_origin(kind) or kind
    return kind if isinstance(kind, type) and kind.__name__.endswith("Request") else None


class AwaitedCaller:
    """One async resolver, asked once for one request; what it raised is raised to whoever asks."""

    def __init__(self, resolver: Tenant, context: Any) -> None:
        self._resolver = resolver
        self._context = context
        self._found: str | None = None
        self._error: BaseException | None = None

    async def meet(self) -> None:
        try:
            found = self._resolver(self._context)
            self._found = await found if inspect.isawaitable(found) else found
        except Exception as error:
            self._error = error

    def __call__(self, context: Any) -> str | None:
        """None where nobody has met it: only those who count requests without a key ask then."""
        if self._error is not None:
            raise self._error
        return self._found


class AsyncCallers:
    """The async resolvers of one request, met before its claim."""

    def __init__(self, callers: list[AwaitedCaller]) -> None:
        self._callers = callers
        self._loop = asyncio.get_running_loop()

    def meet(self) -> None:
        """For a sync handler in a thread: they are asked on the event loop that the request came by."""
        asyncio.run_coroutine_threadsafe(self.meet_async(), self._loop).result()

    async def meet_async(self) -> None:
        for caller in self._callers:
            await caller.meet()


def met_by(tenant: Tenant, binding: Tenant | None, scope: Any) -> tuple[Tenant, Tenant | None, AsyncCallers]:
    """The resolvers as the claim of one request asks them, and those among them that must be met before."""
    asked = [
        one if one is None or not is_async(one) else AwaitedCaller(one, scope) for one in (tenant, binding)
    ]
    assert asked[0] is not None
    return asked[0], asked[1], AsyncCallers([one for one in asked if isinstance(one, AwaitedCaller)])


def must_be_sync(*resolvers: Tenant | None) -> None:
    """A WSGI server has no event loop to ask an async one on."""
    if any(one is not None and is_async(one) for one in resolvers):
        raise ConfigurationError("Under WSGI the tenant and the binding are plain functions, not async ones.")

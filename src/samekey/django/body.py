"""What a claim needs of Django's request and may have to wait for: its body, and in async code its caller.

Until then the body is the application's. What parsers have read by then (a form that the CSRF check looked
at, data that REST framework has validated) is remembered, and the claim reads the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest

from ..core.policy import Policy
from ..core.problem import Refusal
from ..edges.bodies import WsgiBody

Resolver = Callable[[Any], Any]


class RequestBody:
    """The body of one request. It stands in the place of the stream that Django reads."""

    def __init__(self, request: HttpRequest, most: int) -> None:
        self._read: bytes | None = getattr(request, "_body", None)
        # Under ASGI Django has received all of it already, and says how long it is.
        source = {
            **{name: request.META[name] for name in _NAMES if name in request.META},
            "wsgi.input": request._stream,
            "wsgi.input_terminated": True,
        }
        self._stream = WsgiBody.of(source, most)
        if self._read is None:
            request._stream = self._stream

    def is_larger(self, limit: int) -> bool:
        """Whether it is too large by what its client says."""
        return self._stream.is_larger(limit)

    async def whole_async(self, policy: Policy) -> bytes | Refusal | None:
        return self.whole(policy)

    def whole(self, policy: Policy) -> bytes | Refusal | None:
        if self._read is None:
            return self._stream.whole(policy)
        if len(self._read) > policy.max_body:
            from ..edges.guards import too_large

            return too_large(policy.max_body)
        return self._read or None


_NAMES = ("CONTENT_LENGTH", "HTTP_TRANSFER_ENCODING")


class RequestCallers:
    """All that the claim of one request asks for."""

    def __init__(self, callers: list[Caller]) -> None:
        self._callers = callers

    def meet(self) -> None:
        for caller in self._callers:
            caller.resolve()

    async def meet_async(self) -> None:
        for caller in self._callers:
            await caller.resolve_async()


class Caller:
    """Who asks, or the session that the key is bound to: asked for at the claim, once the view's own
    authentication has been by."""

    def __init__(self, resolver: Resolver, request: HttpRequest) -> None:
        self._resolver = resolver
        self._request = request
        self._is_known = False
        self._found: str | None = None

    def resolve(self) -> None:
        resolver, request = self._resolver, self._request
        self._found = async_to_sync(resolver)(request) if iscoroutinefunction(resolver) else resolver(request)
        self._is_known = True

    async def resolve_async(self) -> None:
        """A sync one in Django's thread: a user that is looked up lazily is looked up there."""
        resolver = self._resolver
        if not iscoroutinefunction(resolver):
            resolver = sync_to_async(resolver, thread_sensitive=True)
        self._found = await resolver(self._request)
        self._is_known = True

    def __call__(self, context: Any) -> str | None:
        # A claim has asked. Without a key there is none, and who counts such requests may ask here.
        if not self._is_known and not iscoroutinefunction(self._resolver):
            self.resolve()
        return self._found

"""One request on its way through the engine, whichever edge it came in by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.fingerprint import RequestParts
from ..core.record import Answer
from ..errors import Answered
from .boundary import Boundary, Place
from .operation import Running
from .way import Handled

if TYPE_CHECKING:
    from .engine import Engine
    from .rules import Rules


class Framework:
    """What the engine must know of a web framework. This one is for those that we do not know."""

    def respond(self, answer: Answer) -> Any:
        """The framework's own response for an answer that the key decides."""
        raise Answered(f"This key already decides the answer ({answer.status}); the handler was not run.")

    def own_status(self, value: Any, arguments: Mapping[str, Any]) -> int | None:
        """The status that a handler chose itself, by what it returned."""
        status = getattr(value, "status_code", None)
        return status if isinstance(status, int) else None

    def refusal(self, error: BaseException) -> int | None:
        """The status of the framework's own HTTP exception; None for every other error."""
        return None


UNKNOWN_FRAMEWORK = Framework()


@dataclass(slots=True)
class Exchange:
    """What the edge knows of a request, and what becomes of it."""

    parts: RequestParts
    key_lines: Sequence[bytes]
    context: Any
    """The ASGI scope or WSGI environ."""
    tenant: Callable[[Any], str | None]
    endpoint: str
    """The route's template where the router could be asked, else the path."""
    framework: Framework = UNKNOWN_FRAMEWORK
    binding: Callable[[Any], str | None] | None = None
    """Gives the session or credential that the key is bound to as well."""
    bound_to: str | None = None
    is_call: bool = False
    """A call of the service's own (``once``), not a request of a client: its keys are apart."""
    engine: Engine | None = None
    """Of the middleware that the request came through; a decorator of another one is refused."""
    rules: Rules | None = None
    """How an undecorated handler is guarded."""
    routed: bool = True
    """A handler, not a router, will give the answer, for all that is known."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False
    running: Running | None = None
    answer: Answer | None = None
    """The answer that the key decided; nothing was run."""

    def take(self, running: Running) -> bool:
        """A guard has claimed. False: the edge has let go of the request meanwhile, so nothing may run."""
        with self._lock:
            if not self._closed:
                self.running = running
            return not self._closed

    def let_go(self) -> bool:
        """The edge has nothing to wait for. False: a guard has claimed after all."""
        with self._lock:
            self._closed = self.running is None
            return self._closed

    def decided(self, answer: Answer) -> Any:
        self.answer = answer
        return self.framework.respond(answer)

    def handled(self, page: Answer | None, *, streamed: bool = False) -> Handled:
        """How the handler ended, by its boundary, with the answer that the application made of it."""
        assert self.running is not None
        boundary = self.running.boundary
        if boundary.place is Place.RAISED:
            assert boundary.error is not None
            return Handled(
                page,
                boundary.error,
                streamed=streamed,
                refusal=self.framework.refusal(boundary.error),
                before_effect=boundary.is_proof(),
                routed=self.routed,
            )
        return Handled(page, streamed=streamed, own=self._is_own(boundary, page), routed=self.routed)

    def _is_own(self, boundary: Boundary, page: Answer | None) -> bool:
        if page is None:
            return False
        if boundary.said is not None:
            return boundary.said == page.status
        return self.framework.own_status(boundary.value, boundary.arguments) == page.status


class Unguarded:
    """In place of an exchange: the middleware is there, and lets this request pass."""


UNGUARDED = Unguarded()

current_exchange: ContextVar[Exchange | Unguarded | None] = ContextVar("samekey_exchange", default=None)

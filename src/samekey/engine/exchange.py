"""One request on its way through the engine, whichever edge it came in by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ..core.fingerprint import RequestParts
from ..core.record import Answer
from ..errors import Answered
from .operation import Running

Respond = Callable[[Answer], Any]
"""Makes a framework's own response of a decided answer, or raises ``Answered``."""


def raise_answered(answer: Answer) -> Any:
    """For frameworks that we do not know: the edge replaces whatever comes of this."""
    raise Answered(f"This key already decides the answer ({answer.status}); the handler was not run.")


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
    respond: Respond = raise_answered
    binding: Callable[[Any], str | None] | None = None
    """Gives the session or credential that the key is bound to as well."""
    bound_to: str | None = None
    is_call: bool = False
    """A call of the service's own (``once``), not a request of a client: its keys are apart."""

    running: Running | None = None
    answer: Answer | None = None
    """The answer that the key decided; nothing was run."""
    error: BaseException | None = field(default=None)
    """What the handler raised, even if the framework made an answer of it."""

    def decided(self, answer: Answer) -> Any:
        self.answer = answer
        return self.respond(answer)


class Unguarded:
    """In place of an exchange: the middleware is there, and lets this request pass."""


UNGUARDED = Unguarded()

current_exchange: ContextVar[Exchange | Unguarded | None] = ContextVar("samekey_exchange", default=None)

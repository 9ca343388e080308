"""What a phased operation is made of: its definition, its effects, and what is known about a provider."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ...core.backoff import Backoff
from ...core.policy import milliseconds
from ...core.provider import StoredText
from ...core.record import Answer
from ...core.texts import checked_text
from ...errors import DefinitionChanged, OutcomeUnknown
from ...response import Response
from ..handler.own_responses import answer_returned, of_framework
from ..handler.rules import Rules
from ..handler.shape import Shape, known_shapes
from .extras import Extras


class _NotFound:
    """What a lookup returns when the provider knows nothing of the effect."""

    def __repr__(self) -> str:
        return "NOT_FOUND"


NOT_FOUND = _NotFound()


class StoppedByWord(OutcomeUnknown):
    """Nothing more is sent while a provider says that something happened which has no place. Its name is
    what the record is stopped with: see ``stores/sql/effects.py``."""


class NotSettled(OutcomeUnknown):
    """ "Not found" does not count yet: whoever tried first may still be calling."""

    def __init__(self, name: str, wait_ms: int) -> None:
        super().__init__(f"Whether {name!r} happened cannot be told for another {wait_ms / 1000:.1f} s.")
        self.wait_ms = wait_ms


@dataclass(frozen=True, slots=True)
class Definition:
    """A phased function under its name and version."""

    name: str
    version: int
    function: Callable[..., Any]
    rules: Rules
    model: Any
    extras: Extras = field(default_factory=Extras)
    max_attempts: int = 10
    """How often an operation that has begun to act is resumed before an operator must look."""
    backoff: Backoff = field(default_factory=Backoff)
    shapes: dict[str, Shape] = field(default_factory=dict, compare=False, repr=False)
    """By endpoint, what its routes make of an answer."""

    def noted_shape(self, endpoint: str, context: Any) -> tuple[str | None, int | None]:
        """Learns the shape of the route that a request has reached: its name, and its status."""
        shape = Shape.at(context)
        if shape is None:
            return None, _status_in_litestar(context)
        if not shape.filters:
            return None, shape.status
        self.shapes[endpoint] = shape
        return endpoint, shape.status

    def shaped(self, result: Any, shape: str | None, status: int | None) -> Answer:
        """What the function returned, as the route of its first request would have sent it."""
        made = of_framework(result, status)
        if made is not None:
            return made
        if shape is None and status is None:
            return answer_returned(result)
        if shape is None:
            plain = isinstance(result, Response | Answer)
            return answer_returned(result if plain else Response(status or 200, result))
        found = self.shapes.get(shape) or self._found_shape(shape)
        if found is None:
            raise DefinitionChanged(
                f"The answer of {self.identity} is given its shape by the route {shape} (response_model), "
                "which this process does not have. The operation was left as it was: everything but its "
                "answer is done. A retry finishes it, and so does a worker that imports the application."
            )
        return found.answer(result)

    def _found_shape(self, shape: str) -> Shape | None:
        """Of the routes that were imported here. One that has moved is the only one there is."""
        for endpoint, known in known_shapes(self):
            self.shapes.setdefault(endpoint, known)
        only = [*self.shapes.values()] if len(self.shapes) == 1 else [None]
        return self.shapes.get(shape, only[0])

    @property
    def identity(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


def _status_in_litestar(context: Any) -> int | None:
    """Each of its handlers has one: 201 for a POST, unless it says otherwise. None for other routes."""
    handler = context.get("route_handler") if isinstance(context, Mapping) else None
    status = getattr(handler, "status_code", None)
    return status if isinstance(status, int) else None


class Effect:
    """One outside call: send ``key`` to the provider, and keep the provider's own id here."""

    provider_id = StoredText()
    """Set it to the provider's own id, text; it is stored with the result and can be looked up."""
    source = StoredText()
    """The provider that is called."""

    def __init__(
        self, key: str, provider_id: str | None = None, timeout: float = 0.0, *, source: str | None = None
    ) -> None:
        self.key = key
        self.provider_id = provider_id
        self.source = source
        self.timeout = timeout
        """Seconds that are left for the call when it begins: the longest time-out to give your client."""
        self.window: float | None = None
        """Seconds for which the provider knows the key, as the phase was told; None: it was told nothing."""
        self.tried_before = False
        """An earlier attempt meant this call too, and may have sent it."""
        self._since: datetime | None = None
        self.has_looked_since = False

    @property
    def since(self) -> datetime | None:
        """Nothing that this operation has sent is older, by the database's clock or by one that is a little
        wrong; None: it has sent nothing before now. What the provider made earlier under the same key is
        another operation's: a lookup must not give that."""
        self.has_looked_since = True
        return self._since

    def look_since(self, moment: datetime) -> None:
        self._since = moment

    def __repr__(self) -> str:
        return f"<Effect {self.key}>"


@dataclass(frozen=True, slots=True)
class EffectRules:
    """What is known about a provider."""

    window_ms: int | None
    settle_ms: int
    timeout_ms: int
    can_look_up: bool
    source: str | None = None
    """Its name, as ``resolve`` is given it."""

    @property
    def can_be_settled(self) -> bool:
        """Whether a later attempt can find out by itself."""
        return self.window_ms is not None or self.can_look_up


def max_run_ms(rules: Rules) -> int:
    return milliseconds(rules.policy.max_run)


def effect_rules(
    window: timedelta | None,
    settle: timedelta,
    timeout: timedelta,
    *,
    can_look_up: bool,
    source: str | None = None,
) -> EffectRules:
    return EffectRules(
        None if window is None else milliseconds(window),
        milliseconds(settle),
        milliseconds(timeout),
        can_look_up,
        None if source is None else checked_text("source", source),
    )

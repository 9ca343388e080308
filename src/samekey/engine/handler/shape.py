"""The shape that a route gives to an answer: FastAPI's response_model, status_code and response_class.

A phased operation stores its answer itself, perhaps in a completer with no request at all, so the framework
never sees what its function returned. What the framework would have left out must not be stored or sent.
Nothing is imported here: what is needed of FastAPI is found in the route.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.record import Answer
from ...errors import NotSerialisable
from ...response import Response
from .own_responses import answer_returned

DEFINITION = "__samekey_definition__"
"""The attribute of a phased endpoint that has its definition."""
_SETTINGS = ("include", "exclude", "by_alias", "exclude_unset", "exclude_defaults", "exclude_none")
_WITHOUT_BODY = (204, 205, 304)


@dataclass(frozen=True, slots=True)
class Shape:
    """One route's settings, as FastAPI keeps them."""

    route: Any

    @staticmethod
    def at(context: Any) -> Shape | None:
        """The shape of the route that a request has reached; None where it has none to give."""
        if not isinstance(context, Mapping):
            return None
        inner = context.get("fastapi")
        # What include_router adds to a route is known to its context alone.
        effective = inner.get("effective_route_context") if isinstance(inner, Mapping) else None
        return Shape.of(effective or context.get("route"))

    @staticmethod
    def of(route: Any) -> Shape | None:
        """None for a route of another kind: then the function's own word is all there is."""
        if not hasattr(route, "response_field") or not hasattr(route, "response_class"):
            return None
        return Shape(route)

    @property
    def status(self) -> int | None:
        found: int | None = self.route.status_code
        return found

    @property
    def filters(self) -> bool:
        """Whether it takes the route itself to make the answer; a status alone can be kept with the input."""
        return self.route.response_field is not None or isinstance(self.route.response_class, type)

    def answer(self, result: Any) -> Answer:
        """What the function returned, as the route would have sent it.

        A ``Response`` that is an error, or that holds bytes or text, is the function's own word and stays.
        """
        if isinstance(result, Answer):
            return result
        status = self.status or 200
        content, headers = result, {}
        if isinstance(result, Response):
            if not 200 <= result.status <= 299 or isinstance(result.content, bytes | str | None):
                return answer_returned(result)
            status, content, headers = result.status, result.content, dict(result.headers)
        made = self._response_class()(self._filtered(content), status_code=status)
        body = b"" if status in _WITHOUT_BODY else bytes(made.body)
        given = {name.lower() for name in headers}
        kept = tuple(
            (name, value)
            for name, value in made.raw_headers
            if name != b"content-length" and name.decode("latin-1") not in given
        )
        added = tuple((n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in headers.items())
        return Answer(status, (*kept, *added), body)

    def _filtered(self, content: Any) -> Any:
        field = self.route.response_field
        if field is None:
            return sys.modules["fastapi.encoders"].jsonable_encoder(content)
        value, errors = field.validate(content, {}, loc=("response",))
        if errors:
            raise NotSerialisable(
                f"The answer does not fit the route's response_model ({len(errors)} error(s)), so it was not "
                "stored. What was done stands; a retry goes on from there once the code is right."
            )
        settings = {name: getattr(self.route, f"response_model_{name}") for name in _SETTINGS}
        return field.serialize(value, **settings)

    def _response_class(self) -> Any:
        chosen = self.route.response_class
        # FastAPI wraps its own default, to tell it from one that somebody chose.
        return chosen if isinstance(chosen, type) else chosen.value


def known_shapes(definition: object) -> Iterator[tuple[str, Shape]]:
    """The routes to a definition that this process has imported: a worker starts no application."""
    routing = sys.modules.get("fastapi.routing")
    if routing is None:
        return
    kinds = (sys.modules["fastapi"].FastAPI, routing.APIRouter)
    flat = getattr(routing, "iter_route_contexts", iter)
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            # By its type: to ask some proxies for anything else is an error outside of a request.
            if not issubclass(type(value), kinds):
                continue
            for route in flat(value.routes):
                endpoint, shape = getattr(route, "endpoint", None), Shape.of(route)
                if shape is not None and shape.filters and getattr(endpoint, DEFINITION, None) is definition:
                    for method in route.methods or ():
                        yield f"{method} {route.path}", shape

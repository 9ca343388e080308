"""The input of phased work: what the first request said, in a form that outlives it."""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from ..core.phases import encode_value
from ..core.problem import Refusal
from .exchange import Exchange


@dataclass(frozen=True, slots=True)
class Input:
    """A request, captured at its first claim."""

    body: bytes = b""
    query: str = ""
    content_type: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The route's parameters."""

    def json(self) -> Any:
        """The body as JSON; ``ValueError`` if it is not."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Captured:
    """An input with what the operation needs to know beside it."""

    tenant: str
    value: Any

    def encode(self, model: Any) -> bytes:
        if model is None:
            request: Input = self.value
            stored: Any = {
                "body": base64.b64encode(request.body).decode("ascii"),
                "query": request.query,
                "content_type": request.content_type,
                "params": dict(request.params),
            }
        else:
            stored = self.value.model_dump(mode="json")
        return encode_value({"tenant": self.tenant, "input": stored}, "The input of the operation")

    @staticmethod
    def decode(payload: bytes, model: Any) -> Captured:
        stored = json.loads(payload)
        given = stored["input"]
        if model is not None:
            return Captured(stored["tenant"], model.model_validate(given))
        request = Input(
            base64.b64decode(given["body"]), given["query"], given["content_type"], given["params"]
        )
        return Captured(stored["tenant"], request)


def model_of(function: Callable[..., Any]) -> Any:
    """The Pydantic model that a phased function declares for its input, or None for ``Input``."""
    names = list(inspect.signature(function).parameters)
    try:
        declared = get_type_hints(function).get(names[1])
    except NameError:
        declared = None
    return declared if hasattr(declared, "model_validate") and hasattr(declared, "model_dump") else None


def capture(exchange: Exchange, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The input of this request, or a refusal if it does not fit the declared model."""
    if model is not None:
        given = next((value for value in kwargs.values() if isinstance(value, model)), None)
        if given is not None:
            return given  # the framework has validated it
        try:
            return model.model_validate_json(exchange.parts.body or b"")
        except ValueError as error:
            count = getattr(error, "error_count", lambda: 1)()
            return Refusal(422, f"The body does not fit ({count} error(s)). Nothing was done.")
    content_type = dict(exchange.parts.headers).get(b"content-type", b"").decode("latin-1")
    params = dict(_path_params(exchange.context) or kwargs)
    query = exchange.parts.query.decode("latin-1")
    return Input(exchange.parts.body or b"", query, content_type, _plain(params))


def _path_params(context: Any) -> Mapping[str, Any]:
    found = context.get("path_params")
    return found if isinstance(found, Mapping) else {}


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """Converters may make anything of a path; text survives storage for certain."""
    return {k: v if isinstance(v, str | int | float | bool) else str(v) for k, v in params.items()}

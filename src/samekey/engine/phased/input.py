"""The input of phased work: what the first request said, in a form that outlives it."""

from __future__ import annotations

import base64
import inspect
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, get_args, get_origin

from ...core.phases import encode_value
from ...core.problem import Refusal
from ...errors import ConfigurationError, DefinitionChanged, NotSerialisable
from ..exchange import Exchange
from .extras import Extras

logger = logging.getLogger("samekey")

NO_EXTRAS = Extras()


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
class Given:
    """What a request gives to a phased function: an ``Input`` or a model, and the route's parameters."""

    value: Any
    params: Mapping[str, Any]
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What else the function is given, by name."""


@dataclass(frozen=True, slots=True)
class Captured:
    """An input with what the operation needs to know beside it."""

    tenant: str
    given: Given
    shape: str | None = None
    """Which route gives its shape to the answer."""
    status: int | None = None
    """The status that a route gives to an answer which has none of its own."""

    @property
    def value(self) -> Any:
        return self.given.value

    def encode(self, model: Any, extras: Extras = NO_EXTRAS) -> bytes:
        """As it is stored; ``NotSerialisable`` if it would not come back as it is."""
        if model is None:
            request: Input = self.value
            value: Any = {
                "body": base64.b64encode(request.body).decode("ascii"),
                "query": request.query,
                "content_type": request.content_type,
            }
        else:
            value = json.loads(_dumped(self.value))
        stored = {"tenant": self.tenant, "params": dict(self.given.params), "input": value}
        if extras.parameters:
            stored["extras"] = extras.stored(self.given.extras)
        if self.shape is not None or self.status is not None:
            stored["answer"] = {"shape": self.shape, "status": self.status}
        return encode_value(stored, "The input of the operation")

    @staticmethod
    def decode(payload: bytes, model: Any, extras: Extras = NO_EXTRAS) -> Captured:
        """``DefinitionChanged`` if what was stored does not fit the function any more."""
        try:
            stored = json.loads(payload)
            given, params = stored["input"], stored["params"]
            if model is None:
                body = base64.b64decode(given["body"])
                value = Input(body, given["query"], given["content_type"], params)
            else:
                value = model.model_validate_json(json.dumps(given))
            answer = stored.get("answer", {})
            whole = Given(value, params, extras.restored(stored.get("extras", {})))
            return Captured(stored["tenant"], whole, answer.get("shape"), answer.get("status"))
        except (ValueError, KeyError, TypeError) as error:
            raise DefinitionChanged(
                f"The stored input of this operation does not fit the code any more: {error}. It was left as "
                "it was. Register the definition that it began with under its old version, and give the "
                "changed one a new version."
            ) from None


def _dumped(value: Any) -> str:
    """A model as JSON that gives an equal model again."""
    for by_alias in (True, False):
        text: str = value.model_dump_json(round_trip=True, by_alias=by_alias)
        try:
            if type(value).model_validate_json(text) == value:
                return text
        except ValueError:
            continue
    raise NotSerialisable(
        f"The input cannot be stored: a {type(value).__name__} does not come back from its own JSON as it "
        "was. Give it fields that do; secrets and numbers that are not finite do not."
    )


def model_of(function: Callable[..., Any]) -> Any:
    """The Pydantic model that a phased function declares for its input, or None for ``Input``."""
    declared = declared_input(function)
    model, *said = get_args(declared) if get_origin(declared) is Annotated else (declared,)
    if any(hasattr(one, "dependency") for one in said):
        model = declared  # what a dependency gives is not the body
    if model in (inspect.Parameter.empty, Any, object, Input):
        return None
    if isinstance(model, type) and hasattr(model, "model_validate_json"):
        return model
    name = getattr(function, "__qualname__", repr(function))
    raise ConfigurationError(
        f"{name} cannot have {declared!r} as its input: annotate it with samekey.Input, which has the "
        "request as it came, or with a Pydantic model."
    )


def declared_input(function: Callable[..., Any]) -> Any:
    """What a phased function says of its input, with whatever a framework is told beside the type."""
    parameters = list(inspect.signature(function).parameters.values())
    name = getattr(function, "__qualname__", repr(function))
    if len(parameters) < 2:
        raise ConfigurationError(f"{name} must take two arguments, (op, input), to be phased.")
    declared = parameters[1].annotation
    if isinstance(declared, str):
        try:
            declared = eval(declared, getattr(function, "__globals__", {}))  # noqa: S307 - the user's own code
        except NameError:
            if declared.rpartition(".")[2] == "Input":
                return Input  # imported for type checkers only
            raise ConfigurationError(
                f"What {name} says of its input, {declared!r}, has no meaning where it is defined. Define "
                "the model at the top of a module."
            ) from None
    return declared


def capture(
    exchange: Exchange,
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    extras: Extras = NO_EXTRAS,
) -> Given | Refusal:
    """The input of this request, or a refusal if it does not fit the declared model."""
    given = _captured(exchange, model, kwargs)
    if isinstance(given, Refusal) or not extras.parameters:
        return given
    return replace(given, extras=extras.taken(kwargs, given.params))


def _captured(exchange: Exchange, model: Any, kwargs: dict[str, Any]) -> Given | Refusal:
    if model is None:
        params = _plain(_path_params(exchange.context) or kwargs)
        content_type = dict(exchange.parts.headers).get(b"content-type", b"").decode("latin-1")
        query = exchange.parts.query.decode("latin-1")
        return Given(Input(exchange.parts.body or b"", query, content_type, params), params)
    # What the framework has validated, if it has.
    value = next((value for value in kwargs.values() if isinstance(value, model)), None)
    others = {name: other for name, other in kwargs.items() if other is not value}
    try:
        if value is None:
            value = model.model_validate_json(exchange.parts.body or b"")
        _dumped(value)
    except NotSerialisable as error:
        logger.error("%s", error)
        return Refusal(422, "The body has values that cannot be kept. Nothing was done.")
    except ValueError as error:
        count = getattr(error, "error_count", lambda: 1)()
        return Refusal(422, f"The body does not fit ({count} error(s)). Nothing was done.")
    return Given(value, _plain(_path_params(exchange.context) or others))


def _path_params(context: Any) -> Mapping[str, Any]:
    found = context.get("path_params")
    return found if isinstance(found, Mapping) else {}


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """Converters may make anything of a path; text survives storage for certain."""
    return {name: value if _survives(value) else str(value) for name, value in params.items()}


def _survives(value: Any) -> bool:
    return type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))

"""What a phased function is given beside its input: values of a request, kept for runs without one.

    async def pay(op, payment: Payment, order: int, account: Annotated[str, Depends(account)]): ...

The framework finds them for the first request (FastAPI: path, query, headers, dependencies; Flask: the path).
A later run may have no request at all, so they are stored with the input, and must be values that can be.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from ...errors import ConfigurationError, DefinitionChanged

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Extras:
    """The parameters of a phased function after ``(op, input)``."""

    parameters: tuple[inspect.Parameter, ...] = ()

    @staticmethod
    def of(function: Callable[..., Any]) -> Extras:
        parameters = list(inspect.signature(function).parameters.values())[2:]
        for one in parameters:
            if one.kind not in _NAMED:
                raise ConfigurationError(
                    f"{function.__qualname__} takes {one}, but whatever a phased function is given beside "
                    "(op, input) has a name: it is stored under it."
                )
        try:
            hints = get_type_hints(function, include_extras=True) if parameters else {}
        except NameError as error:
            raise ConfigurationError(
                f"What {function.__qualname__} says of its parameters has no meaning where it is defined: "
                f"{error}. Define it at the top of a module."
            ) from None
        return Extras(tuple(one.replace(annotation=hints.get(one.name, Any)) for one in parameters))

    def shown(self) -> list[inspect.Parameter]:
        """As a framework sees them."""
        return [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in self.parameters]

    def taken(self, given: Mapping[str, Any], path: Mapping[str, Any]) -> dict[str, Any]:
        """Their values in a request: what the framework has found, else the route's parameters, else their
        defaults; ``ConfigurationError`` where there is none, or one that cannot be stored."""
        values = {}
        for one in self.parameters:
            value = given.get(one.name, path.get(one.name, one.default))
            if value is inspect.Parameter.empty:
                raise ConfigurationError(
                    f"Nothing gives {one.name!r} to this phased function: the route has no such parameter."
                )
            values[one.name] = value
        if values != self.restored(self.stored(values)):
            raise ConfigurationError(_CANNOT_BE_KEPT.format(", ".join(values)))
        return values

    def stored(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """As JSON has them."""
        return {one.name: _as_json(one, values[one.name]) for one in self.parameters}

    def restored(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """``DefinitionChanged`` if what was stored does not fit the function any more."""
        values = {}
        for one in self.parameters:
            value = stored.get(one.name, one.default)
            if value is inspect.Parameter.empty:
                raise DefinitionChanged(f"The stored input of this operation has no {one.name!r}.")
            values[one.name] = value if _adapter(one) is None else _adapter(one).validate_python(value)
        return values


_CANNOT_BE_KEPT: Final = (
    "A phased function is given {}, which cannot all be stored and found again as they were. It may go on "
    "without any request, so let dependencies give it plain values, such as an id, or Pydantic models; what "
    "holds a connection belongs into a phase."
)


def _as_json(parameter: inspect.Parameter, value: Any) -> Any:
    if _is_plain(value):
        return value
    adapter = _adapter(parameter)
    try:
        return adapter.dump_python(value, mode="json")
    except Exception:
        raise ConfigurationError(_CANNOT_BE_KEPT.format(repr(parameter.name))) from None


def _adapter(parameter: inspect.Parameter) -> Any:
    """Pydantic's knowledge of a type, where there is any."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or parameter.annotation is Any:
        return None
    try:
        return pydantic.TypeAdapter(parameter.annotation)
    except Exception:
        raise ConfigurationError(_CANNOT_BE_KEPT.format(repr(parameter.name))) from None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(one) for name, one in value.items())
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))

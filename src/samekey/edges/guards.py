"""Which routes are guarded, by whom, and where the status resource is. The same for both edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from ..core.claim import is_operation_id
from ..core.problem import Refusal
from ..engine.decorate import GUARD
from ..engine.rules import Rules
from ..errors import ConfigurationError
from ..idempotency import Idempotency

_MOST_DIGITS: Final = 30
"""Python refuses to read thousands of digits as a number; nobody has a body of that many bytes."""

RouteGuard = Literal["required", "optional", "exempt"]


@dataclass(frozen=True, slots=True)
class Route:
    """The handler that a router will reach, and the template of its path."""

    endpoint: Any
    template: str
    opaque: bool = False
    """A mounted application of another kind: its own router may still refuse the request."""


class NoRoute:
    """The router was asked and has no handler for the request: it will refuse by itself."""


NO_ROUTE: Final = NoRoute()
Found = Route | NoRoute | None
"""What a router says before it runs; None where it is not one that can be asked."""


class RouteGuards:
    """Answers, for each request: leave it alone, let its handler claim, or claim at the edge."""

    def __init__(
        self,
        idempotency: Idempotency,
        routes: dict[str, RouteGuard],
        undecorated: Literal["guard", "pass"],
    ) -> None:
        for path, guard in routes.items():
            if guard not in ("required", "optional", "exempt"):
                raise ConfigurationError(
                    f"routes[{path!r}] must be 'required', 'optional' or 'exempt', not {guard!r}."
                )
        if undecorated not in ("guard", "pass"):
            raise ConfigurationError(f"undecorated must be 'guard' or 'pass', not {undecorated!r}.")
        self.header = idempotency.policy.header.lower().encode("latin-1")
        self._routes = routes
        self._undecorated = undecorated
        self._default = idempotency.edge_rules()
        self._required = idempotency.edge_rules(required=True)
        self._optional = idempotency.edge_rules(required=False)
        prefix = idempotency.policy.status_path
        self._status_prefix = None if prefix is None else f"{prefix.rstrip('/')}/"

    def for_route(self, route: Found, path: str) -> Rules | Literal["handler", "exempt"]:
        """By the handler's own mark, then by what was said of its path or template."""
        endpoint, template = (route.endpoint, route.template) if isinstance(route, Route) else (None, path)
        while isinstance(endpoint, partial):
            endpoint = endpoint.func
        mark = getattr(endpoint, GUARD, None)
        said = next((self._routes[known] for known in (path, template) if known in self._routes), None)
        if isinstance(mark, Rules):
            if said == "exempt":
                raise ConfigurationError(f"{path} is declared exempt, but its handler is guarded.")
            return "handler"
        if mark == "exempt" or said == "exempt":
            return "exempt"
        if said is not None:
            return self._required if said == "required" else self._optional
        if route is NO_ROUTE:
            return "exempt"  # a 404 or 405 is on its way: nothing to claim, nobody to ask for
        return self._default if self._undecorated == "guard" else "handler"

    def status_id(self, method: str, path: str) -> str | None:
        """The operation id, if this request is for the status resource."""
        prefix = self._status_prefix
        if prefix is None or method not in ("GET", "HEAD") or not path.startswith(prefix):
            return None
        operation_id = path.removeprefix(prefix)
        return operation_id if is_operation_id(operation_id) else None


def too_large(limit: int) -> Refusal:
    detail = f"The body of a request with an idempotency key may have {limit} bytes. Nothing was done."
    return Refusal(413, detail, "too_large")


def exceeds(length: bytes | str, limit: int) -> bool:
    """Whether a Content-Length of digits is above the limit, however many digits there are."""
    return len(length) > _MOST_DIGITS or int(length) > limit

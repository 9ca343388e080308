"""Which routes are guarded, by whom, and where the status resource is. The same for both edges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Required, TypedDict
from urllib.parse import quote

from ..core.claim import is_operation_id
from ..core.outcome import OnError
from ..core.problem import Refusal
from ..core.record import Answer
from ..engine.exchange import KEYLESS, Exchange
from ..engine.handler.marks import Mark, mark_of
from ..engine.handler.rules import Rules
from ..errors import ConfigurationError
from ..idempotency import Idempotency
from ..tenants import Tenant

logger = logging.getLogger("samekey")

_MOST_DIGITS: Final = 30
"""Python refuses to read thousands of digits as a number; nobody has a body of that many bytes."""

RouteGuard = Literal["required", "optional", "exempt"]
Undecorated = Literal["guard", "pass"]
Decorators = Literal["refuse", "around"]


class GuardOptions(TypedDict, total=False):
    """What every guard of an application takes; ``edges.asgi.AsgiMiddleware`` says what each means."""

    tenant: Required[Tenant]
    routes: dict[str, RouteGuard] | None
    undecorated: Undecorated | None
    on_error: OnError
    binding: Tenant | None
    decorators: Decorators


def checked_options(name: str, options: GuardOptions) -> None:
    """What is wrong with them is said where they are given; a framework may make its middleware later."""
    unknown = sorted(options.keys() - GuardOptions.__annotations__.keys())
    if unknown:
        known = ", ".join(GuardOptions.__annotations__)
        raise ConfigurationError(f"{name} has no option {unknown[0]!r}. Its options are {known}.")
    if not callable(options.get("tenant")):
        raise ConfigurationError(
            f"{name} must be told whose key it is: tenant=by_user, or another function of samekey.tenants or "
            "of your own."
        )


GuardHandler = Callable[[bool], bool]
"""Tells a handler, decorated or not, its request, and has an undecorated one claim for itself. False where
the framework gives no way to."""


@dataclass(frozen=True, slots=True)
class Route:
    """The handler that a router will reach, and the template of its path."""

    endpoint: Any
    template: str
    opaque: bool = False
    """A mounted application of another kind: its own router may still refuse the request."""
    walked: bool = False
    """An opaque one whose handlers are known all the same: they claim for themselves."""
    bare: bool = False
    """The application itself is the handler, and its template is the path of the request."""
    guard_handler: GuardHandler = lambda decorated: False
    """Puts a stand-in in the place of the route's own handler."""

    @property
    def templated(self) -> bool:
        """Whether the template is the application's own, and holds nothing of the request's."""
        return not self.opaque and not self.bare


class NoRoute:
    """The router was asked and has no handler for the request: it will refuse by itself."""


NO_ROUTE: Final = NoRoute()
Found = Route | NoRoute | None
"""What a router says before it runs; None where it is not one that can be asked."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """Who claims for a route, and by which rules."""

    at_handler: bool
    """The handler claims when the framework reaches it; else the edge does, before the application runs."""
    rules: Rules | None
    """For whichever undecorated handler is reached; a decorated one has its own. None: left alone."""
    max_body: int
    decorated: bool = False
    """The handler that the router will reach is decorated, for all that is known."""
    is_certain: bool = False
    """The router has named the handler, and it will claim: what nobody could take is refused at once."""

    def leaves_alone(self, has_key: bool) -> bool:
        """Whether nobody has to guard it, unless a decorated handler is reached after all."""
        if self.decorated:
            return False
        return self.rules is None or not (has_key or self.rules.required)

    def claims(self, has_key: bool) -> bool:
        """Whether the edge claims."""
        return not self.at_handler and not self.leaves_alone(has_key)


def own_word(status: int, rules: Rules) -> int | None:
    """The status, if it may be taken for the handler's own where only the application's edge is seen: an
    error page may be what a framework made of an error, after the effect."""
    return status if status < 500 or rules.on_error == "retry" else None


class RouteGuards:
    """Answers, for each request: leave it alone, let its handler claim, or claim at the edge."""

    def __init__(
        self,
        idempotency: Idempotency,
        routes: dict[str, RouteGuard],
        undecorated: Undecorated | None,
        on_error: OnError = "unknown",
        decorators: Decorators = "refuse",
    ) -> None:
        for path, guard in routes.items():
            if guard not in ("required", "optional", "exempt"):
                raise ConfigurationError(
                    f"routes[{path!r}] must be 'required', 'optional' or 'exempt', not {guard!r}."
                )
        if undecorated not in ("guard", "pass", None):
            raise ConfigurationError(f"undecorated must be 'guard' or 'pass', not {undecorated!r}.")
        if decorators not in ("refuse", "around"):
            raise ConfigurationError(f"decorators must be 'refuse' or 'around', not {decorators!r}.")
        policy = idempotency.engine.policy
        self.header = policy.header.lower().encode("latin-1")
        self._routes = routes
        self.said = undecorated
        self.undecorated: Undecorated = undecorated or "guard"
        self.decorators: Decorators = decorators
        self._engine = idempotency.engine
        self._max_body = policy.max_body
        self._default = idempotency.engine.edge_rules(on_error=on_error)
        self._required = idempotency.engine.edge_rules(required=True, on_error=on_error)
        self._optional = idempotency.engine.edge_rules(required=False, on_error=on_error)
        prefix = policy.status_path
        self._status_prefix = None if prefix is None else f"{prefix.rstrip('/')}/"

    def for_route(self, route: Found, path: str) -> Guarded | None:
        """By the handler's own mark, then by what was said of its path or template. None: leave it alone."""
        mark, said = self._declared(route, path)
        # Whatever stands between may lead a request to another handler than the router says here, so the
        # rules for undecorated ones go along in any case.
        default = self._default if self.undecorated == "guard" else None
        if isinstance(mark, Mark):
            if said == "exempt":
                raise ConfigurationError(f"{path} is declared exempt, but its handler is guarded.")
            return Guarded(True, default, mark.rules.policy.max_body, decorated=True, is_certain=True)
        if mark == "exempt" or said == "exempt":
            return None
        if said is not None:
            return self._for_undecorated(route, self._required if said == "required" else self._optional)
        if default is not None:
            return self._for_undecorated(route, default)
        return Guarded(True, None, self._max_body)

    def passes(self, guarded: Guarded | None, has_key: bool) -> bool:
        """Whether a request goes past us. What nobody has to guard goes through us all the same where there
        are decorated functions: whatever stands between may lead it to one, which decides for itself."""
        return guarded is None or (not self._engine.marks and guarded.leaves_alone(has_key))

    def note_keyless(
        self, guarded: Guarded, context: MutableMapping[str, Any], exchange: Callable[[], Exchange]
    ) -> None:
        """A request that goes past us without a key is told to those who count, once its handler is reached:
        only then is it known who asks."""
        rules, key_use = guarded.rules, self._engine.key_use
        if rules is None or not self._engine.events.are_watched:
            return
        if guarded.at_handler:
            context[KEYLESS] = lambda: key_use.without(exchange(), rules)
        else:
            key_use.without(exchange(), rules)

    def guard_all(self, reached: Iterable[tuple[str, Any, GuardHandler]]) -> None:
        """Has every handler of the application know its request, and every undecorated one claim for itself,
        whichever is reached."""
        for path, handler, guard_handler in reached:
            mark = mark_of(handler)
            left_alone = self.undecorated == "pass" or self._routes.get(path) == "exempt"
            if isinstance(mark, Mark) or (mark is None and not left_alone):
                guard_handler(mark is not None)

    def is_exempt(self, route: Found, path: str) -> bool:
        """Whether a route was declared exempt, by its handler's mark or by its path."""
        return "exempt" in self._declared(route, path)

    def _declared(self, route: Found, path: str) -> tuple[object, RouteGuard | None]:
        """The mark of the handler, and what was said of the path or template."""
        endpoint, template = (route.endpoint, route.template) if isinstance(route, Route) else (None, path)
        said = next((self._routes[known] for known in (path, template) if known in self._routes), None)
        return mark_of(endpoint), said

    def _for_undecorated(self, route: Found, rules: Rules) -> Guarded:
        # Where there is no route, a 404 or 405 is on its way, or another handler will be reached and claims.
        known = isinstance(route, Route) and not route.opaque and route.guard_handler(False)
        at_handler = known or route is NO_ROUTE or (isinstance(route, Route) and route.walked)
        return Guarded(at_handler, rules, self._max_body, is_certain=known)

    def status_id(self, method: str, path: str, root: str) -> str | None:
        """The operation id, if this request is for the status resource. ``root`` is what a mount or the
        server has taken for itself; the path may begin with it or not."""
        prefix = self._status_prefix
        if prefix is None or method not in ("GET", "HEAD"):
            return None
        for wanted in (prefix, f"{root.rstrip('/')}{prefix}"):
            operation_id = path.removeprefix(wanted)
            if operation_id != path and is_operation_id(operation_id):
                return operation_id
        return None

    def below(self, root: str, answer: Answer) -> Answer:
        """The answer as it is sent from below ``root``: what points to the status resource points there."""
        prefix, root = self._status_prefix, root.rstrip("/")
        if prefix is None or not root:
            return answer
        plain, linked = prefix.encode(), f"<{prefix}".encode()
        encoded = quote(root).encode()

        def pointed(name: bytes, value: bytes) -> bytes:
            if name.lower() == b"location" and _is_status(value, plain):
                return encoded + value
            if name.lower() == b"link" and _is_status(value.partition(b">")[0], linked):
                return b"<" + encoded + value[1:]
            return value

        headers = tuple((name, pointed(name, value)) for name, value in answer.headers)
        return Answer(answer.status, headers, answer.body)


def _is_status(value: bytes, prefix: bytes) -> bool:
    return value.startswith(prefix) and is_operation_id(value.removeprefix(prefix).decode("latin-1"))


TWO_MIDDLEWARES: Final = (
    "This request has already passed an IdempotencyMiddleware, so nothing was run. Put one around the "
    "application, not two: they would keep two records of one request, and lose its answer."
)


def leads_to(route: Found) -> object | None:
    """The mark of the handler that a request is routed to; False where that has none, None where the router
    cannot be asked, or does not know the path: a middleware may rewrite it on the way."""
    if isinstance(route, Route) and not route.opaque:
        return mark_of(route.endpoint) or False
    return None


def unguarded_answer(name: str, status: int) -> None:
    """A success that no guard knows of: the next request with this key would run it again."""
    if 200 <= status < 300:
        logger.error(
            "%s sent a key and was answered %d, but no guard has claimed it: whatever answered is not "
            "guarded, and a retry will run it again. Decorate what answers, or declare the route exempt.",
            name,
            status,
        )


def of_the_application(app: Any, path: str) -> Route | None:
    """A bare application that is itself decorated, as a function, a method or by its ``__call__``."""
    return Route(app, path, bare=True) if isinstance(mark_of(app), Mark) else None


def too_large(limit: int) -> Refusal:
    detail = f"The body of a request with an idempotency key may have {limit} bytes. Nothing was done."
    return Refusal(413, detail, "too_large")


def exceeds(length: bytes | str, limit: int) -> bool:
    """Whether a Content-Length of digits is above the limit, however many digits there are."""
    return len(length) > _MOST_DIGITS or int(length) > limit

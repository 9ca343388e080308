"""One request on its way through the engine, whichever edge it came in by."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from ..core.fingerprint import RequestParts
from ..core.policy import Policy
from ..core.record import Answer
from ..core.states import Mode
from ..errors import ConfigurationError
from .handler.body import Body, Callers
from .handler.boundary import Boundary, Pieces, Place
from .handler.marks import mark_of
from .modes.mode import Handled
from .operation import Operation, Running
from .within import Guest

if TYPE_CHECKING:
    from .engine import Engine
    from .handler.rules import Rules

logger = logging.getLogger("samekey")

SEEN: Final = "samekey.exchange"
"""The key in the ASGI scope or WSGI environ under which a request carries its exchange.

It goes with the request wherever that goes, also into another context; a request that an application makes
to itself on the way has none, or its own.
"""


KEYLESS: Final = "samekey.keyless"
"""The key there under which a request that nobody has to guard says whom its handler tells that it is
reached."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The request that a handler is called for, as its framework hands it over."""

    context: Mapping[str, Any]
    """The ASGI scope or WSGI environ."""
    framework: Framework | None = None
    """Whose handler it is. There may be several in one application, one mounted below the other."""

    @property
    def method(self) -> str:
        return str(self.context.get("method") or self.context.get("REQUEST_METHOD") or "").upper()


class Answered(BaseException):
    """The key already decides the answer, so the handler is not run. The middleware catches this.

    Not an ``Exception``: nothing has failed, so what an application does about failures (a refund, an alert,
    a retry) must not be done.
    """


class AnsweredInThread(Exception):
    """``Answered``, for a thread whose own code may catch no more than an ``Exception``: it would end, and
    whoever waits for its result would wait for ever."""


_DECIDED: Final = "This key already decides the answer ({}); the handler was not run."

_CARRIERS: Final = frozenset(
    {"concurrent.futures.thread", "anyio._backends._asyncio", "asyncio.base_events", "asyncio.runners"}
)
"""Whatever is called by these is told to whoever waits for it, of whichever kind it is."""


def sign(message: str, home: int | None = None) -> BaseException:
    """Says that the key has decided. ``home`` is the thread in which the edge waits, where that is known."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and threading.get_ident() != home:
        if frame.f_globals.get("__name__") in _CARRIERS:
            break
        frame = frame.f_back
    return AnsweredInThread(message) if frame is None else Answered(message)


def is_sign(error: BaseException) -> bool:
    """Whether it is our own sign that nothing may run, alone or in a task group's wrapping."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_sign, error.exceptions))
    return isinstance(error, Answered | AnsweredInThread)


class Framework:
    """What the engine must know of a web framework. This one is for those that we do not know."""

    def respond(self, answer: Answer) -> Any:
        """The framework's own response for an answer that the key decides."""
        raise Answered(_DECIDED.format(answer.status))

    def noted(self, arguments: Mapping[str, Any]) -> Any:
        """What must be known of a handler's arguments before it runs, to tell later which status it chose.
        It is asked before the claim, so that what it raises leaves no key behind."""
        return None

    def own_status(self, value: Any, noted: Any) -> int | None:
        """The status that a handler chose itself, by what it returned. None where that cannot be told: what a
        provider's SDK returns has a status too."""
        return None

    def refusal(self, error: BaseException) -> int | None:
        """The status of the framework's own HTTP exception; None for every other error."""
        return None

    def watch(self, value: Any, running: Running) -> Any:
        """What a handler returned, so that the boundary hears how far its pieces have come: they are lines of
        the handler's own, and a middleware may end an answer that broke off as if it were whole."""
        return value

    def asked(self, arguments: Sequence[Any]) -> Asked | None:
        """The request that a handler is called for; None where that is not seen."""
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
    body: Body | None = None
    """Where the body comes from, until a claim has read it."""
    callers: Callers | None = None
    """Who must be met before ``tenant`` and ``binding`` can be asked."""
    engine: Engine | None = None
    """Of the middleware that the request came through; a decorator of another one is refused."""
    rules: Rules | None = None
    """How an undecorated handler is guarded."""
    around: bool = False
    """Undecorated handlers with decorators of their own are guarded around those; else they are refused."""
    ends_sync: bool = False
    """The edge was called as a sync function, so it could not end the transaction of an async handler."""
    at_edge: bool = False
    """The edge has claimed, and the application as a whole is the handler."""

    below_others: bool = False
    """The guarded function stands below decorators of the handler's own."""
    templated: bool = False
    """``endpoint`` is a template of the application's own; a path may hold anything, and is not told."""
    notice: tuple[bytes, bytes] | None = None
    """A header that whatever is answered is to have."""
    stream_due: bool = False
    """The handler is a generator: it was called, and has not given its first piece, nor claimed."""

    _path: str = ""
    _home: int = field(default_factory=threading.get_ident)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False
    _claiming: bool = False
    running: Running | None = None
    anonymous: list[Operation] = field(default_factory=list)
    """Without a key there may be nothing to finish; these end with the request."""
    answer: Answer | None = None
    """The answer that the key decided; nothing was run."""
    ended: bool = False
    visitors: list[Guest] = field(default_factory=list)
    """What was made for this request, maybe before its claim, and may join the operation's transaction."""

    def __post_init__(self) -> None:
        self._path = _full_path(self.context)  # before a mount changes it

    @property
    def route(self) -> str:
        """Its method and template, for those who count; one word for all that have no template."""
        return f"{self.parts.method} {self.endpoint}" if self.templated else "other"

    def is_of(self, asked: Asked) -> bool:
        """Whether a request that carries nothing is this one: it has its method and full path, and no other
        key. The key alone proves nothing: an application may send it on with a request of its own."""
        return self._is_there(asked) and self._keys_in(asked) in ([], list(self.key_lines))

    @property
    def waits(self) -> bool:
        """It has a key, and nobody has claimed yet."""
        return bool(self.key_lines) and self.running is None and self.answer is None and not self._closed

    def has_key_and_place(self, asked: Asked) -> bool:
        """Whether a request that carries nothing would be recorded as this one is. Once a handler runs, what
        it sends by itself is a duplicate, and answered as one."""
        waits = self.running is None or self.at_edge
        same_key = bool(self.key_lines) and self._keys_in(asked) == list(self.key_lines)
        return waits and SEEN not in asked.context and same_key and self._is_there(asked)

    def _is_there(self, asked: Asked) -> bool:
        return _full_path(asked.context) == self._path and asked.method == self.parts.method

    def _keys_in(self, asked: Asked) -> list[bytes]:
        return [] if self.engine is None else _key_lines(asked.context, self.engine.policy.header)

    def must_be_free(self, mode: Mode) -> None:
        """Before a claim of atomic work: what has written something of its own could not join it."""
        if mode in (Mode.ATOMIC, Mode.DEFERRED):
            for visitor in self.visitors:
                visitor.must_be_free()

    def reached_by(self, framework: Framework | None) -> None:
        """A handler of that framework is called; unless another one has claimed, it speaks its language."""
        if framework is not None and (self.running is None or self.at_edge):
            self.framework = framework

    def start_claim(self) -> None:
        """A guard begins to claim; there is one for each request."""
        with self._lock:
            if self.is_claimed:
                raise ConfigurationError(_TWO_GUARDS)
            self._claiming = True

    def end_claim(self, begun: Running | Answer | None) -> bool:
        """What came of it; None: nothing. False: the edge has let go of the request meanwhile, so nothing may
        run."""
        with self._lock:
            self._claiming = False
            if isinstance(begun, Answer):
                self.answer = begun
            elif not self._closed:
                self.running = begun
            return not self._closed

    def over(self) -> None:
        """The request has been answered, and its application has ended."""
        self.ended = True
        self.visitors.clear()
        running = self.running
        if running is not None and running.outcome is not None:
            running.operation.end()
        for operation in self.anonymous:
            operation.end()

    @property
    def is_claimed(self) -> bool:
        """Whether a guard has its hands on it, or had."""
        return self._claiming or self.running is not None or self.answer is not None

    def let_go(self) -> bool:
        """The edge has nothing to wait for. False: a guard has claimed after all."""
        with self._lock:
            self._closed = self.running is None
            return self._closed

    def decided(self, answer: Answer) -> Any:
        """The key decides the answer. What stands around the function that was not run has nothing to go on
        with, and nothing has failed: it is left by a sign, and whoever called it gives the answer."""
        self.answer = answer
        if not self.below_others:
            return self.respond(answer)
        raise sign(_DECIDED.format(answer.status), self._home)

    def respond(self, answer: Answer) -> Any:
        """As the framework of the handler has it."""
        self.answer = answer
        try:
            return self.framework.respond(answer)
        except Answered as said:
            raise sign(str(said), self._home) from None

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
                refusal=None if self.at_edge else self.refusal_of(boundary.error),
                before_effect=boundary.is_proof(),
                unsure=boundary.is_unsure,
            )
        if boundary.pieces is Pieces.BROKEN or (boundary.pieces is Pieces.OPEN and not streamed):
            page = None
        said = self._said(boundary)
        own = page is not None and said == page.status
        return Handled(page, None, streamed, own, said, at_edge=self.at_edge, unsure=boundary.is_unsure)

    def word_of(self, value: Any, noted: Any) -> int | None:
        """The status that the handler chose, by what it returned. Whatever that is (a response whose status
        is None, say), its end must be noted: nobody else will."""
        try:
            return self.framework.own_status(value, noted)
        except Exception as error:
            logger.warning("The status of what %s returned cannot be read: %s", self.endpoint, error)
            return None

    def refusal_of(self, error: BaseException) -> int | None:
        """The status of the framework's own HTTP exception. One that has none that can be read (an SDK's
        error without an answer has None) is an error like any other."""
        try:
            return self.framework.refusal(error)
        except Exception as trouble:
            logger.warning("The status of what %s raised cannot be read: %s", self.endpoint, trouble)
            return None

    def _said(self, boundary: Boundary) -> int | None:
        """The status that the handler returned, if that can be told."""
        if boundary.wrapped:
            return None
        if self.at_edge or boundary.said is not None:
            return boundary.said
        return boundary.word


def _key_lines(context: Mapping[str, Any], header: str) -> list[bytes]:
    if "headers" in context:
        wanted = header.lower().encode("latin-1")
        return [value for name, value in context["headers"] if name.lower() == wanted]
    sent = context.get("HTTP_" + header.upper().replace("-", "_"))
    return [] if sent is None else [sent.encode("utf-8", "surrogatepass")]


def _full_path(context: Mapping[str, Any]) -> str:
    """The path with the prefix that servers and mounts take off it, or leave there."""
    if "path" not in context:
        path = "".join(str(context.get(name, "")) for name in ("SCRIPT_NAME", "PATH_INFO"))
        return path.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
    root, path = str(context.get("root_path", "")).rstrip("/"), str(context["path"])
    return path if path == root or path.startswith(f"{root}/") else root + path


_TWO_GUARDS: Final = (
    "Two guards met in one request, so this function was not run: a guarded function called another, was "
    "called twice at once or again after it had ended, or stands below a wrapper that hides its decorator; "
    "or the application made a request of its own from a copy of this one's scope. Guard each request once: "
    "put functools.wraps on wrappers, keep one of the two guards (see the middleware's `undecorated`), and "
    f"leave {SEEN!r} and the key out of what is copied for another request."
)


class Unguarded:
    """In place of an exchange: the middleware is there, and lets this request pass (a GET, say).

    A decorated handler that it is routed to runs as it is. Whatever else is guarded may not: it would run
    once for each such request, and nobody would know.
    """

    __slots__ = ("_again", "_policy", "_routed_to", "over")

    def __init__(self, routed_to: Callable[[], object | None], policy: Policy, again: bool = False) -> None:
        self._routed_to = routed_to
        self._policy = policy
        self._again = again
        """A key came by a method that changes something and is not guarded: the request may come again."""
        self.over = False
        """The request has been answered; what it has started may still run."""

    def lets(self, mark: object, arguments: Sequence[Any]) -> bool:
        """Whether the guarded function with this mark may run as it is: it is the handler that a request by
        such a method has reached, or will by its router; or, where the router does not know, it is given
        this very request."""
        if self.over or self._again:
            return False
        handler, method = reached.get()
        if handler is mark:
            return method not in self._policy.methods
        found = self._routed_to()
        return found is mark or (found is None and _is_given(self, arguments, mark))

    def check(self, asked: Asked) -> None:
        """An undecorated handler is called for this request. Inside, it may have another method."""
        if asked.context.get(SEEN) is not self or asked.method not in self._policy.methods:
            return
        if _key_lines(asked.context, self._policy.header):
            raise ConfigurationError(
                f"{asked.method} {_full_path(asked.context)} came by a method that is not guarded, with a "
                "key, and was given this one on its way, so nothing was run: each such request would run it "
                "once more. Put what changes the method outside of the IdempotencyMiddleware."
            )


def _is_given(seen: Unguarded, arguments: Sequence[Any], mark: object) -> bool:
    """Whether a call is given this very request, as a handler is; and not one that has become another by its
    method, or that a router has brought to a handler with another mark than ``mark``."""
    names = ("scope", "environ", "META", "env")
    contexts = [one for it in arguments for one in (it, *(getattr(it, name, None) for name in names))]
    given = [one for one in contexts if isinstance(one, Mapping) and one.get(SEEN) is seen]
    handlers = [one["endpoint"] for one in given if inspect.isroutine(one.get("endpoint"))]
    same = all(Asked(one).method not in seen._policy.methods for one in given)
    return bool(given) and same and all(mark_of(one) is mark for one in handlers)


def exchange_of(asked: Asked | None, *, decorated: bool) -> Exchange | Unguarded | None:
    """The exchange of the request that a handler is called for; None where that is not a guarded one: an
    application may make a request of its own while it handles ours.

    A request that carries nothing, inside one whose key nobody has claimed, may be that one in another form,
    or not. A handler that would be guarded is not run for it: as its handler it would take the key, and else
    it would run for each retry.
    """
    known = current_exchange.get()
    if asked is None:
        return known
    if SEEN in asked.context:
        carried = asked.context[SEEN]
        return carried if isinstance(carried, Exchange | Unguarded) else None
    if not isinstance(known, Exchange) or known.is_of(asked):
        return known
    if known.waits and (decorated or known.rules is not None):
        path = _full_path(asked.context)
        message = (
            f"{asked.method} {path} was reached inside {known.parts.method} {known.parts.path}, whose key "
            "nobody has claimed, and nothing shows whether it is that request, so it was not run. If the "
            "application makes a request of its own there, send it through the IdempotencyMiddleware (call "
            f"the whole application), or give the middleware routes={{{path!r}: 'exempt'}}. If a middleware "
            "makes the request anew, let it hand its scope or environ on: copy it (dict(scope)) and change "
            "the copy. If it dispatches, decorate what dispatches."
        )
        logger.error("%s", message)
        raise ConfigurationError(message)
    return None


def passed(asked: Asked) -> Exchange | None:
    """The exchange of a middleware that a request is on its way through, inside another one; None where it
    comes to its first one. A mark alone says nothing: who is outside may send one request in twice."""
    known = current_exchange.get()
    if isinstance(known, Exchange) and (asked.context.get(SEEN) is known or known.has_key_and_place(asked)):
        return known
    return None


def exchange_of_call(arguments: Sequence[Any], *, decorated: bool) -> Exchange | Unguarded | None:
    """``exchange_of``, for a call with these arguments."""
    known = current_exchange.get()
    if not isinstance(known, Exchange):
        return known
    return exchange_of(known.framework.asked(arguments), decorated=decorated)


reached: ContextVar[tuple[object, str]] = ContextVar("samekey_reached", default=(None, ""))
"""The mark of the handler that a framework calls for a request, and the request's method."""

current_exchange: ContextVar[Exchange | Unguarded | None] = ContextVar("samekey_exchange", default=None)

"""Where an undecorated handler claims: below its decorators.

A decorator may authenticate (``@login_required``, ``@requires``), so the key must not decide before it has
run. The claim is made when the innermost function is reached, the one that ``functools.wraps`` leads to; the
boundary stays that of the whole handler, because a decorator also turns errors into answers, and tries again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

from ..errors import ConfigurationError
from .exchange import Exchange, current_exchange
from .hands import Put, holds, is_function
from .marks import own_handler, put_in_place, stands_in
from .operation import Running

_CACHE: Final = type(functools.lru_cache(lambda: None))
"""A cache asks nobody who they are: it is the function itself."""
HIDDEN: Final = (
    "it has decorators of its own, and it cannot be seen how they call it, so the key might decide before "
    "they have authenticated the caller. Decorate the innermost function, @login_required above "
    '@idempotency.leased, or leave the route alone: declare it exempt, or set undecorated="pass".'
)
_MOST: Final = 64
"""Decorators around decorators."""


class Whole:
    """One run of a handler with decorators: from the outermost one's first line to its last."""

    def __init__(self, inner: Inner, exchange: Exchange) -> None:
        self.inner, self.exchange = inner, exchange
        self._lock = threading.Lock()
        self._ended = False
        self.running: Running | None = None
        """What the innermost function holds the key by, once it was reached."""

    def join(self, running: Running) -> bool:
        """The innermost function runs. False: the decorators around it have ended before."""
        with self._lock:
            if not self._ended:
                self.running = running
            return not self._ended

    def end(self) -> Running | None:
        """The outermost decorator has ended; what was reached inside it ends here."""
        with self._lock:
            self._ended = True
            return self.running


class Inner:
    """The innermost function below the decorators of a handler."""

    def __init__(self, function: Any) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self._lock = threading.Lock()
        self._on_their_way = 0

    @contextmanager
    def expected(self, exchange: Exchange) -> Iterator[Whole]:
        """Around the decorators, which are to reach it."""
        whole = Whole(self, exchange)
        token = _whole_run.set(whole)
        with self._lock:
            self._on_their_way += 1
        try:
            yield whole
        finally:
            with self._lock:
                self._on_their_way -= 1
            _whole_run.reset(token)

    def whole_of(self, exchange: Exchange) -> Whole | None:
        """The run of the decorators that have reached it for this request."""
        whole = _whole_run.get()
        if whole is None or whole.inner is not self or whole.exchange is not exchange:
            return None
        return whole

    def check(self) -> None:
        """It is called, and nobody says for which request. If one is on its way to it, that one has lost its
        context, in a thread say, and nobody would claim."""
        if self._on_their_way and current_exchange.get(_NOT_SAID) is _NOT_SAID:
            raise ConfigurationError(
                f"{self.name} was called in a context without its request, so it was not run: a decorator "
                "calls it in a thread. Have it run there by contextvars.copy_context().run, or decorate the "
                "whole handler: @idempotency.leased above that decorator."
            )


_NOT_SAID: Final[Any] = object()
_whole_run: ContextVar[Whole | None] = ContextVar("samekey_whole", default=None)
_known: WeakKeyDictionary[Any, Inner] = WeakKeyDictionary()


def stand_inside(handler: Any, claiming: Callable[[Any, Inner], Any]) -> Inner | Literal["hidden"] | None:
    """Puts a function that claims in the place of the innermost one, in the hands of the decorators around
    it. None: there are no decorators. "hidden": it cannot be seen how they call it."""
    found = innermost(handler)
    if found is None:
        return None
    function, places = found
    if not places:
        return "hidden"
    inner = _known.setdefault(function, Inner(function))
    stands = put_in_place(claiming(function, inner), function)
    for put in places:
        put(stands)
    return inner


def is_hidden(handler: Any) -> bool:
    """Whether a handler has decorators of its own, and it cannot be seen how they call it."""
    found = innermost(handler)
    return found is not None and not found[1]


def innermost(handler: Any) -> tuple[Any, list[Put]] | None:
    """The function below the decorators of a handler, and the places where they hold it; None for a handler
    that has no decorators. No places: it cannot be seen how they call it."""
    handler = own_handler(handler)
    wrappers, function = list[Any](), getattr(handler, "__func__", handler)
    call = getattr(type(function), "__call__", None)  # noqa: B004 - whether it is a function of its own
    if is_function(call) and getattr(function, "__wrapped__", None) is None:
        function = call  # an object, which may have decorators on what is called
    while (inner := _wrapped_by(function)) is not None and len(wrappers) < _MOST:
        wrappers.append(function)
        function = inner
    if not wrappers:
        return None

    below = [*wrappers[1:], function]
    links = zip(wrappers, below, strict=True)
    places = [put for wrapper in wrappers for put in _holds(wrapper, function)]
    if None in places or not all(_holds(wrapper, inner) for wrapper, inner in links):
        return function, []
    return function, [put for put in places if put is not None]


def _holds(wrapper: Any, function: Any) -> list[Put | None]:
    return list(
        holds(wrapper, lambda one: one is function or (stands_in(one) and own_handler(one) is function))
    )


def _wrapped_by(function: Any) -> Any:
    """What a decorator says that it wraps, or else what it has taken the name of."""
    if isinstance(function, _CACHE):
        return None
    said = getattr(function, "__wrapped__", None)
    if said is not None or not is_function(function):
        return said
    if function.__name__ == function.__code__.co_name:
        return None
    held = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    named = (one for one in map(own_handler, held) if is_function(one))
    return next((one for one in named if one.__name__ == function.__name__), None)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False

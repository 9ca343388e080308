"""What a view does before the claim, where Django's ``ATOMIC_REQUESTS`` would have put it into a transaction.

An atomic view has samekey's transaction in the place of Django's, and that one begins at the guarded
function. What a view writes before (a ``create()`` around a guarded ``perform_create()``, ``initial()``, a
decorator) would stand although the request fails, once more for each retry. So it is refused before it is
sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from django.db.transaction import TransactionManagementError

from ..engine.exchange import Exchange
from ..errors import ConfigurationError


class _View:
    """A view of which ``ATOMIC_REQUESTS`` was taken off, while it runs."""

    __slots__ = ("alias", "exchange", "over")

    def __init__(self, alias: str, exchange: Exchange) -> None:
        self.alias = alias
        self.exchange = exchange
        self.over = False
        """It has ended; what it has started may still run."""

    @property
    def is_bare(self) -> bool:
        return not self.over and not self.exchange.is_claimed


_view: ContextVar[_View | None] = ContextVar("samekey_django_view", default=None)


@contextmanager
def before_claim(alias: str, exchange: Exchange) -> Iterator[None]:
    """Around a whole view."""
    view = _View(alias, exchange)
    token = _view.set(view)
    try:
        yield
    except TransactionManagementError as error:
        if view.is_bare:  # select_for_update(), which Django itself refuses
            raise ConfigurationError(_LOCKS.format(route=_route(exchange), error=error)) from error
        raise
    finally:
        view.over = True
        _view.reset(token)


def is_bare(alias: str) -> bool:
    """Whether this is code of such a view, before its claim."""
    view = _view.get()
    return view is not None and view.alias == alias and view.is_bare


def refuse_before_claim(alias: str) -> None:
    """Something is to be written or locked there."""
    view = _view.get()
    assert view is not None
    raise ConfigurationError(_WRITES.format(route=_route(view.exchange), alias=alias))


def _route(exchange: Exchange) -> str:
    return f"{exchange.parts.method} {exchange.endpoint}"


_INSTEAD: Final = (
    "Do it in the guarded function, or guard the method that does it (create in the place of perform_create, "
    "say). If nothing before the guarded function needs a transaction, put transaction.non_atomic_requests "
    "on the view: what it writes there then stands, whatever becomes of the request, once for each retry."
)
_WRITES: Final = (
    "{route}: something was to be written or locked in {alias!r} before the guarded function was reached, "
    "and was not sent. In the place of ATOMIC_REQUESTS this view has samekey's transaction, begun at that "
    f"function: what is written before stands although the request fails. {_INSTEAD}"
)
_LOCKS: Final = (
    "{route}: {error} It was used before the guarded function was reached. In the place of ATOMIC_REQUESTS "
    f"this view has samekey's transaction, which begins at that function. {_INSTEAD}"
)

"""The body of a request, which is read no earlier than at the claim.

Until then it is the application's: nobody may have to guard the request, and whatever is not guarded must
find its body as the server gives it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ...core.policy import Policy
from ...core.problem import Refusal, refuse
from ...core.record import Answer

if TYPE_CHECKING:
    from ..exchange import Exchange


class Callers(Protocol):
    """Who asks, where finding that out takes more than a look at the request."""

    def meet(self) -> None:
        """From here on they can be asked. For sync code."""

    async def meet_async(self) -> None:
        """``meet`` for async code."""


class Body(Protocol):
    """Where the body of a request comes from. Whatever was read of it before counts all the same."""

    def whole(self, policy: Policy) -> bytes | Refusal | None:
        """All of it, or why it cannot be had; None where there is none. For sync code."""

    async def whole_async(self, policy: Policy) -> bytes | Refusal | None:
        """``whole`` for async code."""


def read(exchange: Exchange, policy: Policy) -> Answer | None:
    """Reads the body of a request that is to be claimed. An answer: it cannot be had, and nothing may run."""
    return None if exchange.body is None else _noted(exchange, exchange.body.whole(policy), policy)


async def read_async(exchange: Exchange, policy: Policy) -> Answer | None:
    """``read`` for async code."""
    if exchange.body is None:
        return None
    return _noted(exchange, await exchange.body.whole_async(policy), policy)


def _noted(exchange: Exchange, found: bytes | Refusal | None, policy: Policy) -> Answer | None:
    if isinstance(found, Refusal):
        return refuse(found, policy)
    exchange.parts = replace(exchange.parts, body=found)
    exchange.body = None
    return None

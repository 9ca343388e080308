"""Who sends keys and who does not: told for every guarded handler that is reached.

A roll-out goes by it (``samekey coverage --live``). Clients without a key are told here from which day
on they need one.
"""

from __future__ import annotations

import logging
from datetime import UTC
from email.utils import format_datetime
from typing import Final

from .events import Events
from .exchange import Exchange
from .gate import caller_of
from .handler.rules import Rules

logger = logging.getLogger("samekey")

SENT: Final = "sent"
"""A key came with the request."""
MALFORMED: Final = "malformed"
"""What came was no key that is accepted, so the request was refused."""
ABSENT: Final = "absent"
"""None came, and none is required: the request was served."""
WARNED: Final = "warned"
"""None came, and the request was served: one is required from a day that has not come."""
MISSING: Final = "missing"
"""None came, so the request was refused."""

KEY_USE: Final = (SENT, MALFORMED, ABSENT, WARNED, MISSING)


class KeyUse:
    """Tells the observers of one engine."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._logged: set[str] = set()

    def sent(self, exchange: Exchange, tenant: str) -> None:
        self._tell(exchange, SENT, tenant)

    def malformed(self, exchange: Exchange) -> None:
        self._tell_of_its_caller(exchange, MALFORMED)

    def without(self, exchange: Exchange, rules: Rules) -> bool:
        """A handler was reached without a key. True: the request is to be refused."""
        if rules.refuses_without_key:
            self._tell_of_its_caller(exchange, MISSING)
            return True
        if rules.required:
            self._warn(exchange, rules)
        self._tell_of_its_caller(exchange, WARNED if rules.required else ABSENT)
        return False

    def _warn(self, exchange: Exchange, rules: Rules) -> None:
        day = rules.policy.required_from
        assert day is not None
        date = format_datetime(day.astimezone(UTC), usegmt=True)
        exchange.notice = f"{rules.policy.header.lower()}-required".encode("latin-1"), date.encode("ascii")
        if exchange.route not in self._logged:  # once: there may be many such requests
            self._logged.add(exchange.route)
            logger.warning(
                "%s was served without a key; from %s on such requests are refused. samekey coverage --live "
                "shows who sends them.",
                exchange.route,
                date,
            )

    def _tell_of_its_caller(self, exchange: Exchange, key: str) -> None:
        if self._events.are_watched:
            self._tell(exchange, key, caller_of(exchange))

    def _tell(self, exchange: Exchange, key: str, tenant: str | None) -> None:
        self._events.emit("request", tenant=tenant, endpoint=exchange.route, key=key)

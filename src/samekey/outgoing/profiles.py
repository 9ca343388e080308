"""Providers, as they publish how they honour keys: where a key stands, how long it may be, for how long it
is known, and where an answer has the provider's own id. docs/outgoing.md names the pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ..client.dialect import Dialect

UNPUBLISHED: Final = timedelta(hours=24)
"""What a provider is trusted with that publishes no window: what most of them publish, at least."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider. Make your own, or change one: ``replace(PAYPAL, window=timedelta(days=45))``."""

    name: str
    """The ``source`` of its ids and events."""
    dialect: Dialect
    window: timedelta | None = None
    """For so long it knows a key, at least. None: it does not say, and is believed to for ``UNPUBLISHED``;
    ``timedelta.max``: for ever, by your own word."""
    methods: frozenset[str] = frozenset({"POST"})
    """Those with which it takes a key."""
    provider_id: str | None = "/id"
    """Where an answer has its own id: a JSON Pointer."""
    untouched: tuple[str, ...] = ()
    """Paths of requests that only fetch a token: they go out as they are."""
    sdks: frozenset[str] = frozenset()
    """The provider's own packages. Of whatever their transport raises they make errors of their own, and do
    nothing else: there, proof that nothing was sent stays proof."""

    def sent_key(self, downstream_key: str) -> str:
        """A downstream key as this provider sees it: for lookups, where a long one is sent as its digest."""
        return self.dialect.spell(downstream_key)


STRIPE: Final = Profile("stripe", Dialect(quoted=False), timedelta(hours=24), sdks=frozenset({"stripe"}))
STRIPE_V2: Final = Profile(
    "stripe",
    Dialect(quoted=False),
    timedelta(days=30),
    methods=frozenset({"POST", "DELETE"}),
    sdks=frozenset({"stripe"}),
)
ADYEN: Final = Profile(
    "adyen",
    Dialect(quoted=False, longest=64),
    timedelta(days=7),
    provider_id="/pspReference",
    sdks=frozenset({"Adyen"}),
)
PAYPAL: Final = Profile(
    "paypal",
    Dialect(header="PayPal-Request-Id", quoted=False, longest=108),
    timedelta(hours=3),
    untouched=("/v1/oauth2/token",),
    sdks=frozenset({"paypalserversdk", "paypalcheckoutsdk", "paypalhttp"}),
)
SQUARE: Final = Profile(
    "square",
    Dialect(quoted=False, member="idempotency_key", longest=45),
    provider_id="/payment/id",
    sdks=frozenset({"square"}),
)

"""An adapter of requests for calls to a provider from inside an operation."""

from __future__ import annotations

from typing import Any

from ..client.requests import Adapter
from .call import Outgoing

__all__ = ["ProviderAdapter"]


class ProviderAdapter(Adapter):
    """For ``session.mount("https://api.stripe.com", …)``."""

    def __init__(self, outgoing: Outgoing, **settings: Any) -> None:
        super().__init__(outgoing, **settings)

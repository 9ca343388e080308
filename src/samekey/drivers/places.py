"""No place in this process: no connection of the pool, no thread was free. The store was not asked."""

from __future__ import annotations

from ..errors import StoreBusy


class NoPlace(StoreBusy):
    """Nothing was sent, and it says nothing about the store: neither that it is away nor that it is there."""

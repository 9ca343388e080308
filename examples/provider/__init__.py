"""A payment provider to test against: a process of its own, with a ledger that only it writes.

It moves money (charges, refunds, transfers), remembers idempotency keys for a while as real ones do, sends
signed webhooks, and fails on demand in all the ways that hurt: after the charge and before the answer. What
happened is what its ledger says; each line was on the disk before its answer was sent. Nothing here knows
samekey.

    with Provider.start(directory) as provider:
        provider.fail("charge_then_drop")
        client = ProviderClient(provider.url)
        ...
        assert len(provider.charges()) == 1
"""

from __future__ import annotations

from .client import Declined, ProviderClient, ProviderError
from .faults import FAULTS, FOR_EVER, WEBHOOK_FAULTS, Fault
from .ledger import Charge, Entry, Kind, read_ledger
from .process import Provider
from .webhooks import SIGNATURE, sign, verify_signature

__all__ = [
    "FAULTS",
    "FOR_EVER",
    "SIGNATURE",
    "WEBHOOK_FAULTS",
    "Charge",
    "Declined",
    "Entry",
    "Fault",
    "Kind",
    "Provider",
    "ProviderClient",
    "ProviderError",
    "read_ledger",
    "sign",
    "verify_signature",
]

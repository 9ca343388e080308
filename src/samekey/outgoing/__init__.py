"""Calls to providers from inside an operation: with the key of their step, and ends that the engine knows.

Each HTTP library has a module of its own, which imports it: ``samekey.outgoing.httpx2``,
``samekey.outgoing.httpx``, ``samekey.outgoing.requests``.
"""

from ..client.course import Patience
from ..client.dialect import Dialect
from .call import CallRefused, KeylessCall, Outgoing, ProviderUnclear, step
from .profiles import ADYEN, PAYPAL, SQUARE, STRIPE, STRIPE_V2, Profile

__all__ = [
    "ADYEN",
    "PAYPAL",
    "SQUARE",
    "STRIPE",
    "STRIPE_V2",
    "CallRefused",
    "Dialect",
    "KeylessCall",
    "Outgoing",
    "Patience",
    "Profile",
    "ProviderUnclear",
    "step",
]

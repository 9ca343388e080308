"""The store conformance suite: what every store must do, sync and async, from one set of bodies.

It is public, for stores of your own. With pytest:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self) -> Iterator[Subject]:
            yield SyncSubject(driver, keys, queries)     # or AsyncSubject, or your own Subject

The suite itself knows no test framework: each ``test_`` method takes the store and raises AssertionError.
``run_all(store)`` runs them one after the other. Every test keeps to a scope of its own, so they may share
one database, also with other traffic.

A store that keeps keys only, without transactions, derives from ``KeyStoreConformance``.
"""

from __future__ import annotations

from .conformance_claims import ClaimConformance
from .conformance_leases import LeaseConformance
from .conformance_lives import LifeConformance
from .conformance_records import RecordConformance
from .conformance_subject import (
    AsyncSubject,
    KeyStore,
    Subject,
    SyncSubject,
    Transaction,
    TransactionalSubject,
    new_claim,
    retry_of,
)
from .conformance_transactions import TransactionConformance

__all__ = [
    "AsyncSubject",
    "KeyStore",
    "KeyStoreConformance",
    "StoreConformance",
    "Subject",
    "SyncSubject",
    "Transaction",
    "TransactionalSubject",
    "new_claim",
    "retry_of",
    "run_all",
]


class KeyStoreConformance(ClaimConformance, LeaseConformance, LifeConformance, RecordConformance):
    """What a store of keys must do that has no transactions. Give it a fixture named ``store``."""


class StoreConformance(KeyStoreConformance, TransactionConformance):
    """All of it. Derive a test class and give it a fixture named ``store``."""


def run_all(store: Subject, suite: type[KeyStoreConformance] = StoreConformance) -> list[str]:
    """Runs every test on one store; gives their names. The first that fails raises AssertionError."""
    tests = suite()
    names = sorted(name for name in dir(tests) if name.startswith("test_"))
    for name in names:
        getattr(tests, name)(store)
    return names

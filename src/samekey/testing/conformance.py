"""The store conformance suite: what every store must do, sync and async, from one set of bodies.

It is public, for stores of your own. With pytest:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self) -> Iterator[Subject]:
            yield SyncSubject(driver, keys, queries)     # or AsyncSubject, or your own Subject

The suite itself knows no test framework: each ``test_`` method takes the store and raises AssertionError.
``run_all(store)`` runs them one after the other. Every test keeps to a scope of its own, so they may share
one database, also with other traffic.
"""

from __future__ import annotations

from .conformance_claims import ClaimConformance
from .conformance_leases import LeaseConformance
from .conformance_records import RecordConformance
from .conformance_subject import (
    AsyncSubject,
    KeyStore,
    Subject,
    SyncSubject,
    Transaction,
    new_claim,
    retry_of,
)

__all__ = [
    "AsyncSubject",
    "KeyStore",
    "StoreConformance",
    "Subject",
    "SyncSubject",
    "Transaction",
    "new_claim",
    "retry_of",
    "run_all",
]


class StoreConformance(ClaimConformance, LeaseConformance, RecordConformance):
    """All of it. Derive a test class and give it a fixture named ``store``."""


def run_all(store: Subject) -> list[str]:
    """Runs every test on one store; gives their names. The first that fails raises AssertionError."""
    suite = StoreConformance()
    names = sorted(name for name in dir(suite) if name.startswith("test_"))
    for name in names:
        getattr(suite, name)(store)
    return names

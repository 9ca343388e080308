"""The matrix uses the loop, the threads and the databases of the edges' tests."""

from __future__ import annotations

from tests.edges.conftest import loop, postgres_stores, stores, threads

__all__ = ["loop", "postgres_stores", "stores", "threads"]

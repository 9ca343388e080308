"""SQLite: a process starts while another one writes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from samekey import Idempotency
from samekey.errors import StoreBusy


def test_one_is_made_while_another_process_has_the_write_lock(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    Idempotency(f"sqlite:///{path}").close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    made = Idempotency(f"sqlite:///{path}", timeout=0.1)
    other.execute("rollback")
    assert made.once(tenant="t", key="k", name="call", run=lambda: 1) == 1
    made.close()


def test_a_migration_that_is_due_still_needs_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    Idempotency(f"sqlite:///{path}").close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("delete from samekey_schema_versions where version = 1")
    other.execute("begin immediate")
    with pytest.raises(StoreBusy):
        Idempotency(f"sqlite:///{path}", timeout=0.1)
    other.execute("rollback")
    other.close()

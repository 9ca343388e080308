"""Stored requests and answers can be encrypted at rest, with keys that rotate (T7)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from samekey import ConfigurationError, Idempotency
from samekey.encryption import fernet
from samekey.errors import CorruptRecord

SECRET = "4242-4242-4242-4242"


def _open(path: Path, *keys: bytes) -> Idempotency:
    return Idempotency(f"sqlite:///{path}", encryption=fernet(*keys) if keys else None)


def _remember(idempotency: Idempotency, key: str) -> object:
    result: object = idempotency.once(tenant="t", key=key, run=lambda: {"card": SECRET})
    idempotency.close()
    return result


def _raw(path: Path) -> bytes:
    with sqlite3.connect(path) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    return path.read_bytes()


def test_nothing_of_an_answer_can_be_read_in_the_file(tmp_path: Path) -> None:
    plain, sealed = tmp_path / "plain.db", tmp_path / "sealed.db"
    _remember(_open(plain), "k")
    _remember(_open(sealed, Fernet.generate_key()), "k")
    assert SECRET.encode() in _raw(plain)
    assert SECRET.encode() not in _raw(sealed)


def test_keys_rotate_without_losing_answers(tmp_path: Path) -> None:
    path, old, new = tmp_path / "app.db", Fernet.generate_key(), Fernet.generate_key()
    first = _remember(_open(path, old), "k")
    assert _remember(_open(path, new, old), "k") == first
    _remember(_open(path, new, old), "later")
    assert _remember(_open(path, new), "later") == first, "the new key encrypts"


def test_records_from_before_encryption_stay_readable(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    first = _remember(_open(path), "k")
    assert _remember(_open(path, Fernet.generate_key()), "k") == first


def test_a_lost_key_is_an_error_and_never_a_second_run(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    _remember(_open(path, Fernet.generate_key()), "k")
    stranger = _open(path, Fernet.generate_key())
    with pytest.raises(CorruptRecord, match="decrypted"):
        stranger.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"))
    stranger.close()


def test_a_key_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="Fernet"):
        fernet("too short")
    with pytest.raises(ConfigurationError, match="at least one"):
        fernet()

"""Stored requests and answers can be encrypted at rest, with keys that rotate (T7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from lab.processes import wait_until
from samekey import ConfigurationError, Idempotency, SamekeyError
from samekey.asgi import IdempotencyMiddleware
from samekey.encryption import also_plain, fernet
from samekey.errors import CorruptRecord
from samekey.tenants import single_tenant
from tests.chosen import stores

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


def test_records_from_before_encryption_are_read_where_that_is_said(tmp_path: Path) -> None:
    path, key = tmp_path / "app.db", Fernet.generate_key()
    first = _remember(_open(path), "k")
    switching = Idempotency(f"sqlite:///{path}", encryption=also_plain(fernet(key)))
    assert _remember(switching, "k") == first
    _remember(Idempotency(f"sqlite:///{path}", encryption=also_plain(fernet(key))), "new")
    assert SECRET.encode() in _raw(path)
    assert _remember(_open(path, key), "new") == first, "what is written meanwhile is encrypted"


def test_an_answer_that_is_not_encrypted_is_refused(tmp_path: Path) -> None:
    """Whoever can write to the database cannot give an answer of his own."""
    path = tmp_path / "app.db"
    _remember(_open(path), "k")
    _refused(_open(path, Fernet.generate_key()), "k")


@pytest.mark.parametrize("columns", ["answer_body", "answer_headers", "answer_body, answer_headers"])
def test_an_answer_of_another_record_is_refused(tmp_path: Path, columns: str) -> None:
    path, key = tmp_path / "app.db", Fernet.generate_key()
    for name in ("alice", "bob"):
        _remember(_open(path, key), name)
    with sqlite3.connect(path) as connection:
        theirs = f"select {columns} from samekey_keys where key = 'alice'"
        connection.execute(f"update samekey_keys set ({columns}) = ({theirs}) where key = 'bob'")
    connection.close()
    _refused(_open(path, key), "bob")
    assert _remember(_open(path, key), "alice") == {"card": SECRET}


def test_a_body_in_the_place_of_the_headers_is_refused(tmp_path: Path) -> None:
    path, key = tmp_path / "app.db", Fernet.generate_key()
    _remember(_open(path, key), "k")
    with sqlite3.connect(path) as connection:
        connection.execute(
            "update samekey_keys set answer_headers = answer_body, answer_body = answer_headers"
        )
    connection.close()
    _refused(_open(path, key), "k")


def test_no_identity_can_be_planted_beside_a_foreign_answer(tmp_path: Path) -> None:
    """Where an answer belongs is compared with the row's own id, scope and key, and with nothing else."""
    path, key = tmp_path / "app.db", Fernet.generate_key()
    for name in ("alice", "bob"):
        _remember(_open(path, key), name)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "update samekey_keys "
            "set (answer_body, answer_headers, provider_id, recovery_point, error_code) = "
            "(select answer_body, answer_headers, id, scope, key from samekey_keys where key = 'alice') "
            "where key = 'bob'"
        )
    connection.close()
    _refused(_open(path, key), "bob")


def _refused(idempotency: Idempotency, key: str) -> None:
    runs: list[int] = []
    with pytest.raises(CorruptRecord, match="cannot be decrypted, or was encrypted for another record"):
        idempotency.once(tenant="t", key=key, run=lambda: runs.append(1))
    assert runs == []
    idempotency.close()


def test_a_lost_key_is_an_error_and_never_a_second_run(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    _remember(_open(path, Fernet.generate_key()), "k")
    stranger = _open(path, Fernet.generate_key())
    with pytest.raises(CorruptRecord, match="decrypted"):
        stranger.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"))
    stranger.close()


class Remote:
    """A key service that is away for so many questions."""

    def __init__(self, away: int) -> None:
        self.away, self.asked = away, 0
        self._fernet = Fernet(Fernet.generate_key())

    def encrypt(self, data: bytes) -> bytes:
        self.asked += 1
        if self.asked <= self.away:
            raise ConnectionError("the key service cannot be reached")
        return self._fernet.encrypt(data)

    def decrypt(self, token: bytes) -> bytes:
        return self._fernet.decrypt(token)


def test_a_key_service_that_is_away_for_a_moment_costs_no_answer(tmp_path: Path) -> None:
    """The outcome is tried again, as where the store itself is away."""
    service = Remote(away=6)
    idempotency = Idempotency(f"sqlite:///{tmp_path / 'app.db'}", encryption=service)

    def again() -> object:
        return idempotency.once(tenant="t", key="k", run=lambda: pytest.fail("it ran twice"))

    assert idempotency.once(tenant="t", key="k", run=lambda: {"paid": 1}) == {"paid": 1}
    wait_until(lambda: service.asked > 6)
    wait_until(lambda: _outcome(again) == {"paid": 1})
    idempotency.close()


@pytest.mark.parametrize("store", stores("sqlite", "mariadb", first=1))
def test_a_refusal_that_cannot_be_encrypted_frees_its_key(store: str, request: pytest.FixtureRequest) -> None:
    """What the handler wrote is rolled back, so a retry may run at once."""
    service, ran = Remote(away=0), []
    idempotency = Idempotency(request.getfixturevalue(f"{store}_url"), encryption=service)
    idempotency.migrate()

    def pay(_request: Any) -> Response:
        ran.append(1)
        service.away = service.asked + 1 if len(ran) == 1 else 0
        return Response(status_code=402)

    routes = [Route("/payments", idempotency.atomic(pay), methods=["POST"])]
    app = IdempotencyMiddleware(
        Starlette(routes=routes), idempotency=idempotency, tenant=single_tenant("acme")
    )
    with TestClient(app) as client:
        answers = [client.post("/payments", headers={"Idempotency-Key": "k"}) for _ in range(3)]
    assert [one.status_code for one in answers] == [503, 402, 402]
    assert answers[2].headers["Idempotent-Replayed"] == "true" and len(ran) == 2


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except SamekeyError as error:
        return error


def test_a_key_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="Fernet"):
        fernet("too short")
    with pytest.raises(ConfigurationError, match="at least one"):
        fernet()

"""With an identity secret, nothing that leaves the process can be computed from a guessed key; and a store
whose keys were made with another is never used."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from samekey import ConfigurationError, Idempotency, ietf
from samekey.core.claim import identity_mark
from samekey.core.program import Statement
from samekey.errors import SchemaMismatch
from tests.chosen import stores
from tests.engine import identity
from tests.engine.identity import OTHER, SECRET, opened, pay


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb"))
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    idempotency = Idempotency(found)
    idempotency.migrate()
    idempotency.close()
    return found


def test_nobody_can_guess_the_key(url: str) -> None:
    identity.check_nobody_can_guess_the_key(url)


def test_another_process_finds_it(url: str) -> None:
    identity.check_another_process_finds_it(url)


def test_another_secret_is_refused_and_nothing_runs(url: str) -> None:
    identity.check_another_secret_is_refused(url)


def test_a_store_without_a_secret_stays_without(url: str) -> None:
    identity.check_a_store_without_stays_without(url)


def test_of_two_that_come_first_at_once_one_is_refused(url: str) -> None:
    together = threading.Barrier(2)

    def begin(secret: bytes) -> bool:
        idempotency = opened(url, secret)
        together.wait(30)
        try:
            pay(idempotency)
        except SchemaMismatch:
            return False
        finally:
            idempotency.close()
        return True

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(begin, (SECRET, OTHER))) == [False, True]


def test_a_later_life_has_the_same_downstream_key(url: str) -> None:
    policy = ietf(ttl=timedelta(hours=1))
    idempotency = Idempotency(url, policy=policy, identity_secret=SECRET)
    first = pay(idempotency)
    queries = idempotency.engine.store.tables.queries
    idempotency.engine.drivers.sync.execute(
        Statement(queries.build("age", "update {keys} set expires_at = 1"), {})
    )
    second = pay(idempotency)
    assert first[0] != second[0]
    assert first[1] == second[1]
    idempotency.close()


@pytest.mark.parametrize("secret", [b"", b"short", "text of more than sixteen letters"])
def test_a_secret_that_can_be_guessed_is_refused(sqlite_url: str, secret: object) -> None:
    with pytest.raises(ConfigurationError, match="16 random bytes"):
        Idempotency(sqlite_url, identity_secret=secret)  # type: ignore[arg-type]


def test_the_mark_that_is_stored_is_not_the_secret() -> None:
    assert identity_mark(SECRET) != identity_mark(OTHER)
    assert SECRET.hex()[:16] not in identity_mark(SECRET)

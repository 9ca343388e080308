"""What an identity secret promises, for every store: tests of each call these."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from samekey import Idempotency, current_operation
from samekey.core.claim import call_part, downstream_base, downstream_key, scope_of, scope_part
from samekey.errors import SchemaMismatch

Check: TypeAlias = Callable[[str], None]

SECRET, OTHER = b"s" * 32, b"t" * 32
TENANT, NAME = "ann", "pay"
PINS = [f"{number:04d}" for number in range(10_000)]
"""Keys as a careless client chooses them."""


def opened(url: str, secret: bytes | None) -> Idempotency:
    return Idempotency(url, identity_secret=secret)


def pay(idempotency: Idempotency, key: str = "4711") -> tuple[str, str]:
    """What leaves the process: the operation's id, and the key that a provider gets."""

    def run() -> list[str]:
        operation = current_operation()
        return [operation.id, operation.downstream_key()]

    operation_id, sent = idempotency.once(tenant=TENANT, key=key, run=run, name=NAME)
    return operation_id, sent


def refused(url: str, secret: bytes | None) -> str:
    idempotency = opened(url, secret)
    with pytest.raises(SchemaMismatch) as error:
        idempotency.once(tenant=TENANT, key="4711", run=lambda: pytest.fail("it ran"), name=NAME)
    with pytest.raises(SchemaMismatch):
        idempotency.check()
    idempotency.close()
    return str(error.value)


def check_nobody_can_guess_the_key(url: str) -> None:
    idempotency = opened(url, SECRET)
    operation_id, sent = pay(idempotency)
    idempotency.close()
    assert not is_guessed(operation_id, sent)


def is_guessed(operation_id: str, sent: str) -> bool:
    """By somebody who has the code and knows whose key it is, and for what, but not the key."""
    scopes = [
        scope_of(part(TENANT), *more)
        for part in (scope_part, call_part)
        for more in ((), (scope_part(NAME),), (scope_part(f"CALL {NAME}"),))
    ]
    guesses = [(scope, pin) for scope in scopes for pin in PINS]
    return sent in {downstream_key(scope, pin, "") for scope, pin in guesses} or any(
        downstream_base(scope, pin) in operation_id for scope, pin in guesses
    )


def check_another_process_finds_it(url: str) -> None:
    first, second = opened(url, SECRET), opened(url, SECRET)
    assert pay(first) == pay(second)
    for idempotency in (first, second):
        idempotency.close()


def check_another_secret_is_refused(url: str) -> None:
    idempotency = opened(url, SECRET)
    before = pay(idempotency)
    assert "with another identity_secret" in refused(url, OTHER)
    assert "with another identity_secret" in refused(url, None)
    assert pay(idempotency) == before
    idempotency.close()


def check_a_store_without_stays_without(url: str) -> None:
    idempotency = opened(url, None)
    before = pay(idempotency)
    assert is_guessed(*before), "without a secret, a key of four digits is soon found"
    assert "without an identity_secret" in refused(url, SECRET)
    assert pay(idempotency) == before
    idempotency.close()

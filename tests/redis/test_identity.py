"""An identity secret on Redis, where it is part of the name of every record."""

from __future__ import annotations

import pytest

from tests.engine import identity

CHECKS = [
    identity.check_nobody_can_guess_the_key,
    identity.check_another_process_finds_it,
    identity.check_another_secret_is_refused,
    identity.check_a_store_without_stays_without,
]


@pytest.mark.parametrize("check", CHECKS)
def test_what_it_promises(redis_url: str, check: identity.Check) -> None:
    check(redis_url)

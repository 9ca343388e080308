"""The circuit breaker hears the store alone: what never reached the store neither opens nor closes it."""

from __future__ import annotations

from typing import Any

import pytest

from samekey.drivers.pool import Pool
from samekey.engine.breaker import THRESHOLD, Breaker
from samekey.errors import ConnectionLost, StoreBusy, StoreUnreachable


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        with pytest.raises(ConnectionLost), breaker:
            raise ConnectionLost("It says nothing.")


def test_a_caller_without_a_free_connection_does_not_close_it() -> None:
    """More callers than places, and a store that says nothing: each failure is followed by such a caller."""
    breaker = Breaker(clock=lambda: 0.0)
    pool: Pool[object] = Pool(object, lambda _: None, size=1, timeout=0.0)
    pool.take()
    for _ in range(THRESHOLD - 1):
        fail(breaker, 1)
        with pytest.raises(StoreBusy, match="No connection was free"), breaker:
            pool.take()
    fail(breaker, 1)
    assert breaker.is_open
    with pytest.raises(StoreUnreachable, match="left alone"), breaker:
        pytest.fail("the store was asked")


@pytest.mark.parametrize("raised", [KeyError("a handler's signal"), KeyboardInterrupt(), GeneratorExit()])
def test_what_the_application_raises_does_not_close_it(raised: BaseException) -> None:
    breaker = Breaker(clock=lambda: 0.0)
    fail(breaker, THRESHOLD - 1)
    with pytest.raises(type(raised)), breaker:
        raise raised
    fail(breaker, 1)
    assert breaker.is_open


@pytest.mark.parametrize("said", [None, StoreBusy("PostgreSQL could not have a lock")])
def test_whatever_the_store_says_closes_it(said: Any) -> None:
    now = 0.0
    breaker = Breaker(clock=lambda: now)
    fail(breaker, THRESHOLD)
    assert breaker.is_open
    now = 100.0
    if said is None:
        with breaker:
            pass
    else:
        with pytest.raises(StoreBusy), breaker:
            raise said
    assert not breaker.is_open

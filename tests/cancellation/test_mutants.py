"""The enumerator finds what it is there for: each mutant breaks one rule, and is found out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from samekey import SamekeyError
from samekey.core.program import Program
from samekey.core.record import Lease
from samekey.drivers.pool import AsyncPool
from samekey.drivers.postgres import asyncpg as asyncpg_driver
from samekey.drivers.postgres.asyncpg_session import AsyncpgSession
from samekey.engine.errands import Errands
from samekey.engine.exchange import Exchange
from samekey.engine.keeper import Keeper
from samekey.engine.modes.atomic import LockedAtomic
from samekey.engine.modes.leased import Leased
from samekey.engine.modes.mode import Handled
from samekey.stores.keys import Keys
from tests.cancellation import test_once, test_requests, world
from tests.cancellation.world import Found, Mode, Store

Patch = pytest.MonkeyPatch


def tear_claims_and_forget_them(patch: Patch) -> None:
    """A cancelled caller interrupts its claim, and nobody asks whether that has landed."""

    async def begin(self: Errands, work: Any, *undo: Any, **options: Any) -> Any:
        return await work

    patch.setattr(Errands, "begin", begin)
    patch.setattr(Keeper, "give_back_later", lambda self, factory: None)
    patch.setattr(world, "PATIENCE", 2.0)  # it will not come to rest


def give_back_a_cancelled_connection(patch: Patch) -> None:
    """The connection of a handler that was cancelled goes to the next one as it is."""

    async def rollback(self: Any) -> None:
        if self._pool is not None and self._ended is None:
            self._ended = "given back"  # nobody closes it later on either
            self._pool.give_back(self._connection)

    patch.setattr(AsyncpgSession, "rollback", rollback)
    patch.setattr(asyncpg_driver, "_usable", lambda connection: not connection.is_closed())


def free_the_key_on_a_time_out(patch: Patch) -> None:
    """A handler that was cancelled half-way counts as one that did nothing."""

    def release(self: Keys, lease: Lease, error_code: str, **options: Any) -> Program[int | None]:
        yield from self.release(lease)
        return None

    patch.setattr(Keys, "lose", release)


def keep_the_claim_of_a_caller_that_left(patch: Patch) -> None:
    """A claim that nobody waits for any more is left to its lease."""
    patch.setattr(Leased, "give_back", lambda self, running: iter(()))
    patch.setattr(world, "PATIENCE", 2.0)  # it will not come to rest


def finish_twice(patch: Patch) -> None:
    """Whoever comes back for an outcome that is being recorded records it again: a session ends twice."""

    def give_back(self: Any, connection: Any) -> None:
        self._lent.pop(id(connection), None)
        if not self._hand_over(connection):
            self._idle.append(connection)

    def finish(self: LockedAtomic, running: Any, handled: Any) -> Any:
        finished = yield from once(self, running, handled)
        running.session._ended = None
        running.session._end("again", keep=True)
        return finished

    once = LockedAtomic.finish
    patch.setattr(AsyncPool, "give_back", give_back)
    patch.setattr(LockedAtomic, "finish", finish)


def judge_by_the_page(patch: Patch) -> None:
    """The page of whoever answered last decides, not what the handler's boundary saw."""
    patch.setattr(Exchange, "handled", lambda self, page, *, streamed=False: Handled(page, streamed=streamed))


Enumeration = Callable[[Store], Coroutine[Any, Any, int]]


def calls(mode: Mode, crowd: int = 0) -> Enumeration:
    return lambda store: test_once.cancelled_everywhere(store, mode, crowd)


def requests(path: str) -> Enumeration:
    return lambda store: test_requests.cancelled_everywhere(store, path, "a deadline inside")


MUTANTS: list[tuple[Callable[[Patch], None], Enumeration]] = [
    (tear_claims_and_forget_them, calls("leased")),
    (give_back_a_cancelled_connection, calls("atomic")),
    (free_the_key_on_a_time_out, calls("leased")),
    (keep_the_claim_of_a_caller_that_left, calls("leased")),
    (finish_twice, calls("atomic", test_once.CROWD)),
    (judge_by_the_page, requests("/leased")),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("mutate", "enumerate_all"), MUTANTS, ids=[mutate.__name__ for mutate, _ in MUTANTS])
def test_a_mutant_is_found(
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[Patch], None],
    enumerate_all: Enumeration,
) -> None:
    mutate(monkeypatch)
    store = Store(postgres_url, ("waiting", "waking"))
    with pytest.raises((Found, SamekeyError)):
        asyncio.run(enumerate_all(store))

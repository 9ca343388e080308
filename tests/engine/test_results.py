"""Results of ``once`` that cannot be read when they are to be stored: the operation ends all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from samekey import Idempotency, current_operation
from samekey.errors import NotSerialisable, ResultUnavailable
from tests.chosen import stores
from tests.stores.crash_scenarios import execute


class LazyList(list[Any]):
    """The rows of a query whose connection is gone."""

    def __iter__(self) -> Iterator[Any]:
        raise ConnectionError("the connection of these rows is gone")


class LazyRow(dict[str, Any]):
    """A row that is detached from its session."""

    def items(self) -> Any:
        raise KeyError("detached")


class Odd(float):
    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = float.__hash__


class Silent(list[Any]):
    """Not even its error can be told."""

    class Error(Exception):
        def __str__(self) -> str:
            raise ValueError("nothing to say")

    def __iter__(self) -> Iterator[Any]:
        raise self.Error


class Interrupted(list[Any]):
    """What a signal raises may come at any time."""

    def __iter__(self) -> Iterator[Any]:
        raise SystemExit(3)


UNREADABLE: list[Callable[[], Any]] = [
    lambda: LazyList([1]),
    lambda: LazyRow(a=1),
    lambda: Odd(1.5),
    lambda: Silent([1]),
    lambda: Interrupted([1]),
]


@pytest.mark.parametrize("store", stores("sqlite", "postgres", "mariadb"))
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("mode", ["atomic", "leased"])
def test_a_result_that_cannot_be_read_ends_its_operation(
    request: pytest.FixtureRequest, store: str, kind: str, mode: Any
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    idempotency = Idempotency(url, pool_size=1, timeout=2)
    idempotency.migrate()
    execute(url, "create table effects (n int)")
    ran: list[str] = []

    async def once(key: str, make: Callable[[], Any]) -> Any:
        def run() -> Any:
            ran.append(key)
            if mode == "atomic":
                current_operation().connection.cursor().execute("insert into effects values (1)")
            return make()

        async def run_async() -> Any:
            ran.append(key)
            if mode == "atomic":
                await current_operation().connection.execute("insert into effects values (1)")
            return make()

        if kind == "sync":
            return idempotency.once(tenant="t", key=key, run=run, mode=mode)
        return await idempotency.once_async(tenant="t", key=key, run=run_async, mode=mode)

    async def story() -> None:
        for number, make in enumerate(UNREADABLE):
            key, interrupted = f"k{number}", isinstance(make(), Interrupted)
            with pytest.raises(SystemExit if interrupted else NotSerialisable):
                await once(key, make)
            if mode == "atomic":  # nothing stands, so it may run again
                assert await once(key, lambda: 1) == 1
                assert execute(url, "select count(*) from effects")[0][0] == number + 1
            elif not interrupted:
                with pytest.raises(ResultUnavailable):
                    await once(key, lambda: 1)
                assert ran.count(key) == 1
            assert not idempotency.engine.keeper._watched
        await idempotency.aclose()

    asyncio.run(story())

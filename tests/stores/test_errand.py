"""Work that is its caller's own until the caller is cancelled, and a task's from then on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from samekey.drivers.caller import Caller, caller
from samekey.drivers.errand import Errand, Waiting, leave, see_off, shielded


class Desk:
    """Work with three waits, and what is heard of it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.answers = [self.loop.create_future() for _ in range(3)]
        self.tasks: list[Any] = []
        self.said: list[str] = []

    async def work(self) -> str:
        for answer in self.answers:
            self.tasks.append(asyncio.current_task())
            try:
                self.said.append(await answer)
            except ValueError as error:
                self.said.append(str(error))
        return ",".join(self.said)


def test_nobody_is_disturbed_and_no_task_is_made() -> None:
    async def story() -> None:
        desk = Desk()
        errand = Errand(desk.work(), moves=True)
        desk.loop.call_soon(desk.answers[0].set_result, "a")
        desk.loop.call_soon(desk.answers[1].set_exception, ValueError("b"))
        desk.answers[2].set_result("c")
        assert await errand == "a,b,c"
        assert errand.rest is None and errand.is_over
        assert set(desk.tasks) == {asyncio.current_task()}
        assert await errand.result() == "a,b,c"

    asyncio.run(story())


@pytest.mark.parametrize("waking", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("moves", [False, True])
def test_a_cancelled_caller_leaves_and_the_work_goes_on(moves: bool, place: int, waking: bool) -> None:
    async def story() -> None:
        desk = Desk()
        errand = Errand(desk.work(), moves=moves)

        async def call() -> str:
            return await errand

        calling = asyncio.ensure_future(call())
        for answer in desk.answers[:place]:
            await asyncio.sleep(0)
            answer.set_result("x")
        for _ in range(3):
            await asyncio.sleep(0)
        if waking:
            desk.answers[place].set_result("x")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert errand.rest is not None and not any(answer.cancelled() for answer in desk.answers)
        for answer in desk.answers[place + waking :]:
            assert not errand.rest.done()
            answer.set_result("x")
            await asyncio.sleep(0)
        assert await errand.result() == "x,x,x" == await errand.rest
        assert calling.cancelled()

    asyncio.run(story())


def test_what_the_work_waits_for_may_be_cancelled_by_others() -> None:
    async def story() -> None:
        future = asyncio.get_running_loop().create_future()

        async def work() -> str:
            try:
                await future
            except asyncio.CancelledError:
                return "heard"
            return "not heard"

        asyncio.get_running_loop().call_soon(future.cancel)
        errand = Errand(work(), moves=True)
        assert await errand == "heard"
        assert errand.rest is None

    asyncio.run(story())


def test_one_inside_the_other() -> None:
    async def story() -> None:
        desk = Desk()
        inner = Errand(desk.work(), moves=True)

        async def outer_work() -> str:
            return f"[{await inner}]"

        outer = Errand(outer_work(), moves=True)

        async def call() -> str:
            return await outer

        calling = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert outer.rest is not None and inner.rest is None
        for answer in desk.answers:
            answer.set_result("x")
        assert await outer.result() == "[x,x,x]"

    asyncio.run(story())


def test_the_work_hears_whether_its_caller_has_gone() -> None:
    async def story() -> None:
        desk, who = Desk(), Caller()

        async def work() -> list[Any]:
            before = caller.get()
            await desk.answers[0]
            return [before, caller.get()]

        errand = Errand(work(), moves=True, who=who)

        async def call() -> list[Any]:
            return await errand

        calling = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        assert caller.get() is None
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        desk.answers[0].set_result("x")
        assert await errand.result() == [who, who]

    asyncio.run(story())


def test_an_error_is_the_callers_and_everybody_elses() -> None:
    async def story() -> None:
        async def work() -> None:
            await asyncio.sleep(0)
            raise ValueError("no")

        errand = Errand(work(), moves=True)
        with pytest.raises(ValueError, match="no"):
            await errand
        with pytest.raises(ValueError, match="no"):
            await errand.result()

    asyncio.run(story())


def test_whoever_comes_later_may_be_cancelled_alone() -> None:
    async def story() -> None:
        desk = Desk()
        errand = Errand(desk.work(), moves=True)

        async def call() -> str:
            return await errand

        first, second = asyncio.ensure_future(call()), asyncio.ensure_future(errand.result())
        third = asyncio.ensure_future(errand.result())
        for _ in range(3):
            await asyncio.sleep(0)
        second.cancel()
        for answer in desk.answers:
            answer.set_result("x")
        assert await first == await third == "x,x,x"
        assert second.cancelled() and errand.rest is None

    asyncio.run(story())


def test_an_event_loop_that_ends_waits_for_what_it_has_cancelled() -> None:
    done: list[str] = []

    async def story() -> None:
        async def farewell() -> AsyncGenerator[None, None]:
            try:
                yield
            finally:
                await see_off()

        kept.append(farewell())
        await anext(kept[0])

        async def work() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            done.append("x")

        errand = Errand(work(), moves=True)

        async def call() -> None:
            try:
                await errand
            finally:
                assert errand.rest is not None
                leave(errand.rest)

        calling.append(asyncio.ensure_future(call()))
        await asyncio.sleep(0)

    kept: list[AsyncGenerator[None, None]] = []
    calling: list[asyncio.Future[None]] = []
    asyncio.run(story())
    assert done == ["x"] and calling[0].cancelled()


def test_who_waits_for_a_future_may_leave_it_alone() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()

        waits = asyncio.ensure_future(shielded(future))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert not future.done()
        awaited = Waiting(future)
        loop.call_soon(awaited.leave)
        await awaited
        assert not future.done()
        loop.call_soon(future.set_exception, ValueError("no"))
        await Waiting(future)  # however it ends
        with pytest.raises(ValueError, match="no"):
            await shielded(future)

    asyncio.run(story())

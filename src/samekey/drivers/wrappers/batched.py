"""Statements of one kind that are wanted at the same time go to the database together.

A round trip costs an event loop more than the statement costs the database. Under load many requests want the
same kind of statement at once; here they share one. It sits between the programs and an async driver, so
neither knows of it. Nobody waits for company: a statement that finds no batch under way is sent at once, and
what arrives meanwhile makes up the next batch. That wait has the same bound as the one for a connection.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.program import Query, Row, Statement, Value
from ...errors import ConnectionLost, StoreUnavailable, TransactionConflict
from ..caller import Caller, NotSent, caller
from ..errand import moves
from ..places import NoPlace
from ..protocol import AsyncDriver, AsyncSession

UNDER_WAY = 2
"""Batches of one kind at a time: one at the database and one on its way there. More would be smaller."""
LARGEST = 64
"""Statements in a batch: beyond that a round trip's share is nothing, and one slow batch delays many."""

Waiting = tuple[Statement, "asyncio.Future[Sequence[Row]]", Caller | None]


class AsyncBatchedDriver:
    """An async driver that sends some statements together.

    ``together``: for the name of a statement, the query that does many of them. Its parameters are those of
    the single one, as lists, and each of its rows begins with the number of the statement it belongs to.
    ``timeout``: seconds after which a statement that no batch has taken yet is ``StoreBusy``.
    """

    def __init__(self, driver: AsyncDriver, together: Mapping[str, Query], *, timeout: float = 5.0) -> None:
        self._driver = driver
        self._together = together
        self._timeout = timeout
        self._queues: dict[tuple[str, Value], _Queue] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def moves(self) -> bool:
        return moves(self._driver)

    async def execute(self, statement: Statement) -> Sequence[Row]:
        many = self._together.get(statement.name)
        if many is None:
            return await self._driver.execute(statement)
        return await self._queue(many, statement.parameters["now"]).ask(statement)

    async def open(self, connection: Any = None) -> AsyncSession:
        return await self._driver.open(connection)

    async def close(self) -> None:
        await self._driver.close()

    def _queue(self, many: Query, now: Value) -> _Queue:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Futures belong to one event loop; whoever waited on another one is gone with it.
            self._loop, self._queues = loop, {}
        queue = self._queues.get((many.name, now))
        if queue is None:
            # There is one moment for all of a batch; it is given only by tests.
            queue = self._queues[many.name, now] = _Queue(self._driver, many, now, self._timeout)
        return queue


class _Queue:
    """The statements of one kind that wait, and the batches that are under way."""

    def __init__(self, driver: AsyncDriver, many: Query, now: Value, timeout: float) -> None:
        self._driver = driver
        self._timeout = timeout
        self._many = many
        self._now = now
        self._waiting: list[Waiting] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def ask(self, statement: Statement) -> Sequence[Row]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[Row]] = loop.create_future()
        waiting = statement, answer, caller.get()
        self._waiting.append(waiting)
        self._start()
        if len(self._under_way) < UNDER_WAY and len(self._waiting) <= LARGEST:
            return await answer  # the next batch begins in the next turn of the loop
        late = loop.call_later(self._timeout, self._give_up, waiting)
        try:
            return await answer
        finally:
            late.cancel()

    def _give_up(self, waiting: Waiting) -> None:
        """It has not been sent, so nothing was done. What was sent has the driver's own bounds."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            busy = f"No batch took this statement within {self._timeout:g} s; the database is slow to answer."
            _fail(waiting[1], NoPlace(f"{busy} Retry with the same key."))

    def _start(self) -> None:
        if self._waiting and len(self._under_way) < UNDER_WAY:
            # A task begins after whatever else is ready to run now: so those who come together go together.
            task = asyncio.ensure_future(self._send())
            self._under_way.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._start()

    async def _send(self) -> None:
        wanted = filter(_is_wanted, self._waiting)
        batch = list(itertools.islice(wanted, LARGEST))
        self._waiting = list(wanted)
        if len(batch) == 1:
            await self._send_alone(*batch[0][:2])
        elif batch:
            await self._send_together(batch)

    async def _send_together(self, batch: list[Waiting]) -> None:
        try:
            rows = await self._driver.execute(self._joined([statement for statement, _, _ in batch]))
        except (StoreUnavailable, TransactionConflict) as error:
            for _, answer, _ in batch:
                _fail(answer, error)
        except Exception:
            # One that the database refuses must not fail the others.
            try:
                await asyncio.gather(*(self._send_alone(statement, answer) for statement, answer, _ in batch))
            finally:
                self._fail_all(batch)
        except BaseException:
            self._fail_all(batch)
            raise
        else:
            shares: list[list[Row]] = [[] for _ in batch]
            for number, *row in rows:
                assert isinstance(number, int)
                shares[number].append(row)
            for (_, answer, _), share in zip(batch, shares, strict=True):
                if not answer.done():
                    answer.set_result(share)

    def _fail_all(self, batch: list[Waiting]) -> None:
        """Torn down in the middle: nobody may wait for ever for an answer that does not come."""
        for _, answer, _ in batch:
            _fail(answer, ConnectionLost("The statement was given up in the middle."))

    async def _send_alone(self, statement: Statement, answer: asyncio.Future[Sequence[Row]]) -> None:
        try:
            rows = await self._driver.execute(statement)
        except Exception as error:
            _fail(answer, error)
        except BaseException:
            _fail(answer, ConnectionLost("The statement was given up in the middle."))
            raise
        else:
            if not answer.done():
                answer.set_result(rows)

    def _joined(self, statements: list[Statement]) -> Statement:
        names = statements[0].parameters.keys() - {"now"}
        lists: dict[str, Any] = {name: [one.parameters[name] for one in statements] for name in names}
        return Statement(self._many, {**lists, "now": self._now})


def _is_wanted(waiting: Waiting) -> bool:
    """Whether anybody still waits. What has waited here is not sent for somebody who has gone meanwhile."""
    _, answer, who = waiting
    if not answer.done() and who is not None and who.is_unwanted():
        answer.set_exception(NotSent())
    return not answer.done()


def _fail(answer: asyncio.Future[Sequence[Row]], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)

"""The face of an asyncpg connection that a handler is lent.

It does what the connection does, with these differences. It refuses to end the transaction or to be closed.
It is cut when the operation ends, with every cursor, prepared statement and savepoint that came from it:
whoever still has one gets an error and nothing is sent. And it notes what tells whether the connection may be
used again: statements under way, ones that were interrupted, and what stays behind in the session.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, NoReturn

from asyncpg.connection import _ConnectionProxy
from asyncpg.connresource import ConnectionResource
from asyncpg.cursor import Cursor
from asyncpg.transaction import Transaction

from ...errors import CommitRefused, ConfigurationError, FailedTransaction, OperationOver
from ..loan import INTERRUPTED
from ..sqltext import CLOSE_REFUSED, leaves_traces, may_change_role
from .asyncpg_bounds import is_over

_OURS: Final = frozenset(
    {"text", "int8", "bytea", "bool", "int4", "varchar", "_text", "_int8", "_bytea", "name", "unknown"}
)
"""The types of our own statements, which share the connection's codecs."""
_CODEC_REFUSED: Final = (
    "A codec for {name} on this connection would change what samekey itself writes through it, so it was not "
    "set. Convert in the statement (select column::other_type) or in Python, or set it on another type."
)


_COPY: Final = "copy a from stdin where {where}"
"""A condition is sent as it is."""


class AsyncpgLoan:
    """What becomes of a connection while it is lent."""

    def __init__(self) -> None:
        self.cut = False
        """The operation has ended: nothing more goes through."""
        self.under_way = 0
        """Statements that were sent and not answered yet."""
        self.interrupted = False
        """A statement was cancelled or timed out, so nobody knows what the server still does or sends."""
        self.doubt: int | None = None
        """How many savepoints there were around a statement that was interrupted. It may have been carried
        out all the same, so nothing goes through until one of them is rolled back."""
        self.savepoints: list[Any] = []
        """The handler's own, which are open."""
        self.traces = False
        """Something stays in the session or in the driver's object that the next holder must not meet."""
        self.escaped = False
        """The transaction has ended before samekey ended it: nothing more goes through."""
        self.role = False
        """Statements of ours may run with other rights."""
        self.sent = 0
        """How many statements were sent through a face, or for its handler, whoever sent them."""
        self.stands: Callable[[], bool] = lambda: True
        """Whether the transaction is there, as the server has said with its last answer."""

    @property
    def reusable(self) -> bool:
        return not (self.under_way or self.interrupted or self.traces)

    def check(self) -> None:
        if self.cut or self.escaped:
            raise OperationOver
        if self.doubt is not None:
            raise FailedTransaction(INTERRUPTED)

    def use(self, *, undoes: Any = None, fetches: bool = False) -> _Use:
        """Around whatever is sent. ``undoes``: the savepoint that it rolls back. ``fetches``: it is only more
        rows of what was sent before."""
        return _Use(self, undoes, fetches)

    def look_whether_it_stands(self) -> None:
        """Once the transaction has ended, by whatever way, every statement would commit by itself."""
        self.escaped = self.escaped or not (self.cut or self.under_way or self.stands())

    async def awaiting(
        self, work: Callable[[], Awaitable[Any]], *, undoes: Any = None, fetches: bool = False
    ) -> Any:
        """Awaits what it makes; nothing is made once the operation has ended."""
        with self.use(undoes=undoes, fetches=fetches):
            return self.faced(await work())

    async def finishing(self, begun: Coroutine[Any, Any, Any], *, fetches: bool = False) -> Any:
        """Awaits a coroutine that was made, and has sent nothing, before."""
        if self.cut or self.escaped:
            begun.close()
            raise OperationOver
        return await self.awaiting(lambda: begun, fetches=fetches)

    def faced(self, found: Any) -> Any:
        """What came from the connection, with a face of its own if it leads back to it."""
        if isinstance(found, Transaction):
            return _Savepoint(self, found)
        return _Resource(self, found) if isinstance(found, ConnectionResource) else found


class _Use:
    """One use of a connection that is lent."""

    __slots__ = ("_depth", "_doubt", "_fetches", "_lent", "_undoes")

    def __init__(self, lent: AsyncpgLoan, undoes: Any, fetches: bool) -> None:
        self._lent = lent
        self._undoes = undoes
        self._fetches = fetches

    def __enter__(self) -> None:
        lent = self._lent
        lent.look_whether_it_stands()
        self._doubt = doubt = lent.doubt
        self._depth = len(lent.savepoints)
        if self._undoes in lent.savepoints:
            self._depth = lent.savepoints.index(self._undoes)
            lent.doubt = None if doubt is None or self._depth < doubt else doubt
        try:
            lent.check()
        finally:
            lent.doubt = doubt
        lent.under_way += 1
        lent.sent += not self._fetches

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        lent = self._lent
        if isinstance(error, asyncio.CancelledError | TimeoutError | GeneratorExit):
            lent.interrupted = True
            lent.doubt = self._depth if self._doubt is None else min(self._depth, self._doubt)
        elif error is None and self._undoes in lent.savepoints:
            lent.doubt = None
        lent.under_way -= 1
        lent.look_whether_it_stands()


class _Resource:
    """The face of a cursor or a prepared statement."""

    __slots__ = ("_lent", "_target")

    def __init__(self, lent: AsyncpgLoan, target: Any) -> None:
        self._lent = lent
        self._target = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        fetches = isinstance(self._target, Cursor)
        return _method(self._lent, found, fetches=fetches) if callable(found) else found

    def __aiter__(self) -> AsyncIterator[Any]:
        self._lent.check()
        return _Resource(self._lent, self._target.__aiter__())

    async def __anext__(self) -> Any:
        return await self._lent.awaiting(self._target.__anext__)

    def __await__(self) -> Generator[Any, Any, Any]:
        async def finish() -> Any:
            return await self._target

        return self._lent.awaiting(finish).__await__()

    async def __aenter__(self) -> Any:
        entered = await self._lent.awaiting(self._target.__aenter__)
        return self if entered is self._target else entered

    async def __aexit__(self, *error: Any) -> Any:
        if self._lent.cut and error[0] is not None:
            return None  # its end came with the operation's; what was raised says more
        return await self._lent.awaiting(lambda: self._target.__aexit__(*error))

    def __repr__(self) -> str:
        return repr(self._target)


class _Savepoint(_Resource):
    """The face of a transaction of the handler's, which is a savepoint in ours."""

    __slots__ = ()

    async def __aenter__(self) -> Any:
        await self._lent.awaiting(self._target.__aenter__)
        self._lent.savepoints.append(self._target)
        return self

    async def __aexit__(self, *error: Any) -> None:
        undoes = None if error[0] is None else self._target
        if self._lent.cut and undoes is not None:
            return  # its end came with the operation's; what was raised says more
        await self._lent.awaiting(lambda: self._target.__aexit__(*error), undoes=undoes)
        self._ended()

    async def start(self) -> None:
        await self._lent.awaiting(self._target.start)
        self._lent.savepoints.append(self._target)

    async def commit(self) -> None:
        await self._lent.awaiting(self._target.commit)
        self._ended()

    async def rollback(self) -> None:
        await self._lent.awaiting(self._target.rollback, undoes=self._target)
        self._ended()

    def _ended(self) -> None:
        """With those inside of it."""
        if self._target in self._lent.savepoints:
            del self._lent.savepoints[self._lent.savepoints.index(self._target) :]


def _method(lent: AsyncpgLoan, method: Callable[..., Any], *, fetches: bool = False) -> Callable[..., Any]:
    """A method that works until the operation ends."""
    if inspect.iscoroutinefunction(method):

        async def lent_method(*args: Any, **kwargs: Any) -> Any:
            return await lent.awaiting(lambda: method(*args, **kwargs), fetches=fetches)

        return lent_method

    def lent_call(*args: Any, **kwargs: Any) -> Any:
        lent.check()
        found = method(*args, **kwargs)
        return lent.finishing(found, fetches=fetches) if inspect.iscoroutine(found) else lent.faced(found)

    return lent_call


class AsyncpgFace(_ConnectionProxy):  # type: ignore[misc] # so that isinstance(…, asyncpg.Connection) holds
    """The connection as a handler sees it."""

    __slots__ = ("_lent", "_target")

    def __init__(self, target: Any, lent: AsyncpgLoan) -> None:
        self._target = target
        self._lent = lent
        lent.stands = lambda: is_over(target) or target.is_in_transaction()

    def __getattr__(self, name: str) -> Any:
        """Whatever needs no watching beyond that the operation has not ended."""
        found = getattr(self._target, name)
        return _method(self._lent, found) if callable(found) and not isinstance(found, type) else found

    def __repr__(self) -> str:
        return f"<connection lent by samekey{', cut' if self._lent.cut else ''}: {self._target!r}>"

    def is_closed(self) -> bool:
        return self._lent.cut or is_over(self._target)

    def _text(self, query: Any) -> None:
        """Refuses a text that would end the transaction."""
        self._lent.check()
        if not isinstance(query, str):
            return
        strings = getattr(self._target.get_settings(), "standard_conforming_strings", "on")
        if leaves_traces(query, backslashes=strings == "off"):
            self._lent.traces = True
        self._lent.role = self._lent.role or may_change_role(query)

    # What takes a text

    async def execute(self, query: str, *args: Any, **kwargs: Any) -> Any:
        self._text(query)
        return await self._lent.awaiting(lambda: self._target.execute(query, *args, **kwargs))

    async def executemany(self, command: str, args: Any, **kwargs: Any) -> Any:
        self._text(command)
        return await self._lent.awaiting(lambda: self._target.executemany(command, args, **kwargs))

    async def fetch(self, query: str, *args: Any, **kwargs: Any) -> Any:
        self._text(query)
        return await self._lent.awaiting(lambda: self._target.fetch(query, *args, **kwargs))

    async def fetchval(self, query: str, *args: Any, **kwargs: Any) -> Any:
        self._text(query)
        return await self._lent.awaiting(lambda: self._target.fetchval(query, *args, **kwargs))

    async def fetchrow(self, query: str, *args: Any, **kwargs: Any) -> Any:
        self._text(query)
        return await self._lent.awaiting(lambda: self._target.fetchrow(query, *args, **kwargs))

    async def fetchmany(self, query: str, args: Any, **kwargs: Any) -> Any:
        self._text(query)
        return await self._lent.awaiting(lambda: self._target.fetchmany(query, args, **kwargs))

    async def prepare(self, query: str, **kwargs: Any) -> Any:
        self._text(query)
        return await self._lent.awaiting(lambda: self._target.prepare(query, **kwargs))

    def cursor(self, query: str, *args: Any, **kwargs: Any) -> Any:
        self._text(query)
        return self._lent.faced(self._target.cursor(query, *args, **kwargs))

    async def copy_from_query(self, query: str, *args: Any, **kwargs: Any) -> Any:
        self._text(query)
        return await self._lent.awaiting(lambda: self._target.copy_from_query(query, *args, **kwargs))

    async def copy_to_table(self, table_name: str, *, where: Any = None, **kwargs: Any) -> Any:
        self._text(_COPY.format(where=where))
        copy = self._target.copy_to_table
        return await self._lent.awaiting(lambda: copy(table_name, where=where, **kwargs))

    async def copy_records_to_table(self, table_name: str, *, where: Any = None, **kwargs: Any) -> Any:
        self._text(_COPY.format(where=where))
        copy = self._target.copy_records_to_table
        return await self._lent.awaiting(lambda: copy(table_name, where=where, **kwargs))

    # What stays with the driver's object

    async def set_type_codec(self, typename: str, **kwargs: Any) -> Any:
        return await self._with_codec(self._target.set_type_codec, typename, **kwargs)

    async def reset_type_codec(self, typename: str, **kwargs: Any) -> Any:
        return await self._with_codec(self._target.reset_type_codec, typename, **kwargs)

    async def set_builtin_type_codec(self, typename: str, **kwargs: Any) -> Any:
        return await self._with_codec(self._target.set_builtin_type_codec, typename, **kwargs)

    async def _with_codec(self, change: Any, typename: str, **kwargs: Any) -> Any:
        if kwargs.get("schema") == "pg_catalog" and typename in _OURS:
            raise ConfigurationError(_CODEC_REFUSED.format(name=typename))
        self._lent.traces = True
        return await self._lent.awaiting(lambda: change(typename, **kwargs))

    async def add_listener(self, channel: str, callback: Any) -> Any:
        self._lent.traces = True
        return await self._lent.awaiting(lambda: self._target.add_listener(channel, callback))

    def add_log_listener(self, callback: Any) -> None:
        self._leave(self._target.add_log_listener, callback)

    def add_query_logger(self, callback: Any) -> None:
        self._leave(self._target.add_query_logger, callback)

    def add_termination_listener(self, callback: Any) -> None:
        self._leave(self._target.add_termination_listener, callback)

    def query_logger(self, callback: Any) -> Any:
        return self._leave(self._target.query_logger, callback)

    def _leave(self, add: Callable[[Any], Any], callback: Any) -> Any:
        self._lent.check()
        self._lent.traces = True
        return add(callback)

    # What is not the handler's to do

    async def close(self, **_: Any) -> NoReturn:
        raise CommitRefused(CLOSE_REFUSED)

    def terminate(self) -> NoReturn:
        raise CommitRefused(CLOSE_REFUSED)

    async def reset(self, **_: Any) -> NoReturn:
        raise CommitRefused(CLOSE_REFUSED)

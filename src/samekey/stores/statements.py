"""What a store's programs are made of: its statements, by name.

A SQL dialect has them in ``.sql`` files, Redis as Lua scripts, DynamoDB as requests. The names, the
parameters and the rows that come back are the same in all of them (``core/record.py`` says what a row is), so
the programs in ``keys.py`` are written once and every store is judged by one conformance suite.
"""

from __future__ import annotations

from typing import Protocol

from ..core.program import Statement, Value


class Statements(Protocol):
    """The statements of one store."""

    @property
    def looks_first(self) -> bool:
        """Whether a claim reads before it tries to write: where even a reservation that finds the key taken
        needs the store's write lock, replays must not queue for it."""

    @property
    def notes_along(self) -> bool:
        """Whether the statement of an outcome also notes what a leased handler may have sent."""

    @property
    def has_parts(self) -> bool:
        """Whether operations have jobs, phases and providers' words beside their record, which keep it past
        its retention (``unfinished``)."""

    def operation_id(self, token: str, scope: str, key: str) -> str:
        """An operation id made of a random token, by which this store can find the record of the key."""

    def statement(self, query: str, now: int | None, /, **values: Value) -> Statement:
        """A statement with its parameters; ``now`` is for tests, else the store's clock rules."""

"""The atomic block of an operation: Django knows that it is in a transaction, and samekey ends it.

What Django does by itself then: ``transaction.atomic()`` becomes a savepoint, ``commit()`` and ``rollback()``
are refused, an error inside marks the transaction for rollback, and ``on_commit`` waits for the end.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

from ..engine.within import current_transaction
from ..errors import ConfigurationError, FailedTransaction, OpenTransaction

logger = logging.getLogger("samekey")

MARKED: Final = (
    "Django has marked this transaction for rollback: a query failed inside of it and the view went on, or "
    "set_rollback(True) was called. So everything was rolled back. Put a query that may fail into a block of "
    "its own, with transaction.atomic(): that one is undone, and the view may go on."
)
_DURABLE: Final = (
    "transaction.atomic(durable=True) promises a commit at the end of its block, but this view is atomic: "
    "samekey commits, together with the answer. Leave durable=True out, or declare the view leased."
)


class _Block:
    """In the place of Django's own outermost block."""

    savepoint = False
    durable = False

    @property
    def _from_testcase(self) -> bool:
        """Asked by a durable block, and by nobody else."""
        raise RuntimeError(_DURABLE)


class Block:
    """Around one transaction of ours on a Django connection. It does not begin or end the transaction."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self._raw = wrapper.connection
        self._open = False

    @staticmethod
    def check(wrapper: Any) -> None:
        """Refuses a connection whose transactions are not ours to end. It runs no query."""
        if wrapper.in_atomic_block:
            raise OpenTransaction
        if not wrapper.settings_dict["AUTOCOMMIT"] or (
            wrapper.connection is not None and not wrapper.get_autocommit()
        ):
            raise ConfigurationError(
                f"The database {wrapper.alias!r} is not in autocommit mode, so a transaction is open that is "
                "not samekey's to end. Nothing was run. Leave AUTOCOMMIT at True."
            )

    def enter(self) -> None:
        wrapper = self.wrapper
        wrapper.in_atomic_block = True
        wrapper.autocommit = False  # as Django sees it: it sets savepoints only then
        wrapper.commit_on_exit = True
        wrapper.needs_rollback = False
        wrapper.savepoint_ids = []
        wrapper.atomic_blocks = [_Block()]
        wrapper.run_on_commit = []
        self._open = True

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def is_marked(self) -> bool:
        """Whether Django would roll back at the end."""
        return self._open and bool(self.wrapper.needs_rollback or self.wrapper.closed_in_transaction)

    def refuse_if_marked(self) -> None:
        if self.is_marked:
            raise FailedTransaction(MARKED)

    def leave(self, *, dead: bool = False) -> list[Any]:
        """The transaction has ended: the connection is Django's again. ``dead``: it is past use. Gives what
        was to be called after a commit. The second time does nothing."""
        if not self._open:
            return []
        self._open = False
        wrapper = self.wrapper
        hooks, wrapper.run_on_commit = list(wrapper.run_on_commit), []
        dead = dead or wrapper.closed_in_transaction
        wrapper.in_atomic_block = False
        wrapper.savepoint_ids = []
        wrapper.atomic_blocks = []
        wrapper.needs_rollback = False
        wrapper.closed_in_transaction = False
        wrapper.autocommit = True
        if dead and wrapper.connection is self._raw:
            with suppress(Exception):
                wrapper._close()  # a pool of Django's must have its place back
            wrapper.connection = None
        return hooks


def run_hooks(hooks: list[Any]) -> None:
    """``transaction.on_commit``, after the commit. The operation stands, whatever comes of them: its client
    must get the answer that every retry will get."""
    token = current_transaction.set(None)  # what they write is their own
    try:
        for _, function, _ in hooks:
            try:
                function()
            except Exception:
                logger.exception("A function that was to run on commit failed; the operation stands")
    finally:
        current_transaction.reset(token)

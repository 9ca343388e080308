"""The completer: resumes phased operations whose lease ran out, with no client, request or web app.

It takes what is abandoned, and only that: held and finished operations are left alone, and so are those
whose definition this process does not know. Those of a batch run side by side, each no longer than its
``max_run``, so that one which fails or hangs does not stop the others.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import timedelta

from ..core.policy import milliseconds
from ..core.record import Lease, Record
from ..drivers.run import run_async
from ..engine.engine import Engine
from ..engine.phased import Run, max_run_ms
from ..engine.way import Finished
from ..errors import SamekeyError

logger = logging.getLogger("samekey")

INTERVAL = timedelta(seconds=5)
"""Between looks. An abandoned operation has already waited for its whole lease."""
BATCH = 10


class Completer:
    """Resumes abandoned phased operations."""

    def __init__(self, idempotency: Engine, *, batch: int = BATCH) -> None:
        self._idempotency = idempotency
        self._batch = batch
        self.busy = False
        """Whether operations are being resumed just now, each for as long as its max_run."""

    async def run_once(self) -> int:
        """Takes a batch and sees each through; gives how many there were."""
        definitions = self._idempotency.phases.definitions.values()
        if not definitions:
            return 0
        known = [definition.identity for definition in definitions]
        lease_ms = max(milliseconds(definition.rules.policy.lease) for definition in definitions)
        token = secrets.token_hex(16)
        records = await run_async(
            self._idempotency.drivers.aio,
            lambda: self._idempotency.phases.phases.take_abandoned(
                token, known, lease_ms=lease_ms, batch=self._batch
            ),
        )
        leases = [record.lease(lease_ms) for record in records]
        longest = max(max_run_ms(definition.rules) for definition in definitions)
        for lease in leases:
            self._idempotency.keeper.watch(lease, longest)
        self.busy = bool(records)
        try:
            await asyncio.gather(*map(self._resume_carefully, records, leases))
        finally:
            self.busy = False
        return len(records)

    async def _resume_carefully(self, record: Record, lease: Lease) -> None:
        try:
            await self._resume(record, lease)
        except SamekeyError as error:
            logger.error("The operation %s could not be resumed: %s", record.id, error)
        except Exception:
            logger.exception("The operation %s could not be resumed", record.id)
        finally:
            self._idempotency.keeper.forget(lease)

    async def _resume(self, record: Record, lease: Lease) -> None:
        engine = self._idempotency
        attempt = await engine.drive_async(engine.phases.resume(lease, record.id, record.attempts))
        if attempt is None:
            return
        longest = attempt.definition.rules.policy.max_run.total_seconds()
        try:
            finished = await asyncio.wait_for(self._see_through(attempt), longest)
        except TimeoutError:
            logger.error("The operation %s ran longer than its max_run and was left", record.id)
            return
        if finished.error is not None:
            logger.error(
                "The operation %s failed again: %s: %s",
                record.id,
                type(finished.error).__name__,
                finished.error,
            )

    async def _see_through(self, attempt: Run) -> Finished:
        finished = await self._idempotency.attempt_async(attempt)
        if finished.error is not None and not isinstance(finished.error, Exception):
            # Not a failure of the operation: we are being stopped.
            raise finished.error
        return finished

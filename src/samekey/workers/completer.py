"""The completer: resumes phased operations whose lease ran out, with no client, request or web app.

It takes what is abandoned, and only that: held and finished operations are left alone, and so are those
whose definition this process does not know. One failure does not stop it.
"""

from __future__ import annotations

import logging
import secrets
from datetime import timedelta

from ..core.policy import milliseconds
from ..core.record import Record
from ..drivers.run import run_async
from ..engine.idempotency import Idempotency
from ..engine.phased import max_run_ms
from ..errors import SamekeyError

logger = logging.getLogger("samekey")

INTERVAL = timedelta(seconds=5)
"""Between looks. An abandoned operation has already waited for its whole lease."""
BATCH = 10


class Completer:
    """Resumes abandoned phased operations."""

    def __init__(self, idempotency: Idempotency, *, batch: int = BATCH) -> None:
        self._idempotency = idempotency
        self._batch = batch

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
        leases = [(record, record.lease(lease_ms)) for record in records]
        longest = max(max_run_ms(definition.rules) for definition in definitions)
        for _, lease in leases:
            # All of them now: the last of the batch waits for the others.
            self._idempotency.keeper.watch(lease, longest)
        for record, lease in leases:
            try:
                await self._resume(record, lease_ms)
            except SamekeyError as error:
                logger.error("The operation %s could not be resumed: %s", record.id, error)
            except Exception:
                logger.exception("The operation %s could not be resumed", record.id)
            finally:
                self._idempotency.keeper.forget(lease)
        return len(records)

    async def _resume(self, record: Record, lease_ms: int) -> None:
        engine = self._idempotency
        attempt = await engine.drive_async(
            engine.phases.resume(record.lease(lease_ms), record.id, record.attempts)
        )
        if attempt is None:
            return
        finished = await engine.attempt_async(attempt)
        if finished.error is not None:
            logger.error(
                "The operation %s failed again: %s: %s",
                record.id,
                type(finished.error).__name__,
                finished.error,
            )

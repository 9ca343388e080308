"""What a store must do, as a plain dictionary: the model that a real store is compared with.

It states REQUIREMENTS D1-D11 and S2-S5 once more, in the simplest words, and shares no rule with the real
thing: neither the table of transitions nor the decision function is imported. Time is a number that the
caller passes. Nothing here is concurrent, because every operation of a store is one atomic step.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..core.record import Answer


@dataclass(slots=True)
class Entry:
    """A record, as far as a caller can tell."""

    id: str
    state: str
    mode: str
    body: bytes
    attempt: str
    attempts: int
    locked_until: int | None
    created_at: int
    expires_at: int
    answer: Answer | None = None
    completed_at: int | None = None
    error_code: str | None = None
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A claim, in plain words."""

    key: str
    body: bytes
    id: str
    attempt: str
    mode: str
    lease_ms: int
    ttl_ms: int


class Model:
    """One scope of keys."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def claim(self, request: Request, now: int, *, gone: bool = False) -> str:
        """Who may run, and what the others are told, in one word."""
        entry = self.entries.get(request.key)
        if entry is None:
            self.entries[request.key] = self._fresh(request, request.id, now)
            return "execute"
        if entry.attempt == request.attempt:
            return "execute"  # our own claim, whose acknowledgement was lost
        if self._over(entry, now):
            if gone:
                return "gone"
            self.entries[request.key] = self._fresh(request, entry.id, now)
            return "reuse"
        if entry.body != request.body:
            return "mismatch"
        if entry.state == "in_progress":
            assert entry.locked_until is not None
            if now < entry.locked_until:
                return "outstanding"
            if entry.mode == "phased":
                entry.attempt, entry.attempts = request.attempt, entry.attempts + 1
                entry.locked_until = now + request.lease_ms
                return "execute"
            # A lease that ran out never means "safe to run again" by itself: the declared mode says so.
            entry.locked_until, entry.error_code = None, "lease_ended"
            entry.state = "unknown" if entry.mode == "leased" else "failed_retryable"
            return self.claim(request, now, gone=gone)  # answered by the new state
        if entry.state == "failed_retryable":
            entry.state, entry.mode = "in_progress", request.mode
            entry.attempt, entry.attempts = request.attempt, entry.attempts + 1
            entry.locked_until = now + request.lease_ms
            entry.expires_at = now + request.ttl_ms
            entry.error_code = None
            return "execute"
        if entry.state == "unknown":
            return "uncertain"
        assert entry.state == "completed"
        return "withheld" if entry.answer is None else "replay"

    def complete(
        self,
        key: str,
        attempt: str,
        answer: Answer | None,
        now: int,
        *,
        ttl_ms: int,
        from_creation: bool = False,
        provider_id: str | None = None,
    ) -> int | None:
        """The current attempt's result counts however late it comes; any other attempt's does not."""
        entry = self._current(key, attempt)
        if entry is None or entry.state == "expired":
            return None
        if entry.state == "completed":
            return entry.expires_at  # it is recorded already, and never changes
        entry.state, entry.answer, entry.completed_at = "completed", answer, now
        entry.locked_until, entry.error_code = None, None
        entry.expires_at = (entry.created_at if from_creation else now) + ttl_ms
        entry.provider_id = provider_id or entry.provider_id
        return entry.expires_at

    def fail(self, key: str, attempt: str, code: str) -> bool:
        """Nothing happened: true of an operation under way, and of one whose outcome was unknown."""
        entry = self._current(key, attempt)
        if entry is None or entry.state not in ("in_progress", "unknown"):
            return False
        entry.state, entry.locked_until, entry.error_code = "failed_retryable", None, code
        return True

    def lose(self, key: str, attempt: str, code: str, provider_id: str | None = None) -> int | None:
        """Nobody can tell. That never takes back an answer, but it does take back "nothing happened"."""
        entry = self._current(key, attempt)
        if entry is None or entry.state in ("completed", "unknown"):
            return None
        entry.state, entry.locked_until, entry.error_code = "unknown", None, code
        entry.provider_id = provider_id or entry.provider_id
        return entry.expires_at

    def release(self, key: str, attempt: str) -> bool:
        """The key is free again, as if it had never been sent."""
        entry = self._current(key, attempt)
        if entry is None or entry.state not in ("in_progress", "unknown"):
            return False
        del self.entries[key]
        return True

    def renew(self, leases: list[tuple[str, str, int]], now: int) -> set[str]:
        """Of (key, attempt, duration): those still held get their own duration from now."""
        held = set()
        for key, attempt, duration in leases:
            entry = self._current(key, attempt)
            if entry is not None and entry.state == "in_progress":
                entry.locked_until = now + duration
                held.add(attempt)
        return held

    def expire(self, key: str, now: int) -> bool:
        """A settled record past its retention keeps the fact and drops the answer."""
        entry = self.entries.get(key)
        if entry is None or entry.state == "expired" or not self._over(entry, now):
            return False
        self.entries[key] = dataclasses.replace(entry, state="expired", answer=None)
        return True

    def _current(self, key: str, attempt: str) -> Entry | None:
        entry = self.entries.get(key)
        return entry if entry is not None and entry.attempt == attempt else None

    @staticmethod
    def _over(entry: Entry, now: int) -> bool:
        """Only what is settled can expire; the unknown and what is in flight never do."""
        if entry.state == "expired":
            return True
        return entry.state in ("completed", "failed_retryable") and entry.expires_at <= now

    @staticmethod
    def _fresh(request: Request, record_id: str, now: int) -> Entry:
        return Entry(
            id=record_id,
            state="in_progress",
            mode=request.mode,
            body=request.body,
            attempt=request.attempt,
            attempts=1,
            locked_until=now + request.lease_ms,
            created_at=now,
            expires_at=now + request.ttl_ms,
        )

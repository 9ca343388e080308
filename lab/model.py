"""What a store must do, as a plain dictionary: the model that a real store is compared with.

It states REQUIREMENTS D1-D11 and S2-S5 once more, in the simplest words, and shares no rule with the real
thing: neither the table of transitions nor the decision function is imported. Time is a number that the
caller passes. Nothing here is concurrent, because every operation of a store is one atomic step.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from samekey.core.record import Answer


@dataclass(slots=True)
class Entry:
    """A record, as far as a caller can tell."""

    id: str
    life: int
    state: str
    mode: str
    body: bytes
    attempt: str
    attempts: int
    locked_until: int | None
    created_at: int
    ttl_ms: int
    ttl_from: str
    after_expiry: str
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
    ttl_from: str = "completion"
    after_expiry: str = "new"


FOR_EVER = 253_402_300_799_999
HEARD = 3_600_000


class Model:
    """One scope of keys."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.left: set[str] = set()
        """The operations of which something is left: a job that is to run, or that somebody must see."""

    def claim(self, request: Request, now: int) -> str:
        """Who may run, and what the others are told, in one word."""
        entry = self.entries.get(request.key)
        if entry is None:
            self.entries[request.key] = self._fresh(request, 1, now)
            return "execute"
        if entry.attempt == request.attempt:
            return "execute"  # our own claim, whose acknowledgement was lost
        if self._over(entry, now):
            if entry.after_expiry == "gone":
                return "gone"
            # Another life, and so another operation: nothing of the former one is left but the count.
            self.entries[request.key] = self._fresh(request, entry.life + 1, now)
            return "reuse"
        if entry.body != request.body:
            return "mismatch"
        if entry.state == "in_progress":
            assert entry.locked_until is not None
            if now < entry.locked_until:
                return "outstanding"
            if entry.mode == "phased":
                if request.mode != "phased":
                    return "modechanged"  # its phases are not for another kind of handler to begin anew
                entry.attempt, entry.attempts = request.attempt, entry.attempts + 1
                entry.locked_until = now + request.lease_ms
                return "execute"
            # A lease that ran out never means "safe to run again" by itself: the declared mode says so.
            entry.locked_until, entry.error_code = None, "lease_ended"
            entry.state = "unknown" if entry.mode == "leased" else "failed_retryable"
            entry.expires_at = now + entry.ttl_ms
            return self.claim(request, now)  # answered by the new state
        if entry.state == "failed_retryable":
            entry.state, entry.mode = "in_progress", request.mode
            entry.attempt, entry.attempts = request.attempt, entry.attempts + 1
            entry.locked_until = now + request.lease_ms
            entry.expires_at = now + entry.ttl_ms
            entry.error_code = entry.provider_id = None  # that was the former attempt's
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
        provider_id: str | None = None,
    ) -> int | None:
        """The current attempt's result counts however late it comes; any other attempt's does not."""
        entry = self._current(key, attempt) or self._last(key, attempt)
        if entry is None or entry.state == "expired":
            return None
        if entry.state == "completed":
            return entry.expires_at  # it is recorded already, and never changes
        entry.state, entry.answer, entry.completed_at = "completed", answer, now
        entry.locked_until, entry.error_code = None, None
        entry.expires_at = now + entry.ttl_ms
        if entry.ttl_from == "creation":
            # Never so early that nobody could hear the answer.
            entry.expires_at = max(entry.created_at + entry.ttl_ms, now + min(entry.ttl_ms, HEARD))
        entry.provider_id = provider_id or entry.provider_id
        return entry.expires_at

    def fail(self, key: str, attempt: str, code: str, now: int) -> bool:
        """Nothing happened: true of an operation under way, and of one whose outcome was unknown."""
        entry = self._current(key, attempt)
        if entry is None or entry.state not in ("in_progress", "unknown"):
            return False
        entry.state, entry.locked_until, entry.error_code = "failed_retryable", None, code
        entry.expires_at = now + entry.ttl_ms
        return True

    def lose(self, key: str, attempt: str, code: str, provider_id: str | None = None) -> int | None:
        """Nobody can tell. That never takes back an answer, but it does take back "nothing happened"."""
        entry = self._current(key, attempt)
        if entry is None or entry.state == "completed":
            return None
        if entry.state != "in_progress":
            entry.attempt += "-"  # news to whoever is asking about it: what they find out is older
        entry.state, entry.locked_until, entry.error_code = "unknown", None, code
        entry.provider_id = provider_id or entry.provider_id
        return entry.expires_at

    def release(self, key: str, attempt: str, now: int) -> bool:
        """The key is free again, as if it had never been sent; a later life of it, for a retry."""
        entry = self._current(key, attempt)
        if entry is None or entry.state not in ("in_progress", "unknown"):
            return False
        if entry.life > 1:
            return self.fail(key, attempt, "released", now)
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

    def reap(self, now: int, keep: int, *, soft: bool = False) -> None:
        """What is over goes, or leaves a tombstone, as it says itself. One that is gone stays for good."""
        for key, entry in list(self.entries.items()):
            if not self._over(entry, now) or entry.expires_at > now:
                continue
            if entry.state == "expired":
                if entry.after_expiry != "gone":
                    del self.entries[key]
            elif soft or entry.after_expiry != "new":
                until = FOR_EVER if entry.after_expiry == "gone" else now + keep
                self.entries[key] = dataclasses.replace(entry, state="expired", answer=None, expires_at=until)
            else:
                del self.entries[key]

    def _current(self, key: str, attempt: str) -> Entry | None:
        entry = self.entries.get(key)
        return entry if entry is not None and entry.attempt == attempt else None

    def _last(self, key: str, attempt: str) -> Entry | None:
        """What this attempt has run last with effects outside, and nobody runs now."""
        entry = self.entries.get(key)
        if entry is None or entry.attempt.rstrip("-") != attempt:
            return None
        leased = entry.mode in ("leased", "repeatable")
        return entry if leased and entry.state in ("unknown", "failed_retryable") else None

    def _over(self, entry: Entry, now: int) -> bool:
        """Only what is settled can expire; the unknown and what is in flight never do. And nothing is over
        while something of it is left: whoever asks, a retry or a reaper, finds it as it was."""
        if entry.id in self.left:
            return False
        if entry.state == "expired":
            return True
        return entry.state in ("completed", "failed_retryable") and entry.expires_at <= now

    @staticmethod
    def _fresh(request: Request, life: int, now: int) -> Entry:
        return Entry(
            id=request.id,
            life=life,
            state="in_progress",
            mode=request.mode,
            body=request.body,
            attempt=request.attempt,
            attempts=1,
            locked_until=now + request.lease_ms,
            created_at=now,
            ttl_ms=request.ttl_ms,
            ttl_from=request.ttl_from,
            after_expiry=request.after_expiry,
            expires_at=now + request.ttl_ms,
        )

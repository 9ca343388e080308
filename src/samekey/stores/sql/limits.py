"""The programs of the limits on new keys. A retry of a known key is never asked here."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.claim import scope_of
from ...core.program import Program
from .keys import SqlKeys


@dataclass(frozen=True, slots=True)
class Exceeded:
    """Too many: what was exceeded, and in how many seconds to come back."""

    detail: str
    retry_after: int


class Limits:
    """Programs for one dialect."""

    def __init__(self, keys: SqlKeys) -> None:
        self._queries = keys.queries

    def admit(
        self, tenant: str, *, per_minute: int | None, active: int | None, now: int | None = None
    ) -> Program[Exceeded | None]:
        """Whether a tenant may have one more key. ``tenant`` is the part that its scopes begin with."""
        if active is not None:
            # Every scope of a tenant begins with it; '\x7f' sorts after every printable character.
            first = scope_of(tenant)
            rows = yield self._queries.statement(
                "count_active_keys", now, first_scope=first, last_scope=first + "\x7f", limit=active
            )
            if rows[0][0] >= active:  # type: ignore[operator]
                return Exceeded(f"You have {active} keys in use, which is the limit.", 60)
        if per_minute is not None:
            rows = yield self._queries.statement("count_new_key", now, tenant=tenant)
            used, clock = rows[0]
            assert isinstance(used, int) and isinstance(clock, int)
            if used > per_minute:
                return Exceeded(
                    f"You have used {per_minute} new keys in this minute, which is the limit.",
                    60 - clock // 1000 % 60,
                )
        return None

"""Extending retention: a completed operation keeps its answer for longer than it was declared to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..core.claim import scope_part
from ..core.decide import has_expired
from ..core.policy import milliseconds
from ..core.record import LAST_TIME, Record
from ..core.states import State
from ..errors import ConfigurationError, NotExtended
from ..stores.keys import Keys
from ..stores.protocols import Actor, Searching
from .flow import Flow, ask


@dataclass(frozen=True, slots=True)
class Extension:
    """Until a moment, or by so much more than now."""

    until: datetime | None
    by: timedelta | None

    def check(self) -> None:
        if (self.until is None) == (self.by is None):
            raise ConfigurationError("Say until when, or by how much: one of until and by.")
        if self.until is not None and self.until.tzinfo is None:
            raise ConfigurationError("until must be a datetime with its time zone.")
        if self.by is not None and self.by < timedelta(milliseconds=1):
            raise ConfigurationError("by must be a time to add; retention is never shortened.")

    def end_of(self, record: Record) -> int:
        """When the record would end; milliseconds."""
        if self.until is not None:
            return int(self.until.timestamp() * 1000)
        assert self.by is not None
        return record.expires_at + milliseconds(self.by)


def new_end(record: Record, extension: Extension, now: int) -> int:
    """When it will end. ``NotExtended``, with the reason, for what cannot be extended."""
    if has_expired(record, now):
        raise NotExtended(
            "Its retention is over, and its key may run again once nothing of it is left to do. "
            "Nothing was changed."
        )
    if record.state is State.FAILED_RETRYABLE:
        raise NotExtended("Nothing happened, so there is no answer to keep. Nothing was changed.")
    if record.state is not State.COMPLETED:
        raise NotExtended(f"It is {record.state}: what is not settled does not expire. Nothing was changed.")
    end = extension.end_of(record)
    if end > LAST_TIME:
        raise NotExtended("That is after the year 9999, which no date can name. Nothing was changed.")
    if end <= record.expires_at:
        raise NotExtended(
            f"It is kept until {moment(record.expires_at).isoformat(sep=' ')} already; retention is never "
            "shortened. Nothing was changed."
        )
    return end


def extend(
    keys: Keys,
    finding: Searching,
    *,
    operation_id: str | None,
    tenant: str | None,
    key: str | None,
    extension: Extension,
    actor: Actor,
) -> Flow[datetime]:
    """Extends, and gives the new end."""
    extension.check()
    if not (actor.reason or "").strip():
        raise ConfigurationError("Say why: it is kept in the audit.")
    if operation_id is None:
        operation_id = yield from _by_key(finding, tenant, key)
    elif tenant is not None or key is not None:
        raise ConfigurationError("Name the operation by operation_id, or by tenant and key.")
    named = operation_id
    found = yield from ask(lambda: keys.read_by_id(named))
    if found is None:
        raise NotExtended("There is no such operation, not yet or no longer. Nothing was changed.")
    now, record = found
    end = new_end(record, extension, now)
    if not (yield from ask(lambda: finding.extend(named, end, actor, attempt=record.attempt))):
        raise NotExtended("It has just moved. Nothing was changed; look at it again.")
    return moment(end)


def _by_key(finding: Searching, tenant: str | None, key: str | None) -> Flow[str]:
    if tenant is None or key is None:
        raise ConfigurationError("Name the operation by operation_id, or by tenant and key.")
    part = scope_part(tenant)
    records = yield from ask(lambda: finding.find(tenant=part, key=key, limit=2))
    if not records:
        raise NotExtended("There is no such key, not yet or no longer. Nothing was changed.")
    if len(records) > 1:
        raise NotExtended("This tenant has used that key more than once: name the operation by its id.")
    return records[0].id


def moment(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)

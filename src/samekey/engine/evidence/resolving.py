"""``resolve``: from a provider's event to the one effect that it is about.

What is looked at before anything is looked up: the signature. What must fit before anything is moved: the
tenant, the source, the effect, the attempt. What does not fit is refused as if it were not there.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from ...core.claim import downstream_key, scope_part
from ...core.program import Program
from ...core.record import Record
from ...core.states import Mode
from ...core.texts import checked_text, is_storable
from ...errors import ConfigurationError, SamekeyError, SignatureRefused, StoreBusy
from ...evidence import Evidence, Executed, check_evidence, unusable
from ...stores.keys import Keys
from ...stores.sql.overruling import Moved
from ..events import Events
from ..flow import Flow, ask
from .resolver import Resolver
from .said import Misfit, Resolution, Said

logger = logging.getLogger("samekey")

T = TypeVar("T")

UNREADABLE = "unreadable"
"""Stands for a source or an event's id that cannot be kept as it was given."""
ROUNDS = 16
"""How often an operation is looked at again that moved meanwhile: each time somebody else made progress."""


@dataclass(frozen=True, slots=True)
class NamedOperation:
    """How an event names its operation: by one of three ids."""

    operation_id: str | None
    step: str | None
    downstream_key: str | None
    provider_id: str | None

    def check(self, tenant: str | None) -> None:
        if sum(one is not None for one in (self.operation_id, self.downstream_key, self.provider_id)) != 1:
            raise ConfigurationError("resolve() needs one of operation_id, downstream_key and provider_id.")
        if self.step is not None and self.operation_id is None:
            raise ConfigurationError("resolve() takes a step together with operation_id only.")
        if self.provider_id is not None and tenant is None:
            raise ConfigurationError(
                "A provider's id is looked for within one tenant: give resolve() the tenant, or find the "
                "operation by "
                "its downstream key or its own id."
            )
        for name in ("operation_id", "downstream_key", "provider_id"):
            if not isinstance(getattr(self, name), str | None):
                raise ConfigurationError(f"{name} must be text, not {type(getattr(self, name)).__name__}.")

    @property
    def can_be_found(self) -> bool:
        """Whether anything can be kept under such an id: what no store can hold, none has."""
        given = (self.operation_id, self.downstream_key, self.provider_id)
        return all(one is None or is_storable(one) for one in given)


def resolve(
    keys: Keys,
    resolver: Resolver,
    events: Events,
    evidence: Evidence,
    named: NamedOperation,
    *,
    source: str,
    event_id: str,
    tenant: str | None,
    occurred_at: datetime,
    verify: Callable[[], bool],
) -> Flow[Resolution]:
    """Places one event and applies it."""
    named.check(tenant)
    said, named = _as_said(evidence, named, source, event_id, occurred_at)
    _check_signature(verify)
    if not named.can_be_found:
        if said.fault is not None:
            raise said.fault
        return Resolution.NOT_FOUND
    found = yield from _find(keys, named, said.source, None if tenant is None else scope_part(tenant))
    operations = {record.id: record for _, record in found}
    if len(operations) > 1:
        open_ones = 0
        for operation_id in operations:
            open_ones += yield from _steadily(partial(resolver.note_candidate, said, operation_id))
        if not open_ones:
            if said.fault is not None:
                raise said.fault
            return Resolution.TOO_LATE
        events.emit("reconcile.failed")
        logger.error(
            "An event of %r fits %d operations by the provider's id. None was settled; see samekey evidence "
            "list.",
            source,
            len(operations),
        )
        if said.fault is not None:
            raise said.fault
        return Resolution.AMBIGUOUS
    if not found and said.fault is not None:
        raise said.fault
    if not found:
        return Resolution.NOT_FOUND
    about, record = found[0]
    if len(found) > 1 or (named.provider_id is not None and record.mode in (Mode.PHASED, Mode.DEFERRED)):
        # An object may stand for more of the operation's effects than have noted it.
        said = replace(said, among=tuple(sent for sent, _ in found))
    else:
        said = replace(said, about=about)
    resolution = yield from _steadily(lambda: resolver.receive(said, record.id))
    if isinstance(resolution, Misfit):
        events.emit("reconcile.failed")
        logger.error(
            "An event of %r says that operation %s happened, and its answer cannot be used. It does not run "
            "again; have the event sent again once this is mended: %s",
            said.source,
            record.id,
            resolution.fault,
        )
        raise resolution.fault
    if said.fault is not None:
        raise said.fault
    if resolution is Resolution.RESOLVED:
        events.emit("reconcile.resolved")
    elif resolution is Resolution.UNPLACED:
        events.emit("reconcile.failed")
        logger.error(
            "An event of %r about operation %s does not say which of its effects it is about, or contradicts "
            "another; nothing was settled.",
            source,
            record.id,
        )
    return resolution


def _steadily(factory: Callable[[], Program[T]]) -> Flow[T]:
    """Looks again at an operation that moved between looking and writing."""
    for _ in range(ROUNDS):
        try:
            return (yield from ask(factory))
        except Moved:
            continue
    raise StoreBusy("The operation would not hold still. Have the provider send the event again.")


def _find(
    keys: Keys, named: NamedOperation, source: str, tenant: str | None
) -> Flow[list[tuple[str | None, Record]]]:
    """The effects that are meant: the downstream key of each, and its operation."""
    found: list[tuple[str | None, Record]] = []
    if named.operation_id is not None:
        operation_id, step = named.operation_id, named.step
        by_id = yield from ask(lambda: keys.read_by_id(operation_id))
        if by_id is not None:
            record = by_id[1]
            found.append((None if step is None else downstream_key(record.scope, record.key, step), record))
    elif named.downstream_key is not None:
        sent = named.downstream_key
        by_key = yield from ask(lambda: keys.read_by_downstream(sent))
        if by_key is not None:
            found.append((sent, by_key))
    else:
        provider_id = named.provider_id
        assert provider_id is not None and tenant is not None
        found = yield from ask(lambda: keys.read_by_provider_id(provider_id, tenant=tenant, source=source))
    return [(about, record) for about, record in found if tenant in (None, record.tenant)]


def _as_said(
    evidence: Evidence, named: NamedOperation, source: object, event_id: object, occurred_at: object
) -> tuple[Said, NamedOperation]:
    """The event, with what is wrong about it. Nothing that is wrong may keep a yes from being heard, if its
    operation can be found: that comes first, then the error. Any other word is refused at once."""
    faults: list[SamekeyError] = []

    def checked(check: Callable[[], T], otherwise: T) -> T:
        try:
            return check()
        except ConfigurationError as fault:
            if not isinstance(evidence, Executed):
                raise
            faults.append(fault)
            return otherwise

    checked(lambda: check_evidence(evidence), None)
    step = named.step
    if step is not None:
        step = checked(lambda: checked_text("step", step, may_be_empty=True), None)
    said = Said(
        evidence,
        checked(lambda: checked_text("source", source), UNREADABLE),
        checked(lambda: checked_text("event_id", event_id), _digest(event_id)),
        checked(lambda: _milliseconds(occurred_at), None),
        None,
        named.provider_id,
        by_operation=named.operation_id is not None,
    )
    if faults and isinstance(evidence, Executed):
        said = replace(said, evidence=unusable(faults[0], evidence), fault=faults[0])
    return said, replace(named, step=step)


def _digest(event_id: object) -> str:
    """Stands for an event's id that no store can hold."""
    try:
        return f"{UNREADABLE}-{hashlib.sha256(ascii(event_id).encode()).hexdigest()[:32]}"
    except Exception:  # ascii() asks the object itself
        return UNREADABLE


def _check_signature(verify: Callable[[], bool]) -> None:
    verified: object = verify()
    if inspect.isawaitable(verified):
        # A coroutine that nobody awaits is true, and would let every forger in.
        if inspect.iscoroutine(verified):
            verified.close()
        raise ConfigurationError("verify must be a plain function: check the signature before, and await it.")
    if verified is not True:
        raise SignatureRefused("The event's signature is wrong; nothing was looked up.")


def _milliseconds(at: object) -> int | None:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise ConfigurationError(
            "occurred_at must be a datetime with its time zone: when it happened, by the provider's clock."
        )
    return int(at.timestamp() * 1000)

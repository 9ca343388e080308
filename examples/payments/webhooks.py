"""``POST /webhooks/provider`` and ``/webhooks/cards``: each provider tells what happened, perhaps twice,
late, or out of order; and both count their events from 1.

Each event says what it is about, by the key that we sent and the account that it was for, and when it
happened. A transfer may wait for this word; a refund or a purchase whose effect nobody could find out goes on
with it. A payment's job finds out by itself, so its events are acknowledged, and nothing else.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse

# It stands for the providers' own SDK.
from examples.provider import SIGNATURE, verify_signature
from samekey import Declined, Evidence, Executed, NotExecuted
from samekey.core.record import Record

from . import purchases, refunds, transfers
from .provider import CARDS, PROVIDER, Entry, ProviderTrouble, Wanted, entry_of, is_of
from .service import database, idempotency, settings

router = APIRouter(tags=["webhooks"])

_ANSWERS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The signature is missing or wrong."},
    404: {"description": "No such operation, perhaps not yet: send it again."},
    409: {"description": "The operation is under way: send it again."},
    413: {"description": "It is larger than any event."},
}


@dataclass(frozen=True, slots=True)
class Step:
    """What events of one kind are about."""

    source: str
    endpoint: str
    step: str
    find: Callable[..., Awaitable[Wanted | None]]
    """What was asked for, by the operation's id and the account."""


STEPS = {
    "transfer": Step(PROVIDER, "POST /transfers", "", transfers.find),
    "refund": Step(PROVIDER, "POST /payments/{id}/refunds", refunds.MONEY_MOVED, refunds.find),
    "authorisation": Step(CARDS, "POST /purchases", purchases.AUTHORISED, purchases.find),
    "capture": Step(CARDS, "POST /purchases", purchases.CAPTURED, purchases.find),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One event, once its signature has been checked."""

    source: str
    id: str
    kind: str
    end: str
    """``succeeded``; ``declined``, a definite no; ``failed``: an attempt that has come to nothing."""
    key: str
    entry: Entry


@router.post("/webhooks/provider", responses=_ANSWERS)
@idempotency.exempt
async def provider_event(request: Request) -> JSONResponse:
    """For the provider of payments and transfers only."""
    return await heard(PROVIDER, settings.provider_secret, request)


@router.post("/webhooks/cards", responses=_ANSWERS)
@idempotency.exempt
async def cards_event(request: Request) -> JSONResponse:
    """For the provider of card purchases only."""
    return await heard(CARDS, settings.cards_secret, request)


LARGEST_EVENT = 64 * 1024
"""Bytes; the provider's own have a few hundred. Until its signature is checked, anybody may have sent it."""


async def read_event(request: Request) -> bytes:
    """The body, read no further than an event can be long."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_EVENT:
            raise HTTPException(413, "This is no event.")
    return bytes(body)


async def heard(source: str, secret: str, request: Request) -> JSONResponse:
    body = await read_event(request)
    # Without a secret nobody is believed: an empty one could be guessed.
    if not (secret and verify_signature(secret, request.headers.get(SIGNATURE), body)):
        raise HTTPException(401, "The signature is missing or wrong.")
    try:
        content = json.loads(body)
        kind, _, end = str(content["type"]).partition(".")
        key, entry = str(content["data"]["key"]), entry_of(content["data"])
        event = Event(source, str(content["id"]), kind, end, key, entry)
    except (ValueError, KeyError, TypeError, ProviderTrouble):
        raise HTTPException(400, "This is no event.") from None
    resolution = await place(event)
    # Where there is no such operation, there may be one in a moment: a 404 has the provider come again. A
    # refusal that had to wait for its operation is sent again too: our own books have to follow it.
    status = 404 if resolution == "not_found" else 200
    if resolution == "kept" and event.end == "declined":
        status = 409
    return JSONResponse({"resolution": resolution}, status)


async def place(event: Event) -> str:
    """What is said must fit what was asked for: the provider, the endpoint, the step, the account, the
    amount, the time. samekey sees to the attempt, and to what was heard before."""
    step = STEPS.get(event.kind)
    if step is None or step.source != event.source or event.end not in ("succeeded", "declined", "failed"):
        return "ignored"
    record = await asyncio.to_thread(idempotency.find, downstream_key=event.key)
    if record is None or record.endpoint != step.endpoint or event.key != record.downstream_key(step.step):
        return "not_found"
    wanted = await step.find(database.run, record.id, event.entry.customer)
    if wanted is None or not is_of(event.entry, wanted, record.since):
        return "not_found"
    if isinstance(wanted, transfers.Transfer):
        return await settle_transfer(event, wanted)
    # What the phase's call returns: the provider's id, or None for a refusal. The run goes on with it.
    found = event.entry.id if event.end == "succeeded" else None
    return await tell(event, _evidence(event, found, found))


async def settle_transfer(event: Event, transfer: transfers.Transfer) -> str:
    """Money that has moved is in our books first, then in the operation: if we die in between, the next
    delivery does the rest. A refusal may be about a former attempt: our books follow the operation."""
    transfer = transfer.settled(event.entry.id if event.end == "succeeded" else None)
    evidence = _evidence(event, transfer.response(), transfer.provider_id)
    if event.end == "succeeded":
        await transfers.settle(database.run, transfer)
        return await tell(event, evidence)
    resolution = await tell(event, evidence)
    record = await asyncio.to_thread(idempotency.find, downstream_key=event.key)
    if record is not None and record.id == transfer.id and _was_declined(record):
        await transfers.settle(database.run, transfer)
    return resolution


def _was_declined(record: Record) -> bool:
    return record.answer is not None and record.answer.status == 402


def _evidence(event: Event, found: Any, provider_id: str | None) -> Evidence:
    if event.end == "failed":
        return NotExecuted
    return (Executed if event.end == "succeeded" else Declined)(found, provider_id)


async def tell(event: Event, evidence: Evidence) -> str:
    """The signature was checked before anything was read."""
    resolution = await idempotency.resolve_async(
        evidence,
        source=event.source,
        event_id=event.id,
        tenant=event.entry.customer,
        occurred_at=datetime.fromtimestamp(event.entry.at, UTC),
        verify=lambda: True,
        downstream_key=event.key,
    )
    return str(resolution)

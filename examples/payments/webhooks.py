"""``POST /webhooks/provider``: the provider tells what happened, perhaps twice, late, or out of order.

Each event says what it is about, by the key that we sent, and when it happened. A transfer may wait for this
word; a refund whose effect nobody could find out goes on with it. A payment's job finds out by itself, so its
events are acknowledged, and nothing else.
"""

import asyncio
import json
from datetime import UTC, datetime

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse

# It stands for the provider's own SDK.
from examples.provider import SIGNATURE, verify_signature
from samekey import Declined, Evidence, Executed

from . import transfers
from .provider import NAME, Entry, ProviderTrouble, entry_of
from .service import database, idempotency, settings

router = APIRouter(tags=["webhooks"])


@router.post(
    "/webhooks/provider",
    responses={
        401: {"description": "The signature is missing or wrong."},
        404: {"description": "No such operation, perhaps not yet: send it again."},
    },
)
@idempotency.exempt
async def provider_event(request: Request) -> JSONResponse:
    """For the provider only."""
    body = await request.body()
    if not is_signed(request.headers.get(SIGNATURE), body):
        raise HTTPException(401, "The signature is missing or wrong.")
    try:
        event = json.loads(body)
        event_id, kind, key = str(event["id"]), str(event["type"]), str(event["data"]["key"])
        entry = entry_of(event["data"])
    except (ValueError, KeyError, TypeError, ProviderTrouble):
        raise HTTPException(400, "This is no event.") from None
    resolution, declined = "ignored", kind.endswith(".declined")
    if kind in ("transfer.succeeded", "transfer.declined"):
        resolution = await settle_transfer(event_id, key, entry, declined=declined)
    elif kind in ("refund.succeeded", "refund.declined"):
        # What the phase's call returns: the provider's id, or None for a refusal. The run goes on with it.
        found = None if declined else entry.id
        resolution = await tell(event_id, key, entry, (Declined if declined else Executed)(found, found))
    # Where there is no such operation, there may be one in a moment: a 404 has the provider come again.
    return JSONResponse({"resolution": resolution}, 404 if resolution == "not_found" else 200)


def is_signed(header: str | None, body: bytes) -> bool:
    """Without a secret nobody is believed: an empty one could be guessed."""
    secret = settings.provider_secret
    return bool(secret) and verify_signature(secret, header, body)


async def settle_transfer(event_id: str, key: str, entry: Entry, *, declined: bool) -> str:
    """Our row first, then the operation: if we die in between, the next delivery does the rest."""
    record = await asyncio.to_thread(idempotency.find, downstream_key=key)
    transfer = None if record is None else await transfers.find(database.run, record.id)
    if record is None or transfer is None or not transfers.is_of(entry, transfer, record):
        return "not_found"
    transfer = transfer.settled(None if declined else entry.id)
    await transfers.settle(database.run, transfer)
    evidence = (Declined if declined else Executed)(transfer.response(), provider_id=transfer.provider_id)
    return await tell(event_id, key, entry, evidence)


async def tell(event_id: str, key: str, entry: Entry, evidence: Evidence) -> str:
    """The signature was checked before anything was read."""
    resolution = await idempotency.resolve_async(
        evidence,
        source=NAME,
        event_id=event_id,
        tenant=None,  # the key is ours alone, and no client has seen it
        occurred_at=datetime.fromtimestamp(entry.at, UTC),
        verify=lambda: True,
        downstream_key=key,
    )
    return str(resolution)

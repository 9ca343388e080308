"""``POST /purchases``: phased, with two calls. A card's money is set aside first, and then taken.

Each step has a downstream key of its own, a lookup of its own, and events of its own: whoever loses the
answer of one of them, or hears of one late, never mistakes it for the other. The provider is another one than
that of payments and transfers, and counts its events from 1 too.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from fastapi import APIRouter, Depends, HTTPException

from samekey import (
    NOT_FOUND,
    AsyncPhasedOperation,
    Declined,
    Effect,
    Executed,
    NotExecuted,
    Response,
    StillUnknown,
)
from samekey.core.record import Record

from .accounts import Account, authenticated
from .bodies import After, Amount, Body, Limit, Reference, Status, Text, is_id
from .database import Run
from .provider import CARDS, WINDOW, Kind, Refused, is_of, is_of_effect
from .service import BACKOFF, MAX_ATTEMPTS, cards, database, idempotency, settings

router = APIRouter(tags=["purchases"], dependencies=[Depends(authenticated)])

AUTHORISED, CAPTURED = "authorised", "captured"
"""The steps: keys and events are about one of them."""
KINDS: dict[str, Kind] = {AUTHORISED: "authorisation", CAPTURED: "capture"}


class PurchaseRequest(Body):
    """What a client asks for. It is stored until the purchase is done, so that nobody has to ask again."""

    card: Text
    amount: Amount
    reference: Reference


@dataclass(frozen=True, slots=True)
class Purchase:
    """A row of ``purchases``, but for its account."""

    id: str
    status: Status
    amount: int
    card: str
    reference: str
    authorisation: str | None = None
    """The provider's id of what it has set aside. If it then does not take it, it lets it go by itself."""
    provider_id: str | None = None
    """Its id of what it has taken."""

    def settled(self, authorisation: str | None, provider_id: str | None) -> "Purchase":
        status: Status = "declined" if provider_id is None else "succeeded"
        return replace(self, status=status, authorisation=authorisation, provider_id=provider_id)

    def response(self) -> Response:
        return Response(201 if self.status == "succeeded" else 402, asdict(self))


@router.post(
    "/purchases",
    status_code=201,
    responses={
        201: {"model": Purchase, "description": "The money was taken."},
        402: {"model": Purchase, "description": "The provider declined it, at one of the two steps."},
    },
)
@idempotency.phased("create_purchase", version=1, max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
async def create_purchase(op: AsyncPhasedOperation, wanted: PurchaseRequest) -> Response:
    """Takes money from a card: it is set aside, then taken."""
    purchase = Purchase(op.id, "pending", wanted.amount, wanted.card, wanted.reference)
    await op.transaction("purchase_noted", note, op.tenant, purchase)
    authorisation = await op.effect(
        AUTHORISED,
        set_aside,
        op.tenant,
        purchase,
        source=CARDS,
        provider_window=WINDOW,
        lookup=find_authorised,
        timeout=settings.call_timeout,
    )
    captured = None
    if authorisation is not None:
        captured = await op.effect(
            CAPTURED,
            take,
            op.tenant,
            purchase,
            authorisation,
            source=CARDS,
            provider_window=WINDOW,
            lookup=find_captured,
            timeout=settings.call_timeout,
        )
    purchase = purchase.settled(authorisation, captured)
    await op.transaction("purchase_settled", settle, purchase)
    return purchase.response()


async def set_aside(_effect: Effect, account: str, purchase: Purchase) -> str | None:
    """The provider's id of the authorisation, or None if it said no."""
    return await _move(AUTHORISED, account, purchase, card=purchase.card)


async def take(_effect: Effect, account: str, purchase: Purchase, authorisation: str) -> str | None:
    """The provider's id of the capture, or None if it said no."""
    return await _move(CAPTURED, account, purchase, authorisation=authorisation)


async def _move(step: str, account: str, purchase: Purchase, **more: str) -> str | None:
    made = await cards.move(
        KINDS[step], amount=purchase.amount, reference=purchase.reference, customer=account, **more
    )
    return None if isinstance(made, Refused) else made.id


async def find_authorised(effect: Effect, _account: str, purchase: Purchase) -> Any:
    """What an earlier attempt at this step may have done, once the provider knows our key no more."""
    return await _find_made(effect, AUTHORISED, purchase)


async def find_captured(effect: Effect, _account: str, purchase: Purchase, _authorisation: str) -> Any:
    return await _find_made(effect, CAPTURED, purchase)


async def _find_made(effect: Effect, step: str, purchase: Purchase) -> Any:
    for entry in await cards.find(KINDS[step], effect.key):
        if is_of_effect(entry, purchase, effect):
            effect.provider_id = entry.id
            return entry.id
    return NOT_FOUND


@idempotency.lookup("POST /purchases")
async def look_up(record: Record) -> Any:
    """Asked before a key that has expired runs again: a purchase that is in our books is not made anew. And
    asked what became of a call, where that is unknown: then it is what the call would have returned."""
    since = record.since  # our books know each life of a key by an id of its own, the provider does not
    purchase = await find(database.run, record.id)
    if purchase is None:
        return NotExecuted
    if purchase.status == "pending":
        # One step is asked about, the open one: money that was set aside is not taken.
        asked = record.open_effect
        if asked is None or asked.downstream_key is None:
            return StillUnknown
        for entry in await cards.find(KINDS[asked.step], asked.downstream_key):
            if is_of(entry, purchase, since):
                return Executed(entry.id, provider_id=entry.id)
        return StillUnknown
    found = Executed if purchase.status == "succeeded" else Declined
    return found(purchase.response(), provider_id=purchase.provider_id)


@router.get("/purchases")
async def list_purchases(account: Account, limit: Limit = 1000, after: After = None) -> dict[str, Any]:
    """The account's purchases, oldest first."""
    rows = await database.run(
        f"select {COLUMNS} from purchases where account = $1 and number > coalesce("  # noqa: S608
        "(select number from purchases where id = $2 and account = $1), 0) order by number limit $3",
        account,
        after,
        limit,
    )
    return {"purchases": [asdict(Purchase(*row)) for row in rows]}


@router.get("/purchases/{id}", responses={404: {"description": "The account has no such purchase."}})
async def get_purchase(id: str, account: Account) -> Purchase:
    """A purchase as it is now."""
    purchase = await find(database.run, id, account)
    if purchase is None:
        raise HTTPException(404, "There is no such purchase.")
    return purchase


# Statements

COLUMNS = "id, status, amount, card, reference, authorisation, provider_id"


async def note(connection: Any, account: str, purchase: Purchase) -> None:
    await database.within(connection)(
        "insert into purchases (id, account, card, amount, reference, status) "
        "values ($1, $2, $3, $4, $5, $6)",
        purchase.id,
        account,
        purchase.card,
        purchase.amount,
        purchase.reference,
        purchase.status,
    )


async def settle(connection: Any, purchase: Purchase) -> None:
    await database.within(connection)(
        "update purchases set status = $2, authorisation = $3, provider_id = $4 where id = $1",
        purchase.id,
        purchase.status,
        purchase.authorisation,
        purchase.provider_id,
    )


async def find(run: Run, purchase_id: str, account: str | None = None) -> Purchase | None:
    """By its id; with ``account``, only if it is that account's."""
    if not is_id(purchase_id):
        return None
    rows = await run(
        f"select {COLUMNS} from purchases where id = $1 and account = coalesce($2, account)",  # noqa: S608
        purchase_id,
        account,
    )
    return Purchase(*rows[0]) if rows else None

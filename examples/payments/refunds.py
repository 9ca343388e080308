"""``POST /payments/{id}/refunds``: phased. Rows before and after one call, each remembered when it is done.

First the amount is reserved, so that two refunds cannot both have the rest of a payment; then the provider
moves the money; then our books say so. A process that dies between two of them is followed by a retry of the
client, or by the worker's completer, which goes on after the last phase that was done.
"""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path

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

from . import payments
from .accounts import Account, authenticated
from .bodies import Amount, Body, Reference, Status, problem
from .database import Run
from .provider import PROVIDER, WINDOW, Refused, is_of, is_of_effect
from .service import BACKOFF, MAX_ATTEMPTS, database, idempotency, provider, settings

MONEY_MOVED = "money_moved"
"""The step at which the provider is called: its key, and its events, are about this."""


class RefundRequest(Body):
    """What a client asks for. It is stored until the refund is done, so that nobody has to ask again."""

    amount: Amount
    reference: Reference


@dataclass(frozen=True, slots=True)
class Refund:
    """A row of ``refunds``, but for its account."""

    id: str
    payment: str
    status: Status
    amount: int
    reference: str
    provider_id: str | None = None

    def settled(self, provider_id: str | None) -> "Refund":
        return replace(
            self, status="declined" if provider_id is None else "succeeded", provider_id=provider_id
        )

    def response(self) -> Response:
        return Response(201 if self.status == "succeeded" else 402, asdict(self))


def of_payment(id: Annotated[str, Path(description="The payment.")]) -> str:
    """Documents the path's parameter: a phased function takes its own from ``op.params``."""
    return id


router = APIRouter(tags=["refunds"], dependencies=[Depends(authenticated), Depends(of_payment)])


@router.post(
    "/payments/{id}/refunds",
    status_code=201,
    responses={
        201: {"model": Refund, "description": "The money is on its way back."},
        402: {"model": Refund, "description": "The provider declined it."},
        404: {"description": "The account has no such payment."},
        409: {"description": "The payment has not succeeded, or less is left of it."},
    },
)
@idempotency.phased("refund_payment", version=1, max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
async def refund_payment(op: AsyncPhasedOperation, wanted: RefundRequest) -> Response:
    """Gives back a payment, or a part of it."""
    refund = Refund(op.id, str(op.params["id"]), "pending", wanted.amount, wanted.reference)
    refusal = await op.transaction("amount_reserved", reserve, op.tenant, refund)
    if refusal is not None:
        return problem(*refusal)
    provider_id = await op.effect(
        MONEY_MOVED,
        send_back,
        op.tenant,
        refund,
        source=PROVIDER,
        provider_window=WINDOW,
        lookup=find_sent_back,
        timeout=settings.call_timeout,
    )
    refund = refund.settled(provider_id)
    await op.transaction("refund_settled", settle, refund)
    return refund.response()


async def reserve(connection: Any, account: str, refund: Refund) -> list[Any] | None:
    """None if the amount is reserved, else a status and a sentence."""
    run = database.within(connection)
    # Locked, because another refund of the same payment may want the same rest of it.
    payment = await payments.find(run, refund.payment, lock=True)
    if payment is None or payment.account != account:
        return [404, "There is no such payment."]
    if payment.status != "succeeded":
        return [409, f"The payment is {payment.status}; only one that succeeded can be refunded."]
    if payment.refunded + refund.amount > payment.amount:
        return [409, "Less than that is left of the payment."]
    await run("update payments set refunded = refunded + $2 where id = $1", refund.payment, refund.amount)
    await run(
        "insert into refunds (id, account, payment, amount, reference, status) "
        "values ($1, $2, $3, $4, $5, $6)",
        refund.id,
        account,
        refund.payment,
        refund.amount,
        refund.reference,
        refund.status,
    )
    return None


async def send_back(_effect: Effect, account: str, refund: Refund) -> str | None:
    """The provider's id of the refund, or None if it said no. Of trouble the next attempt finds out more."""
    made = await provider.move(
        "refund",
        amount=refund.amount,
        reference=refund.reference,
        customer=account,
        payment=refund.payment,
    )
    return None if isinstance(made, Refused) else made.id


async def find_sent_back(effect: Effect, _account: str, refund: Refund) -> Any:
    """What an earlier attempt may have done, once the provider does not recognise our key any more."""
    for entry in await provider.find("refund", effect.key):
        if is_of_effect(entry, refund, effect):
            effect.provider_id = entry.id
            return entry.id
    return NOT_FOUND


@idempotency.lookup("POST /payments/{id}/refunds")
async def look_up(record: Record) -> Any:
    """Asked before a key that has expired runs again: a refund that is in our books is not made anew. And
    asked what became of the call, where that is unknown: then it is what the call would have returned."""
    since = record.since  # our books know each life of a key by an id of its own, the provider does not
    refund = await find(database.run, record.id)
    if refund is None:
        return NotExecuted  # it was refused before anything was written
    if refund.status == "pending":
        for entry in await provider.find("refund", record.downstream_key(MONEY_MOVED)):
            if is_of(entry, refund, since):
                return Executed(entry.id, provider_id=entry.id)
        return StillUnknown
    found = Executed if refund.status == "succeeded" else Declined
    return found(refund.response(), provider_id=refund.provider_id)


async def settle(connection: Any, refund: Refund) -> None:
    """Our books say what the provider said; what a refusal had reserved is free again."""
    run = database.within(connection)
    await run(
        "update refunds set status = $2, provider_id = $3 where id = $1",
        refund.id,
        refund.status,
        refund.provider_id,
    )
    if refund.status == "declined":
        await run("update payments set refunded = refunded - $2 where id = $1", refund.payment, refund.amount)


@router.get("/payments/{id}/refunds", responses={404: {"description": "The account has no such payment."}})
async def list_refunds(id: str, account: Account) -> dict[str, Any]:
    """The refunds of a payment, oldest first."""
    payment = await payments.find(database.run, id)
    if payment is None or payment.account != account:
        raise HTTPException(404, "There is no such payment.")
    return {"refunds": [asdict(refund) for refund in await of(database.run, id)]}


COLUMNS = "id, payment, status, amount, reference, provider_id"


async def of(run: Run, payment_id: str) -> list[Refund]:
    rows = await run(f"select {COLUMNS} from refunds where payment = $1 order by number", payment_id)  # noqa: S608
    return [Refund(*row) for row in rows]


async def find(run: Run, refund_id: str, account: str | None = None) -> Refund | None:
    """By its id; with ``account``, only if it is that account's."""
    rows = await run(
        f"select {COLUMNS} from refunds where id = $1 and account = coalesce($2, account)",  # noqa: S608
        refund_id,
        account,
    )
    return Refund(*rows[0]) if rows else None

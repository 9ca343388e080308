"""``POST /payments``: deferred. The row and the job commit together; a worker charges, and answers.

Nobody waits for the provider: the client has its 202 in the time of one commit, and the final answer at the
status resource, or by sending the same request again.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fastapi import APIRouter, HTTPException
from fastapi import Response as HTTPResponse

from samekey import Declined, Executed, JobContext, NotExecuted, Response, current_operation
from samekey.core.record import Record

from .accounts import Account
from .bodies import After, Amount, Body, Limit, Reference, Status, as_http, is_id
from .database import Run
from .provider import PROVIDER, Refused, is_of
from .service import BACKOFF, MAX_ATTEMPTS, database, idempotency, provider, settings

router = APIRouter(tags=["payments"])


class PaymentRequest(Body):
    """What a client asks for."""

    amount: Amount
    currency: Literal["EUR"]
    reference: Reference


@dataclass(frozen=True, slots=True)
class PaymentAnswer:
    """What became of it."""

    id: str
    status: Status
    amount: int
    currency: str
    reference: str
    provider_id: str | None


@dataclass(frozen=True, slots=True)
class Payment:
    """A row of ``payments``."""

    id: str
    account: str
    amount: int
    currency: str
    reference: str
    status: Status = "pending"
    provider_id: str | None = None
    refunded: int = 0

    def answer(self) -> dict[str, Any]:
        return asdict(
            PaymentAnswer(self.id, self.status, self.amount, self.currency, self.reference, self.provider_id)
        )

    def settled(self, provider_id: str | None) -> "Payment":
        """With the provider's word: its id of the charge, or None for a refusal."""
        return replace(
            self, status="declined" if provider_id is None else "succeeded", provider_id=provider_id
        )

    def response(self) -> Response:
        """The final answer."""
        return Response(201 if self.status == "succeeded" else 402, self.answer())


@router.post(
    "/payments",
    status_code=202,
    responses={
        201: {"model": PaymentAnswer, "description": "It was charged."},
        202: {"model": PaymentAnswer, "description": "It will be charged."},
        402: {"model": PaymentAnswer, "description": "The provider declined it."},
    },
)
@idempotency.deferred
async def create_payment(wanted: PaymentRequest, account: Account) -> HTTPResponse:
    """Accepts a payment; a worker charges it."""
    operation = current_operation()
    payment = Payment(operation.id, account, wanted.amount, wanted.currency, wanted.reference)
    await insert(database.within(operation.connection), payment)
    await operation.enqueue("charge", asdict(payment))
    return as_http(Response(202, payment.answer()))


@idempotency.job(
    "charge",
    source=PROVIDER,
    timeout=2 * settings.call_timeout,
    max_attempts=MAX_ATTEMPTS,
    backoff=BACKOFF,
)
async def charge(job: JobContext, payload: Mapping[str, Any], *, found: Any = None) -> Response:
    """Runs in a worker, perhaps more than once: its key is the same each time, so it charges once."""
    payment = Payment(**payload)
    if isinstance(found, Executed) and found.provider_id is not None:
        # A webhook came first: only the books are left to do.
        job.provider_id = found.provider_id
        payment = payment.settled(found.provider_id)
    else:
        made = await provider.move(
            "charge", amount=payment.amount, reference=payment.reference, customer=payment.account
        )
        payment = payment.settled(None if isinstance(made, Refused) else made.id)
    job.write(lambda connection: settle(database.within(connection), payment))
    return payment.response()


@idempotency.lookup("POST /payments")
async def look_up(record: Record) -> Any:
    """Asked before a key that has expired runs again: a payment that is in our books is not made anew."""
    since = record.since  # our books know each life of a key by an id of its own, the provider does not
    payment = await find(database.run, record.id)
    if payment is None:
        return NotExecuted  # it was refused before anything was written
    if payment.status == "pending":  # nobody came to charge it in time; one that came late may have
        for entry in await provider.find("charge", record.downstream_key("charge")):
            if is_of(entry, payment, since):
                payment = payment.settled(entry.id)
                await settle(database.run, payment)
                return Executed(payment.response(), provider_id=entry.id)
        await forget(database.run, payment.id)  # what was never done leaves no row behind
        return NotExecuted
    found = Executed if payment.status == "succeeded" else Declined
    return found(payment.response(), provider_id=payment.provider_id)


@router.get("/payments")
async def list_payments(account: Account, limit: Limit = 1000, after: After = None) -> dict[str, Any]:
    """The account's payments, oldest first."""
    found = await database.run(
        f"select {COLUMNS} from payments where account = $1 and number > coalesce("  # noqa: S608
        "(select number from payments where id = $2 and account = $1), 0) order by number limit $3",
        account,
        after,
        limit,
    )
    return {"payments": [shown(Payment(*row)) for row in found]}


@router.get("/payments/{id}", responses={404: {"description": "The account has no such payment."}})
async def get_payment(id: str, account: Account) -> dict[str, Any]:
    """A payment as it is now."""
    payment = await find(database.run, id)
    if payment is None or payment.account != account:
        raise HTTPException(404, "There is no such payment.")
    return shown(payment)


def shown(payment: Payment) -> dict[str, Any]:
    return {**payment.answer(), "refunded": payment.refunded}


# Statements

COLUMNS = "id, account, amount, currency, reference, status, provider_id, refunded"


async def insert(run: Run, payment: Payment) -> None:
    await run(
        "insert into payments (id, account, amount, currency, reference, status) "
        "values ($1, $2, $3, $4, $5, $6)",
        payment.id,
        payment.account,
        payment.amount,
        payment.currency,
        payment.reference,
        payment.status,
    )


async def settle(run: Run, payment: Payment) -> None:
    """Writes the provider's word. Once settled, a payment does not move."""
    await run(
        "update payments set status = $2, provider_id = $3 where id = $1 and status = 'pending'",
        payment.id,
        payment.status,
        payment.provider_id,
    )


async def forget(run: Run, payment_id: str) -> None:
    """A payment that was never made, and never will be under this id."""
    await run("delete from payments where id = $1 and status = 'pending'", payment_id)


async def find(run: Run, payment_id: str, *, lock: bool = False) -> Payment | None:
    """By its id; with ``lock``, nobody else changes it until the transaction ends."""
    if not is_id(payment_id):
        return None
    locked = " for update" if lock else ""
    rows = await run(f"select {COLUMNS} from payments where id = $1{locked}", payment_id)  # noqa: S608
    return Payment(*rows[0]) if rows else None

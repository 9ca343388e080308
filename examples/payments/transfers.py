"""``POST /transfers``: leased. One call with the client waiting, and somebody to ask when its answer is lost.

The row is written before the call, so that whoever finds out later what became of it, the worker's
reconciler or a webhook, knows what was asked for. No transaction is open while the provider is called.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi import Response as HTTPResponse

from samekey import Declined, Executed, NotExecuted, Response, StillUnknown, current_operation
from samekey.core.record import Record
from samekey.core.states import State

from .accounts import Account
from .bodies import After, Amount, Body, Limit, Reference, Status, Text, as_http, is_id
from .database import Run
from .provider import Refused, is_of
from .service import database, idempotency, provider, settings

router = APIRouter(tags=["transfers"])


class TransferRequest(Body):
    """What a client asks for."""

    account: Text
    amount: Amount
    reference: Reference


@dataclass(frozen=True, slots=True)
class Transfer:
    """A row of ``transfers``, but for whose it is."""

    id: str
    status: Status
    amount: int
    account: str
    """Where the money goes."""
    reference: str
    provider_id: str | None = None

    def settled(self, provider_id: str | None) -> "Transfer":
        return replace(
            self, status="declined" if provider_id is None else "succeeded", provider_id=provider_id
        )

    def response(self) -> Response:
        return Response(201 if self.status == "succeeded" else 402, asdict(self))


@router.post(
    "/transfers",
    status_code=201,
    responses={
        201: {"model": Transfer, "description": "The money has moved."},
        402: {"model": Transfer, "description": "The provider declined it."},
    },
)
@idempotency.leased
async def create_transfer(wanted: TransferRequest, account: Account) -> HTTPResponse:
    """Sends money to an account elsewhere."""
    operation = current_operation()
    transfer = Transfer(operation.id, "pending", wanted.amount, wanted.account, wanted.reference)
    with operation.before_effect():
        await begin(database.run, account, transfer)
    # From here on an error leaves the outcome unknown, whatever it is: the money may have moved.
    made = await provider.move(
        "transfer",
        amount=transfer.amount,
        reference=transfer.reference,
        customer=account,
        account=transfer.account,
    )
    transfer = transfer.settled(None if isinstance(made, Refused) else made.id)
    await settle(database.run, transfer)
    return as_http(transfer.response())


@idempotency.lookup("POST /transfers")
async def look_up(record: Record) -> Any:
    """What became of a transfer whose answer was lost, or whose key has expired: our books know, or the
    provider does."""
    since = record.since  # our books know each life of a key by an id of its own, the provider does not
    transfer = await find(database.run, record.id)
    if transfer is not None and transfer.status == "declined":
        return Declined(transfer.response())
    if transfer is not None and transfer.status == "succeeded":
        return Executed(transfer.response(), provider_id=transfer.provider_id)
    if transfer is not None:
        for entry in await provider.find("transfer", record.downstream_key()):
            if is_of(entry, transfer, since):
                transfer = transfer.settled(entry.id)
                await settle(database.run, transfer)
                return Executed(transfer.response(), provider_id=entry.id)
    # A process that was only paused may still call. Once its lease is over it has had its time; if it comes
    # even later than that, the provider knows its key.
    waited = await database.now() - record.last_run_at
    if waited < (settings.lease + settings.call_timeout) * 1000:
        return StillUnknown
    if record.state is not State.UNKNOWN:  # its key has expired: what was never done leaves no row behind
        await forget(database.run, record.id)
    return NotExecuted


@router.get("/transfers")
async def list_transfers(account: Account, limit: Limit = 1000, after: After = None) -> dict[str, Any]:
    """The account's transfers, oldest first. One that is pending may have happened or not."""
    rows = await database.run(
        f"select {COLUMNS} from transfers where account = $1 and number > coalesce("  # noqa: S608
        "(select number from transfers where id = $2 and account = $1), 0) order by number limit $3",
        account,
        after,
        limit,
    )
    return {"transfers": [asdict(Transfer(*row)) for row in rows]}


@router.get("/transfers/{id}", responses={404: {"description": "The account has no such transfer."}})
async def get_transfer(id: str, account: Account) -> Transfer:
    """A transfer as it is now."""
    transfer = await find(database.run, id, account)
    if transfer is None:
        raise HTTPException(404, "There is no such transfer.")
    return transfer


# Statements

COLUMNS = "id, status, amount, beneficiary, reference, provider_id"


async def begin(run: Run, account: str, transfer: Transfer) -> None:
    """Writes what is about to be asked for; a second attempt finds it there."""
    await run(
        "insert into transfers (id, account, beneficiary, amount, reference, status) "
        "values ($1, $2, $3, $4, $5, $6) on conflict (id) do nothing",
        transfer.id,
        account,
        transfer.account,
        transfer.amount,
        transfer.reference,
        transfer.status,
    )


async def settle(run: Run, transfer: Transfer) -> None:
    """Writes the provider's word. Once settled, a transfer does not move."""
    await run(
        "update transfers set status = $2, provider_id = $3 where id = $1 and status = 'pending'",
        transfer.id,
        transfer.status,
        transfer.provider_id,
    )


async def forget(run: Run, transfer_id: str) -> None:
    """A transfer that was never made, and never will be under this id."""
    await run("delete from transfers where id = $1 and status = 'pending'", transfer_id)


async def find(run: Run, transfer_id: str, account: str | None = None) -> Transfer | None:
    """By its id; with ``account``, only if it is that account's."""
    if not is_id(transfer_id):
        return None
    rows = await run(
        f"select {COLUMNS} from transfers where id = $1 and account = coalesce($2, account)",  # noqa: S608
        transfer_id,
        account,
    )
    return Transfer(*rows[0]) if rows else None

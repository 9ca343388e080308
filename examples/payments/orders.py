"""``POST /orders``: atomic. Everything is in our own database, so one transaction is enough.

The order, the stock and the answer commit together, or nothing does: there is no state in between to clean
up after, and a retry of a request that failed simply runs.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException
from fastapi import Response as HTTPResponse
from pydantic import Field

from samekey import Response, current_operation

from .accounts import Account
from .bodies import After, Body, Limit, Reference, Text, as_http, is_id, problem
from .service import database, idempotency

router = APIRouter(tags=["orders"])


class OrderRequest(Body):
    """What a client asks for."""

    item: Text
    quantity: Annotated[int, Field(strict=True, ge=1, le=1000)]
    reference: Reference


@dataclass(frozen=True, slots=True)
class Order:
    """A row of ``orders``, but for its account."""

    id: str
    item: str
    quantity: int
    reference: str


@router.post(
    "/orders",
    status_code=201,
    responses={
        201: {"model": Order, "description": "It is ordered, and taken from the stock."},
        409: {"description": "There is not so much in stock. Nothing was ordered."},
    },
)
@idempotency.atomic
async def create_order(wanted: OrderRequest, account: Account) -> HTTPResponse:
    """Orders something that is in stock."""
    operation = current_operation()
    run = database.within(operation.connection)
    # Locked until the commit: another order of the same item waits here, and reads what this one has left.
    left = await run("select quantity from stock where item = $1 for update", wanted.item)
    if not left or left[0][0] < wanted.quantity:
        return as_http(problem(409, "There is not so much in stock."))
    await run("update stock set quantity = quantity - $2 where item = $1", wanted.item, wanted.quantity)
    order = Order(operation.id, wanted.item, wanted.quantity, wanted.reference)
    await run(
        "insert into orders (id, account, item, quantity, reference) values ($1, $2, $3, $4, $5)",
        order.id,
        account,
        order.item,
        order.quantity,
        order.reference,
    )
    return as_http(Response(201, asdict(order)))


@router.get("/orders")
async def list_orders(account: Account, limit: Limit = 1000, after: After = None) -> dict[str, Any]:
    """The account's orders, oldest first."""
    rows = await database.run(
        "select id, item, quantity, reference from orders where account = $1 and number > coalesce("
        "(select number from orders where id = $2 and account = $1), 0) order by number limit $3",
        account,
        after,
        limit,
    )
    return {"orders": [asdict(Order(*row)) for row in rows]}


@router.get("/orders/{id}", responses={404: {"description": "The account has no such order."}})
async def get_order(id: str, account: Account) -> Order:
    """One order."""
    rows = (
        await database.run(
            "select id, item, quantity, reference from orders where id = $1 and account = $2", id, account
        )
        if is_id(id)
        else []
    )
    if not rows:
        raise HTTPException(404, "There is no such order.")
    return Order(*rows[0])


@router.get("/stock")
async def list_stock(_account: Account) -> dict[str, Any]:
    """What is left of everything."""
    rows = await database.run("select item, quantity from stock order by item")
    return {"stock": {str(item): int(quantity) for item, quantity in rows}}

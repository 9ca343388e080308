"""The steps in which nothing breaks: a payment, its retry, and three ways to use a key wrongly."""

import json
from dataclasses import dataclass

from lab.processes import wait_until

from .client import Background, code, has_status, is_replay, same
from .stage import ANN, BOB, PATIENCE, Account
from .tour import Body, Step, Tour

COFFEE: Body = {"amount": 450, "currency": "EUR", "reference": "coffee"}


@dataclass(frozen=True, slots=True)
class Paid:
    """A payment with its final answer, as the status resource has it."""

    id: str
    status_path: str
    answer_body: str


def pay(tour: Tour, account: Account, key: str, body: Body) -> Paid:
    """A payment from its request to its final answer; ValueError if it does not get there."""
    tour.moves("charge", body["reference"], body["amount"])
    accepted = tour.client.post(account, "/payments", key, body)
    if accepted is None or accepted.status_code != 202 or "location" not in accepted.headers:
        raise ValueError("The payment was not accepted.")
    path = accepted.headers["location"]
    status = tour.client.follow(account, path)
    answer = status.get("answer") or {"status": None, "body": "{}"}
    tour.claim(
        "It was accepted with 202 and the address of its status, which ends with the final answer, 201.",
        answer["status"] == 201,
    )
    return Paid(json.loads(answer["body"])["id"], path, answer["body"])


def paid_for(tour: Tour, reference: str) -> list[int]:
    """The amounts that the provider has charged under a reference."""
    return [entry.amount for entry in tour.stage.entries(reference) if entry.kind == "charge"]


DEFERRED = (("in_progress", "request"), ("pending", "request"), ("completed", "worker"))


def payment(tour: Tour) -> None:
    paid = pay(tour, ANN, "coffee-1", COFFEE)
    tour.claim("The worker had the card charged: one charge of 4.50.", paid_for(tour, "coffee") == [450])
    asked = tour.asked()
    retry = tour.client.post(ANN, "/payments", "coffee-1", COFFEE)
    again = tour.client.post(ANN, "/payments", "coffee-1", COFFEE)
    tour.claim(
        "Each retry gets that final answer, marked as replayed and the same byte for byte.",
        retry is not None
        and (retry.status_code, retry.text) == (201, paid.answer_body)
        and is_replay(retry)
        and is_replay(again)
        and same(retry, again),
    )
    tour.claim(
        "For the retries nothing was written, and the provider was not asked: one payment, one charge.",
        tour.count("payments", "coffee") == 1 and tour.asked() == asked and paid_for(tour, "coffee") == [450],
    )
    tour.went(ANN, "coffee-1", "deferred", *DEFERRED)


def other_body(tour: Tour) -> None:
    asked = tour.asked()
    answer = tour.client.post(ANN, "/payments", "coffee-1", {**COFFEE, "amount": 99_900})
    tour.claim(
        "It is refused: 422 with the code `reused`.", has_status(answer, 422) and code(answer) == "reused"
    )
    tour.claim(
        "Nothing was done: there is no new payment, and the provider was not asked.",
        tour.count("payments", "coffee") == 1 and tour.asked() == asked,
    )
    tour.went(ANN, "coffee-1", "deferred", *DEFERRED)


def other_tenant(tour: Tour) -> None:
    (anns,) = tour.stage.rows("select id from payments where reference = 'coffee' limit 1")
    bobs = pay(tour, BOB, "coffee-1", {"amount": 700, "currency": "EUR", "reference": "books"})
    keys = {entry.key for entry in (*tour.stage.entries("coffee"), *tour.stage.entries("books"))}
    tour.claim(
        "It is a payment of Bob's own, and the provider was given another key for it.",
        bobs.id != anns[0] and len(keys) == 2,
    )
    payment = tour.client.get(BOB, f"/payments/{anns[0]}")
    status = tour.client.get(BOB, bobs.status_path.replace(bobs.id, anns[0]))
    tour.claim(
        "Ann's payment and its status are 404 for Bob.",
        payment.status_code == 404 and status.status_code == 404,
    )
    tour.went(BOB, "coffee-1", "deferred", *DEFERRED)


def two_at_once(tour: Tour) -> None:
    tea = {"item": "tea", "quantity": 2, "reference": "tea"}
    with tour.stage.order_held("tea"):
        first = held_order(tour, "tea-1", tea, called="first: ")
        second = tour.client.post(ANN, "/orders", "tea-1", tea, called="second: ")
        waits = first.running
    answer = first.answer()
    tour.claim(
        "The second was answered while the first was still at work: 409 with the code `in_progress`, and "
        "when to come back.",
        waits and code(second) == "in_progress" and second is not None and "retry-after" in second.headers,
    )
    third = tour.client.post_until_settled(ANN, "/orders", "tea-1", tea)
    tour.claim(
        "The first ran to its end with 201, and a retry gets the same bytes.",
        has_status(answer, 201) and same(answer, third) and is_replay(third),
    )
    tour.claim("One row for all of them.", tour.count("orders", "tea") == 1)
    tour.went(ANN, "tea-1", "atomic", ("in_progress", "request"), ("completed", "request"))


def held_order(tour: Tour, key: str, body: Body, *, called: str = "") -> Background:
    """An order under way, whose row is written and whose transaction is open."""
    order = Background(lambda: tour.client.post(ANN, "/orders", key, body, called=called))
    wait_until(lambda: tour.stage.order_is_held(body["reference"]) or not order.running, PATIENCE)
    if not order.running:
        raise ValueError("The order was answered before it was to be stopped.")
    return order


STEPS = (
    Step(
        "payment",
        "A payment, and its retry",
        "Ann pays for a coffee. Then her client sends the same request twice more.",
        payment,
    ),
    Step(
        "other-body",
        "The same key with another body",
        "A bug in a client, or worse: the key of the coffee, with another amount.",
        other_body,
        needs=("payment",),
    ),
    Step(
        "other-tenant",
        "Another tenant with the same key",
        "Bob happens to choose the key that Ann has used, and then looks for her payment.",
        other_tenant,
        needs=("payment",),
    ),
    Step(
        "two-at-once",
        "Two at once",
        "An order is stopped after its row was written, before the commit. Meanwhile its retry comes.",
        two_at_once,
    ),
)

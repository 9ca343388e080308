"""The steps in which something breaks at the worst moment: processes die, answers get lost."""

from collections.abc import Sequence

import httpx2 as httpx

from examples.provider import Entry

from .calm import DEFERRED, held_order, pay
from .client import Background, code, has_status, is_replay, same
from .stage import ANN
from .tour import Step, Tour


def order_killed(tour: Tour) -> None:
    cake = {"item": "cake", "quantity": 3, "reference": "cake"}
    before = tour.stock("cake")
    with tour.stage.order_held("cake"):
        first = held_order(tour, "cake-1", cake)
        kill_service(tour)
        answer = first.answer()
    tour.claim(
        "The client got no answer, and all of it was rolled back: no order, and every cake is in stock.",
        answer is None and tour.count("orders", "cake") == 0 and tour.stock("cake") == before,
    )
    restart_service(tour)
    retry = tour.client.post_until_settled(ANN, "/orders", "cake-1", cake)
    again = tour.client.post(ANN, "/orders", "cake-1", cake)
    tour.claim("The retry ran, and got 201.", has_status(retry, 201) and not is_replay(retry))
    tour.claim("One more retry gets the same bytes.", same(retry, again) and is_replay(again))
    tour.claim(
        "There is one order, and there are three cakes less.",
        tour.count("orders", "cake") == 1 and tour.stock("cake") == before - 3,
    )
    tour.went(
        ANN,
        "cake-1",
        "atomic",
        ("in_progress", "request"),
        ("failed_retryable", "sweeper", "request"),
        ("in_progress", "request"),
        ("completed", "request"),
    )


def worker_killed(tour: Tour) -> None:
    flight = {"amount": 48_000, "currency": "EUR", "reference": "flight"}
    tour.moves("charge", "flight", 48_000)
    with tour.silence("flight"):
        tour.client.post(ANN, "/payments", "flight-1", flight)
        tour.wait_for_entry("flight")
        tour.screen.event(f"kill -9 for the worker (process {tour.stage.worker.pid})")
        tour.stage.kill_worker()
    tour.claim(
        "It died after the charge and before it knew: the charge is in the provider's ledger, and our own "
        "row is pending, without an id.",
        len(tour.stage.entries("flight")) == 1 and tour.row("payments", "flight") == ("pending", None),
    )
    replays = tour.stage.provider.figures()["replays"]
    tour.stage.restart_worker()
    tour.screen.event(f"another worker is started (process {tour.stage.worker.pid})")
    tour.wait_for_state(ANN, "flight-1", "completed")
    tour.claim(
        "Another worker did the job again, with the same key for the provider, which recognised it and "
        "charged nothing.",
        tour.stage.provider.figures()["replays"] > replays,
    )
    retry = tour.client.post(ANN, "/payments", "flight-1", flight)
    charges = tour.stage.entries("flight")
    tour.claim(
        "The client's retry gets 201, with the id of that first charge.", made(retry) == ids(charges)[:1]
    )
    tour.claim("The provider's ledger has one charge of 480.00.", amounts(charges) == [48_000])
    tour.went(ANN, "flight-1", "deferred", *DEFERRED)


def answer_lost(tour: Tour) -> None:
    rent = {"account": "landlord", "amount": 90_000, "reference": "rent"}
    tour.moves("transfer", "rent", 90_000)
    tour.stage.provider.fail("charge_then_drop", reference="rent")
    tour.stage.provider.fail("webhook_lost", reference="rent")
    lost = tour.client.post(ANN, "/transfers", "rent-1", rent)
    tour.claim(
        "The service does not guess: 409 with the code `outcome_unknown`.", code(lost) == "outcome_unknown"
    )
    tour.wait_for_state(ANN, "rent-1", "completed")
    retry = tour.client.post(ANN, "/transfers", "rent-1", rent)
    moved = tour.stage.entries("rent")
    tour.claim(
        "The worker's reconciler asked the provider, and the retry gets 201 with the provider's id.",
        made(retry) == ids(moved) and tour.look_up(ANN, "rent-1").timeline[-1].actor == "reconciler",
    )
    tour.claim("The provider's ledger has one transfer of 900.00.", amounts(moved) == [90_000])
    tour.went(
        ANN,
        "rent-1",
        "leased",
        ("in_progress", "request"),
        ("unknown", "request"),
        ("completed", "reconciler"),
    )


def webhook_settles(tour: Tour) -> None:
    gift = {"account": "grandma", "amount": 5_000, "reference": "gift"}
    card = {"account": "printer", "amount": 300, "reference": "card"}
    tour.moves("transfer", "gift", 5_000)
    tour.moves("transfer", "card", 300)
    with tour.stage.no_worker():
        tour.stage.provider.fail("charge_then_drop", reference="gift")
        tour.stage.provider.fail("webhook_reordered", reference="gift")
        lost = tour.client.post(ANN, "/transfers", "gift-1", gift)
        tour.claim("Again 409 with the code `outcome_unknown`.", code(lost) == "outcome_unknown")
        unknown = tour.look_up(ANN, "gift-1").timeline[-1].after == "unknown"
        later = tour.client.post(ANN, "/transfers", "card-1", card)
        tour.claim(
            "A later transfer gets its 201; until then the first was unknown.",
            unknown and has_status(later, 201),
        )
        tour.wait_for_state(ANN, "gift-1", "completed")
    retry = tour.client.post(ANN, "/transfers", "gift-1", gift)
    moved = tour.stage.entries("gift")
    tour.claim(
        "The provider's webhook settled the first one, and the retry gets 201 with the provider's id.",
        made(retry) == ids(moved) and tour.look_up(ANN, "gift-1").timeline[-1].actor == "webhook",
    )
    tour.claim("The provider's ledger has one transfer of 50.00.", amounts(moved) == [5_000])
    tour.went(
        ANN, "gift-1", "leased", ("in_progress", "request"), ("unknown", "request"), ("completed", "webhook")
    )


def refund_killed(tour: Tour) -> None:
    shoes = {"amount": 12_000, "currency": "EUR", "reference": "shoes"}
    back = {"amount": 2_000, "reference": "shoes-back"}
    path = f"/payments/{pay(tour, ANN, 'shoes-1', shoes).id}/refunds"
    tour.moves("refund", "shoes-back", 2_000)
    with tour.silence("shoes-back"):
        first = Background(lambda: tour.client.post(ANN, path, "shoes-back-1", back))
        tour.wait_for_entry("shoes-back")
        kill_service(tour)
        answer = first.answer()
    tour.claim(
        "It died after the money went back and before it knew: the refund is in the provider's ledger, our "
        "own row is pending, and the client got no answer.",
        answer is None
        and len(tour.stage.entries("shoes-back")) == 1
        and tour.row("refunds", "shoes-back") == ("pending", None),
    )
    tour.wait_for_state(ANN, "shoes-back-1", "completed")
    tour.claim(
        "The worker's completer took it over and finished it, with no client, and with no service running.",
        tour.row("refunds", "shoes-back") == ("succeeded", *ids(tour.stage.entries("shoes-back")))
        and "completer" in [step.actor for step in tour.look_up(ANN, "shoes-back-1").timeline]
        and not tour.stage.service.running,
    )
    restart_service(tour)
    retry = tour.client.post(ANN, path, "shoes-back-1", back)
    refunds = tour.stage.entries("shoes-back")
    tour.claim("A late retry gets 201, replayed.", made(retry) == ids(refunds) and is_replay(retry))
    tour.claim("The provider's ledger has one refund of 20.00.", amounts(refunds) == [2_000])
    tour.went(
        ANN,
        "shoes-back-1",
        "phased",
        ("in_progress", "request"),
        ("in_progress", "completer"),
        ("completed", "completer"),
    )


def kill_service(tour: Tour) -> None:
    tour.screen.event(f"kill -9 for the service (process {tour.stage.service.pid})")
    tour.stage.kill_service()


def restart_service(tour: Tour) -> None:
    tour.stage.restart_service()
    tour.screen.event(f"the service is started again (process {tour.stage.service.pid})")


# What the claims look at


def made(answer: httpx.Response | None) -> list[str]:
    """The provider's id in a 201; nothing in any other answer."""
    return [answer.json()["provider_id"]] if answer is not None and answer.status_code == 201 else []


def ids(entries: Sequence[Entry]) -> list[str]:
    return [entry.id for entry in entries]


def amounts(entries: Sequence[Entry]) -> list[int]:
    return [entry.amount for entry in entries]


STEPS = (
    Step(
        "order-killed",
        "An order whose process is killed with -9 in the middle",
        "The order is written and the cakes are taken; before the commit the process dies.",
        order_killed,
    ),
    Step(
        "worker-killed",
        "A payment whose worker is killed with -9 in the middle of the charge",
        "The provider charges and keeps silent. The worker that waits for its answer dies.",
        worker_killed,
    ),
    Step(
        "answer-lost",
        "A transfer whose answer is lost",
        "The provider moves the money and cuts the connection. The webhook that tells of it is lost, too.",
        answer_lost,
    ),
    Step(
        "webhook",
        "Another lost answer, and a webhook that comes late and out of order",
        "There is no worker that could ask. The provider sends the webhook after that of a later transfer.",
        webhook_settles,
    ),
    Step(
        "refund-killed",
        "A refund that kill -9 interrupts, finished without the client",
        "The provider gives the money back and keeps silent. The service that waits for its answer dies.",
        refund_killed,
    ),
)

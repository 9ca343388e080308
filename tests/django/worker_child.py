"""A process of its own for ``manage.py samekey_worker``, which ends its process where threads are left."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from django.core.management import call_command
from django.http import HttpResponse
from django.urls import path

from samekey import Idempotency, Response, current_operation
from tests.django.test_atomic import write
from tests.django.world import world


def main(url: str) -> None:
    done: list[Any] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.job("ship")
        def ship(job: Any, order: Any) -> Response:
            done.append(order)
            os.kill(os.getpid(), signal.SIGTERM)  # as whoever stops the process; this job may end
            return Response(201, {"shipped": True})

        @idempotency.deferred
        def order(request: Any) -> HttpResponse:
            write("ordered")
            current_operation().enqueue("ship", {"order": 7})
            return HttpResponse(status=202)

        return [path("order", order)]

    with world(url, urls) as shop:
        assert shop.post("/order", "k").status_code == 202
        assert (shop.entries(), done) == (["ordered"], [])
        call_command("samekey_worker", "--grace", "30")
        assert done == [{"order": 7}]
        answer = shop.post("/order", "k")
        assert (answer.status_code, answer.json()) == (201, {"shipped": True})
    print("performed")


if __name__ == "__main__":
    main(sys.argv[1])

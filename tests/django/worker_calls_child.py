"""A process of its own: what a worker calls has connections of Django's of its own, and gives them back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import connection
from django.http import HttpResponse
from django.urls import path

from lab.processes import wait_until
from samekey import Backoff, Idempotency, Response, current_operation
from tests.django.test_atomic import write
from tests.django.world import world

AT_ONCE = Backoff(first=timedelta(seconds=0.1), longest=timedelta(seconds=0.1))
SYNC_JOBS = 30


def main(url: str) -> None:
    done: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        from tests.django.ledger.models import Entry

        in_transaction, others_are_done = asyncio.Event(), asyncio.Event()

        @idempotency.job("fails", max_attempts=1)
        async def fails(job: Any, _: Any) -> Response:
            async def write_and_wait(_connection: Any) -> None:
                await Entry.objects.acreate(text="of the one that fails")
                in_transaction.set()
                await asyncio.wait_for(others_are_done.wait(), 30)
                raise ValueError("no")

            job.write(write_and_wait)
            return Response(201, {})

        @idempotency.job("beside")
        async def beside(job: Any, _: Any) -> Response:
            await asyncio.wait_for(in_transaction.wait(), 30)
            await Entry.objects.acreate(text="of another job")
            others_are_done.set()
            done.append("beside")
            return Response(201, {})

        @idempotency.job("counts", max_attempts=1)
        async def counts(job: Any, _: Any) -> Response:
            await Entry.objects.acount()
            done.append("counts")
            return Response(201, {})

        @idempotency.job("sync", max_attempts=3, backoff=AT_ONCE)
        def sync(job: Any, _: Any) -> Response:
            Entry.objects.count()
            job.write(lambda _connection: write(job.id))
            done.append("sync")
            return Response(201, {})

        @idempotency.deferred
        def order(request: Any) -> HttpResponse:
            for _ in range(int(request.GET.get("times", 1))):
                current_operation().enqueue(request.GET["job"], {})
            return HttpResponse(status=202)

        return [path("order", order)]

    with world(url, urls, of_database={"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}) as shop:

        def ask(job: str, key: str, times: int = 1) -> None:
            assert shop.post(f"/order?job={job}&times={times}", key).status_code == 202

        def drive() -> None:
            try:
                ask("fails", "k1")
                ask("beside", "k2")
                wait_until(lambda: "done" in states(), timeout=60)
                wait_until(lambda: "dead" in states(), timeout=60)
                assert shop.entries() == ["of another job"]

                ask("counts", "k3")
                wait_until(lambda: done.count("counts") == 1, timeout=60)
                with psycopg.connect(url, autocommit=True) as operator:
                    operator.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity"
                        " where datname = current_database() and pid <> pg_backend_pid()"
                    )
                    connection.close()
                    ask("counts", "k4")
                    wait_until(lambda: done.count("counts") == 2, timeout=60)

                    ask("sync", "k5", SYNC_JOBS)
                    most = 0
                    until = time.monotonic() + 120
                    while states().count("done") < SYNC_JOBS + 3 and time.monotonic() < until:
                        most = max(most, connected(operator))
                    assert states().count("done") == SYNC_JOBS + 3, states()
                    # Ten places, and what samekey, this thread and the operator have; of thirty jobs, each in
                    # two threads of its own, none has left a connection behind.
                    assert most < SYNC_JOBS, most
                print("held", flush=True)
            finally:
                connection.close()
                os.kill(os.getpid(), signal.SIGTERM)

        def states() -> list[str]:
            with connection.cursor() as cursor:
                cursor.execute("select state from samekey.jobs")
                return [state for (state,) in cursor.fetchall()]

        threading.Thread(target=drive, daemon=True).start()
        call_command("samekey_worker", "--grace", "30")


def connected(operator: psycopg.Connection[Any]) -> int:
    found = operator.execute(
        "select count(*) from pg_stat_activity where datname = current_database()"
    ).fetchone()
    assert found is not None
    return int(found[0])


if __name__ == "__main__":
    main(sys.argv[1])

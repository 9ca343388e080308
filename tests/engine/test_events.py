"""Watching never fails a request, also where an observer fails in several threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from samekey import Idempotency
from samekey.engine.events import Event, Events


def test_an_observer_that_fails_in_two_threads_at_once_is_left_out_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, together = Events(), threading.Barrier(2)
    heard: list[Event] = []

    def broken(event: Event) -> None:
        together.wait(10)
        raise RuntimeError("a metrics server is away")

    events.subscribe(broken)
    events.subscribe(heard.append)
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(events.emit, "reserve.created") for _ in range(2)]:
            done.result()
    events.emit("reserve.created")
    assert len(heard) == 3
    assert caplog.text.count("is left out") == 1


def test_calls_whose_observer_fails_at_once_are_not_disturbed(sqlite_url: str) -> None:
    idempotency, together = Idempotency(sqlite_url), threading.Barrier(2)

    def broken(event: Event) -> None:
        if event.name == "reserve.created":
            together.wait(10)
            raise RuntimeError

    idempotency.events.subscribe(broken)
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(idempotency.once, tenant="t", key=key, run=lambda: "done") for key in ("a", "b")
        ]
        assert [call.result() for call in calls] == ["done", "done"]
    idempotency.close()

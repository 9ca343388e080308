"""One atomic handler, made for one test, with the client that calls it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from samekey import current_operation
from tests.fire.apps import Reply, Service, Settings, answer
from tests.fire.clients import AsgiClient, Got, WsgiClient, in_process
from tests.fire.evidence import Evidence

Raised = Callable[[Got], BaseException | None]
"""The error beside an answer, wherever it shows."""
Work = Callable[[Any], Coroutine[Any, Any, None]]
"""What a handler does with its connection."""


class Scene:
    """One atomic handler, the client that calls it, and what came of it."""

    def __init__(self, settings: Settings, work: Work, **options: Any) -> None:
        self.settings = settings
        self.evidence = Evidence(settings)
        self.service = Service(settings)
        self._work = work
        self.client: AsgiClient | WsgiClient = in_process(settings, {"/x": ("atomic", options, self._handle)})

    async def _handle(self) -> Reply:
        self.service.note("run")
        await self._work(self)
        return answer()

    def send(self, key: str = "k") -> Got:
        return self.client.send("/x", key)

    async def insert(self) -> Any:
        """The handler's effect; gives the connection."""
        connection = current_operation().connection
        await self.service.insert(connection)
        return connection


@contextmanager
def scene(settings: Settings, work: Work, **options: Any) -> Iterator[Scene]:
    made = Scene(settings, work, **options)
    with made.client:
        yield made

"""The rows of the scenario table as applications of one framework: each row has its own, in one process.

A request says in ``X-Scenario`` which row it belongs to, and is passed on as it is. ``GET /__runs__`` tells
how often the handler of each row has run. Real servers run ``application()``.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from tests.edges.apps import Setup
from tests.edges.apps import application as made_by_edges
from tests.edges.scenarios import SCENARIOS, Scenario
from tests.edges.world import PROFILES, Store, World, open_store

WSGI = ("flask", "django", "drf")
ROW = "X-Scenario"


def rows() -> dict[str, tuple[Scenario, str]]:
    """By name, a row and the mode that it is run in."""
    return {
        f"{number}-{mode}": (scenario, mode)
        for number, scenario in enumerate(SCENARIOS)
        for mode in scenario.modes
    }


class Stage:
    """Makes the application of a row when it is asked for."""

    def __init__(self, kind: str, url: str, *, client: bool = False) -> None:
        self.kind, self._url, self._client = kind, url, client
        self._rows = rows() | dict.fromkeys(("half", "left", "many"), (SCENARIOS[0], "leased"))
        self._stores: dict[str, Store] = {}
        self._made: dict[str, tuple[Any, World]] = {}
        self._making = threading.Lock()
        self._kept = ExitStack()
        if kind.startswith(("django", "drf")):
            from tests.frames import django_service

            self._kept.enter_context(django_service.of_database(url))

    def of(self, name: str) -> tuple[Any, World]:
        with self._making:
            if name not in self._made:
                self._made[name] = self._make(*self._rows[name], name)
            return self._made[name]

    def _make(self, scenario: Scenario, mode: str, name: str) -> tuple[Any, World]:
        world = World(*scenario.script)
        world.name = name
        options: Any = dict(scenario.options)
        setup = Setup(
            leased=options, atomic=options if mode == "atomic" else {}, routes=dict(scenario.routes)
        )
        store = self._store(scenario)
        if self.kind.startswith(("django", "drf")):
            from tests.frames import django_service

            client = django_service.client(self.kind) if self._client else None
            return django_service.make(self.kind, store, world, setup, client), world
        return made_by_edges(self.kind, store, world, setup), world

    def _store(self, scenario: Scenario) -> Store:
        name = f"{scenario.profile} {scenario.policy!r}"
        if name not in self._stores:
            if self.kind.startswith(("django", "drf")):
                from tests.frames import django_service

                made = django_service.open_store(self._url, scenario.profile, dict(scenario.policy))
            else:
                made = open_store(self._url, PROFILES[scenario.profile](**scenario.policy))
            self._stores[name] = made
        return self._stores[name]

    def runs(self) -> bytes:
        return json.dumps({name: world.runs for name, (_, world) in self._made.items()}).encode()

    def close(self) -> None:
        for store in self._stores.values():
            store.idempotency.close()
        self._kept.close()

    # As a server calls it

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        name = next(value.decode() for key, value in scope["headers"] if key == ROW.lower().encode())
        app, _ = await asyncio.to_thread(self.of, name)
        if scope["path"] != "/__runs__":
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.runs()})

    def wsgi(self, environ: Any, start_response: Any) -> Any:
        app, _ = self.of(environ["HTTP_X_SCENARIO"])
        if environ["PATH_INFO"] != "/__runs__":
            return app(environ, start_response)
        start_response("200 OK", [])
        return [self.runs()]


def application() -> Any:
    """What a real server is given."""
    with ThreadPoolExecutor(1) as aside:  # a server may ask in its event loop, where Django reads no database
        stage = aside.submit(Stage, os.environ["SAMEKEY_STAGE"], os.environ["SAMEKEY_STAGE_URL"]).result()

    if stage.kind in WSGI:

        def wsgi(environ: Any, start_response: Any) -> Any:
            return stage.wsgi(environ, start_response)

        return wsgi

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        await stage.asgi(scope, receive, send)

    return asgi

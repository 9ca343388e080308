"""What users test their own handlers with: requests without a server, retries, crashes, time that passes.

    def test_a_retry_pays_once(samekey_kit):
        shop = samekey_kit(app, idempotency, headers={"Authorization": "Bearer alice"})
        first = shop.post("/orders", json={"sku": "book", "quantity": 1})
        assert shop.retry(first).replayed

``Kit`` is for plain tests, ``AsyncKit`` the same with ``await`` for async ones. Both run the application in
this process, with its own lifespan.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final, TypeVar

from ..drivers.run import run_async
from ..errors import ConfigurationError
from ..idempotency import Idempotency
from ..workers.completer import Completer
from ..workers.outbox import OutboxWorker
from ..workers.reaper import Reaper
from ..workers.reconciler import Reconciler
from ..workers.sweeper import Sweeper
from .kit_crash import NamedCrash
from .kit_requests import GivenAnswer, SentRequest, call, lifespan
from .kit_store import age, empty

T = TypeVar("T")
ROUNDS: Final = 100
"""Looks of the workers before a test is told that they never come to an end."""


class AsyncKit:
    """One application under test. ``async with AsyncKit(app, idempotency) as shop: …``

    ``headers`` go with every request, those of a call come on top. ``style`` is how the key is written:
    ``"quoted"`` as the draft has it, or ``"bare"``, as Stripe's clients send it.
    """

    def __init__(
        self,
        app: Any,
        idempotency: Idempotency,
        *,
        headers: Mapping[str, str] | None = None,
        style: str = "quoted",
    ) -> None:
        if style not in {"quoted", "bare"}:
            raise ConfigurationError(f"A key is written quoted or bare, not {style!r}.")
        self.app = app
        self.idempotency = idempotency
        self._headers = dict(headers or {})
        self._style = style
        self._living = AsyncExitStack()
        self._watch: NamedCrash | None = None

    async def __aenter__(self) -> AsyncKit:
        await asyncio.to_thread(self.idempotency.check)  # no part of any request, so no point of one
        await self._living.enter_async_context(lifespan(self.app))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._living.aclose()
        await self.idempotency.aclose()

    # Requests

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        body: bytes | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> SentRequest:
        """A request that is not sent yet, with a new key unless one is given. ``key=""`` sends none."""
        named = {
            name.lower(): (name, value) for name, value in {"Host": "testserver", **self._headers}.items()
        }
        if json is not None:
            named["content-type"] = ("Content-Type", "application/json")
        if key != "":
            key = secrets.token_urlsafe(16) if key is None else key
            named["idempotency-key"] = ("Idempotency-Key", f'"{key}"' if self._style == "quoted" else key)
        named |= {name.lower(): (name, value) for name, value in (headers or {}).items()}
        sent = _dumped(json) if body is None else body
        return SentRequest(method, path, tuple(named.values()), sent)

    async def send(self, request: SentRequest) -> GivenAnswer:
        return await call(self.app, request)

    async def post(self, path: str, **options: Any) -> GivenAnswer:
        """``request("POST", path, …)``, sent."""
        return await self.send(self.request("POST", path, **options))

    async def retry(self, earlier: SentRequest | GivenAnswer) -> GivenAnswer:
        """The same request again, byte for byte, under the same key."""
        return await self.send(earlier if isinstance(earlier, SentRequest) else earlier.request)

    async def duplicates(self, request: SentRequest, count: int = 2) -> list[GivenAnswer]:
        """The same request several times at once; the answers in no order."""
        return list(await asyncio.gather(*(self.send(request) for _ in range(count))))

    # What goes wrong

    async def points(self, request: SentRequest) -> list[str]:
        """Sends the request, and gives the points that it passes: where ``crash`` can strike the next one."""
        watch = NamedCrash(self.idempotency, None)
        await self._struck(request, watch)
        return watch.names

    async def crash(self, request: SentRequest, at: str) -> None:
        """The process dies while it serves the request, at the first point of that name; nobody is answered.

        Points are ``before`` and ``after`` every statement, ``begin``, ``commit`` and ``rollback``, by the
        names that ``points()`` gives, and those that you name with ``reach()`` from inside a handler or a
        fake provider. ``after commit`` is the answer that is lost after everything has happened. What was
        held is free when its lease has run out: ``move_on`` does not make you wait for that.
        """
        watch = NamedCrash(self.idempotency, at)
        await self._struck(request, watch)
        if watch.struck is None:
            raise AssertionError(f"The request never came to {at!r}. It passed: {', '.join(watch.names)}.")

    def reach(self, name: str) -> None:
        """A point of your own: call it where your fake provider has charged, and crash there."""
        if self._watch is not None:
            self._watch.reach(name)

    async def _struck(self, request: SentRequest, watch: NamedCrash) -> None:
        self._watch = watch
        try:
            await watch.serve(self.send(request))
        finally:
            self._watch = None

    # Between requests

    async def move_on(self, by: timedelta | float) -> None:
        """Time passes: seconds, or a timedelta. Leases run out, answers expire, jobs become due."""
        span = by if isinstance(by, timedelta) else timedelta(seconds=by)
        queries = self.idempotency.engine.queries
        await run_async(self.idempotency.engine.drivers.aio, lambda: age(queries, span))

    async def work(self) -> int:
        """Everything that the background services would do by now, to its end; gives how much that was."""
        engine = self.idempotency.engine
        outbox, done = OutboxWorker(engine), 0
        completer, sweeper, reconciler = Completer(engine), Sweeper(engine), Reconciler(engine)
        try:
            for _ in range(ROUNDS):
                moved = await sweeper.run_once() + await outbox.run_once()
                await outbox.drain()
                moved += await completer.run_once() + await reconciler.run_once()
                done += moved
                if not moved:
                    return done
        finally:
            await outbox.stop()
        raise AssertionError(f"After {ROUNDS} looks the workers still found something to do.")

    async def reap(self) -> int:
        """What has expired is deleted, as the reaper would; gives how many keys that were."""
        return await Reaper(self.idempotency.engine).run_once()

    async def reset(self) -> None:
        """Empties the store."""
        queries = self.idempotency.engine.queries
        await run_async(self.idempotency.engine.drivers.aio, lambda: empty(queries))


class Kit:
    """``AsyncKit`` for plain tests, without ``await``: ``with Kit(app, idempotency) as shop: …``"""

    def __init__(self, app: Any, idempotency: Idempotency, **options: Any) -> None:
        self._kit = AsyncKit(app, idempotency, **options)
        self._runner = asyncio.Runner()
        self.app, self.idempotency = app, idempotency
        self.request, self.reach = self._kit.request, self._kit.reach

    def __enter__(self) -> Kit:
        self._run(self._kit.__aenter__())
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._run(self._kit.__aexit__())
        finally:
            self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def send(self, request: SentRequest) -> GivenAnswer:
        """Sends a request that ``request()`` has made."""
        return self._run(self._kit.send(request))

    def post(self, path: str, **options: Any) -> GivenAnswer:
        """``request("POST", path, …)``, sent."""
        return self._run(self._kit.post(path, **options))

    def retry(self, earlier: SentRequest | GivenAnswer) -> GivenAnswer:
        """The same request again, byte for byte, under the same key."""
        return self._run(self._kit.retry(earlier))

    def duplicates(self, request: SentRequest, count: int = 2) -> Sequence[GivenAnswer]:
        """The same request several times at once; the answers in no order."""
        return self._run(self._kit.duplicates(request, count))

    def points(self, request: SentRequest) -> list[str]:
        """Sends the request, and gives the points that it passes: where ``crash`` can strike the next one."""
        return self._run(self._kit.points(request))

    def crash(self, request: SentRequest, at: str) -> None:
        """The process dies while it serves the request, at a point (see ``AsyncKit.crash``)."""
        self._run(self._kit.crash(request, at))

    def move_on(self, by: timedelta | float) -> None:
        """Time passes: seconds, or a timedelta. Leases run out, answers expire, jobs become due."""
        self._run(self._kit.move_on(by))

    def work(self) -> int:
        """Everything that the background services would do by now, to its end; gives how much that was."""
        return self._run(self._kit.work())

    def reap(self) -> int:
        """What has expired is deleted, as the reaper would; gives how many keys that were."""
        return self._run(self._kit.reap())

    def reset(self) -> None:
        """Empties the store."""
        self._run(self._kit.reset())


def _dumped(document: Any) -> bytes:
    return b"" if document is None else json.dumps(document, separators=(",", ":")).encode()

"""What is left of a handler after its operation: tasks, threads, a hang. None of it reaches the next one."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import psycopg
import pytest

from lab.processes import PATIENCE
from samekey.errors import OperationOver, UnfinishedWork
from tests.chosen import whole
from tests.fire.apps import Settings, World, build
from tests.fire.checkpoints import current_key
from tests.fire.evidence import query
from tests.fire.scene import Raised, Scene, scene

worlds = pytest.mark.parametrize("world", get_args(World))
INSERT = {"asgi": "insert into effects (key) values ($1)", "wsgi": "insert into effects (key) values (%s)"}


def write(at: Scene, connection: Any, key: str) -> Any:
    """One write of a handler's left-over, in the words of its driver."""
    if at.settings.world == "asgi":
        return connection.execute(INSERT["asgi"], key)
    return connection.execute(INSERT["wsgi"], [key])


class LeftOver:
    """Writes on a handler's connection when it is told to, and keeps what came of it."""

    def __init__(self, at: Scene, connection: Any) -> None:
        self._at, self._connection = at, connection
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._go: Any = asyncio.Event() if at.settings.world == "asgi" else threading.Event()
        self._loop = asyncio.get_running_loop() if at.settings.world == "asgi" else None
        if self._loop is not None:
            self._task = asyncio.ensure_future(self._write_async())
        else:
            threading.Thread(target=self._write, daemon=True).start()

    async def _write_async(self) -> None:
        await self._go.wait()
        try:
            await write(self._at, self._connection, "left over")
        except BaseException as error:
            self.error = error
        self.done.set()

    def _write(self) -> None:
        self._go.wait(PATIENCE)
        try:
            write(self._at, self._connection, "left over")
        except BaseException as error:
            self.error = error
        self.done.set()

    def go(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._go.set)
        else:
            self._go.set()
        assert self.done.wait(PATIENCE)


@worlds
@pytest.mark.parametrize("fails", [False, True], ids=["after an answer", "after an error"])
def test_the_rest_of_a_handler_cannot_write_into_the_next_ones_transaction(
    postgres: Settings, fails: bool
) -> None:
    """As the rest of a failed gather, a background task, or a thread that nobody joined."""
    left: list[LeftOver] = []

    async def handle(at: Scene) -> None:
        connection = await at.insert()
        if current_key.get() == "first":
            left.append(LeftOver(at, connection))
            if fails:
                raise RuntimeError("one of the gathered failed")
        elif at.settings.world == "asgi":
            await asyncio.to_thread(left[0].go)
        else:
            left[0].go()

    # There is one connection: the second handler has the first one's session of the server.
    with scene(replace(postgres, pool_size=1), handle) as at:
        at.send("first")
        assert at.send("second").is_new
        assert isinstance(left[0].error, OperationOver)
        assert (at.evidence.effects("left over"), at.evidence.effects("second")) == (0, 1)
        assert at.evidence.effects("first") == int(not fails)


@worlds
def test_an_answer_while_a_statement_is_under_way_commits_nothing(postgres: Settings, raised: Raised) -> None:
    sleeping = "select pg_sleep(3)"
    left: list[Any] = []

    async def answer_early(at: Scene) -> None:
        connection = await at.insert()
        if at.evidence.runs("k") > 1:
            return
        if at.settings.world == "asgi":
            left.append(asyncio.ensure_future(connection.execute(sleeping)))
            left[0].add_done_callback(lambda task: task.exception())
            while not begun(postgres.url, sleeping):
                await asyncio.sleep(0.01)
        else:
            left.append(threading.Thread(target=swallow, args=[lambda: connection.execute(sleeping)]))
            left[0].start()
            while not begun(postgres.url, sleeping):
                threading.Event().wait(0.01)

    with scene(postgres, answer_early) as at:
        got = at.send()
        assert got.status == 500
        assert isinstance(raised(got), UnfinishedWork)
        if at.settings.world == "wsgi":
            left[0].join(PATIENCE)
        while begun(postgres.url, sleeping):
            threading.Event().wait(0.01)  # the server ends the statement before it notices
        assert at.evidence.effects("k") == 0
        assert at.send().is_new
        assert at.evidence.effects("k") == 1


def swallow(work: Callable[[], Any]) -> None:
    try:
        work()
    except (psycopg.Error, OperationOver):
        pass


def begun(url: str, sql: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "select count(*) from pg_stat_activity where query = %s and state = 'active'", [sql]
        ).fetchone()
        return bool(found and found[0])


@worlds
def test_a_handler_that_hangs_past_its_longest_run_keeps_neither_key_nor_place(postgres: Settings) -> None:
    go = threading.Event()

    async def hang(at: Scene) -> None:
        await at.insert()
        if at.evidence.runs("k") > 1 or current_key.get() != "k":
            return
        if at.settings.world == "asgi":
            await asyncio.to_thread(go.wait, PATIENCE)
        else:
            go.wait(PATIENCE)

    settings = replace(postgres, pool_size=1, timeout=PATIENCE, lease=3.0)
    with scene(settings, hang, max_run=3.0) as at:
        first = at.client.start("/x", "k")
        while not at.evidence.runs("k"):
            threading.Event().wait(0.01)
        # The one place is free again once its time is over, and then so is the key.
        assert at.send("other").is_new
        assert at.send("k").is_new
        go.set()
        late = first.result(PATIENCE)
        assert (late.status, late.code) == (503, "store_unavailable")
        assert (at.evidence.runs("k"), at.evidence.effects("k")) == (2, 1)
        assert at.send("k").replayed


@worlds
def test_a_classifier_that_raises_costs_no_place(postgres: Settings) -> None:
    def classify(*_: Any) -> str:
        if current_key.get().startswith("bad"):
            raise ZeroDivisionError
        return "remember"

    async def fail(at: Scene) -> None:
        await at.insert()
        if current_key.get().startswith("bad"):
            raise RuntimeError("to be classified")

    with scene(replace(postgres, pool_size=2, timeout=1.0), fail, classify=classify) as at:
        for number in range(5):
            assert at.send(f"bad{number}").status == 500
        assert at.send("good").is_new
        assert at.evidence.effects("bad0") == 0


def request(key: str) -> tuple[dict[str, Any], Callable[[], Any]]:
    """A guarded request, as a server hands it to an application."""
    headers = [(b"idempotency-key", key.encode()), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/atomic",
        "raw_path": b"/atomic",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "server": ("fire", 80),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    return scope, receive


@whole
@pytest.mark.parametrize("world", ["asgi"])
def test_240_requests_with_random_deadlines(postgres: Settings) -> None:
    """Every answer has its row, nothing runs twice, and afterwards every place is there."""
    chance = random.Random(4)
    app, engine = build(replace(postgres, pool_size=5))
    answered: dict[str, list[int]] = {}

    async def ask(key: str, deadline: float | None) -> None:
        scope, receive = request(key)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answered.setdefault(key, []).append(message["status"])

        try:
            async with asyncio.timeout(deadline):
                await app(scope, receive, send)
        except TimeoutError:
            pass

    async def story() -> None:
        keys = [f"k{number}" for number in range(240)]
        for start in range(0, len(keys), 30):
            deadlines = [chance.choice((None, chance.uniform(0, 0.1))) for _ in range(30)]
            await asyncio.gather(*map(ask, keys[start : start + 30], deadlines))
        for key in keys:
            for _ in range(1000):  # what was cut off may still be running
                await ask(key, None)
                if answered[key][-1] == 201:
                    break
                assert answered[key][-1] in (409, 503), answered[key]
            assert answered[key][-1] == 201
        await engine.aclose()

    asyncio.run(story())
    rows = query(postgres.url, "select key, count(*) from effects group by key")
    assert sorted(rows) == sorted((f"k{number}", 1) for number in range(240))

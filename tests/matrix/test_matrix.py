"""The outcome matrix: however a handler ends and whatever stands around it, never two effects without proof.

Each cell sends a request, then its retry once the operation is settled, and counts effects. A cell may have
a second effect only where its row says that the first run proved, or was declared to mean, that nothing had
happened. Atomic work has at most one effect in every cell: what a retry may repeat was rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import pytest

from lab.processes import wait_until
from samekey import Outcome
from samekey.core.outcome import OnError, judge
from samekey.core.states import Mode as Ways
from samekey.engine.modes.mode import Handled
from tests.chosen import some, stores
from tests.edges.callers import AsgiClient, Got, LoopThread, Request, WsgiClient
from tests.edges.world import Stores, World
from tests.matrix.rows import AROUND, ROWS, Around, Raises, ReturnsNonsense, Row, Stays
from tests.matrix.services import Kind, Mode, Play, flask_app, starlette_app

KINDS: tuple[Kind, ...] = ("starlette", "fastapi", "threadpool", "flask")
MODES: tuple[Mode, ...] = ("leased", "retry", "atomic", "undecorated")
FOR_DEADLINES: tuple[Around, ...] = ("inner deadline", "outer deadline", "client gone")

ALWAYS: frozenset[tuple[Kind, Mode, Around]] = frozenset(
    {
        *(("starlette", "leased", around) for around in AROUND),
        *(("starlette", mode, "nothing") for mode in MODES),
        *((kind, "atomic", "nothing") for kind in KINDS),
    }
)
"""Cells of every run: everything that may stand around, each mode and each kind of application once."""


def cells() -> Iterator[tuple[Kind, Mode, Around]]:
    """Everything that makes sense: WSGI has no event loop to cancel and no client to see leave."""
    for kind in KINDS:
        for mode in MODES:
            for around in AROUND:
                if kind != "flask" or around not in (*FOR_DEADLINES, "called twice"):
                    yield kind, mode, around


def rows(kind: Kind, around: Around) -> Iterator[Row]:
    for row in ROWS:
        if isinstance(row.act, Stays) and (kind == "flask" or around not in FOR_DEADLINES):
            continue  # nobody gives up on it there
        if isinstance(row.act, Raises) and row.name == "was cancelled" and kind in ("threadpool", "flask"):
            continue  # a thread is not cancelled
        if isinstance(row.act, ReturnsNonsense) and kind == "fastapi" and row.name.startswith("forgot"):
            continue  # None is an answer there
        if isinstance(row.act, ReturnsNonsense) and kind == "threadpool" and row.name.startswith("forgot"):
            continue
        yield row


@pytest.fixture(params=stores("sqlite", "postgres", first=1))
def matrix_stores(request: pytest.FixtureRequest) -> Stores:
    name = "stores" if request.param == "sqlite" else "postgres_stores"
    stores: Stores = request.getfixturevalue(name)
    return stores


def send(client: Any, play: Play) -> Got | None:
    """One request; None if nobody was there to get its answer."""
    ask = Request("POST", "/pay", ((b"Idempotency-Key", b"k"), (b"Content-Type", b"application/json")), b"{}")
    first: Future[Got] = client.start(ask)
    staying = isinstance(play.row.act, Stays) and play.runs == 0
    if play.around == "client gone" and play.runs == 0:
        wait_until(lambda: play.runs > 0)
        first.cancel()
    try:
        return first.result(30)
    except (CancelledError, TimeoutError):
        return None
    finally:
        if staying:
            play.gate.set()


def settled(play: Play) -> bool:
    """Whether nothing of the first run is under way any more."""
    states = {state for state, _ in play.store.records(play.world.name)}
    here = getattr(play.store.idempotency.engine._ways[Ways.ATOMIC], "_here", {})
    return "in_progress" not in states and not any(play.world.name in scope for scope, _ in here)


@pytest.mark.parametrize(("kind", "mode", "around"), some(cells(), lambda *cell: cell in ALWAYS))
def test_never_two_effects_without_proof(
    kind: Kind,
    mode: Mode,
    around: Around,
    matrix_stores: Stores,
    loop: LoopThread,
    threads: ThreadPoolExecutor,
) -> None:
    on_error: OnError = "retry" if mode == "retry" else "unknown"
    for row in rows(kind, around):
        play = Play(row, mode, around, matrix_stores.get(), World())
        client: Any
        if kind == "flask":
            client = WsgiClient(flask_app(play), threads)
        else:
            client = AsgiClient(starlette_app(play, kind), loop)
        note = (row.name, play)
        send(client, play)
        for _ in range(5 if around == "inner deadline" else 0):
            if not play.runs:  # a slow machine has met the deadline before the handler
                send(client, play)
        wait_until(lambda play=play: settled(play))  # type: ignore[misc]
        answers = [send(client, play) for _ in range(3)]
        # A slow machine may meet the deadline itself, which answers 504 and says nothing of the operation.
        fine = [got is None or got.status < 500 or got.status == 504 for got in answers]
        # Of two calls at once the refused one may be the one whose answer is taken.
        assert all(fine) or around == "called twice", (note, answers)
        if mode == "atomic":
            assert play.store.effects(play.world) <= 1, (note, answers)
        else:
            assert play.effects <= 1 or row.frees(on_error), (note, answers)
        if play.runs > 1 and around != "called twice":
            last = answers[-1]
            if last is not None and last.status == 504:
                last = send(client, play)
            assert last is not None and last.replayed and last.json() == {"run": play.runs}, (note, answers)
            assert mode != "atomic" or play.store.effects(play.world) == 1, note


@pytest.mark.parametrize("mode", MODES)
def test_with_nothing_around_each_row_is_as_the_documentation_says(
    mode: Mode, stores: Stores, loop: LoopThread
) -> None:
    for row in rows("starlette", "nothing"):
        play = Play(row, mode, "nothing", stores.get(), World())
        client = AsgiClient(starlette_app(play, "starlette"), loop)
        send(client, play)
        outcome = row.outcome("retry" if mode == "retry" else "unknown")
        states = [state for state, _ in play.store.records(play.world.name)]
        if mode == "atomic":
            assert states == (["completed"] if outcome is Outcome.REMEMBER else []), row.name
        else:
            wanted = {
                Outcome.REMEMBER: ["completed"],
                Outcome.RELEASE: [],
                Outcome.FAIL: ["failed_retryable"],
                Outcome.UNKNOWN: ["unknown"],
            }
            assert outcome is not None and states == wanted[outcome], row.name


class Caught(Exception):
    """The matrix found what it is there to find."""


@pytest.mark.parametrize(
    "mutant", ["judge by the page", "free the key on a time-out", "answer failed is a failure"]
)
def test_the_matrix_catches(
    mutant: str,
    monkeypatch: pytest.MonkeyPatch,
    stores: Stores,
    loop: LoopThread,
    threads: ThreadPoolExecutor,
) -> None:
    """Each mutant is a mistake that was made once; the matrix must see it."""
    judged = Handled.ending.fget  # type: ignore[attr-defined]
    import samekey.engine.handler.rules as rules_module

    def by_the_page(self: Handled) -> Any:
        found = judged(self)
        page = None if self.answer is None else self.answer.status
        return found if page is None else type(found)(page)

    def lenient(ending: Any, **options: Any) -> Outcome:
        if mutant == "free the key on a time-out" and isinstance(ending.error, TimeoutError):
            return Outcome.FAIL
        if mutant == "answer failed is a failure" and ending.error is None and not ending.own:
            return Outcome.FAIL if ending.status is None or ending.status >= 500 else Outcome.REMEMBER
        return judge(ending, **options)

    around: Around = "nothing"
    if mutant == "judge by the page":
        monkeypatch.setattr(Handled, "ending", property(by_the_page))
        around = "handler to 503"
    else:
        monkeypatch.setattr(rules_module, "judge", lenient)
    with pytest.raises(AssertionError):
        test_never_two_effects_without_proof("starlette", "leased", around, stores, loop, threads)

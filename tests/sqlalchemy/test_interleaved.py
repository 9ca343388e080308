"""Several sessions and the bare connection in any order: what was said to stand is there, or all failed."""

from __future__ import annotations

import inspect
import itertools
import random
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.util import await_only

from samekey import current_operation
from samekey.sqlalchemy import Session
from tests.chosen import whole
from tests.sqlalchemy.stacks import Note, Stack, write

ROUNDS = 40
ACTS = ("read", "write", "write", "commit", "rollback", "close", "nest", "keep", "undo", "bare")


class Model:
    """A session, and what it has written and not committed, in its nested blocks."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.blocks: list[Any] = []
        self.written: list[list[str]] = [[]]

    def act(self, act: str, texts: Any, stands: list[str]) -> None:
        match act:
            case "read":
                self.session.scalars(select(Note.id)).all()
            case "write":
                self.written[-1].append(next(texts))
                write(self.written[-1][-1], commit=False)(self.session)
                self.session.flush()
            case "commit":
                self.session.commit()
                self.end(stands)
            case "rollback" | "close":
                getattr(self.session, act)()
                self.end([])
            case "nest":
                self.blocks.append(self.session.begin_nested())
                self.written.append([])
            case "keep" if self.blocks:
                self.blocks.pop().commit()
                kept = self.written.pop()
                self.written[-1] += kept
            case "undo" if self.blocks:
                self.blocks.pop().rollback()
                self.written.pop()
            case "bare":
                stands.append(next(texts))
                sent = current_operation().connection.execute(
                    f"insert into notes (text) values ('{stands[-1]}')"
                )
                if inspect.isawaitable(sent):
                    await_only(sent)

    def end(self, stands: list[str]) -> None:
        stands.extend(itertools.chain(*self.written))
        self.blocks, self.written = [], [[]]


@pytest.mark.parametrize("sessions", [1, 2, 3])
@pytest.mark.parametrize(
    "make",
    ["sync-sqlite", pytest.param("async-postgres", marks=whole)],
    indirect=True,
)
def test_what_was_said_to_stand_is_there_or_the_operation_failed(stack: Stack, sessions: int) -> None:
    texts = (f"n{number}" for number in itertools.count())
    succeeded = 0
    with stack.served() as post:
        for seed in range(ROUNDS):
            chance = random.Random(seed)
            stands: list[str] = []
            trace: list[Any] = []

            def act(
                session: Session, chance: Any = chance, stands: list[str] = stands, trace: list[Any] = trace
            ) -> None:
                others = [stack.sessions() for _ in range(sessions - 1)]
                models = [Model(session), *(Model(getattr(one, "sync_session", one)) for one in others)]
                for _ in range(10):
                    place, what = chance.randrange(sessions), chance.choice(ACTS)
                    trace.append((place, what))
                    models[place].act(what, texts, stands)
                for model in models:
                    model.end(stands)  # what is open is kept with the answer

            stack.act, before = act, set(stack.rows())
            status = post(f"k{seed}").status
            wanted = set(stands) if status == 201 else set()
            assert set(stack.rows()) - before == wanted, (seed, status, trace)
            succeeded += status == 201
    assert succeeded > ROUNDS / 10

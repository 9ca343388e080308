"""The evidence matrix sees what it is for: with one rule switched off, a cell of it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

import samekey.core.effects as rules
import samekey.engine.reconcile as applying
from samekey.core.effects import Effect, Verdict, Word
from samekey.core.record import Record
from tests.operator import test_evidence_matrix as matrix
from tests.operator.world import World


def drop_the_step(patch: pytest.MonkeyPatch) -> None:
    """Whatever a word names, it counts for the effect that has no result yet."""

    def stepless(
        word: Word, record: Record, effects: Sequence[Effect], others: Sequence[Word] = ()
    ) -> Verdict:
        unsettled = next((effect for effect in effects if effect.outcome is None), None)
        about = word.about if unsettled is None else unsettled.downstream_key
        return rules.judge(replace(word, about=about), record, effects, others)

    patch.setattr(applying, "judge", stepless)


def ignore_the_attempt(patch: pytest.MonkeyPatch) -> None:
    """A "no" counts whenever it happened."""
    patch.setattr(rules, "_about_now", lambda *_: True)


MUTANTS = {
    "drop the step": (drop_the_step, "phased, other step, unknown, executed"),
    "ignore the attempt": (ignore_the_attempt, "leased, other attempt, unknown, not executed"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_seen(lite: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mutate, where = MUTANTS[name]
    (cell,) = [cell for cell in matrix.CELLS if str(cell) == where]
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        matrix.test_an_event_after_its_state(lite, cell)

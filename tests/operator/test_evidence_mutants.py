"""The evidence matrix sees what it is for: with one rule switched off, a cell of it fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest

import samekey.core.judging as rules
import samekey.engine.evidence.reconcile as applying
from samekey.core.effects import KnownEffect, Word
from samekey.core.judging import Verdict
from samekey.core.program import Program
from samekey.core.record import Record
from samekey.core.whose import Whose
from samekey.errors import StoreBusy
from samekey.stores.sql.effects import Effects
from tests.chosen import whole
from tests.operator import test_evidence_matrix as matrix
from tests.operator.test_a_yes_before_a_send import before
from tests.operator.world import World

pytestmark = whole


def drop_the_step(patch: pytest.MonkeyPatch) -> None:
    """Whatever a word names, it counts for the effect that has no result yet."""

    def stepless(
        word: Word,
        record: Record,
        effects: Sequence[KnownEffect],
        others: Sequence[Word] = (),
        past: Collection[str] = (),
    ) -> Verdict:
        unsettled = next((effect for effect in effects if effect.outcome is None), None)
        about = word.about if unsettled is None else unsettled.downstream_key
        return rules.judge(replace(word, about=about), record, effects, others, past)

    patch.setattr(applying, "judge", stepless)


def ignore_the_attempt(patch: pytest.MonkeyPatch) -> None:
    """A "no" counts whenever it happened."""
    patch.setattr(rules, "send_of_call", lambda *_: Whose.OURS)


def forget_the_yes(patch: pytest.MonkeyPatch) -> None:
    """A word that waits stops nobody."""

    def nothing(self: Effects, record: Record) -> Program[None]:
        yield from ()

    patch.setattr(Effects, "dispute", nothing)


def believe_the_no(patch: pytest.MonkeyPatch) -> None:
    """A "no" counts, whatever another word says."""

    def alone(
        word: Word,
        record: Record,
        effects: Sequence[KnownEffect],
        others: Sequence[Word] = (),
        past: Collection[str] = (),
    ) -> Verdict:
        return rules._judge(word, record, effects, others)

    patch.setattr(applying, "judge", alone)
    patch.setattr(rules, "_in_doubt", lambda _send: None)


IGNORED = [
    (forget_the_yes, "two steps", "by its key", "its holder says that nothing happened"),
    # The store itself refuses to free such a key, which is taken for a race, again and again.
    (believe_the_no, "phased", "by a key that nobody knows", "another event says so"),
]


@pytest.mark.parametrize(("mutate", "kind", "named", "way"), IGNORED)
def test_a_yes_that_is_ignored_is_seen(
    lite: World,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
    kind: str,
    named: str,
    way: str,
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, StoreBusy)):
        before(lite, kind, named, way)


MUTANTS = {
    "drop the step": (drop_the_step, "half done, other step, unknown, executed"),
    "ignore the attempt": (ignore_the_attempt, "leased, other attempt, unknown, not executed"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_seen(lite: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mutate, where = MUTANTS[name]
    (cell,) = [cell for cell in matrix.CELLS if str(cell) == where]
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        matrix.test_an_event_after_its_state(lite, cell)

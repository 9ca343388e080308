"""The table that says whose a provider's word is: it is whole, no row of it is idle, and it never guesses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, get_type_hints

import pytest

from samekey.core.whose import (
    TABLES,
    By,
    End,
    Facts,
    Former,
    MadeBy,
    Moment,
    Named,
    Object,
    OfEffect,
    OfLife,
    OfSend,
    Others,
    Row,
    Whose,
    row_for,
    whose,
)

QUESTIONS = list(TABLES)


def every(question: type[Facts]) -> Iterator[Any]:
    """The whole product of what may be known."""
    hints = get_type_hints(question)
    values = [list(kind) if issubclass(kind, StrEnum) else [False, True] for kind in hints.values()]
    for combination in itertools.product(*values):
        yield question(*combination)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_row_decides_whatever_is_known_and_says_why(question: type[Facts]) -> None:
    decided: list[Row] = [row_for(facts) for facts in every(question)]
    assert {id(row) for row in decided} == {id(row) for row in TABLES[question]}, "a row that never decides"
    assert all(row.why for row in decided)
    assert len({row.why for row in TABLES[question]}) == len(TABLES[question])


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_row_names_nothing_that_is_not_asked(question: type[Facts]) -> None:
    hints = get_type_hints(question)
    for row in TABLES[question]:
        for name, fitting in row.fits.items():
            assert all(isinstance(one, hints[name]) for one in fitting), row.why


def test_a_life_that_is_not_the_first_is_settled_by_what_is_certainly_its_own() -> None:
    """By its own id, by an object that it has noted, by who looked at its time alone; or, of a yes, by an
    object that is none of those of former lives, all of which are known."""
    for facts in every(OfLife):
        if facts.former is Former.NONE or whose(facts) is not Whose.OURS:
            continue
        new = facts.object is Object.NEW and facts.former is Former.KNOWN
        heard = new and (facts.yes or facts.by is By.SEARCH)
        assert facts.by in (By.OPERATION, By.LOOK) or facts.object is Object.OWN or heard, facts


def test_a_yes_by_its_own_id_is_never_passed_over() -> None:
    for facts in every(OfLife):
        if facts.by is By.OPERATION:
            assert whose(facts) is not Whose.NOT_OURS
            assert whose(facts) is Whose.OURS or not facts.yes


def test_what_names_no_object_settles_no_later_life() -> None:
    for facts in every(OfLife):
        if facts.former is not Former.NONE and facts.object is Object.NONE and facts.by is By.KEY:
            assert whose(facts) is not Whose.OURS


def test_an_object_that_two_effects_have_settles_neither_unless_one_was_sent_only_after() -> None:
    for facts in every(OfEffect):
        shared = facts.others in (Others.DONE, Others.OPEN)
        if facts.named is Named.ITS_OBJECT and shared:
            assert whose(facts) is not Whose.OURS


def test_what_was_not_sent_is_nobodys() -> None:
    for facts in every(OfEffect):
        if facts.end is End.UNSENT:
            assert whose(facts) is Whose.NOT_OURS


def test_of_several_sends_a_no_frees_none_but_by_the_object_of_the_last() -> None:
    for facts in every(OfSend):
        if facts.several and whose(facts) is Whose.OURS:
            assert facts.object is MadeBy.LAST and facts.moment is Moment.AFTER

"""The error tree: the drawing in the module's docstring and the classes say the same."""

from __future__ import annotations

import re

import pytest

import samekey
from samekey import errors
from samekey.core.problem import CODES
from samekey.errors import SamekeyError

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == errors.__name__
}
LINE = re.compile(r"^    (?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: +(?P<sentence>\S.*))?$")


def drawn() -> dict[str, tuple[str | None, str]]:
    """By class: its parent in the drawing, and the sentence beside it."""
    found: dict[str, tuple[str | None, str]] = {}
    above: dict[int, str] = {}
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        depth, remainder = divmod(len(match["indent"]), 4)
        assert remainder == 0, f"{line!r} is drawn askew"
        assert match["name"] not in found, f"{match['name']} is drawn twice"
        found[match["name"]] = (above.get(depth - 1), match["sentence"] or "")
        above[depth] = match["name"]
    return found


TREE = drawn()


def test_every_error_is_drawn_and_every_drawn_error_exists() -> None:
    assert set(TREE) == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_hangs_where_it_is_drawn(name: str) -> None:
    parent = None if name == "SamekeyError" else CLASSES[name].__base__
    assert TREE[name][0] == (None if parent is None else parent.__name__)


@pytest.mark.parametrize("name", CLASSES)
def test_a_status_in_the_drawing_is_the_status_of_the_class(name: str) -> None:
    match = re.match(r"(\d{3}): ", TREE[name][1])
    if match is not None:
        kind = CLASSES[name]
        assert issubclass(kind, SamekeyError)
        assert kind.status == int(match[1])


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_has_a_status_a_listed_code_or_none_and_a_docstring(name: str) -> None:
    kind = CLASSES[name]
    assert issubclass(kind, SamekeyError)
    assert 400 <= kind.status <= 599
    assert kind.code is None or kind.code in CODES
    assert kind.__doc__


@pytest.mark.parametrize("name", CLASSES)
def test_what_says_that_the_store_is_unavailable_is_a_503(name: str) -> None:
    kind = CLASSES[name]
    assert issubclass(kind, SamekeyError)
    assert (kind.code == "store_unavailable") <= (kind.status == 503)
    assert (kind.code in {"outcome_unknown", "in_progress"}) <= (kind.status == 409)


def test_errors_that_users_raise_or_catch_are_public() -> None:
    public = {"ConfigurationError", "NotExecuted", "OutcomeUnknown", "SamekeyError", "StoreUnavailable"}
    assert public <= set(samekey.__all__)
    for name in public:
        assert getattr(samekey, name) is CLASSES[name]


@pytest.mark.parametrize("sentence", [errors.OpenTransaction(), errors.WrongIsolation("serializable")])
def test_sentences_say_what_happened_and_what_to_do(sentence: Exception) -> None:
    assert "Nothing was run" in str(sentence)
    assert "Give atomic handlers" in str(sentence)

"""Bodies that mean the same and are written differently, and bodies that mean something else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .endpoint import UNIQUE

Path = tuple[str | int, ...]

PADDING = 8192
"""Longer than any beginning of a body that somebody might hash instead of all of it."""
BEYOND = 2**53
"""From here on doubles cannot tell an integer from the next."""
MOST = 4
"""Members of a body that are changed, one after the other, until a change is noticed."""
ALL = 30
"""Members of which each is changed, to see whether all are compared."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value in a document, by the way that leads to it."""

    path: Path
    value: Any

    @property
    def name(self) -> str:
        return "/" + "/".join(str(step) for step in self.path)


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def made_unique(document: Any, word: str) -> Any:
    """The document with its placeholders replaced."""
    if isinstance(document, str):
        return document.replace(UNIQUE, word)
    if isinstance(document, list):
        return [made_unique(item, word) for item in document]
    if isinstance(document, dict):
        return {name: made_unique(item, word) for name, item in document.items()}
    return document


def leaves(document: Any, path: Path = ()) -> Iterator[Leaf]:
    """Every value that is neither an object nor a list."""
    for step, item in _items(document):
        yield from leaves(item, (*path, step))
    if not isinstance(document, dict | list):
        yield Leaf(path, document)


def changeable(document: Any, most: int = MOST) -> list[Leaf]:
    """The values to change, those first whose change is most likely to be accepted."""

    def rank(leaf: Leaf) -> int:
        value = leaf.value
        if isinstance(value, bool) or value is None:
            return 2
        return 0 if isinstance(value, int | float) else 1

    return sorted(leaves(document), key=rank)[:most]


@dataclass(frozen=True, slots=True)
class Other:
    """A document that is another request, and how it differs."""

    name: str
    leaf: Leaf | None
    """The value that differs; None: a member more."""
    document: Any


def others(document: Any, most: int = MOST) -> list[Other]:
    """Other requests, by one value each; at last by a member that nobody knows."""
    found = [
        Other(f"another {leaf.name}", leaf, changed(document, leaf)) for leaf in changeable(document, most)
    ]
    more = {**document, "samekey": 1} if isinstance(document, dict) else {"samekey": 1}
    return [*found, Other("a member more", None, more)]


def look_alikes(document: Any) -> Iterator[Other]:
    """Other requests that are the same to whoever compares loosely: of each kind one, where there is one."""
    own = [leaf for leaf in leaves(document) if leaf.path]
    for leaf in [leaf for leaf in own if type(leaf.value) is int][:1]:
        yield Other(f"{leaf.name} as a string", leaf, replaced(document, leaf.path, str(leaf.value)))
    for leaf in [leaf for leaf in own if not leaf.value and isinstance(leaf.path[-1], str)][:1]:
        yield Other(f"no {leaf.name}", leaf, _without(document, leaf.path))
    for found in [found for found in _lists(document) if found.value[::-1] != found.value][:1]:
        turned = replaced(document, found.path, found.value[::-1])
        yield Other(f"{found.name} in another order", found, turned)


def _lists(document: Any, path: Path = ()) -> Iterator[Leaf]:
    if isinstance(document, list):
        yield Leaf(path, document)
    for step, item in _items(document):
        yield from _lists(item, (*path, step))


def _items(document: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(document, dict):
        return document.items()
    return enumerate(document) if isinstance(document, list) else ()


def _without(document: Any, path: Path) -> Any:
    found = copy.deepcopy(document)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return found


def changed(document: Any, leaf: Leaf) -> Any:
    """The document with another value there."""
    value = leaf.value
    if isinstance(value, bool):
        new: Any = not value
    elif isinstance(value, int | float):
        new = value + 1 if value + 1 != value else value / 2  # beyond 2^53 a double's next is itself
    elif isinstance(value, str):
        new = f"{value}x"
    else:
        new = "x"
    return replaced(document, leaf.path, new)


def replaced(document: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    found = copy.deepcopy(document)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return found


def reordered(document: Any) -> bytes:
    """The same document: members in another order, other white space."""
    return json.dumps(_turned(document), indent=1).encode()


def _turned(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _turned(document[name]) for name in reversed(document)}
    return [_turned(item) for item in document] if isinstance(document, list) else document


def padded_with_blanks(document: Any) -> bytes | None:
    """The same document, with much white space at its beginning; None for what is no object or list."""
    text = json.dumps(document)
    return (text[0] + " " * PADDING + text[1:]).encode() if text[0] in "{[" else None


def padded_with_member(document: Any) -> bytes | None:
    """The document with a long member that comes first, in order and by name."""
    return encoded({"!samekey": "x" * PADDING, **document}) if isinstance(document, dict) else None


def repeated(document: Any, leaf: Leaf, first: Any, last: Any) -> bytes | None:
    """The document with one of its own members twice; None if it is not one of the outermost."""
    if not isinstance(document, dict) or len(leaf.path) != 1:
        return None
    pairs = [(name, first if name == leaf.path[0] else item) for name, item in document.items()]
    written = [f"{json.dumps(name)}: {json.dumps(item)}" for name, item in (*pairs, (leaf.path[0], last))]
    return ("{" + ", ".join(written) + "}").encode()


def invalid(document: Any) -> list[bytes]:
    """Bodies that most endpoints refuse, in JSON all the same: nothing in it, and a wrong type."""
    found = [b"{}" if document != {} else b"[]"]
    first = next(leaves(document), None)
    if first is not None and first.path:
        found.append(encoded(replaced(document, first.path, {"samekey": [None]})))
    return found

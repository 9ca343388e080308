"""JSON Pointer (RFC 6901) over parsed documents: find a value, leave one out.

Pure. Documents are never changed in place. A pointer that leads nowhere finds nothing; only one
that is not a pointer at all is an error, and that when it is built, not when a request comes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Pointer", "find", "holds_value", "parse_pointer", "remove"]

_ESCAPE = re.compile(r"~[01]")
# Long enough for every array there is, short enough never to be a costly integer.
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer and its unescaped reference tokens. The empty pointer is the whole document."""

    text: str
    tokens: tuple[str, ...]


def parse_pointer(text: str) -> Pointer:
    """Read a JSON Pointer such as ``/customer/id``; raises ``ValueError`` if it is none."""
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is not a JSON Pointer: it must begin with '/'")
    if "~" in _ESCAPE.sub("", text):
        raise ValueError(f"{text!r} is not a JSON Pointer: write '~' as '~0' and '/' as '~1'")
    tokens = (token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:])
    return Pointer(text, tuple(tokens))


def find(document: Any, pointer: Pointer) -> tuple[Any] | None:
    """Return the value there, in a tuple of one since it may be None, or None if there is none."""
    for token in pointer.tokens:
        key = _key(document, token)
        if key is None:
            return None
        document = document[key]
    return (document,)


def remove(document: Any, pointer: Pointer) -> Any:
    """Return the document without the value there; the very same object if there is none.

    A member disappears. An array's item becomes an empty array instead, so that the items after it
    keep their places and the array its length.
    """
    trail: list[tuple[Any, str | int]] = []
    node = document
    for token in pointer.tokens:
        key = _key(node, token)
        if key is None:
            return document
        trail.append((node, key))
        node = node[key]
    parent, last = trail.pop()
    changed = parent.copy()
    if isinstance(last, int):
        changed[last] = []
    else:
        del changed[last]
    for parent, key in reversed(trail):
        copy = parent.copy()
        copy[key] = changed
        changed = copy
    return changed


def holds_value(document: Any) -> bool:
    """Whether there is anything but empty containers in it."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        else:
            return True
    return False


def _key(node: Any, token: str) -> str | int | None:
    if isinstance(node, dict):
        return token if token in node else None
    if isinstance(node, list) and _INDEX.fullmatch(token) and int(token) < len(node):
        return int(token)
    return None

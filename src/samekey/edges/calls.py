"""Which guarded method an undecorated one of the same class calls, by itself or through others.

Two guards would meet there in the middle of a request: by then the outer method may have acted, so the key
could not be freed any more, and a missing one would be told too late. So it is said before anything runs.
What is called in another way than ``self.name`` and ``super().name`` is not seen.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

from ..core.states import Mode
from ..engine.handler.marks import Mark, mark_of, own_handler


def guarded_call(owner: type, name: str) -> Mark | None:
    """The mark of a guarded method that this one leads to; None where none is found."""
    waiting, seen = [_defined(owner, name)], set[int]()
    while waiting:
        place, function = waiting.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        for called, above in _calls(inspect.unwrap(own_handler(function))):
            found = _defined(owner, called, after=place if above else None)
            mark = None if found[1] is None else mark_of(found[1])
            if isinstance(mark, Mark):
                return mark
            if mark is None:
                waiting.append(found)
    return None


IN_TRANSACTION: Final = (Mode.ATOMIC, Mode.DEFERRED, Mode.PHASED)
"""Work that begins a transaction of its own."""


def meets_another(guarded: Mark, said_of_others: str) -> bool:
    """Whether a request would meet two guards there: a key would be asked for too late, or a transaction
    begun inside an operation. ``said_of_others``: what becomes of undecorated handlers."""
    missing = guarded.rules.required and said_of_others != "required"
    return missing or (said_of_others != "pass" and guarded.rules.mode in IN_TRANSACTION)


def two_guards_of(route: str, by: str, guarded: Mark) -> str:
    mode, name = guarded.rules.mode, guarded.function.__qualname__
    return (
        f"{route}: {by} is not decorated, but leads to {name}, which is {mode}: two guards would meet in the "
        f"middle of a request, so nothing is run. Put @idempotency.{mode} on {by} as well (with "
        "required=False, if a key may be missing): both are one operation then. Or have both call a method "
        "that is not guarded."
    )


def _defined(owner: type, name: str, after: type | None = None) -> tuple[type, Any]:
    """The class that has a method, and the method; ``after``: behind that class, as ``super()`` looks."""
    order = owner.__mro__
    for place in order if after is None else order[order.index(after) + 1 :]:
        function = vars(place).get(name)
        if function is not None:
            return place, function if inspect.isfunction(function) else None
    return owner, None


def _calls(function: Any) -> Iterator[tuple[str, bool]]:
    """The methods of its own object that a function's code names, and whether by ``super()``."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_argcount:
        yield from _calls_in(code, code.co_varnames[0])


def _calls_in(code: CodeType, me: str) -> Iterator[tuple[str, bool]]:
    before: list[dis.Instruction] = []
    for one in dis.get_instructions(code):
        if one.opname == "LOAD_SUPER_ATTR":
            yield str(one.argval), True
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and before:
            loaded = before[-1].argval
            if before[-1].opname.startswith(_LOADS) and (loaded[-1:] == (me,) or loaded == me):
                yield str(one.argval), False
            elif _is_super(before):
                yield str(one.argval), True
        before.append(one)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _calls_in(inner, me)


_LOADS: Final = ("LOAD_FAST", "LOAD_DEREF")


def _is_super(before: list[dis.Instruction]) -> bool:
    """Whether what was loaded last is what ``super()`` has given."""
    for one in reversed(before[-6:]):
        if one.opname == "LOAD_GLOBAL":
            return bool(one.argval == "super")
        if not one.opname.startswith(("PRECALL", "CALL", "PUSH_NULL", *_LOADS)):
            return False
    return False

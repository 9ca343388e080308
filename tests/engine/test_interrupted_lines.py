"""A signal handler that raises, at any line between a claim and its outcome, in sync code on SQLite."""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import Any

import pytest

from samekey import Idempotency
from samekey.engine.engine import Engine
from samekey.engine.handler.boundary import Boundary
from samekey.engine.modes.leased import Leased
from samekey.engine.once import Once
from samekey.engine.operation import Running
from samekey.errors import SamekeyError

WATCHED = {one.__code__ for one in (Once.run, Boundary.enter, Running.judge, Running.__init__, Leased.begin)}
WATCHED |= {Engine.finish.__code__}


class Interruption:
    """Raises at the n-th line of the functions that are watched, once the key is claimed."""

    def __init__(self, idempotency: Idempotency, at: int) -> None:
        self.keeper, self.left, self.hit = idempotency.engine.keeper, at, ""
        self.begun = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code in WATCHED else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.begun = self.begun or bool(self.keeper._watched)
        ends = not self.keeper._watched
        # Python looks for signals at calls and jumps: none is heard at these words themselves.
        words = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        deaf = words in ("try:", "finally:") or words.startswith(("with ", "except "))
        if event == "line" and self.begun and not ends and not deaf and not self.hit:
            self.left -= 1
            if self.left == 0:
                self.hit = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line


@pytest.mark.parametrize("mode", ["leased", "repeatable"])
def test_no_key_is_kept_alive_by_nobody(sqlite_url: str, mode: Any) -> None:
    idempotency = Idempotency(sqlite_url)
    idempotency.once(tenant="t", key="warm", run=lambda: 1, mode=mode)
    at, ran = 0, list[int]()
    while True:
        at += 1
        ran.clear()
        interruption = Interruption(idempotency, at)
        traced = sys.gettrace()
        sys.settrace(interruption)
        try:
            idempotency.once(tenant="t", key=f"k{at}", run=lambda: ran.append(1), mode=mode)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(traced)
        if not interruption.hit:
            break
        assert not idempotency.engine.keeper._watched, f"kept alive: {interruption.hit}"
        may_have_happened = bool(ran)
        try:
            idempotency.once(tenant="t", key=f"k{at}", run=lambda: ran.append(1), mode=mode)
        except SamekeyError:
            continue  # nobody can tell, or its lease is still to run out: nothing is run
        assert not may_have_happened or ran == [1], f"run twice: {interruption.hit}"
    assert at > 20, "it was looked at line by line"
    idempotency.close()

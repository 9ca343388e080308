"""Errands of several event loops: one that shuts down waits for its own, whatever others begin meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from samekey.engine.errands import Errands


@pytest.mark.parametrize("where", ["_under_way", "_carried"])
def test_a_loop_that_shuts_down_does_not_mind_what_other_loops_begin(where: str) -> None:
    errands = Errands()
    kept: set[Any] = getattr(errands, where)

    class Another:
        """An errand of another thread's loop. While it is looked at, that thread begins the next one."""

        @property
        def loop(self) -> None:
            kept.add(object())

        def get_loop(self) -> None:
            kept.add(object())

    kept.add(Another())
    asyncio.run(errands.settle(0))
    assert len(kept) == 2

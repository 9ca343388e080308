"""Steps that async code begins. One that nobody awaited has not happened, and must not look as if it had."""

from __future__ import annotations

import inspect
from typing import Any

from ...errors import StepNotAwaited


class Steps:
    """The coroutines that were handed out for the steps of one operation, in their order."""

    def __init__(self) -> None:
        self._begun: list[tuple[str, Any]] = []

    def note(self, name: str, step: Any) -> None:
        """Remembers a step; what is no coroutine, in sync code, is over already."""
        if inspect.iscoroutine(step):
            self._begun.append((name, step))

    def forgotten(self, *, before: str | None = None) -> StepNotAwaited | None:
        """The first step that nobody has awaited, as an error; it will not run any more.

        ``before``: only of the steps that came before this one; those that run beside it are not meant.
        """
        for name, step in self._begun:
            if name == before:
                break
            state = inspect.getcoroutinestate(step)
            if state == inspect.CORO_CREATED:
                self.drop()
                return StepNotAwaited(
                    f"{name} was never awaited, so it did not run, and the operation was not recorded as "
                    "done. Write await in front of it."
                )
            if before is None and state != inspect.CORO_CLOSED:
                return StepNotAwaited(
                    f"{name} was still running when the function returned, so the operation was not recorded "
                    "as done. Await it before you return."
                )
        return None

    def drop(self) -> None:
        """Whatever has not begun will not run any more."""
        for _, step in self._begun:
            if inspect.getcoroutinestate(step) == inspect.CORO_CREATED:
                step.close()

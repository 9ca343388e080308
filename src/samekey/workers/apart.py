"""Users' sync functions, called from async code in a thread of their own.

A pool that others share could be used up by those that hang, and the process would wait for them at its end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any


class Ended(Exception):
    """It raised what is no ordinary error: SystemExit, KeyboardInterrupt, a cancellation of its own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"It raised {type(error).__name__}: {error}")


async def call_apart(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Its result, or what it raised; ``Ended`` for what a future cannot carry."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        raised: Exception | None = None
        try:
            result = function(*arguments)
        except StopIteration as error:
            raised = Ended(error)
        except Exception as error:
            raised = error
        except BaseException as error:
            raised = Ended(error)
        try:
            loop.call_soon_threadsafe(settle, result, raised)
        except RuntimeError:
            pass  # the loop is gone: nobody waits any more

    threading.Thread(target=work, name=name, daemon=True).start()
    return await future

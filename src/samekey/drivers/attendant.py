"""A thread that attends to something for as long as the process lives, and is there whenever it is needed.

There are moments in which none can be started: a limit on processes, memory at its end. Whoever needs the
thread then is told so; the next one who needs it tries anew. So does the first one after it has died.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .places import NoPlace


def attending(
    thread: threading.Thread | None, work: Callable[[], object], name: str
) -> tuple[threading.Thread, bool]:
    """The thread, and whether it is new. Assign it while you hold the lock that ``work`` takes first.

    ``StoreBusy`` if it is not there and none can be started: nothing has changed then.
    """
    if thread is not None and thread.is_alive():
        return thread, False
    made = threading.Thread(target=work, name=name, daemon=True)
    start(made)
    return made, True


def start(thread: threading.Thread) -> None:
    """``StoreBusy`` if no thread can be started just now."""
    try:
        thread.start()
    except RuntimeError as error:
        raise NoPlace(f"No thread can be started just now ({error}). Retry with the same key.") from error

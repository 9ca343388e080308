"""A process that a job forks gets signals of its own: they end it, and tell the worker nothing."""

from __future__ import annotations

import signal
import subprocess
import sys

SCRIPT = """
import asyncio, multiprocessing, signal, threading, time
from samekey.workers.ending import Signals

fork = multiprocessing.get_context("fork")
told, codes = [], []

def job():
    for number in range(20):
        child = fork.Process(target=time.sleep, args=(30,))
        child.start()
        child.terminate()  # at once: it may not have begun
        child.join(10)
        codes.append(child.exitcode)
        child.kill()
        if child.exitcode is None:
            break

loop = asyncio.new_event_loop()
stop, asked = lambda: told.append("stop"), lambda: told.append("asked")
signals = Signals(loop, stop=stop, asked=asked, patience=PATIENCE)
thread = threading.Thread(target=job)
thread.start()
thread.join()
if PATIENCE == 0:
    signals.close()
    loop.run_until_complete(asyncio.sleep(0))
    print(told, set(codes))
else:
    signal.raise_signal(signal.SIGTERM)  # its own, after all those children
    loop.run_until_complete(asyncio.sleep(0))
    print(told)
    signals.close()
"""


def run(patience: int) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.replace("PATIENCE", str(patience))
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_signal_to_a_forked_child_ends_the_child_and_not_the_worker() -> None:
    """The guardian has no patience here: it kills at the first signal that it hears of."""
    ended = run(patience=0)
    assert (ended.returncode, ended.stdout) == (0, f"[] {{{-signal.SIGTERM.value}}}\n"), ended


def test_a_worker_that_has_forked_still_hears_its_own_signal() -> None:
    ended = run(patience=3600)
    assert (ended.returncode, ended.stdout) == (0, "['asked', 'stop']\n"), ended

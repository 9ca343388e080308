"""What each of the racing processes does; a file of its own, so that they import no more than they need."""

from __future__ import annotations

import os

import psycopg

from samekey import Idempotency
from samekey.errors import StillRunning

_MADE: dict[str, Idempotency] = {}
"""In each process."""


def ask(turn: object, url: str, cache: str, key: str) -> set[int]:
    """One process's request and two retries: the answers that it got, if any."""
    if url not in _MADE:
        _MADE[url] = Idempotency(url, cache=cache, cache_in_progress=True, pool_size=2)
    answers = set()
    for _ in range(3):
        try:
            answers.add(_MADE[url].once(tenant="t", key=key, run=lambda: _effect(url, key)))
        except StillRunning:
            pass
    return answers


def _effect(url: str, key: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("insert into effects (key, pid) values (%s, %s)", (key, os.getpid()))
    return os.getpid()

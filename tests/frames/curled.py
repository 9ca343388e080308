"""The commands of a page, as its reader would type them: a server, and a request by curl, twice."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx2

from lab.processes import GuardedProcess, wait_until


def serve_and_ask_twice(
    command: Sequence[str], curl: str, place: str, directory: Path, env: Mapping[str, str]
) -> None:
    """``place`` is where the command listens. The second answer is the first one, replayed."""
    words = shlex.split(curl.replace("\\\n", " "))
    process = GuardedProcess(command, log=directory / "log", env=env, cwd=directory)
    try:
        wait_until(lambda: not process.running or _sent(words, place, "OPTIONS") is not None, timeout=60)
        first, again = _sent(words, place), _sent(words, place)
        assert first is not None and again is not None, process.output()
        assert (first.status_code, again.content) == (201, first.content), process.output()
        assert again.headers["Idempotent-Replayed"] == "true"
    finally:
        process.end(grace=10)


_CURL = argparse.ArgumentParser("curl")
_CURL.add_argument("url")
_CURL.add_argument("-i", action="store_true")
_CURL.add_argument("-u", default="")
_CURL.add_argument("-H", action="append")
_CURL.add_argument("-d")


def _sent(words: list[str], place: str, method: str = "POST") -> httpx2.Response | None:
    """None: nobody listens there yet."""
    said = _CURL.parse_args(words[1:])
    headers = dict(line.split(": ", 1) for line in said.H)
    user, _, password = said.u.partition(":")
    url = f"http://{said.url.replace('localhost:8000', place)}"
    try:
        return httpx2.request(
            method,
            url,
            headers=headers,
            content=said.d.encode(),
            auth=(user, password) if user else None,
            timeout=30,
        )
    except httpx2.TransportError:
        return None

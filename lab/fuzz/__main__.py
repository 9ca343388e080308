"""``python -m lab.fuzz``: odd requests over real sockets, at several frameworks and both edges."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Annotated

import typer

from lab.processes import ServedApp, serve_asgi, serve_wsgi

from .odd import request

ASGI = ("asgi", "starlette", "fastapi", "litestar")
WSGI = ("flask", "wsgi")
WAIT = 30.0
"""Seconds in which an answer comes, on a busy machine too."""
SENDERS = 4
WARM = 20


@dataclass(slots=True)
class Figures:
    """What came of it at one application."""

    app: str
    requests: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    """By status; 0 where a server closed the connection without one."""
    longest_ms: float = 0.0
    """Processor time of the longest callback of the event loop."""
    first_mb: float = 0.0
    """Memory after a tenth of the requests."""
    last_mb: float = 0.0
    examples: list[str] = field(default_factory=list)
    """Requests that were answered with 5xx."""

    @property
    def failed(self) -> int:
        return sum(count for status, count in self.answers.items() if status >= 500)


def fuzz(app: str, requests: int, seed: int = 0) -> Figures:
    """Sends that many requests to one application in a process of its own."""
    serve = serve_asgi if app in ASGI else serve_wsgi
    factory = app in ("starlette", "fastapi", "litestar", "flask")
    options = ["--loop", "asyncio", "--no-access-log"] if app in ASGI else []
    options += ["--factory"] if app in ASGI and factory else []
    named = f"lab.fuzz.apps:{app}()" if app == "flask" else f"lab.fuzz.apps:{app}"
    figures, lock = Figures(app), threading.Lock()
    with serve(named, options=options) as served:
        for number in range(WARM):  # what starting took does not count
            _answer(served.port, request(random.Random(f"{app} {number}"), -1 - number))
        for _ in range(2):  # the first one cleans up, and counts itself
            _pulse(served)
        tenth = max(SENDERS, requests // 10)
        for count in (tenth, max(0, requests - tenth)):
            places = iter(range(figures.requests, figures.requests + count))

            def send(places: object = places) -> None:
                while True:
                    with lock:
                        number = next(places, None)  # type: ignore[call-overload]
                    if number is None:
                        return
                    odd = request(random.Random(f"{seed} {app} {number}"), number)
                    status = _answer(served.port, odd)
                    with lock:
                        figures.answers[status] += 1
                        if status >= 500 and len(figures.examples) < 5:
                            figures.examples.append(f"{number}: {status} {odd[:200]!r}")

            threads = [threading.Thread(target=send) for _ in range(SENDERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            figures.requests += count
            found = _pulse(served)
            figures.longest_ms = max(figures.longest_ms, found["longest_ms"])
            figures.last_mb = found["megabytes"]
            figures.first_mb = figures.first_mb or found["megabytes"]
    return figures


def _pulse(served: ServedApp) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=WAIT)
    connection.request("GET", "/pulse")
    found: dict[str, float] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def _answer(port: int, odd: bytes) -> int:
    """The status of the first answer; 0 where there is none."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as connection:
        try:
            connection.sendall(odd)
        except OSError:
            pass  # it has answered before it had read all of it, and closed
        try:
            head = connection.recv(64, socket.MSG_WAITALL)
        except ConnectionError:
            return 0
    words = head.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1][:3].isdigit() else 0


def main(
    requests: Annotated[int, typer.Option(help="For all applications together.")] = 6_000,
    seed: Annotated[int, typer.Option(help="Another one gives other requests.")] = 0,
    app: Annotated[list[str] | None, typer.Option(help="Only this one; may be given again.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON, nothing else.")] = False,
) -> None:
    """No answer of 5xx, no event loop held up, no growth of memory: or else the exit code is 1."""
    chosen = app or [*ASGI, *WSGI]
    began, found = time.monotonic(), []
    for name in chosen:
        figures = fuzz(name, requests // len(chosen), seed)
        found.append(figures)
        if not as_json:
            answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(figures.answers.items()))
            typer.echo(
                f"{name:10} {figures.requests:9,} requests  5xx: {figures.failed}  "
                f"longest callback: {figures.longest_ms:.1f} ms  "
                f"memory: {figures.first_mb:.0f} to {figures.last_mb:.0f} MB  ({answers})"
            )
            for example in figures.examples:
                typer.echo(f"           {example}")
    if as_json:
        typer.echo(json.dumps([asdict(figures) for figures in found]))
    else:
        typer.echo(f"{sum(one.requests for one in found):,} requests in {time.monotonic() - began:.0f} s")
    raise typer.Exit(any(one.failed for one in found))


if __name__ == "__main__":
    typer.run(main)

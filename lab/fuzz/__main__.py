"""``python -m lab.fuzz``: odd requests over real sockets, at several frameworks and both edges."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

from lab.processes import ServedApp, serve_asgi, serve_wsgi

from .odd import Odd, request
from .sending import WAIT, Sender

ASGI = ("asgi", "starlette", "fastapi", "litestar")
WSGI = ("flask", "wsgi")
SENDERS = 4
PIPELINED = 4
"""Requests that are sent at once under ASGI. gunicorn's threads answer one before they look for the next."""
WARM = 100
LONGEST_MS = 5.0
"""No callback of an event loop may take longer."""
PARTS = 10
"""How often memory is looked at."""


@dataclass(slots=True)
class Figures:
    """What came of it at one application."""

    app: str
    requests: int = 0
    headers: int = 0
    """Header values that were made up."""
    answers: dict[int, int] = field(default_factory=dict)
    """By status; 0 where a server closed the connection without one."""
    longest_ms: float = 0.0
    """Processor time of the longest callback of the event loop, without the garbage collector's."""
    long: list[str] = field(default_factory=list)
    """Those over the limit, the first few."""
    collector_ms: float = 0.0
    """The longest pause of Python's garbage collector."""
    megabytes: list[float] = field(default_factory=list)
    """Memory after each part."""
    allocated: list[float] = field(default_factory=list)
    """Of it what C code has asked for and not given back: what is more is the C library's to keep."""
    blocks: list[int] = field(default_factory=list)
    """Pieces of memory that Python objects hold."""
    examples: list[str] = field(default_factory=list)
    """Requests that were answered with 5xx."""

    @property
    def values(self) -> int:
        """Headers and bodies."""
        return self.headers + self.requests

    @property
    def failed(self) -> int:
        return sum(count for status, count in self.answers.items() if status >= 500)

    @property
    def growth_mb(self) -> float:
        """From the middle to the end."""
        return self.megabytes[-1] - max(self.megabytes[: max(1, len(self.megabytes) // 2)])

    @property
    def held(self) -> bool:
        return not self.failed and self.longest_ms <= LONGEST_MS


def fuzz(app: str, values: int, seed: int = 0, *, bare: bool = False, freeze: bool = True) -> Figures:
    """Sends requests with that many header values and bodies to one application, in a process of its own.

    ``bare``: without samekey, to compare. ``freeze``: it calls ``gc.freeze()`` once it has started.
    """
    serve = serve_asgi if app in ASGI else serve_wsgi
    factory = app in ("starlette", "fastapi", "litestar", "flask")
    options = ["--loop", "asyncio", "--no-access-log"] if app in ASGI else []
    options += ["--factory"] if app in ASGI and factory else []
    named = f"lab.fuzz.apps:{app}()" if app == "flask" else f"lab.fuzz.apps:{app}"
    env = {"SAMEKEY_FUZZ_BARE": "1"} if bare else {}
    figures = Figures(app)
    with serve(named, env, options=options) as served:
        _part(served, Figures(app), f"{seed} {app} warm", 10 * WARM)  # what starting took does not count
        _pulse(served, freeze=freeze)
        for part in range(PARTS):
            _part(served, figures, f"{seed} {app}", (part + 1) * values // PARTS)
            found = _pulse(served)
            figures.longest_ms = max(figures.longest_ms, found["longest_ms"])
            figures.collector_ms = max(figures.collector_ms, found["collector_ms"])
            figures.long += found["long"][: 5 - len(figures.long)]
            figures.megabytes.append(round(found["megabytes"], 1))
            figures.allocated.append(round(found["allocated"], 1))
            figures.blocks.append(found["blocks"])
        if figures.failed:
            figures.examples.append(served.output()[-4000:])
    return figures


def _part(served: ServedApp, figures: Figures, seed: str, until: int) -> None:
    """Goes on until there were so many header values and bodies."""
    lock = threading.Lock()
    pipelined = PIPELINED if figures.app in ASGI else 1
    problems: list[BaseException] = []

    def take() -> list[tuple[int, Odd]]:
        taken: list[tuple[int, Odd]] = []
        with lock:
            while len(taken) < pipelined and figures.values < until:
                number = figures.requests
                odd = request(random.Random(f"{seed} {number}"), number, int(time.time()))
                taken.append((number, odd))
                figures.requests += 1
                figures.headers += odd.headers
        return taken

    def send() -> None:
        sender = Sender(served.port)
        try:
            while taken := take():
                statuses = [*sender.send([odd.wire for _, odd in taken])]
                with lock:
                    for (number, odd), status in zip(taken, statuses, strict=True):
                        figures.answers[status] = figures.answers.get(status, 0) + 1
                        if status >= 500 and len(figures.examples) < 5:
                            figures.examples.append(f"{number}: {status} {odd.wire[:300]!r}")
        except BaseException as problem:
            problems.append(problem)
        finally:
            sender.close()

    threads = [threading.Thread(target=send) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def _pulse(served: ServedApp, *, freeze: bool = False) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=WAIT)
    connection.request("GET", "/pulse?freeze" if freeze else "/pulse")
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def main(
    values: Annotated[int, typer.Option(help="Headers and bodies, of all applications together.")] = 60_000,
    seed: Annotated[int, typer.Option(help="Another one gives other requests.")] = 0,
    app: Annotated[list[str] | None, typer.Option(help="Only this one; may be given again.")] = None,
    bare: Annotated[bool, typer.Option(help="The same applications without samekey, to compare.")] = False,
    freeze: Annotated[bool, typer.Option(help="gc.freeze() once an application has started.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON, nothing else.")] = False,
) -> None:
    """No answer of 5xx and no event loop held up for more than 5 ms, or else the exit code is 1."""
    chosen = app or [*ASGI, *WSGI]
    began, found = time.monotonic(), []
    for name in chosen:
        figures = fuzz(name, values // len(chosen), seed, bare=bare, freeze=freeze)
        found.append(figures)
        if not as_json:
            _tell(figures)
    if as_json:
        typer.echo(json.dumps([asdict(figures) for figures in found]))
    else:
        requests, headers = sum(one.requests for one in found), sum(one.headers for one in found)
        typer.echo(f"{headers:,} headers and {requests:,} bodies in {time.monotonic() - began:.0f} s")
    raise typer.Exit(not all(one.held for one in found))


def _tell(figures: Figures) -> None:
    answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(figures.answers.items()))
    memory = [figures.megabytes[place] for place in (0, len(figures.megabytes) // 2, -1)]
    typer.echo(
        f"{figures.app:10} {figures.headers:9,} headers {figures.requests:8,} bodies  5xx: {figures.failed}  "
        f"longest: {figures.longest_ms:.1f} ms, collector {figures.collector_ms:.1f} ms  "
        f"memory: {', '.join(f'{one:.0f}' for one in memory)} MB"
    )
    typer.echo(f"           {answers}")
    for line in (*figures.long, *figures.examples):
        typer.echo(f"           {line}")


if __name__ == "__main__":
    typer.run(main)

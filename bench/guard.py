"""``make bench``: what a guard costs, as ratios to the same handler without one.

Each variant is measured in turn, several times over, so that the machine's moods fall on all of them alike.
The figure to steer by is the processor time for one request, of application and database: it hardly
depends on what else the machine has to do. Rates and latencies do. Round trips are counted on the wire, in a
pass of their own. A ratio is the unguarded handler's figure divided by the variant's: 0.50 is twice the cost.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.chart import chart
from bench.load import Clients, Keys, half_and_half, hot_key, new_keys, processor_time, same_key
from bench.stands import STANDS, TITLES, UNGUARDED, Stand, standing

WORKLOADS: Final[dict[str, Keys]] = {
    "new key": new_keys,
    "replay": same_key,
    "half": half_and_half,
    "hot key": hot_key,
}
WARM: Final = 150
"""Requests before the first that counts: every connection is there, and its statements are prepared."""
COUNTED: Final = 320


@dataclass
class Cell:
    """One variant under one workload: the figures for one request."""

    stand: str
    variant: str
    workload: str
    app_us: float = 0
    database_us: float = 0
    per_second: float = 0
    p50_ms: float = 0
    p99_ms: float = 0
    round_trips: float | None = None
    commits: float | None = None
    log_bytes: float | None = None
    ratios: dict[str, float] = field(default_factory=dict)


@dataclass
class Tally:
    """What the rounds of one cell have come to."""

    requests: int = 0
    app: float = 0
    database: float = 0
    rates: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)


def workloads_of(variant: str, chosen: Sequence[str]) -> list[str]:
    """To an unguarded handler every request is new."""
    return ["new key"] if variant == UNGUARDED else list(chosen)


def one_round(stand: Stand, clients: Clients, tally: Tally, count: int) -> None:
    app, databases = processor_time(stand.app.pid), processor_time(*stand.servers)
    begin = time.perf_counter()
    took = clients.send(count)
    tally.rates.append(len(took) / (time.perf_counter() - begin))
    tally.app += processor_time(stand.app.pid) - app
    tally.database += processor_time(*stand.servers) - databases
    tally.requests += len(took)
    tally.took += took


def count_trips(stand: Stand, cell: Cell) -> None:
    """Round trips, commits and bytes of log, with every connection at work."""
    assert stand.counted is not None
    clients = Clients(stand.counted.port, f"/{cell.variant}", WORKLOADS[cell.workload])
    clients.send(WARM)
    trips = sum(relay.trips for relay in stand.relays)
    commits, written = stand.written() if stand.written else (0, 0)
    count = len(clients.send(COUNTED))
    cell.round_trips = round((sum(relay.trips for relay in stand.relays) - trips) / count, 2)
    if stand.written is not None:
        after = stand.written()
        cell.commits = round((after[0] - commits) / count, 2) if after[0] else None
        cell.log_bytes = round((after[1] - written) / count)


def measure(name: str, options: Any) -> list[Cell]:
    with standing(name) as stand:
        variants = [
            one for one in stand.variants if not options.variants or one in {UNGUARDED, *options.variants}
        ]
        cells = [Cell(name, v, w) for v in variants for w in workloads_of(v, options.workloads)]
        tallies = [Tally() for _ in cells]
        clients = [Clients(stand.app.port, f"/{cell.variant}", WORKLOADS[cell.workload]) for cell in cells]
        for cell, asking in zip(cells, clients, strict=True):
            if stand.counted is not None:
                count_trips(stand, cell)
            asking.send(WARM)
        for number in range(options.rounds):
            for asking, tally in zip(clients, tallies, strict=True):
                one_round(stand, asking, tally, options.requests)
            print(f"{name}: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    for cell, tally in zip(cells, tallies, strict=True):
        cell.app_us = round(tally.app / tally.requests * 1e6)
        cell.database_us = round(tally.database / tally.requests * 1e6)
        cell.per_second = round(statistics.median(tally.rates))
        cell.p50_ms = round(statistics.median(tally.took) * 1000, 1)
        cell.p99_ms = round(statistics.quantiles(tally.took, n=100)[98] * 1000, 1)
    base = cells[0]
    for cell in cells:
        cell.ratios = {
            "app": round(base.app_us / max(1, cell.app_us), 2),
            "rate": round(cell.per_second / max(1, base.per_second), 2),
        }
        if base.database_us:
            cell.ratios["database"] = round(base.database_us / max(1, cell.database_us), 2)
    return cells


COLUMNS: Final = (
    ("app µs", "app_us"),
    ("db µs", "database_us"),
    ("requests/s", "per_second"),
    ("p50 ms", "p50_ms"),
    ("p99 ms", "p99_ms"),
    ("round trips", "round_trips"),
    ("commits", "commits"),
    ("log bytes", "log_bytes"),
)


def table(cells: Sequence[Cell]) -> str:
    """Markdown: one line for each cell, the ratios first."""
    lines: list[str] = []
    for stand in dict.fromkeys(cell.stand for cell in cells):
        heads = ["app ratio", "db ratio", *(head for head, _ in COLUMNS)]
        lines += [
            "",
            f"**{TITLES[stand]}**",
            "",
            f"| | {' | '.join(heads)} |",
            "|---" * (len(heads) + 1) + "|",
        ]
        for cell in cells:
            if cell.stand == stand:
                values: list[Any] = [cell.ratios.get("app"), cell.ratios.get("database")]
                values += [getattr(cell, name) for _, name in COLUMNS]
                shown = ["–" if value is None else str(value) for value in values]
                lines.append(f"| {cell.variant}, {cell.workload} | {' | '.join(shown)} |")
    return "\n".join(lines[1:])


def machine() -> dict[str, Any]:
    try:
        import httptools  # type: ignore[import-not-found,unused-ignore] # noqa: F401

        parser = "httptools"
    except ImportError:
        parser = "h11"
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "uvicorn_parses_with": parser,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stands", nargs="+", choices=list(STANDS), default=list(STANDS))
    parser.add_argument("--variants", nargs="+", help="besides the unguarded one; all by default")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--requests", type=int, default=320, help="of each variant in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the chart there")
    options = parser.parse_args()
    cells = [cell for name in options.stands for cell in measure(name, options)]
    print(table(cells))
    if options.json:
        found = {"machine": machine(), "cells": [asdict(cell) for cell in cells]}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if options.svg:
        bars = [
            (TITLES[cell.stand], f"{cell.variant}, {cell.workload}", cell.app_us, cell.database_us)
            for cell in cells
            if cell.workload in ("new key", "replay")
        ]
        options.svg.write_text(chart("Processor time for one request, µs", bars))


if __name__ == "__main__":
    main()

"""``python -m lab.mutation``: measure, change, run, report."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from lab import ROOT
from lab.mutation import judge as judging
from lab.mutation.changes import Mutant, mutants_of
from lab.mutation.reach import KEPT, Reach, files_of, measure, read

PARTS = ("core", "engine", "stores/keys.py", "stores/sql")
"""The rules, the engine and the programs."""


def main() -> int:
    chosen = _arguments()
    reach = measure(chosen.workers) if chosen.measure or not list(KEPT.glob("seconds.*.json")) else read()
    mutants = [one for file in files_of(chosen.parts or PARTS) for one in mutants_of(ROOT / "src", file)]
    seed = random.randrange(10**6) if chosen.seed is None else chosen.seed
    if chosen.sample and chosen.sample < len(mutants):
        mutants = sorted(random.Random(seed).sample(mutants, chosen.sample))
    print(f"{len(mutants)} mutants, seed {seed}", flush=True)
    judged = _judge_all(mutants, reach, chosen.workers)
    return _report(judged, seed, chosen.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.mutation", description=__doc__)
    parser.add_argument("parts", nargs="*", help="folders or files of the package; else those that matter")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, chosen by chance; 0: all")
    parser.add_argument("--seed", type=int, help="which ones")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--measure", action="store_true", help="measure anew which test reaches which line")
    parser.add_argument("--json", type=Path, help="a file for every verdict")
    return parser.parse_args()


def _judge_all(mutants: list[Mutant], reach: Reach, workers: int) -> list[judging.Judged]:
    from lab.servers.postgres import URL_VARIABLE, PostgresUnavailable, find_server

    judging.warm_up()
    begun, judged = time.monotonic(), list[judging.Judged]()
    context = multiprocessing.get_context("fork")
    try:
        server = find_server()
    except PostgresUnavailable as missing:
        raise SystemExit(str(missing)) from None
    with ExitStack() as held:
        os.environ[URL_VARIABLE] = held.enter_context(server).url
        copies: multiprocessing.Queue[Path] = context.Queue()
        for _ in range(workers):
            copies.put(source := held.enter_context(judging.copied()))
        judging.check(reach, source)
        pool = held.enter_context(context.Pool(workers, initializer=_begin, initargs=(reach, copies)))
        for one in pool.imap_unordered(_judge_one, mutants):
            judged.append(one)
            if one.verdict in {"survived", "not reached"}:
                print(f"{one.verdict}: {one.mutant} ({one.tests} tests)", flush=True)
            if len(judged) % 50 == 0:
                print(f"… {len(judged)} of {len(mutants)}, {time.monotonic() - begun:.0f} s", flush=True)
    return judged


class _Judge:
    """What each process of the pool has: the measured reach, and a copy of the package of its own."""

    reach: Reach
    source: Path


def _begin(reach: Reach, copies: multiprocessing.Queue[Path]) -> None:
    _Judge.reach, _Judge.source = reach, copies.get()


def _judge_one(mutant: Mutant) -> judging.Judged:
    return judging.judge(mutant, _Judge.reach, _Judge.source)


def _report(judged: list[judging.Judged], seed: int, into: Path | None) -> int:
    count = Counter(one.verdict for one in judged)
    noticed = count["killed"] + count["hung"]
    share = noticed / max(1, len(judged))
    print(f"{noticed} of {len(judged)} mutants were noticed ({share:.1%}); seed {seed}; {dict(count)}")
    if into is not None:
        rows = [
            {"mutant": str(one.mutant), "verdict": one.verdict, "tests": one.tests}
            for one in sorted(judged, key=lambda one: one.mutant)
        ]
        into.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if share >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())

"""A plugin of pytest: notes for each test which lines of the package it enters, and how long it takes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

from lab import ROOT


class Tracing:
    """One for each process of the run."""

    def __init__(self, kept: Path) -> None:
        self.kept = kept
        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(
            data_file=str(kept / f"data.{os.getpid()}"),
            source=[str(ROOT / "src" / "samekey")],
            config_file=False,
        )
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        if self.seconds:
            (self.kept / f"seconds.{os.getpid()}.json").write_text(json.dumps(self.seconds))


def pytest_configure(config: pytest.Config) -> None:
    kept = os.environ.get("SAMEKEY_REACH")
    # The process that only gives out the tests runs none of them.
    if kept and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Tracing(Path(kept)))

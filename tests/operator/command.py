"""Runs the ``samekey`` command as a user would, inside the test's own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from samekey.cli.app import app


@dataclass(frozen=True)
class Ran:
    """What a command wrote, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The error, if it is one line and no traceback."""
        assert "Traceback" not in self.err
        return self.err.strip()


def samekey(*arguments: str, env: dict[str, str] | None = None) -> Ran:
    """``samekey ARGUMENTS…``"""
    # A test runner's own width must not cut what a pipe would get whole.
    clean: dict[str, str | None] = {"COLUMNS": None, **(env or {})}
    result = CliRunner().invoke(app, list(arguments), env=clean, catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)

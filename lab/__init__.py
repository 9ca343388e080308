"""The laboratory: real servers, proxies, processes and torture. The repository has it, the wheel does not."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ROOT", "environment"]

ROOT = Path(__file__).resolve().parent.parent
"""The repository, from where ``lab``, ``examples`` and ``tests`` are imported."""


def environment(**more: str) -> dict[str, str]:
    """The environment of a child process that finds what the repository has, whatever its directory is."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1", **more}

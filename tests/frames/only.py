"""Runs a module as if only some packages were installed: those that a page's own ``pip install`` brings.

python -m tests.frames.only "samekey[fastapi] uvicorn" MODULE ARGUMENT …
"""

from __future__ import annotations

import runpy
import sys
import tomllib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import ModuleType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def brought_by(wanted: Sequence[str]) -> set[str]:
    """The packages that these lines bring, with all that they need."""
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(one) for one in wanted]
    while waiting:
        one = waiting.pop()
        for extra in ("", *one.extras):
            name = canonicalize_name(one.name)
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                lines = _ours(extra) if name == "samekey" else requires(name) or []
            except PackageNotFoundError:
                continue  # for another platform
            needed = (Requirement(line) for line in lines)
            waiting += [it for it in needed if it.marker is None or it.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


def _ours(extra: str) -> list[str]:
    """As this checkout has it, whichever version is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines: list[str] = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return lines


class NotInstalled(MetaPathFinder):
    """Finds nothing of the packages that are not brought."""

    def __init__(self, brought: set[str]) -> None:
        self._away = {
            module
            for module, packages in packages_distributions().items()
            if not {canonicalize_name(one) for one in packages} & brought
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self._away:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def main() -> None:
    wanted, module, *arguments = sys.argv[1:]
    sys.meta_path.insert(0, NotInstalled(brought_by(wanted.split())))
    for name in [one for one in sys.modules if one.partition(".")[0] == "packaging"]:
        del sys.modules[name]
    sys.argv = [module, *arguments]
    sys.path.insert(0, "")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

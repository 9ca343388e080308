"""The command line. It needs the extra ``samekey[cli]`` and says so."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the ``samekey`` command."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        print("The command line needs its extra: pip install 'samekey[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    app()

"""``samekey spec module:app``: the specification of an API's idempotency, for its published docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SamekeyError
from ..ops.spec_openapi import openapi
from ..ops.spec_page import markdown
from .coverage import load_app
from .speech import complain, pour

COULD_NOT_WRITE = 2
"""The exit code if there is nothing to publish, or nowhere to write it."""


def spec_command(
    target: Annotated[
        str,
        typer.Argument(
            envvar="SAMEKEY_WEB_APP", help="Your application: module:app, or module:create_app() to make it."
        ),
    ],
    as_openapi: Annotated[
        bool,
        typer.Option(
            "--openapi", envvar="SAMEKEY_OPENAPI", help="A fragment of OpenAPI 3.1 in JSON, not Markdown."
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(envvar="SAMEKEY_OUTPUT", help="Write to this file instead.")
    ] = None,
) -> None:
    """Print what your API promises about idempotency, from the real configuration of each route."""
    try:
        app = load_app(target)
        text = json.dumps(openapi(app), indent=2) + "\n" if as_openapi else markdown(app)
    except SamekeyError as error:
        complain(error)
        raise typer.Exit(COULD_NOT_WRITE) from None
    write(text, output, COULD_NOT_WRITE)


def write(text: str, output: Path | None, failed: int) -> None:
    """To the file, or to standard output."""
    if output is None:
        pour(text)
        return
    try:
        # Line ends stay as they were made: CSV has its own.
        output.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    except OSError as error:
        complain(f"{output} could not be written: {error.strerror}.")
        raise typer.Exit(failed) from None

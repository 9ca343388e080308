"""What the commands print. Keys, paths, ids and errors are others' words: none of them steers a terminal.

Nothing else in this package writes to it; a test reads the package for that.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import typer

from ..logs import one_line

_CONTROLS: Final = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


def say(sentence: str) -> None:
    """One line."""
    typer.echo(one_line(sentence))


def advise(advice: str) -> None:
    """Lines of our own, with commands to paste; others' words in them are on one line each."""
    for line in advice.splitlines():
        say(line)


def complain(sentence: object) -> None:
    """On standard error, in the command's own name; what is a line of its own in it begins further in."""
    typer.echo("samekey: " + "\n  ".join(map(one_line, str(sentence).split("\n"))), err=True)


def pour(text: str) -> None:
    """A file's content, on standard output; what is no control character is the file's own."""
    typer.echo(_CONTROLS.sub(lambda found: one_line(found[0]), text), nl=False)


def show(line: str, *, colours: bool) -> None:
    """A line that was made ready already, perhaps with colours."""
    typer.echo(line, color=colours)


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    typer.echo("".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text))

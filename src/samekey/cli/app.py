"""The ``samekey`` command: each subcommand is a file of its own beside this one."""

from __future__ import annotations

import typer

from .migrate import migrate_command
from .worker import worker_command

app = typer.Typer(
    help="samekey: idempotency keys done right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """samekey: idempotency keys done right."""


app.command("migrate")(migrate_command)
app.command("worker")(worker_command)

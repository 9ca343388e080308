"""``python -m lab.torture``: torture this version of samekey on your own database, and see for yourself."""

from __future__ import annotations

import typer

from .outbox.command import outbox_command
from .service.command import service_command

app = typer.Typer(
    help="Torture this version of samekey on your own database, and see for yourself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("service")(service_command)
app.command("outbox")(outbox_command)

if __name__ == "__main__":
    app(prog_name="python -m lab.torture")

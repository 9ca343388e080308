"""The ``samekey`` command: each subcommand is a file of its own beside this one."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from .audit import audit_app
from .check import check_command
from .coverage import coverage_command
from .dead import dead_app
from .doctor import doctor_command
from .evidence import evidence_app
from .keys import keys_app
from .ledger import ledger_app
from .migrate import migrate_command
from .reap import reap_command
from .reconcile import reconcile_command
from .spec import spec_command
from .speech import say
from .sweep import sweep_command
from .worker import worker_command

app = typer.Typer(
    help="samekey: idempotency keys done right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes cut the names of options at 80 columns
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        say(f"samekey {version('samekey')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which version this is."),
    ] = False,
) -> None:
    """samekey: idempotency keys done right."""


app.command("migrate")(migrate_command)
app.command("worker")(worker_command)
app.add_typer(ledger_app, name="ledger")
app.command("coverage")(coverage_command)
app.command("spec")(spec_command)
app.add_typer(keys_app, name="keys")
app.add_typer(dead_app, name="dead")
app.add_typer(evidence_app, name="evidence")
app.add_typer(audit_app, name="audit")
app.command("sweep")(sweep_command)
app.command("reap")(reap_command)
app.command("reconcile")(reconcile_command)
app.command("doctor")(doctor_command)
app.command("check")(check_command)
